"""A small HTTP proxy in front of a real engine that misbehaves on demand, as load balancers and networks do."""

from __future__ import annotations

import http.client
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler
from typing import Any
from urllib.parse import urlsplit

import orjson

from es_sbert.index.privileges import NO_DOCUMENT
from tests.local_server import LocalServer


class CutConnectionError(Exception):
    """Raised by a fault: the connection breaks without an answer."""


@dataclass
class Exchange:
    """A request on its way to the engine."""

    path: str
    body: bytes
    forward: Callable[[], tuple[int, bytes]]


Fault = Callable[[Exchange], tuple[int, bytes]]


def answer(status: int) -> Fault:
    """Answer with a status of our own, as an engine words it; the engine never sees the request."""
    error = {"type": "es_rejected_execution_exception", "reason": "made by the test"}
    return lambda exchange: (status, orjson.dumps({"error": error, "status": status}))


def cut_before(exchange: Exchange) -> tuple[int, bytes]:
    """Break the connection; the engine never sees the request."""
    raise CutConnectionError


def cut_after(exchange: Exchange) -> tuple[int, bytes]:
    """Let the engine carry the request out and break the connection before it can answer."""
    exchange.forward()
    raise CutConnectionError


def refuse_items(*positions: int, status: int = 429) -> Fault:
    """Pass on all but these actions of a bulk request and report 429 for them, as a full write queue does."""

    def fault(exchange: Exchange) -> tuple[int, bytes]:
        lines = exchange.body.splitlines(keepends=True)
        pairs = [lines[start : start + 2] for start in range(0, len(lines), 2)]
        exchange.body = b"".join(b"".join(pair) for n, pair in enumerate(pairs) if n not in positions)
        answer, raw = exchange.forward() if exchange.body else (200, b'{"items":[]}')
        items: list[Any] = orjson.loads(raw)["items"]
        error = {"type": "es_rejected_execution_exception", "reason": "made by the test"}
        for position in sorted(positions):
            if position >= len(pairs):
                continue
            [(kind, head)] = orjson.loads(pairs[position][0]).items()
            items.insert(position, {kind: {"_id": head["_id"], "status": status, "error": error}})
        return answer, orjson.dumps({"items": items})

    return fault


def too_large(limit: int) -> Fault:
    """413 for bodies of more than `limit` bytes, as `http.max_content_length` gives it."""
    return lambda exchange: (413, b"") if len(exchange.body) > limit else exchange.forward()


class Hold:
    """A fault that stops a client at a moment: what it asks from then on gets no answer until the hold is over.

    However late a test looks, it finds the client at that moment and not at its end.
    """

    def __init__(self, has_come: Callable[[], bool]) -> None:
        self._has_come = has_come
        self.reached = threading.Event()
        self._over = threading.Event()
        self._answers = False

    def __call__(self, exchange: Exchange) -> tuple[int, bytes]:
        carried_out = None
        if not self.reached.is_set():
            carried_out = exchange.forward()
            if not self._has_come():
                return carried_out
            self.reached.set()
        self._over.wait()
        if not self._answers:
            raise CutConnectionError
        return carried_out or exchange.forward()

    def release(self) -> None:
        """Answer what waits, and all that comes."""
        self._answers = True
        self._over.set()

    def cut(self) -> None:
        """Break the connections of what waits: its client is no more."""
        self._over.set()


@dataclass
class FaultyProxy(LocalServer):
    """Passes everything on to `target`, except for what the faults say. Use as a context manager."""

    target: str
    faults: list[Fault] = field(default_factory=list)
    always: Fault | None = None
    paths: str = "/_bulk"
    authorization: str | None = None
    down: threading.Event = field(default_factory=threading.Event)
    bulk_sizes: list[int] = field(default_factory=list)
    _lock: threading.Lock = field(default_factory=threading.Lock, init=False, repr=False)
    _signs: bool = field(default=True, init=False, repr=False)  # whether the engine is Elasticsearch, once it answers

    def _fault(self, exchange: Exchange) -> Fault | None:
        # The question whether the user may update documents, on OpenSearch a bulk request too, writes nothing.
        if not exchange.path.partition("?")[0].endswith(self.paths) or NO_DOCUMENT.encode() in exchange.body:
            return None
        with self._lock:
            self.bulk_sizes.append(len(exchange.body))
            return self.faults.pop(0) if self.faults else self.always

    def _handler(self) -> type[BaseHTTPRequestHandler]:
        proxy = self
        host = urlsplit(self.target).netloc

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def _serve(self) -> None:
                body = self.rfile.read(int(self.headers.get("content-length") or 0))
                passed_on = {"content-type": "application/json"}

                def forward() -> tuple[int, bytes]:
                    connection = http.client.HTTPConnection(host, timeout=60)
                    try:
                        headers = {k: v for k, v in self.headers.items() if k.lower() not in ("host", "content-length")}
                        connection.request(self.command, self.path, exchange.body, headers)
                        response = connection.getresponse()
                        raw = response.read()
                    finally:
                        connection.close()
                    proxy._signs = "x-elastic-product" in response.headers
                    for name in ("x-elastic-product", "content-type"):
                        if response.headers.get(name):
                            passed_on[name] = response.headers[name]
                    return response.status, raw

                exchange = Exchange(self.path, body, forward)
                wrong = proxy.authorization is not None and self.headers.get("authorization") != proxy.authorization
                fault = answer(401) if wrong else proxy._fault(exchange)
                try:
                    if proxy.down.is_set():
                        raise CutConnectionError
                    status, raw = fault(exchange) if fault else forward()
                except CutConnectionError:
                    self.close_connection = True
                    return
                # Elasticsearch signs its errors too; its client believes no answer without the signature.
                if proxy._signs:
                    passed_on.setdefault("x-elastic-product", "Elasticsearch")
                self.send_response(status)
                for name, value in passed_on.items():
                    self.send_header(name, value)
                self.send_header("content-length", str(len(raw)))
                self.end_headers()
                if self.command != "HEAD":
                    self.wfile.write(raw)

            do_GET = do_POST = do_PUT = do_DELETE = do_HEAD = _serve  # noqa: N815 (http.server's names)

            def log_message(self, format: str, *args: object) -> None:
                """Nothing: tests have their own assertions."""

        return Handler


@contextmanager
def holding(target: str, has_come: Callable[[], bool], *, paths: str = "/_bulk") -> Iterator[tuple[str, Hold]]:
    """Address of a proxy whose client is held at a moment."""
    hold = Hold(has_come)
    with FaultyProxy(target, always=hold, paths=paths) as proxy:
        try:
            yield proxy.url, hold
        finally:
            hold.cut()
