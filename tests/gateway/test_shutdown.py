"""SIGTERM: `/readyz` fails first, requests are answered, and then the gateway stops listening."""

from __future__ import annotations

import os
import signal
import socket
import time
from pathlib import Path

import httpx
import pytest

from tests.gateway.echo import Echo
from tests.gateway.running import GatewayProcess, gateway_process

pytestmark = pytest.mark.slow
_TIMEOUT = 60


def wait_until_ready(url: str) -> None:
    deadline = time.monotonic() + _TIMEOUT
    while httpx.get(f"{url}/readyz", trust_env=False).status_code != 200:
        assert time.monotonic() < deadline
        time.sleep(0.05)


def wait_until_draining(http: httpx.Client) -> httpx.Response:
    deadline = time.monotonic() + _TIMEOUT
    while (answer := http.get("/readyz")).status_code == 200:
        assert time.monotonic() < deadline
        time.sleep(0.02)
    return answer


def wait_until_closed(gateway: GatewayProcess) -> None:
    host, _, port = gateway.url.removeprefix("http://").partition(":")
    deadline = time.monotonic() + _TIMEOUT
    while True:
        with socket.socket() as probe:
            if probe.connect_ex((host, int(port))) != 0:
                return
        assert time.monotonic() < deadline
        time.sleep(0.05)


def test_sigterm_fails_readiness_and_answers_requests_until_the_end(tiny: Path, tmp_path: Path) -> None:
    options = ["--model", str(tiny), "--precision", "fp32", "--drain-seconds", "3600", "--log-format", "json"]
    with Echo() as engine, gateway_process(engine.url, tmp_path, *options) as gateway:
        wait_until_ready(gateway.url)
        host, _, port = gateway.url.removeprefix("http://").partition(":")
        with (
            httpx.Client(base_url=gateway.url, trust_env=False, timeout=_TIMEOUT) as idle,
            socket.create_connection((host, int(port)), timeout=_TIMEOUT) as slow,
        ):
            assert "connection" not in idle.get("/docs/_search").headers
            slow.sendall(b"POST /docs/_search HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\n")
            slow.sendall(b"content-length: 2\r\n\r\n{")
            os.kill(gateway.process, signal.SIGTERM)
            with httpx.Client(base_url=gateway.url, trust_env=False, timeout=_TIMEOUT) as balancer:
                told = wait_until_draining(balancer)
                assert told.status_code == 503
                assert told.json()["server"] == "the gateway is shutting down"
                assert balancer.get("/healthz").status_code == 200
            # A connection from before is used once more, one that is opened now too; both are closed after the answer.
            for answer in (idle.get("/docs/_search"), httpx.get(f"{gateway.url}/docs/_search", trust_env=False)):
                assert answer.status_code == 200
                assert answer.headers["connection"] == "close"
            slow.sendall(b"}")
            answered = slow.makefile("rb").read()  # until the gateway closes the connection
            assert answered.startswith(b"HTTP/1.1 200 ")
            assert b"\r\nconnection: close\r\n" in answered
        os.kill(gateway.process, signal.SIGTERM)  # a second one ends the draining
        wait_until_closed(gateway)
    assert '"event": "draining"' in (tmp_path / "gateway.log").read_text()


@pytest.mark.parametrize("number", [signal.SIGHUP, signal.SIGQUIT])
def test_other_stop_signals_drain_like_sigterm(number: signal.Signals, tiny: Path, tmp_path: Path) -> None:
    options = ["--model", str(tiny), "--precision", "fp32", "--drain-seconds", "3600"]
    before = signal.signal(number, signal.SIG_DFL)  # also for the gateway, if these tests run under `nohup`
    try:
        with Echo() as engine, gateway_process(engine.url, tmp_path, *options) as gateway:
            wait_until_ready(gateway.url)
            os.kill(gateway.process, number)
            with httpx.Client(base_url=gateway.url, trust_env=False, timeout=_TIMEOUT) as balancer:
                assert wait_until_draining(balancer).status_code == 503
            os.kill(gateway.process, signal.SIGTERM)
            wait_until_closed(gateway)
    finally:
        signal.signal(number, before)


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
            assert httpx.get(f"{gateway.url}/readyz", trust_env=False).status_code == 200
            os.kill(gateway.process, signal.SIGTERM)
            assert manager.recv(1000).startswith(b"STOPPING=1\n")
            wait_until_closed(gateway)
