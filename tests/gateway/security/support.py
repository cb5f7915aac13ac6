"""What tests of security share."""

from __future__ import annotations

import orjson

from tests.gateway.wire import Answer

MOST_BYTES = 100_000
MOST_REQUESTS = 4
END = b"\r\nhost: gateway\r\nconnection: close\r\n\r\n"


def status_of(said: bytes) -> int:
    return int(said.split(b" ", 2)[1])


def assert_error(answer: Answer, status: int, words: str) -> None:
    assert answer.status == status, answer
    body = orjson.loads(answer.body)
    assert body["status"] == status
    assert words in body["error"]["reason"]
    assert body["error"]["root_cause"][0]["type"] == body["error"]["type"]
