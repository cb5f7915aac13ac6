"""The gateway reaches one host, reads every request in one way only, has limits, and keeps secrets to itself."""

from __future__ import annotations

import base64
import gzip
import logging
import random
import socket
import string
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO
from urllib.parse import urlsplit

import orjson
import pytest

from es_sbert.gateway.settings import Listen
from es_sbert.gateway.wire.protocol import LONGEST_HEAD
from tests.gateway.echo import OK, Echo, Received, is_question, raw
from tests.gateway.recorded import Request
from tests.gateway.serving import gateway
from tests.gateway.wire import Answer, send, talk

MOST_BYTES = 100_000
MOST_REQUESTS = 4
END = b"\r\nhost: gateway\r\nconnection: close\r\n\r\n"


@pytest.fixture(scope="module")
def elsewhere() -> Iterator[Echo]:
    """A host that nothing may lead to."""
    with Echo() as server:
        yield server
        assert (server.received, server.refused) == ([], [])


@pytest.fixture(scope="module")
def echo() -> Iterator[Echo]:
    with Echo() as server:
        yield server


@pytest.fixture(scope="module")
def url(echo: Echo, tiny: Path) -> Iterator[str]:
    with gateway(
        echo.url, tiny, body_bytes=MOST_BYTES, concurrency=MOST_REQUESTS, idle_seconds=2.0, answer_seconds=60.0
    ) as address:
        yield address


@pytest.fixture(autouse=True)
def _a_new_start(echo: Echo) -> Iterator[None]:
    echo.reply = raw(OK)
    yield
    echo.received.clear()
    echo.refused.clear()


def status_of(said: bytes) -> int:
    return int(said.split(b" ", 2)[1])


@pytest.mark.parametrize(
    "target",
    ["http://{other}/a", "http://{other}", "http://user:word@{other}/a", "https://{other}/a", "ftp://{other}/a",
     "//{other}/a", "///{other}/a", "/\\{other}/a", "\\\\{other}\\a", "/@{other}/a", "@{other}/a", ":80@{other}/a",
     "/http://{other}/a", "/a?http://{other}/", "/%2F%2F{other}/a", "{other}/a", "?@{other}", "*", "/;@{other}",
     "/a%0d%0aHost:%20{other}%0d%0a/b", "/a%00@{other}", "/a/%5c%5c{other}", "http:{other}", "http:/{other}/a"],
)  # fmt: skip
@pytest.mark.parametrize("method", ["GET", "CONNECT"])
def test_no_target_leads_to_another_host(url: str, echo: Echo, elsewhere: Echo, method: str, target: str) -> None:
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
    ["host", "x-forwarded-host", "x-forwarded-server", "forwarded", "x-original-url", "x-rewrite-url", "x-host",
     "x-forwarded-proto", "x-http-method-override", "proxy", "via"],
)  # fmt: skip
def test_no_header_leads_to_another_host(url: str, echo: Echo, elsewhere: Echo, name: str) -> None:
    head = f"GET /a HTTP/1.1\r\nhost: {elsewhere.host}\r\n{name}: {elsewhere.url}/x\r\nconnection: close\r\n\r\n"
    talk(url, head.encode())
    got = echo.only()
    assert got.values(b"host") == [echo.host.encode()]
    assert (got.method, got.target) == (b"GET", b"/a")
    assert elsewhere.received == []


@pytest.mark.parametrize(
    "path",
    ["/..", "/a/..", "/a/../b", "/../_cluster/settings", "/./a", "/a/.", "/%2e%2e/a", "/a/%2E%2e/b", "/a/.%2e/b",
     "/a%2f..%2fb", "/a%2F%2e%2e%2Fb", "/a/..%5cb", "/a\\..\\b", "/a/..?q=1", "/a/_doc/..", "/a/_doc/%2e"],
)  # fmt: skip
def test_paths_with_dot_segments_are_refused(url: str, echo: Echo, path: str) -> None:
    said = talk(url, f"GET {path} HTTP/1.1".encode() + END)
    assert status_of(said) == 400
    assert echo.received == []


