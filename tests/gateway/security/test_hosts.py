"""The Host header and its allowed names, and requests that name another host."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import orjson
import pytest

from tests.gateway.echo import Echo
from tests.gateway.recorded import Request
from tests.gateway.security.conftest import CLOSE, END, status_of
from tests.gateway.serving import gateway
from tests.gateway.wire import send, talk


@pytest.fixture(scope="module")
def elsewhere() -> Iterator[Echo]:
    """A host that nothing may lead to."""
    with Echo() as server:
        yield server
        assert (server.received, server.refused) == ([], [])


@pytest.fixture(scope="module")
def named_url(echo: Echo, tiny: Path) -> Iterator[str]:
    """A gateway that is called search.example or ::1 only."""
    with gateway(echo.url, tiny, allowed_hosts=("Search.example", "::1")) as url:
        yield url


@pytest.mark.parametrize("hosts", [b"", b"host: a\r\nhost: a\r\n", b"host: a\r\nHost: b\r\n"])
def test_request_needs_exactly_one_host(url: str, echo: Echo, hosts: bytes) -> None:
    said = talk(url, b"GET /a HTTP/1.1\r\n" + hosts + CLOSE)
    assert status_of(said) == 400
    assert "send exactly one" in orjson.loads(said.partition(b"\r\n\r\n")[2])["error"]["reason"]
    assert echo.received == []
    assert status_of(talk(url, b"GET /a HTTP/1.0\r\n" + CLOSE)) == 200  # the old protocol needs none


@pytest.mark.parametrize("host", [b"search.example", b"SEARCH.example:9280", b"[::1]:9280"])
def test_allowed_hosts_are_answered(named_url: str, host: bytes) -> None:
    assert status_of(talk(named_url, b"GET /a HTTP/1.1\r\nhost: " + host + b"\r\n" + CLOSE)) == 200


@pytest.mark.parametrize("host", [b"evil.example", b"search.example.evil.example", b"127.0.0.1", b"", b"[::2]:1"])
def test_other_hosts_are_refused_but_by_health_checks(named_url: str, echo: Echo, host: bytes) -> None:
    said = talk(named_url, b"GET /a HTTP/1.1\r\nhost: " + host + b"\r\n" + CLOSE)
    assert status_of(said) == 421
    assert "--allowed-host" in orjson.loads(said.partition(b"\r\n\r\n")[2])["error"]["reason"]
    assert echo.received == []
    assert status_of(talk(named_url, b"GET /healthz HTTP/1.1\r\nhost: " + host + b"\r\n" + CLOSE)) == 200


@pytest.mark.parametrize(
    "target",
    ["http://{other}/a", "http://user:word@{other}/a", "//{other}/a", "/\\{other}/a", "\\\\{other}\\a", "@{other}/a",
     ":80@{other}/a", "/a?http://{other}/", "/%2F%2F{other}/a", "{other}/a", "*", "/a%0d%0aHost:%20{other}%0d%0a/b",
     "http:/{other}/a"],
)  # fmt: skip
@pytest.mark.parametrize("method", ["GET", "CONNECT"])
def test_no_target_reaches_another_host(url: str, echo: Echo, elsewhere: Echo, method: str, target: str) -> None:
    said = talk(url, f"{method} {target.format(other=elsewhere.host)} HTTP/1.1".encode() + END)
    assert status_of(said) in (200, 400)
    assert echo.refused == []
    for got in echo.received:
        assert got.values(b"host") == [echo.host.encode()]
        assert got.target.startswith(b"/")
    assert elsewhere.received == []


@pytest.mark.parametrize("name", ["host", "x-forwarded-host", "forwarded", "x-original-url", "x-http-method-override"])
def test_no_header_reaches_another_host(url: str, echo: Echo, elsewhere: Echo, name: str) -> None:
    other = f"{name}: {elsewhere.host}\r\n" + ("" if name == "host" else "host: x\r\n")
    talk(url, f"GET /a HTTP/1.1\r\n{other}connection: close\r\n\r\n".encode())
    got = echo.only()
    assert got.values(b"host") == [echo.host.encode()]
    assert (got.method, got.target) == (b"GET", b"/a")


@pytest.mark.parametrize(
    "path",
    ["/a/..", "/../_cluster/settings", "/./a", "/%2e%2e/a", "/a/.%2e/b", "/a%2f..%2fb", "/a/..%5cb", "/a\\..\\b",
     "/a/_doc/%2e"],
)  # fmt: skip
def test_dot_segments_are_rejected(url: str, echo: Echo, path: str) -> None:
    assert status_of(talk(url, f"GET {path} HTTP/1.1".encode() + END)) == 400
    assert echo.received == []


@pytest.mark.parametrize("path", ["/a..b/_doc/...", "/.kibana/_search", "/a/_search?q=../.."])
def test_other_dots_in_paths_pass_through(url: str, echo: Echo, path: str) -> None:
    send(url, Request("GET", path))
    assert echo.received[-1].target == path.encode()
