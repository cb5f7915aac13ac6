"""The application itself, called as an ASGI server calls it."""

from __future__ import annotations

import asyncio
import logging
from typing import Any

import pytest

from es_sbert.config import EngineSettings
from es_sbert.gateway.admission import ConnectionLimiter
from es_sbert.gateway.app import Gateway
from es_sbert.gateway.incoming_request import IncomingRequest, parse_object
from es_sbert.gateway.settings import GatewaySettings

SCOPE: dict[str, Any] = {
    "type": "http", "method": "GET", "path": "/", "raw_path": b"/", "query_string": b"",
    "headers": [(b"authorization", b"Basic c2VjcmV0")],
}  # fmt: skip


@pytest.mark.parametrize("begun", [False, True])
def test_unhandled_error_returns_engine_error_and_is_logged(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, begun: bool
) -> None:
    sent: list[dict[str, Any]] = []

    async def send(message: Any) -> None:
        sent.append(message)

    async def receive() -> Any:
        return {"type": "http.disconnect"}

    async def broken(self: Gateway, incoming: IncomingRequest, *rest: Any) -> None:
        if begun:
            await rest[-1]({"type": "http.response.start", "status": 200, "headers": []})
        raise KeyError("oops")

    monkeypatch.setattr(Gateway, "_dispatch", broken)
    settings = GatewaySettings(upstream=EngineSettings(url="http://127.0.0.1:9"))
    gateway = Gateway(settings, ConnectionLimiter(settings.limits))
    with caplog.at_level(logging.ERROR):
        asyncio.run(gateway(SCOPE, receive, send))
    if begun:
        # The server closes the connection of an answer without an end, which tells.
        assert [message["type"] for message in sent] == ["http.response.start"]
    else:
        assert sent[0]["status"] == 500
        assert "KeyError" in parse_object(sent[1]["body"])["error"]["reason"]
    assert "oops" in caplog.text
    assert "c2VjcmV0" not in caplog.text
