"""A gateway with narrow limits, the engine behind it, and what tests of both share."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import orjson
import pytest

from tests.gateway.echo import Echo
from tests.gateway.serving import gateway
from tests.gateway.wire import Answer

MOST_BYTES = 100_000
MOST_REQUESTS = 4
JSON = (("content-type", "application/json"),)
CLOSE = b"connection: close\r\n\r\n"
END = b"\r\nhost: gateway\r\n" + CLOSE


def status_of(said: bytes) -> int:
    return int(said.split(b" ", 2)[1])


def assert_error(answer: Answer, status: int, words: str) -> None:
    assert answer.status == status, answer
    body = orjson.loads(answer.body)
    assert body["status"] == status
    assert words in body["error"]["reason"]
    assert body["error"]["root_cause"][0]["type"] == body["error"]["type"]


@pytest.fixture(scope="session")
def echo() -> Iterator[Echo]:
    with Echo() as server:
        yield server


@pytest.fixture(scope="session")
def url(echo: Echo, tiny: Path) -> Iterator[str]:
    with gateway(echo.url, tiny, body_bytes=MOST_BYTES, concurrency=MOST_REQUESTS, answer_seconds=60.0) as address:
        yield address


@pytest.fixture(autouse=True)
def _a_new_start(echo: Echo) -> None:
    echo.start_anew()
