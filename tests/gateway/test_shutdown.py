"""SIGTERM: `/readyz` fails first, requests are answered, and then the gateway stops listening."""

from __future__ import annotations

import os
import signal
import socket
from pathlib import Path

import httpx
import pytest

from tests.engine.ingest_support import wait_until
from tests.gateway import patient
from tests.gateway.echo import Echo
from tests.gateway.running import GatewayProcess, gateway_process

pytestmark = pytest.mark.slow
_TIMEOUT = 60


def ready(http: httpx.Client) -> bool:
    return http.get("/readyz").status_code == 200


def wait_until_closed(gateway: GatewayProcess) -> None:
    def is_closed() -> bool:
        with socket.socket() as probe:
            return probe.connect_ex(address(gateway)) != 0

    wait_until(is_closed)


def address(gateway: GatewayProcess) -> tuple[str, int]:
    host, _, port = gateway.url.removeprefix("http://").partition(":")
    return host, int(port)


def test_sigterm_fails_readiness_and_answers_requests_until_the_end(tiny: Path, tmp_path: Path) -> None:
    options = ["--model", str(tiny), "--precision", "fp32", "--drain-seconds", "3600", "--log-format", "json"]
    with Echo() as engine, gateway_process(engine.url, tmp_path, *options) as gateway:
        with (
            patient.client(gateway.url) as idle,
            patient.client(gateway.url) as balancer,
            socket.create_connection(address(gateway), timeout=_TIMEOUT) as slow,
        ):
            wait_until(lambda: ready(balancer))
            assert "connection" not in idle.get("/docs/_search").headers
            slow.sendall(b"POST /docs/_search HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\n")
            slow.sendall(b"content-length: 2\r\n\r\n{")
            os.kill(gateway.process, signal.SIGTERM)
            wait_until(lambda: not ready(balancer))
            told = balancer.get("/readyz")
            assert (told.status_code, told.json()["server"]) == (503, "the gateway is shutting down")
            assert balancer.get("/healthz").status_code == 200
            # A connection from before is used once more, one that is opened now too; both are closed after the answer.
            for answer in (idle.get("/docs/_search"), patient.get(f"{gateway.url}/docs/_search")):
                assert answer.status_code == 200
                assert answer.headers["connection"] == "close"
            slow.sendall(b"}")
            answered = slow.makefile("rb").read()  # until the gateway closes the connection
            assert answered.startswith(b"HTTP/1.1 200 ")
            assert b"\r\nconnection: close\r\n" in answered
        os.kill(gateway.process, signal.SIGTERM)  # a second one ends the draining
        wait_until_closed(gateway)
    assert '"event": "draining"' in (tmp_path / "gateway.log").read_text()


def test_systemd_is_told_when_the_model_is_loaded_and_at_the_end(
    tiny: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with Echo() as engine, socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager:
        manager.bind(str(tmp_path / "notify"))
        manager.settimeout(_TIMEOUT)
        monkeypatch.setenv("NOTIFY_SOCKET", str(tmp_path / "notify"))
        options = ["--model", str(tiny), "--precision", "fp32", "--drain-seconds", "0.1"]
        with gateway_process(engine.url, tmp_path, *options) as gateway:
            assert manager.recv(1000).startswith(b"READY=1\n")
            assert patient.get(f"{gateway.url}/readyz").status_code == 200
            os.kill(gateway.process, signal.SIGTERM)
            assert manager.recv(1000).startswith(b"STOPPING=1\n")
            wait_until_closed(gateway)
