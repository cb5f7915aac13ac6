"""What arrives is read in one way only: what could be read in two is refused."""

from __future__ import annotations

import orjson
import pytest

from tests.gateway.echo import Echo
from tests.gateway.security.support import END, status_of
from tests.gateway.wire import talk

TWO_WAYS = {
    "length and chunks": b"content-length: 4\r\ntransfer-encoding: chunked\r\n\r\n0\r\n\r\n",
    "chunks and length": b"transfer-encoding: chunked\r\ncontent-length: 4\r\n\r\n0\r\n\r\n",
    "two lengths": b"content-length: 3\r\ncontent-length: 4\r\n\r\nabc",
    "a list of lengths": b"content-length: 3, 3\r\n\r\nabc",
    "a signed length": b"content-length: +3\r\n\r\nabc",
    "a negative length": b"content-length: -3\r\n\r\nabc",
    "a hexadecimal length": b"content-length: 0x3\r\n\r\nabc",
    "an endless length": b"content-length: 99999999999999999999999\r\n\r\nabc",
    "an unknown encoding": b"transfer-encoding: xchunked\r\n\r\n0\r\n\r\n",
    "identity": b"transfer-encoding: identity\r\ncontent-length: 3\r\n\r\nabc",
    "chunked is not last": b"transfer-encoding: chunked, gzip\r\n\r\n0\r\n\r\n",
    "compressed on the way": b"transfer-encoding: gzip, chunked\r\n\r\n3\r\nabc\r\n0\r\n\r\n",
    "chunked twice": b"transfer-encoding: chunked\r\ntransfer-encoding: chunked\r\n\r\n0\r\n\r\n",
    "space before the colon": b"transfer-encoding : chunked\r\n\r\n0\r\n\r\n",
    "a folded header": b"x: 1\r\n transfer-encoding: chunked\r\n\r\n0\r\n\r\n",
    "a tab in a name": b"transfer-encoding\t: chunked\r\n\r\n0\r\n\r\n",
    "a bare CR": b"x: 1\rtransfer-encoding: chunked\r\n\r\n",
    "a NUL": b"x: 1\x002\r\n\r\n",
    "a bare LF": b"x: 1\ny: 2\r\n\r\n",
    "no colon": b"transfer-encoding chunked\r\n\r\n",
    "a chunk's size that is none": b"transfer-encoding: chunked\r\n\r\n3;\x00\r\nabc\r\n0\r\n\r\n",
    "a chunk too long": b"transfer-encoding: chunked\r\n\r\n2\r\nabc\r\n0\r\n\r\n",
    "a chunk without end": b"transfer-encoding: chunked\r\n\r\nfffffffffffffffff\r\nabc\r\n0\r\n\r\n",
}
SMUGGLED = b"GET /smuggled HTTP/1.1\r\nhost: x\r\n\r\n"


@pytest.mark.parametrize("name", TWO_WAYS)
def test_ambiguous_requests_are_rejected(url: str, echo: Echo, name: str) -> None:
    said = talk(url, b"POST /a HTTP/1.1\r\nhost: x\r\n" + TWO_WAYS[name] + SMUGGLED)
    assert status_of(said) == 400
    assert b"connection: close" in said
    assert not any(got.target == b"/smuggled" for got in echo.received)
    # A head may already be with the engine when its body turns out to be none; it never becomes a request there.
    assert echo.received == []


@pytest.mark.parametrize(
    "line",
    [b"GET /a b HTTP/1.1", b"GET /a\tHTTP/1.1", b"GET /a HTTP/3.0", b"GET /a HTTP/1.1 x", b"get /a HTTP/1.1",
     b"G@T /a HTTP/1.1", b"GET /a#b HTTP/1.1", b"GET /a?b#c HTTP/1.1", b"GET /a\x00 HTTP/1.1", b"\x16\x03\x01\x02"],
)  # fmt: skip
def test_invalid_request_lines_are_rejected(url: str, echo: Echo, line: bytes) -> None:
    said = talk(url, line + END)
    assert status_of(said) == 400
    body = orjson.loads(said.partition(b"\r\n\r\n")[2])
    assert body["status"] == 400
    assert body["error"]["reason"]
    assert echo.received == []


def test_non_ascii_target_is_percent_encoded(url: str, echo: Echo) -> None:
    """curl sends them as they are."""
    talk(url, "GET /bücher/_search?q=café HTTP/1.1".encode() + END)
    assert echo.received[-1].target == b"/b%C3%BCcher/_search?q=caf%C3%A9"


@pytest.mark.parametrize("cut", [1, 9, 20, 60, 80, 95, 118, 140, 146])
def test_request_head_may_be_split(url: str, echo: Echo, cut: int) -> None:
    head = [
        "POST /bücher HTTP/1.1",
        "host: x",
        "connection: Upgrade, HTTP2-Settings",
        "upgrade: h2c",
        "http2-settings: AA",
        "content-length: 3",
        "",
        "abc",
    ]
    data = "\r\n".join(head).encode()
    said = talk(url, data[:cut], data[cut:] + b"GET /b HTTP/1.1" + END)
    assert said.count(b"HTTP/1.1 200 OK") == 2
    assert [(got.target, got.body) for got in echo.received] == [(b"/b%C3%BCcher", b"abc"), (b"/b", b"")]


def test_trailers_do_not_become_headers(url: str, echo: Echo) -> None:
    body = b"transfer-encoding: chunked\r\nconnection: close\r\n\r\n3\r\nabc\r\n0\r\n"
    talk(url, b"PUT /a HTTP/1.1\r\nhost: x\r\n" + body + b"x-proxy-user: admin\r\nauthorization: Basic eA==\r\n\r\n")
    got = echo.only()
    assert got.body == b"abc"
    assert got.values(b"x-proxy-user") == got.values(b"authorization") == []
