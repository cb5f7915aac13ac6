"""The application itself, called as an ASGI server calls it, and its server."""

from __future__ import annotations

import asyncio
import logging
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import trustme
from cryptography.hazmat.primitives import serialization

from es_sbert.config import EngineSettings
from es_sbert.gateway.admission import ConnectionLimiter
from es_sbert.gateway.incoming_request import IncomingRequest, parse_object
from es_sbert.gateway.server.app import Gateway
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


def test_tls_key_with_a_password_is_refused_without_asking_for_it(tmp_path: Path) -> None:
    """Runs in a subprocess without a terminal, where OpenSSL would read the password from stdin."""
    issued = trustme.CA().issue_cert("localhost")
    issued.cert_chain_pems[0].write_to_path(tmp_path / "cert.pem")
    key = serialization.load_pem_private_key(issued.private_key_pem.bytes(), None)
    locked = serialization.BestAvailableEncryption(b"secret")
    form = serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8
    (tmp_path / "key.pem").write_bytes(key.private_bytes(*form, locked))
    code = (
        "from es_sbert.config import EngineSettings; from es_sbert.gateway.server.uvicorn_server import create_server; "
        "from es_sbert.gateway.settings import GatewaySettings, ListenSettings; "
        "listen = ListenSettings(certificate='cert.pem', key='key.pem'); "
        "create_server(GatewaySettings(upstream=EngineSettings(url='http://127.0.0.1:9'), listen=listen))"
    )
    told = subprocess.run(
        [sys.executable, "-c", code], input="secret\n", cwd=tmp_path, capture_output=True, text=True,
        start_new_session=True, check=False, timeout=120,
    )  # fmt: skip
    assert "not have a password" in told.stderr
    assert "PEM pass phrase" not in told.stderr
