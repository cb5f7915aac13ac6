"""Callers who send slowly, keep connections open or send much at once do not keep others out."""

from __future__ import annotations

import gzip
import socket
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from urllib.parse import urlsplit

import orjson
import pytest

from tests.engine.ingest_support import wait_until
from tests.gateway.echo import OK, Echo
from tests.gateway.recorded import Request
from tests.gateway.security.conftest import JSON, MOST_BYTES, MOST_REQUESTS, assert_error, status_of
from tests.gateway.serving import gateway
from tests.gateway.wire import send, talk

pytestmark = pytest.mark.slow

OTHER_ADDRESS = "127.0.0.2"
# Generous: what has not happened by then never will.
SECONDS = 60.0
# To a search, a write, a request that is passed through, and the gateway's own pages.
TARGETS = [b"POST /a/_search", b"POST /a/_bulk", b"PUT /a/_settings", b"POST /v1/embeddings", b"POST /ui/api/body"]


class Caller:
    """A connection from another address than most tests use."""

    def __init__(self, url: str, address: str = OTHER_ADDRESS) -> None:
        parts = urlsplit(url)
        place = (parts.hostname or "", parts.port or 80)
        self._socket = socket.create_connection(place, SECONDS, (address, 0))

    def __enter__(self) -> Caller:
        return self

    def __exit__(self, *_: object) -> None:
        self._socket.close()

    def send(self, data: bytes) -> None:
        self._socket.sendall(data)

    def begin(self, line: bytes, length: int, sent: bytes) -> None:
        head = b"%s HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n"
        self.send(head % (line, length) + sent)

    def said(self) -> bytes:
        """Everything that comes until the gateway hangs up."""
        said = b""
        while part := self._received():
            said += part
        return said

    def trickle(self, seconds: float = 0.05) -> bytes:
        """Send a byte now and then until the gateway hangs up; what it said."""
        said = b""
        end = time.monotonic() + SECONDS
        self._socket.settimeout(seconds)
        while time.monotonic() < end:
            try:
                part = self._received()
            except TimeoutError:
                try:
                    self.send(b" ")
                except ConnectionError:
                    return said
                continue
            if not part:
                return said
            said += part
        raise AssertionError(f"the connection stays open after {said!r}")

    def _received(self) -> bytes:
        try:
            return self._socket.recv(65_536)
        except ConnectionError:
            return b""


def metric(url: str, name: str) -> float:
    told = send(url, Request("GET", "/metrics")).body.decode()
    [line] = [line for line in told.splitlines() if line.startswith(f"es_sbert_gateway_{name} ")]
    return float(line.split()[1])


def capacity(url: str) -> tuple[int, str]:
    answer = send(url, Request("GET", "/readyz"))
    return answer.status, orjson.loads(answer.body)["capacity"]


def test_slow_senders_are_closed_and_block_nobody(echo: Echo, tiny: Path) -> None:
    slow = 2 * MOST_REQUESTS
    limits = {"concurrency": MOST_REQUESTS, "body_grace_seconds": 2.0}
    with gateway(echo.url, tiny, **limits) as url, ExitStack() as callers:
        connections = [callers.enter_context(Caller(url)) for _ in range(slow * len(TARGETS))]
        for number, caller in enumerate(connections):
            caller.begin(TARGETS[number % len(TARGETS)], 1000, b"{")
        wait_until(lambda: metric(url, "requests_running") >= slow + MOST_REQUESTS)
        for target in ("/a", "/a/_search", "/a/_doc/1", "/ui/api/indices"):
            answer = send(url, Request("GET", target))
            assert answer.status == 200, answer
        written = send(url, Request("POST", "/a/_doc/1", JSON, b"{}"))
        assert written.status == 200, written
        assert capacity(url)[1] == "ok"
        with ThreadPoolExecutor(len(connections)) as pool:
            assert {status_of(said) for said in pool.map(Caller.trickle, connections)} == {408}
        wait_until(lambda: metric(url, "requests_running") == 0)


@pytest.mark.parametrize(
    ("limits", "words"),
    [({"body_seconds": 0.5, "body_rate": 1}, b"did not arrive within 0.5 seconds"),
     ({"body_grace_seconds": 0.5}, b"arrived at less than 1,024 bytes per second"),
     ({"idle_seconds": 0.5, "head_seconds": SECONDS}, b"paused for 0.5 seconds")],
    ids=["in all", "rate", "nothing"],
)  # fmt: skip
def test_slow_body_gets_408(echo: Echo, tiny: Path, limits: dict[str, float], words: bytes) -> None:
    with gateway(echo.url, tiny, **limits) as url, ThreadPoolExecutor(len(TARGETS)) as pool:

        def refused(target: bytes) -> bytes:
            with Caller(url) as caller:
                caller.begin(target, 1000, b"{")
                return caller.said() if "idle_seconds" in limits else caller.trickle()

        answers = dict(zip(TARGETS, pool.map(refused, TARGETS), strict=True))
    for target, said in answers.items():
        assert status_of(said) == 408, target
        assert words in said
        assert b"connection: close" in said
    error = orjson.loads(answers[TARGETS[0]].partition(b"\r\n\r\n")[2])
    assert error["status"] == 408
    assert error["error"]["root_cause"][0]["type"] == "es_sbert_request_timeout"


@pytest.mark.parametrize("chunked", [False, True], ids=["length", "chunked"])
def test_truncated_stream_is_not_complete_for_engine(echo: Echo, tiny: Path, chunked: bool) -> None:
    framing = b"transfer-encoding: chunked\r\n\r\n3\r\nabc\r\n" if chunked else b"content-length: 100\r\n\r\nabc"
    with gateway(echo.url, tiny, body_grace_seconds=0.5, idle_seconds=0.5, head_seconds=SECONDS) as url:
        said = talk(url, b"PUT /a/_settings HTTP/1.1\r\nhost: x\r\nconnection: close\r\n" + framing)
        assert status_of(said) == 408
        wait_until(lambda: echo.refused != [])  # the engine saw its beginning, and that it broke off
    assert echo.received == []
    echo.refused.clear()


