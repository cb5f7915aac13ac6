"""What leaves the gateway is what entered it, byte for byte, in both directions."""

from __future__ import annotations

import gzip
import http.client
import random
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO
from urllib.parse import urlsplit

import orjson
import pytest

from tests.engine.ingest_support import wait_until
from tests.gateway.echo import OK, Echo, Received, is_question, raw, whole
from tests.gateway.recorded import Request, request, scenarios
from tests.gateway.serving import gateway
from tests.gateway.wire import Answer, send, talk

# Bodies that ask by meaning or are looked into are another matter: tests/gateway/test_fuzz.py.
BODY = random.Random(0).randbytes(3_000_000)
JSON = b"content-type: application/json\r\n"
FRAMING = (b"host", b"content-length", b"transfer-encoding")


@pytest.fixture(scope="module")
def echo() -> Iterator[Echo]:
    with Echo() as server:
        yield server


@pytest.fixture(scope="module")
def url(echo: Echo, tiny: Path) -> Iterator[str]:
    with gateway(echo.url, tiny) as address:
        yield address


@pytest.fixture(autouse=True)
def _a_new_start(echo: Echo) -> None:
    echo.start_anew()


def arrived(echo: Echo) -> Received:
    got = echo.only()
    # The host is the engine's, first as it should be.
    assert got.headers[0] == (b"Host", echo.host.encode())
    return got


@pytest.mark.parametrize("name", scenarios())
def test_recorded_requests_pass_through_unchanged(url: str, echo: Echo, name: str) -> None:
    rendered = raw(whole(b'{"template_output":{}}'))
    echo.reply = lambda got, out: (rendered if got.target == b"/_render/template" else raw(OK))(got, out)
    for line in scenarios()[name]:
        asked = request(line, {"prefix": "rq", "scroll": "scroll", "pit": "pit", "point": "point"})
        answer = send(url, asked)
        if asked.refused:
            assert answer.status in (400, 415)
            assert echo.received == []
            continue
        assert answer.status == 200
        *questions, got = echo.received
        echo.received.clear()
        assert all(map(is_question, questions))
        # A question mark with nothing behind it means nothing, and is lost.
        assert (got.method.decode(), got.target.decode()) == (asked.method, asked.target.removesuffix("?"))
        assert got.body == asked.body
        kept = [pair for pair in got.headers if pair[0].lower() not in FRAMING]
        assert kept == [
            (key.lower().encode(), value.encode()) for key, value in asked.headers if key != "content-length"
        ]
    assert echo.refused == []


def test_header_order_and_duplicates_are_preserved(url: str, echo: Echo) -> None:
    said = ["x-b: 1", "X-A: 2", "x-b: 3", "accept: */*", "x-utf8: café", "x-empty:", "connection: close"]
    talk(url, "\r\n".join(["GET /a?b HTTP/1.1", "host: x", *said, "", ""]).encode())
    kept = [line.lower().split(":") for line in said[:-1]]
    assert arrived(echo).headers[1:] == tuple((name.encode(), value.strip().encode()) for name, value in kept)


@pytest.mark.parametrize("method", ["GET", "POST", "OPTIONS", "HEAD"])
def test_request_without_body_stays_without_body(url: str, echo: Echo, method: str) -> None:
    assert send(url, Request(method, "/a")).status == 200
    got = arrived(echo)
    assert (got.method, got.body) == (method.encode(), b"")
    assert got.framing == "none" or got.values(b"content-length") == [b"0"]


@pytest.mark.parametrize("chunked", [False, True], ids=["length", "chunked"])
def test_large_body_passes_through(url: str, echo: Echo, chunked: bool) -> None:
    body = BODY[:200_000] if chunked else BODY
    assert send(url, Request("PUT", "/a/_own", (("content-encoding", "x-own"),), body, chunked=chunked)).status == 200
    assert arrived(echo).body == body


