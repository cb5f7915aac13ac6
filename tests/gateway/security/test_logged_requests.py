"""What a request brings is quoted in answers and logs, but never at length."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from tests.gateway import patient
from tests.gateway.echo import Echo, raw
from tests.gateway.serving import gateway

MEGABYTE = 1_000_000


@pytest.fixture(scope="module")
def wide_url(echo: Echo, tiny: Path) -> Iterator[str]:
    with gateway(echo.url, tiny) as address:
        yield address


def test_unknown_model_is_not_echoed_at_length(wide_url: str) -> None:
    answer = patient.post(f"{wide_url}/v1/embeddings", json={"input": "a", "model": "m" * MEGABYTE})
    assert answer.status_code == 404
    assert len(answer.content) < 5000
    assert "characters" in answer.json()["error"]["message"]


@pytest.mark.parametrize("field", ["encoding_format", "input_type", "x" * MEGABYTE])
def test_invalid_fields_are_not_echoed_at_length(wide_url: str, field: str) -> None:
    answer = patient.post(f"{wide_url}/v1/embeddings", json={"input": "a", field: "v" * MEGABYTE})
    assert answer.status_code == 400
    assert len(answer.content) < 5000


def test_response_that_is_cut_off_is_logged_with_its_path(
    wide_url: str, echo: Echo, caplog: pytest.LogCaptureFixture
) -> None:
    head = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: 100\r\n\r\n"
    echo.reply = raw(head + b'{"a":', close=True)
    with caplog.at_level(logging.WARNING), pytest.raises(httpx.RemoteProtocolError):
        patient.get(f"{wide_url}/docs/_doc/cut?secret=1")
    lines = [record.getMessage() for record in caplog.records]
    assert any("the response to GET /docs/_doc/cut was cut off" in line for line in lines), lines
    assert not any("ASGI callable" in line or "secret" in line for line in lines)