@pytest.mark.parametrize("path", ["/a..b/_doc/...", "/.kibana/_search", "/a/_doc/1.2", "/a/_search?q=../..", "/..."])
def test_other_dots_mean_nothing(url: str, echo: Echo, path: str) -> None:
    send(url, Request("GET", path))
    assert echo.received[-1].target == path.encode()


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
def test_what_can_be_read_in_two_ways_is_refused(url: str, echo: Echo, name: str) -> None:
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
def test_first_lines_that_are_none_are_refused(url: str, echo: Echo, line: bytes) -> None:
    said = talk(url, line + END)
    assert status_of(said) == 400
    body = orjson.loads(said.partition(b"\r\n\r\n")[2])
    assert body["status"] == 400
    assert body["error"]["reason"]
    assert echo.received == []


def test_letters_beyond_ascii_arrive_as_engines_read_them(url: str, echo: Echo) -> None:
    """curl sends them as they are."""
    talk(url, "GET /bücher/_search?q=café HTTP/1.1".encode() + END)
    assert echo.received[-1].target == b"/b%C3%BCcher/_search?q=caf%C3%A9"


def test_trailers_do_not_become_headers(url: str, echo: Echo) -> None:
    body = b"transfer-encoding: chunked\r\nconnection: close\r\n\r\n3\r\nabc\r\n0\r\n"
    talk(url, b"PUT /a HTTP/1.1\r\nhost: x\r\n" + body + b"x-proxy-user: admin\r\nauthorization: Basic eA==\r\n\r\n")
    got = echo.only()
    assert got.body == b"abc"
    assert got.values(b"x-proxy-user") == got.values(b"authorization") == []


@pytest.mark.parametrize("offer", [b"Upgrade: h2c", b"upgrade: websocket"])
def test_an_offer_to_change_the_protocol_is_passed_over(url: str, echo: Echo, offer: bytes) -> None:
    """Java's own client makes it with every first request, its body behind it."""
    head = (
        b"POST /a HTTP/1.1\r\nhost: x\r\nConnection: Upgrade, HTTP2-Settings\r\n"
        + offer
        + b"\r\nHTTP2-Settings: AA\r\n"
    )
    said = talk(url, head + b"content-length: 3\r\n\r\nabcGET /b HTTP/1.1" + END)
    assert said.count(b"HTTP/1.1 200 OK") == 2
    assert [(got.target, got.body) for got in echo.received] == [(b"/a", b"abc"), (b"/b", b"")]