def test_request_body_is_streamed(url: str, tiny: Path) -> None:
    """Nothing waits for the whole of a body that is only passed on."""
    first = threading.Event()

    class Eager(Echo):
        def _serve(self, source: BinaryIO, out: BinaryIO) -> bool:
            while source.readline() != b"\r\n":
                pass
            assert source.read(8) == b"3\r\nabc\r\n"
            first.set()
            rest = source.read(13)
            out.write(OK if rest == b"3\r\ndef\r\n0\r\n\r\n" else b"")
            return False

    with Eager() as upstream, gateway(upstream.url, tiny) as address:
        parts = urlsplit(address)
        connection = http.client.HTTPConnection(parts.netloc, timeout=120)
        connection.putrequest("PUT", "/a", skip_accept_encoding=True)
        connection.putheader("transfer-encoding", "chunked")
        connection.endheaders(b"3\r\nabc\r\n")
        assert first.wait(120)
        connection.send(b"3\r\ndef\r\n0\r\n\r\n")
        assert connection.getresponse().status == 200
        connection.close()


ANSWERS = {
    "with a length": b"HTTP/1.1 200 OK\r\n" + JSON + b"content-length: 7\r\n\r\n{\"a\":1}",
    "in chunks": b"HTTP/1.1 200 OK\r\n" + JSON + b"transfer-encoding: chunked\r\n\r\n"
                 b"3\r\n{\"a\r\n4;x=y\r\n\":1}\r\n0\r\n\r\n",
    "until the end": b"HTTP/1.1 200 OK\r\n" + JSON + b"\r\n{\"a\":1}",
    "empty": b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n",
    "no content": b"HTTP/1.1 204 No Content\r\nX-A: 1\r\n\r\n",
    "not modified": b'HTTP/1.1 304 Not Modified\r\nETag: "1"\r\n\r\n',
    "headers twice": b"HTTP/1.1 200 OK\r\nWarning: 299 a\r\nSet-Cookie: a=1\r\nWarning: 299 b\r\nSet-Cookie: b=2\r\n"
                     b"content-length: 2\r\n\r\n{}",
    "a long header": b"HTTP/1.1 200 OK\r\nWarning: " + b"w" * 40_000 + b"\r\ncontent-length: 2\r\n\r\n{}",
    "a header in latin-1": b"HTTP/1.1 200 OK\r\nX-A: caf\xe9\r\ncontent-length: 2\r\n\r\n{}",
    "no reason": b"HTTP/1.1 200 \r\ncontent-length: 2\r\n\r\n{}",
    "an unknown status": b"HTTP/1.1 599 Whatever\r\ncontent-length: 2\r\n\r\n{}",
    "compressed": b"HTTP/1.1 200 OK\r\ncontent-encoding: gzip\r\ncontent-length: %d\r\n\r\n%s"
                  % (len(gzip.compress(b"{}", mtime=0)), gzip.compress(b"{}", mtime=0)),
    "said to be compressed": b"HTTP/1.1 200 OK\r\ncontent-encoding: gzip\r\ncontent-length: 2\r\n\r\n{}",
    "large in chunks": b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n"
                       b"%x\r\n%s\r\n0\r\n\r\n" % (len(BODY), BODY),
}  # fmt: skip


def plain(answer: Answer) -> tuple[int, list[tuple[str, str]], bytes]:
    of_the_connection = ("connection", "transfer-encoding")
    headers = [(name.lower(), value) for name, value in answer.headers if name.lower() not in of_the_connection]
    return answer.status, headers, answer.body


@pytest.mark.parametrize("name", ANSWERS)
def test_response_is_returned_unchanged(url: str, echo: Echo, name: str) -> None:
    echo.reply = raw(ANSWERS[name], close=True)
    ask = Request("GET", "/a")
    assert plain(send(url, ask)) == plain(send(echo.url, ask))


def test_head_response_keeps_content_length(url: str, echo: Echo) -> None:
    echo.reply = raw(b"HTTP/1.1 200 OK\r\n" + JSON + b"content-length: 1234\r\n\r\n")
    answer = send(url, Request("HEAD", "/a"))
    assert (answer.status, answer.header("content-length"), answer.body) == (200, "1234", b"")


