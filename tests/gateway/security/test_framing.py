"""What arrives is read in one way only: what could be read in two is refused."""

from __future__ import annotations

import orjson
import pytest

from tests.gateway.echo import Echo
from tests.gateway.security.conftest import END, status_of
from tests.gateway.wire import talk

CHUNKED = b"transfer-encoding: chunked\r\n"
TWO_WAYS = {
    "length and chunks": b"content-length: 4\r\n" + CHUNKED + b"\r\n0\r\n\r\n",
    "chunks and length": CHUNKED + b"content-length: 4\r\n\r\n0\r\n\r\n",
    "two lengths": b"content-length: 3\r\ncontent-length: 4\r\n\r\nabc",
    "a list of lengths": b"content-length: 3, 3\r\n\r\nabc",
    "a signed length": b"content-length: +3\r\n\r\nabc",
    "an unknown encoding": b"transfer-encoding: xchunked\r\n\r\n0\r\n\r\n",
    "chunked is not last": b"transfer-encoding: chunked, gzip\r\n\r\n0\r\n\r\n",
    "compressed on the way": b"transfer-encoding: gzip, chunked\r\n\r\n3\r\nabc\r\n0\r\n\r\n",
    "chunked twice": CHUNKED + CHUNKED + b"\r\n0\r\n\r\n",
    "space before the colon": b"transfer-encoding : chunked\r\n\r\n0\r\n\r\n",
    "a folded header": b"x: 1\r\n transfer-encoding: chunked\r\n\r\n0\r\n\r\n",
    "a bare CR": b"x: 1\rtransfer-encoding: chunked\r\n\r\n",
    "a bare LF": b"x: 1\ny: 2\r\n\r\n",
    "a chunk too long": CHUNKED + b"\r\n2\r\nabc\r\n0\r\n\r\n",
    "a chunk without end": CHUNKED + b"\r\nfffffffffffffffff\r\nabc\r\n0\r\n\r\n",
}
SMUGGLED = b"GET /smuggled HTTP/1.1\r\nhost: x\r\n\r\n"


@pytest.mark.parametrize("name", TWO_WAYS)
def test_ambiguous_requests_are_rejected(url: str, echo: Echo, name: str) -> None:
    said = talk(url, b"POST /a HTTP/1.1\r\nhost: x\r\n" + TWO_WAYS[name] + SMUGGLED)
    assert status_of(said) == 400
    assert b"connection: close" in said
    # A head may already be with the engine when its body turns out to be none; it never becomes a request there.
    assert echo.received == []


@pytest.mark.parametrize(
    "line",
    [b"GET /a b HTTP/1.1", b"GET /a HTTP/3.0", b"get /a HTTP/1.1", b"GET /a#b HTTP/1.1", b"GET /a\x00 HTTP/1.1",
     b"\x16\x03\x01\x02"],
)  # fmt: skip
def test_invalid_request_lines_are_rejected(url: str, echo: Echo, line: bytes) -> None:
    said = talk(url, line + END)
    assert status_of(said) == 400
    assert orjson.loads(said.partition(b"\r\n\r\n")[2])["error"]["reason"]
    assert echo.received == []


@pytest.mark.parametrize("cut", [1, 20, 80, 118, 140, 146])
def test_request_head_may_be_split_and_is_percent_encoded(url: str, echo: Echo, cut: int) -> None:
    upgrade = "connection: Upgrade, HTTP2-Settings\r\nupgrade: h2c\r\nhttp2-settings: AA\r\n"
    data = f"POST /bücher?q=café HTTP/1.1\r\nhost: x\r\n{upgrade}content-length: 3\r\n\r\nabc".encode()
    said = talk(url, data[:cut], data[cut:] + b"GET /b HTTP/1.1" + END)
    assert said.count(b"HTTP/1.1 200 OK") == 2
    received = [(got.target, got.body) for got in echo.received]
    assert received == [(b"/b%C3%BCcher?q=caf%C3%A9", b"abc"), (b"/b", b"")]


def test_trailers_do_not_become_headers(url: str, echo: Echo) -> None:
    body = b"transfer-encoding: chunked\r\nconnection: close\r\n\r\n3\r\nabc\r\n0\r\n"
    talk(url, b"PUT /a HTTP/1.1\r\nhost: x\r\n" + body + b"x-proxy-user: admin\r\nauthorization: Basic eA==\r\n\r\n")
    got = echo.only()
    assert got.body == b"abc"
    assert got.values(b"x-proxy-user") == got.values(b"authorization") == []
