"""Heads, bodies, patience and the number of requests have limits."""

from __future__ import annotations

import gzip
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import BinaryIO

import pytest

from es_sbert.gateway.server.uvicorn_server import MAX_HEAD_BYTES
from tests.gateway.echo import OK, Echo, Received
from tests.gateway.recorded import Request
from tests.gateway.security.conftest import JSON, MOST_BYTES, MOST_REQUESTS, assert_error, status_of
from tests.gateway.serving import gateway
from tests.gateway.wire import send, talk


@pytest.mark.parametrize(
    "data",
    [b"GET /a?" + b"x" * MAX_HEAD_BYTES + b" HTTP/1.1\r\n\r\n",
     b"GET /a HTTP/1.1\r\nx: " + b"x" * MAX_HEAD_BYTES + b"\r\n\r\n",
     b"GET /a HTTP/1.1\r\n" + b"x1234: y\r\n" * (MAX_HEAD_BYTES // 10 + 9) + b"\r\n",
     b"GET /a HTTP/1.1\r\nx: " + b"x" * MAX_HEAD_BYTES],
    ids=["path", "header", "many headers", "header without end"],
)  # fmt: skip
def test_request_head_size_is_limited(url: str, echo: Echo, data: bytes) -> None:
    assert status_of(talk(url, data)) == 431
    assert echo.received == []


def test_missing_request_head_times_out(echo: Echo, tiny: Path) -> None:
    begun = [b"", b"GET", b"GET /a HTTP/1.1\r\nhost: x\r\nx-a"]
    # Long enough for what does come to be there before.
    with gateway(echo.url, tiny, idle_seconds=2.0) as impatient, ThreadPoolExecutor(len(begun)) as callers:
        assert [status_of(said) for said in callers.map(lambda head: talk(impatient, head), begun)] == [408] * 3


@pytest.mark.parametrize("target", ["/a/_doc/1", "/a/_own", "/a/_search"])
@pytest.mark.parametrize("chunked", [False, True], ids=["length", "chunked"])
def test_request_body_size_is_limited(url: str, echo: Echo, target: str, chunked: bool) -> None:
    # More than what is read at once: the answer must not get lost while the caller still sends.
    body = b"x" * (10 * MOST_BYTES)
    framing = b"transfer-encoding: chunked\r\n\r\n%x\r\n" if chunked else b"content-length: %d\r\n\r\n"
    head = f"POST {target} HTTP/1.1\r\nhost: x\r\nconnection: close\r\n".encode() + framing % len(body)
    said = talk(url, head + body + (b"\r\n0\r\n\r\n" if chunked else b""))
    assert status_of(said) == 413
    assert echo.received == []


def test_decompressed_body_over_limit_is_rejected(url: str, echo: Echo) -> None:
    bomb = gzip.compress(b'{"query":{"match":{"semantic":"' + b"x" * 50_000_000 + b'"}}}')
    assert len(bomb) < MOST_BYTES
    compressed = Request("POST", "/a/_search", (*JSON, ("content-encoding", "gzip")), bomb)
    assert_error(send(url, compressed), 413, "larger than")
    assert echo.received == []


def test_too_many_concurrent_requests_get_429(url: str, echo: Echo) -> None:
    arrived = threading.Semaphore(0)
    go_on = threading.Event()

    def reply(_: Received, out: BinaryIO) -> bool:
        arrived.release()
        assert go_on.wait(120)
        out.write(OK)
        return True

    echo.reply = reply
    with ThreadPoolExecutor(MOST_REQUESTS) as pool:
        waiting = [pool.submit(send, url, Request("GET", "/a")) for _ in range(MOST_REQUESTS)]
        for _ in waiting:
            assert arrived.acquire(timeout=120)
        refused = [send(url, Request("GET", target)) for target in ("/a", "/ui/api/indices")]
        told, ready = (send(url, Request("GET", path)).body.decode() for path in ("/metrics", "/readyz"))
        go_on.set()
        assert [each.result().status for each in waiting] == [200] * MOST_REQUESTS
    for answer, kind in zip(refused, ("passed", "ui"), strict=True):
        assert_error(answer, 429, "limit of 4 concurrent requests")
        assert f'es_sbert_gateway_requests_total{{kind="{kind}",status="429"}} 1.0' in told
    assert "the gateway is at its limit of 4 concurrent requests" in ready
    assert send(url, Request("GET", "/a")).status == 200
