"""The Host header and its allowed names, and requests that name another host."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import orjson
import pytest

from es_sbert.config import EngineSettings
from es_sbert.gateway.server import create_server
from es_sbert.gateway.settings import GatewaySettings, ListenSettings, ModelSettings
from tests.gateway.echo import Echo
from tests.gateway.recorded import Request
from tests.gateway.security.support import END, status_of
from tests.gateway.serving import running
from tests.gateway.wire import send, talk

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


@pytest.mark.parametrize(
    "target",
    ["http://{other}/a", "http://{other}", "http://user:word@{other}/a", "https://{other}/a", "ftp://{other}/a",
     "//{other}/a", "///{other}/a", "/\\{other}/a", "\\\\{other}\\a", "/@{other}/a", "@{other}/a", ":80@{other}/a",
     "/http://{other}/a", "/a?http://{other}/", "/%2F%2F{other}/a", "{other}/a", "?@{other}", "*", "/;@{other}",
     "/a%0d%0aHost:%20{other}%0d%0a/b", "/a%00@{other}", "/a/%5c%5c{other}", "http:{other}", "http:/{other}/a"],
)  # fmt: skip
@pytest.mark.parametrize("method", ["GET", "CONNECT"])
def test_no_target_reaches_another_host(url: str, echo: Echo, elsewhere: Echo, method: str, target: str) -> None:
    echo.received.clear()
    said = talk(url, f"{method} {target.format(other=elsewhere.host)} HTTP/1.1".encode() + END)
    assert status_of(said) in (200, 400)
    assert echo.refused == []
    for got in echo.received:
        assert got.values(b"host") == [echo.host.encode()]
        assert got.target.startswith(b"/")
    assert elsewhere.received == []


@pytest.mark.parametrize(
    "name",
    ["x-forwarded-host", "x-forwarded-server", "forwarded", "x-original-url", "x-rewrite-url", "x-host",
     "x-forwarded-proto", "x-http-method-override", "proxy", "via"],
)  # fmt: skip
def test_no_header_reaches_another_host(url: str, echo: Echo, elsewhere: Echo, name: str) -> None:
    head = f"GET /a HTTP/1.1\r\nhost: {elsewhere.host}\r\n{name}: {elsewhere.url}/x\r\nconnection: close\r\n\r\n"
    talk(url, head.encode())
    got = echo.only()
    assert got.values(b"host") == [echo.host.encode()]
    assert (got.method, got.target) == (b"GET", b"/a")
    assert elsewhere.received == []


def test_second_host_header_is_refused(url: str, echo: Echo, elsewhere: Echo) -> None:
    said = talk(url, f"GET /a HTTP/1.1\r\nhost: x\r\nhost: {elsewhere.host}\r\nconnection: close\r\n\r\n".encode())
    assert status_of(said) == 400
    assert echo.received == []
    assert elsewhere.received == []


@pytest.mark.parametrize(
    "path",
    ["/..", "/a/..", "/a/../b", "/../_cluster/settings", "/./a", "/a/.", "/%2e%2e/a", "/a/%2E%2e/b", "/a/.%2e/b",
     "/a%2f..%2fb", "/a%2F%2e%2e%2Fb", "/a/..%5cb", "/a\\..\\b", "/a/..?q=1", "/a/_doc/..", "/a/_doc/%2e"],
)  # fmt: skip
def test_dot_segments_are_rejected(url: str, echo: Echo, path: str) -> None:
    said = talk(url, f"GET {path} HTTP/1.1".encode() + END)
    assert status_of(said) == 400
    assert echo.received == []


@pytest.mark.parametrize("path", ["/a..b/_doc/...", "/.kibana/_search", "/a/_doc/1.2", "/a/_search?q=../..", "/..."])
def test_other_dots_in_paths_pass_through(url: str, echo: Echo, path: str) -> None:
    send(url, Request("GET", path))
    assert echo.received[-1].target == path.encode()
