"""An upstream that writes down the very bytes it gets and answers with the very bytes it was given."""

from __future__ import annotations

import re
import select
import socket
import socketserver
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from typing import BinaryIO

from tests.local_server import LocalServer

HEAD = b"HTTP/1.1 200 OK\r\nX-elastic-product: Elasticsearch\r\ncontent-type: application/json\r\n"
OK = HEAD + b"content-length: 2\r\n\r\n{}"


def whole(body: bytes, status: bytes = b"200 OK") -> bytes:
    return HEAD.replace(b"200 OK", status) + b"content-length: %d\r\n\r\n%s" % (len(body), body)


_REQUEST_LINE = re.compile(rb"([A-Z]+) (\S+) HTTP/1\.1\r\n")
_FIELD = re.compile(rb"([!#$%&'*+\-.^_`|~0-9A-Za-z]+):[ \t]*(.*?)[ \t]*\r\n")


@dataclass(frozen=True)
class Received:
    method: bytes
    target: bytes
    headers: tuple[tuple[bytes, bytes], ...]
    body: bytes
    framing: str

    def values(self, name: bytes) -> list[bytes]:
        return [value for key, value in self.headers if key.lower() == name]


def is_question(got: Received) -> bool:
    """Whether the gateway asks by itself: which indices have vectors, who may search them, what a template becomes."""
    asked = (b"_meta.es_sbert", b"/_field_caps?fields=_id", b"/_has_privileges", b"/authinfo", b"/_render/template")
    return any(mark in got.target for mark in asked)


class NotHttpError(Exception):
    """Bytes that a strict server does not take for a request."""


Reply = Callable[[Received, BinaryIO], bool]


def raw(answer: bytes, *, close: bool = False) -> Reply:
    """Answer with these bytes, without a body to HEAD; `close` ends the connection after them."""

    def reply(asked: Received, out: BinaryIO) -> bool:
        head, end, _ = answer.partition(b"\r\n\r\n")
        out.write(head + end if asked.method == b"HEAD" else answer)
        return not close

    return reply


@dataclass
class Echo(LocalServer):
    reply: Reply = field(default_factory=lambda: raw(OK))
    received: list[Received] = field(default_factory=list)
    refused: list[str] = field(default_factory=list)
    # Open connections, and whether a request of them is being read or answered.
    _busy: dict[socket.socket, bool] = field(default_factory=dict, init=False, repr=False)
    _lock: threading.Lock = field(default_factory=threading.Lock, init=False, repr=False)

    def _handler(self) -> type[socketserver.BaseRequestHandler]:
        echo = self

        class Handler(socketserver.StreamRequestHandler):
            def handle(self) -> None:
                try:
                    # The gateway may hang up whenever it likes; what it sent until then is kept.
                    with suppress(ConnectionError):
                        while self._begun() and echo._serve(self.rfile, self.wfile):
                            pass
                finally:
                    with echo._lock:
                        echo._busy.pop(self.request)

            def _begun(self) -> bool:
                """Wait for a request's first byte; False at the end of the connection."""
                with echo._lock:
                    echo._busy[self.request] = False
                begun = bool(self.rfile.peek(1))  # type: ignore[attr-defined]  # a BufferedReader
                with echo._lock:
                    echo._busy[self.request] = True
                return begun

        return Handler

    def start_anew(self) -> None:
        """Answer as at first, and forget what arrived, once all of it has."""
        end = time.monotonic() + 60
        while not self._is_quiet():
            if time.monotonic() > end:
                raise TimeoutError("a request to the echo never ends")
            time.sleep(0.005)
        self.reply = raw(OK)
        self.received.clear()
        self.refused.clear()

    def _is_quiet(self) -> bool:
        """Whether no request is under way, and none that the gateway gave up is still to be noticed."""
        with self._lock:
            return not any(self._busy.values()) and not select.select(list(self._busy), [], [], 0)[0]

    def only(self) -> Received:
        """The one request that arrived; it is taken out."""
        [request] = self.received
        assert self.refused == []
        self.received.clear()
        return request

    def _serve(self, source: BinaryIO, out: BinaryIO) -> bool:
        try:
            request = read_request(source)
        except NotHttpError as error:
            self.refused.append(str(error))
            return False
        if request is None:
            return False
        self.received.append(request)
        return self.reply(request, out)


def read_request(source: BinaryIO) -> Received | None:
    """The next request of a connection; None at its end."""
    line = source.readline(65_537)
    if not line:
        return None
    matched = _REQUEST_LINE.fullmatch(line)
    if matched is None:
        raise NotHttpError(f"request line {line!r}")
    headers = []
    while (line := source.readline(65_537)) != b"\r\n":
        found = _FIELD.fullmatch(line)
        if found is None:
            raise NotHttpError(f"header {line!r}")
        headers.append((found[1], found[2]))
    lengths = [value for name, value in headers if name.lower() == b"content-length"]
    encodings = [value for name, value in headers if name.lower() == b"transfer-encoding"]
    if len(lengths) + len(encodings) > 1:
        raise NotHttpError(f"framed twice: {lengths} {encodings}")
    if len([1 for name, _ in headers if name.lower() == b"host"]) != 1:
        raise NotHttpError("not one Host header")
    framing, body = "none", b""
    if lengths:
        framing, body = "length", _exactly(source, _number(lengths[0], 10))
    elif encodings:
        framing, body = "chunked", _chunks(source)
    return Received(matched[1], matched[2], tuple(headers), body, framing)


def _chunks(source: BinaryIO) -> bytes:
    parts = []
    while size := _number(source.readline(100).removesuffix(b"\r\n"), 16):
        parts.append(_exactly(source, size))
        if source.read(2) != b"\r\n":
            raise NotHttpError("a chunk without its end")
    if source.readline(100) != b"\r\n":
        raise NotHttpError("trailers")
    return b"".join(parts)


def _exactly(source: BinaryIO, size: int) -> bytes:
    body = source.read(size)
    if len(body) != size:
        raise NotHttpError(f"{len(body)} of {size} bytes of a body")
    return body


def _number(digits: bytes, base: int) -> int:
    if not re.fullmatch(rb"[0-9A-Fa-f]+", digits):
        raise NotHttpError(f"length {digits!r}")
    return int(digits, base)