@pytest.mark.parametrize(
    "data",
    [b"GET /a?" + b"x" * LONGEST_HEAD + b" HTTP/1.1\r\n\r\n",
     b"GET /a HTTP/1.1\r\nx: " + b"x" * LONGEST_HEAD + b"\r\n\r\n",
     b"GET /a HTTP/1.1\r\n" + b"x1234: y\r\n" * (LONGEST_HEAD // 10 + 9) + b"\r\n",
     b"GET /a HTTP/1.1\r\nx: " + b"x" * LONGEST_HEAD],
    ids=["path", "header", "many headers", "header without end"],
)  # fmt: skip
def test_heads_have_a_limit(url: str, echo: Echo, data: bytes) -> None:
    assert status_of(talk(url, data)) == 431
    assert echo.received == []


@pytest.mark.parametrize("begun", [b"", b"GET", b"GET /a HTTP/1.1\r\nhost: x\r\nx-a"], ids=["nothing", "line", "head"])
def test_a_head_that_does_not_come_ends_the_connection(url: str, begun: bytes) -> None:
    assert status_of(talk(url, begun)) == 408


def test_a_body_that_does_not_come_ends_the_request(url: str, echo: Echo) -> None:
    said = talk(url, b"PUT /a HTTP/1.1\r\nhost: x\r\nconnection: close\r\ncontent-length: 100\r\n\r\nabc")
    assert status_of(said) == 400
    assert b"nothing of the request's body came for 2 seconds" in said
    assert echo.received == []


def assert_error(answer: Answer, status: int, words: str) -> None:
    assert answer.status == status, answer
    body = orjson.loads(answer.body)
    assert body["status"] == status
    assert words in body["error"]["reason"]
    assert body["error"]["root_cause"][0]["type"] == body["error"]["type"]


@pytest.mark.parametrize("target", ["/a/_doc/1", "/a/_bulk", "/a/_search", "/_msearch"])
@pytest.mark.parametrize("chunked", [False, True], ids=["length", "chunked"])
def test_bodies_have_a_limit(url: str, echo: Echo, target: str, chunked: bool) -> None:
    # The answer may come before the whole body was sent, which the client must bear.
    body = b"x" * (MOST_BYTES + 1)
    framing = b"transfer-encoding: chunked\r\n\r\n%x\r\n" if chunked else b"content-length: %d\r\n\r\n"
    head = f"POST {target} HTTP/1.1\r\nhost: x\r\nconnection: close\r\n".encode() + framing % len(body)
    said = talk(url, head + body + (b"\r\n0\r\n\r\n" if chunked else b""))
    assert status_of(said) == 413
    assert echo.received == []


def test_a_body_at_the_limit_is_taken(url: str, echo: Echo) -> None:
    assert send(url, Request("POST", "/a/_doc/1", (), b"x" * MOST_BYTES)).status == 200
    assert len(echo.only().body) == MOST_BYTES


@pytest.mark.parametrize("target", ["/a/_search", "/_msearch", "/a/_count"])
def test_a_body_that_unfolds_beyond_the_limit_is_refused(url: str, echo: Echo, target: str) -> None:
    bomb = gzip.compress(b'{"query":{"match":{"semantic":"' + b"x" * 50_000_000 + b'"}}}')
    assert len(bomb) < MOST_BYTES
    headers = (("content-encoding", "gzip"), ("content-type", "application/json"))
    assert_error(send(url, Request("POST", target, headers, bomb)), 413, "larger than")
    assert echo.received == []


def test_more_requests_than_the_limit_are_told_to_come_back(url: str, echo: Echo) -> None:
    arrived = threading.Semaphore(0)
    go_on = threading.Event()

    def reply(_: Received, out: BinaryIO) -> bool:
        arrived.release()
        assert go_on.wait(120)
        out.write(OK)
        return True

    echo.reply = reply
    statuses: list[int] = []
    waiting = [
        threading.Thread(target=lambda: statuses.append(send(url, Request("GET", "/a")).status))
        for _ in range(MOST_REQUESTS)
    ]
    for thread in waiting:
        thread.start()
    for _ in waiting:
        assert arrived.acquire(timeout=120)
    refused = [send(url, Request("GET", target)) for target in ("/a", "/ui/api/indices")]
    told = send(url, Request("GET", "/metrics")).body.decode()
    go_on.set()
    for thread in waiting:
        thread.join(120)
    for answer, kind in zip(refused, ("passed", "ui"), strict=True):
        assert_error(answer, 429, "in a moment")
        assert f'es_sbert_gateway_requests_total{{kind="{kind}",status="429"}} 1.0' in told
    assert statuses == [200] * MOST_REQUESTS
    assert send(url, Request("GET", "/a")).status == 200


def test_a_caller_who_goes_away_makes_room(url: str, echo: Echo) -> None:
    """What hangs in the engine must not count against others once nobody waits for it."""
    arrived = threading.Semaphore(0)
    gone = threading.Event()

    def reply(_: Received, out: BinaryIO) -> bool:
        arrived.release()
        return not gone.wait(120)

    echo.reply = reply
    parts = urlsplit(url)
    for _ in range(3 * MOST_REQUESTS):
        with socket.create_connection((parts.hostname or "", parts.port or 80), timeout=120) as caller:
            caller.sendall(b"GET /a HTTP/1.1\r\nhost: x\r\n\r\n")
            assert arrived.acquire(timeout=120)
    gone.set()
    echo.reply = raw(OK)
    assert send(url, Request("GET", "/a")).status == 200


def test_pages_of_other_origins_get_no_leave(url: str) -> None:
    asked = (("origin", "http://elsewhere.example"), ("access-control-request-method", "POST"))
    for method in ("GET", "OPTIONS"):
        answer = send(url, Request(method, "/a/_search", asked))
        assert not [name for name, _ in answer.headers if name.lower().startswith("access-control")]


def test_it_listens_on_this_machine_alone_unless_told_otherwise() -> None:
    assert Listen().host == "127.0.0.1"
    assert Listen().cors_origins == ()


def secret() -> str:
    return "".join(random.SystemRandom().choices(string.ascii_letters, k=24))


def test_credentials_pass_through_and_are_never_logged(
    echo: Echo, tiny: Path, caplog: pytest.LogCaptureFixture, capfd: pytest.CaptureFixture[str]
) -> None:
    caplog.set_level(logging.DEBUG)
    names = ("authorization", "cookie", "es-client-authentication", "es-secondary-authorization", "x-api-key")
    secrets = {name: secret() for name in names}
    headers = (*secrets.items(), ("content-type", "application/json"))
    bodies = [b'{"query":{"match":{"semantic":"cats"}}}', b'{"query":', b"x" * (MOST_BYTES + 1)]
    replies = [raw(OK), raw(b"", close=True), raw(b"HTTP/1.1 200 OK\r\ncontent-length: 9\r\n\r\n{}", close=True),
               raw(b"HTTP/1.1 403 Forbidden\r\ncontent-length: 2\r\n\r\n{}")]  # fmt: skip
    with gateway(echo.url, tiny, body_bytes=MOST_BYTES) as address:
        for reply in replies:
            echo.reply = reply
            for body in bodies:
                for target in ("/a/_search", "/a/_bulk", "/a/_doc/1"):
                    framing = f"content-length: {len(body)}\r\nconnection: close\r\n\r\n"
                    head = "".join(f"{name}: {value}\r\n" for name, value in headers)
                    talk(address, f"POST {target} HTTP/1.1\r\nhost: x\r\n{head}{framing}".encode() + body)
        passed = [got for got in echo.received if got.target == b"/a/_doc/1"]
        assert all(got.values(name.encode()) == [value.encode()] for got in passed for name, value in secrets.items())
        assert passed
        # What cannot be read is not shown either.
        talk(address, f"GET /a HTTP/1.1\r\nauthorization: {secrets['authorization']}\x00\r\n".encode() + END)
        told = send(address, Request("GET", "/metrics")).body.decode()
    written = caplog.text + "".join(capfd.readouterr()) + told
    assert "broke off" in written
    for value in secrets.values():
        assert value not in written
        assert base64.b64encode(value.encode()).decode() not in written


def test_the_gateways_own_credentials_are_lent_to_nobody(echo: Echo, tiny: Path) -> None:
    own = secret()
    with gateway(echo.url.replace("http://", f"http://gateway:{own}@"), tiny) as address:
        for target in ("/a/_doc/1", "/a/_bulk", "/_cluster/settings"):
            send(address, Request("PUT", target, (), b"{}"))
        send(address, Request("POST", "/a/_search", (), b'{"query":{"match":{"semantic":"cats"}}}'))
        answer = send(address, Request("GET", "/a", (("authorization", "Basic eDp5"),)))
    questions = [got for got in echo.received if is_question(got)]
    others = [got for got in echo.received if not is_question(got)]
    assert [got.values(b"authorization") for got in others] == [[], [], [], [], [b"Basic eDp5"]]
    assert questions
    assert own not in str(answer)