def test_redirect_is_returned_not_followed(url: str, echo: Echo) -> None:
    with Echo() as elsewhere:
        echo.reply = raw(b"HTTP/1.1 307 X\r\nlocation: %s/b\r\ncontent-length: 0\r\n\r\n" % elsewhere.url.encode())
        answer = send(url, Request("GET", "/a"))
        assert (answer.status, answer.header("location")) == (307, f"{elsewhere.url}/b")
        assert elsewhere.received == []


def test_response_is_streamed(url: str, echo: Echo) -> None:
    first = threading.Event()

    def reply(_: Received, out: BinaryIO) -> bool:
        out.write(b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n3\r\nabc\r\n")
        assert first.wait(120)
        out.write(b"3\r\ndef\r\n0\r\n\r\n")
        return False

    echo.reply = reply
    connection = http.client.HTTPConnection(urlsplit(url).netloc, timeout=120)
    connection.request("GET", "/a")
    response = connection.getresponse()
    assert response.read(3) == b"abc"
    first.set()
    assert response.read() == b"def"
    connection.close()


GARBAGE = {
    "nothing": b"",
    "a status beyond all": b"HTTP/1.1 999 X\r\ncontent-length: 0\r\n\r\n",
    "switching protocols": b"HTTP/1.1 101 Switching Protocols\r\nupgrade: x\r\nconnection: upgrade\r\n\r\n",
    "two lengths": b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\ncontent-length: 3\r\n\r\n{}",
    "a header without end": b"HTTP/1.1 200 OK\r\nX: " + b"x" * 200_000 + b"\r\n\r\n",
    "a chunk that is none": b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\nnot a chunk\r\n{}",
    "TLS": b"\x15\x03\x01\x00\x02\x02\x0a",
}


def assert_engine_error(answer: Answer, status: int) -> str:
    assert answer.status == status, answer
    assert answer.header("content-type") == "application/json"
    body = orjson.loads(answer.body)
    assert body["status"] == status
    assert body["error"]["root_cause"][0] == {key: body["error"][key] for key in ("type", "reason")}
    reason: str = body["error"]["reason"]
    return reason


@pytest.mark.parametrize("name", GARBAGE)
def test_invalid_http_response_becomes_502(url: str, echo: Echo, name: str) -> None:
    send(url, Request("GET", "/a"))  # by now the gateway knows whose shape an error has
    echo.reply = raw(GARBAGE[name], close=True)
    answer = send(url, Request("POST", "/a"))
    reason = assert_engine_error(answer, 502)
    assert "the engine behind the gateway" in reason
    assert echo.host not in reason
    assert answer.header("x-elastic-product") == "Elasticsearch"


@pytest.mark.parametrize("cut", [b"content-length: 10\r\n\r\n{}", b"transfer-encoding: chunked\r\n\r\n2\r\n{}\r\n"])
def test_truncated_response_is_not_complete(url: str, echo: Echo, cut: bytes) -> None:
    echo.reply = raw(b"HTTP/1.1 200 OK\r\n" + cut, close=True)
    with pytest.raises(http.client.IncompleteRead):
        send(url, Request("GET", "/a"))


@pytest.mark.parametrize(("status", "ready"), [(401, 200), (405, 200), (502, 503), (503, 503)])
def test_readyz_requires_an_answering_engine(echo: Echo, url: str, status: int, ready: int) -> None:
    wait_until(lambda: send(url, Request("GET", "/readyz")).status == 200)
    echo.reply = raw(b"HTTP/1.1 %d X\r\ncontent-length: 0\r\n\r\n" % status)
    answer = send(url, Request("GET", "/readyz"))
    assert answer.status == ready
    assert ready == 200 or f"status {status}" in orjson.loads(answer.body)["engine"]


def test_pipelined_requests_are_answered_in_order(url: str, echo: Echo) -> None:
    echo.reply = lambda got, out: bool(out.write(b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\n" + got.target))
    head = b" HTTP/1.1\r\nhost: x\r\n"
    said = talk(url, b"GET /1" + head + b"\r\nGET /2" + head + b"\r\nGET /3" + head + b"connection: close\r\n\r\n")
    assert [part[:2] for part in said.split(b"\r\n\r\n")[1:]] == [b"/1", b"/2", b"/3"]
