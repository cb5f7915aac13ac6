"""The Host header: exactly one, and if the operator says so, one of the allowed names."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import orjson
import pytest

from es_sbert.config import EngineSettings
from es_sbert.gateway.server import create_server
from es_sbert.gateway.settings import GatewaySettings, ListenSettings, ModelSettings
from tests.gateway.echo import Echo
from tests.gateway.security.support import status_of
from tests.gateway.serving import running
from tests.gateway.wire import talk

CLOSE = b"connection: close\r\n\r\n"


@pytest.fixture(scope="module")
def named_url(echo: Echo, tiny: Path) -> Iterator[str]:
    """A gateway that is called search.example or ::1 only."""
    settings = GatewaySettings(
        upstream=EngineSettings(url=echo.url),
        listen=ListenSettings(allowed_hosts=("Search.example", "::1")),
        models=ModelSettings(models=(str(tiny),), precision="fp32", threads=1),
    )
    with running(create_server(settings)) as url:
        yield url


@pytest.mark.parametrize("hosts", [b"", b"host: a\r\nhost: a\r\n", b"host: a\r\nHost: b\r\n"])
def test_request_needs_exactly_one_host(url: str, echo: Echo, hosts: bytes) -> None:
    said = talk(url, b"GET /a HTTP/1.1\r\n" + hosts + CLOSE)
    assert status_of(said) == 400
    assert "send exactly one" in orjson.loads(said.partition(b"\r\n\r\n")[2])["error"]["reason"]
    assert echo.received == []


def test_old_protocol_needs_no_host(url: str) -> None:
    assert status_of(talk(url, b"GET /a HTTP/1.0\r\n" + CLOSE)) == 200


@pytest.mark.parametrize("host", [b"search.example", b"SEARCH.example:9280", b"[::1]:9280"])
def test_allowed_hosts_are_answered(named_url: str, host: bytes) -> None:
    assert status_of(talk(named_url, b"GET /a HTTP/1.1\r\nhost: " + host + b"\r\n" + CLOSE)) == 200


@pytest.mark.parametrize("host", [b"evil.example", b"search.example.evil.example", b"127.0.0.1", b"", b"[::2]:1"])
def test_other_hosts_are_refused(named_url: str, echo: Echo, host: bytes) -> None:
    said = talk(named_url, b"GET /a HTTP/1.1\r\nhost: " + host + b"\r\n" + CLOSE)
    assert status_of(said) == 421
    assert "--allowed-host" in orjson.loads(said.partition(b"\r\n\r\n")[2])["error"]["reason"]
    assert echo.received == []


def test_health_checks_work_under_any_host(named_url: str) -> None:
    assert status_of(talk(named_url, b"GET /healthz HTTP/1.1\r\nhost: 10.0.0.7\r\n" + CLOSE)) == 200