def test_slow_engine_does_not_time_out_upload(tiny: Path) -> None:
    """An upload that must wait for the engine is not one that comes too slowly."""
    body = bytes(48 * 1024 * 1024)  # more than the sockets in between hold
    received = []
    listener = socket.create_server(("127.0.0.1", 0))

    def serve() -> None:
        connection, _ = listener.accept()
        with connection, connection.makefile("rb") as source:
            while source.readline() != b"\r\n":
                pass
            time.sleep(3)  # several times what the caller has
            received.append(len(source.read(len(body))))
            connection.sendall(OK)

    engine = threading.Thread(target=serve)
    engine.start()
    limits = {"body_seconds": 1.0, "body_grace_seconds": 1.0, "idle_seconds": 1.0, "body_rate": 1e9}
    with gateway(f"http://127.0.0.1:{listener.getsockname()[1]}", tiny, head_seconds=SECONDS, **limits) as url:
        answer = send(url, Request("PUT", "/a/_settings", (), body))
    engine.join(SECONDS)
    listener.close()
    assert answer.status == 200, answer
    assert received == [len(body)]


def test_connections_are_limited_per_address(echo: Echo, tiny: Path) -> None:
    ask = b"GET /a HTTP/1.1\r\nhost: x\r\n\r\n"
    with gateway(echo.url, tiny, client_connections=3) as url, ExitStack() as callers:
        open_ones = [callers.enter_context(Caller(url)) for _ in range(3)]
        wait_until(lambda: metric(url, "connections") == 4)  # and the one that asks
        with Caller(url) as caller:
            caller.send(ask)
            said = caller.said()
        assert status_of(said) == 429
        assert b"connection: close" in said
        assert b"3 connections are open from your address" in said
        assert send(url, Request("GET", "/a")).status == 200
        assert capacity(url)[1] == "ok"
        for page in (b"/healthz", b"/readyz"):
            with Caller(url) as caller:
                caller.send(b"GET %s HTTP/1.1\r\nhost: x\r\n\r\n" % page)
                assert status_of(caller.said()) in (200, 503)
        assert metric(url, "connections_refused_total") == 3
        open_ones[0].__exit__()
        wait_until(lambda: metric(url, "connections") == 3)
        with Caller(url) as caller:
            caller.send(ask.replace(b"host: x", b"host: x\r\nconnection: close"))
            assert status_of(caller.said()) == 200


def test_only_health_endpoints_answer_at_connection_limit(echo: Echo, tiny: Path) -> None:
    with gateway(echo.url, tiny, connections=2) as url, ExitStack() as callers:
        for _ in range(2):
            callers.enter_context(Caller(url))
        # Many more that say nothing must not keep the next one from being heard.
        idle = [callers.enter_context(Caller(url)) for _ in range(200)]
        wait_until(lambda: send(url, Request("GET", "/a")).status == 429)
        refused = send(url, Request("GET", "/a?q=/healthz"))
        assert_error(refused, 429, "limit of 2 connections")
        assert refused.header("connection") == "close"
        assert send(url, Request("GET", "/healthz")).status == 200
        status, why = capacity(url)
        assert (status, why) == (503, "the gateway is at its limit of 2 connections")
        assert status_of(idle[0].said()) == 429


def test_buffered_bodies_are_limited(echo: Echo, tiny: Path) -> None:
    most = {"body_bytes": MOST_BYTES, "buffered_bytes": 2 * MOST_BYTES}
    body = b"{}" + b" " * (MOST_BYTES // 2)
    with gateway(echo.url, tiny, **most) as url, ExitStack() as callers:
        for _ in range(2):
            caller = callers.enter_context(Caller(url))
            caller.begin(b"POST /a/_search", MOST_BYTES, b" " * (MOST_BYTES * 9 // 10))
        wait_until(lambda: metric(url, "buffered_bytes") == 2 * (MOST_BYTES * 9 // 10))
        for target in ("/a/_search", "/_msearch", "/a/_bulk", "/v1/embeddings", "/ui/api/body"):
            answer = send(url, Request("POST", target, JSON, body))
            assert answer.status == 429, (target, answer)
            assert b"bytes of request bodies" in answer.body
        unfolding = Request("POST", "/a/_search", (*JSON, ("content-encoding", "gzip")), gzip.compress(body))
        assert_error(send(url, unfolding), 429, "bytes of request bodies")
        # What is passed through is not kept, and small bodies find room.
        assert send(url, Request("PUT", "/a/_settings", JSON, body)).status == 200
        assert send(url, Request("POST", "/a/_search", JSON, b"{}")).status == 200
        callers.close()
        wait_until(lambda: metric(url, "buffered_bytes") == 0)
        assert send(url, Request("POST", "/a/_search", JSON, body)).status == 200


@pytest.mark.parametrize("target", ["/healthz", "/a/_search"])
def test_unread_body_does_not_keep_connection_open(echo: Echo, tiny: Path, target: str) -> None:
    length = 1000 if target == "/healthz" else 10 * MOST_BYTES
    method = "GET" if target == "/healthz" else "POST"
    with (
        gateway(echo.url, tiny, idle_seconds=1.0, body_bytes=MOST_BYTES, head_seconds=1.0) as url,
        Caller(url) as caller,
    ):
        caller.begin(f"{method} {target}".encode(), length, b"{")
        assert status_of(caller.trickle()) in (200, 413)
