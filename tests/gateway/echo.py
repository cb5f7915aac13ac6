"""An upstream that writes down the very bytes it gets and answers with the very bytes it was given."""

from __future__ import annotations

import re
import socketserver
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from typing import BinaryIO

from tests.local_server import LocalServer

HEAD = b"HTTP/1.1 200 OK\r\nX-elastic-product: Elasticsearch\r\ncontent-type: application/json\r\n"
OK = HEAD + b"content-length: 2\r\n\r\n{}"
_REQUEST_LINE = re.compile(rb"([A-Z]+) (\S+) HTTP/1\.1\r\n")
_FIELD = re.compile(rb"([!#$%&'*+\-.^_`|~0-9A-Za-z]+):[ \t]*(.*?)[ \t]*\r\n")


@dataclass(frozen=True)
class Received:
    """A request as it arrived.

    Attributes:
        target: As in the request line.
        headers: In order, as sent.
        body: Without chunk framing.
        framing: The head's framing: `none`, `length` or `chunked`.
    """

    method: bytes
    target: bytes
    headers: tuple[tuple[bytes, bytes], ...]
    body: bytes
    framing: str

    def values(self, name: bytes) -> list[bytes]:
        """All values of a header, whatever its case."""
        return [value for key, value in self.headers if key.lower() == name]


def is_question(got: Received) -> bool:
    """Whether the gateway asks on its own behalf: which indices have vectors, what a template becomes."""
    return b"_meta.es_sbert" in got.target or got.target.startswith(b"/_render/template")


class NotHttpError(Exception):
    """Bytes that a strict server does not take for a request."""


Reply = Callable[[Received, BinaryIO], bool]


def raw(answer: bytes, *, close: bool = False) -> Reply:
    """Answer with these bytes; `close` ends the connection after them."""

    def reply(_: Received, out: BinaryIO) -> bool:
        out.write(answer)
        return not close

    return reply


@dataclass
class Echo(LocalServer):
    """Serves on a port of its own. Use as a context manager.

    Attributes:
        reply: Writes an answer and says whether the connection stays open.
        received: Requests, in the order of their arrival.
        refused: What arrived and was no request.
    """

    reply: Reply = field(default_factory=lambda: raw(OK))
    received: list[Received] = field(default_factory=list)
    refused: list[str] = field(default_factory=list)

    def _handler(self) -> type[socketserver.BaseRequestHandler]:
        echo = self

        class Handler(socketserver.StreamRequestHandler):
            def handle(self) -> None:
                # The gateway may hang up whenever it likes; what it sent until then is kept.
                with suppress(ConnectionError):
                    while echo._serve(self.rfile, self.wfile):
                        pass

        return Handler

    def start_anew(self) -> None:
        """Answer as at first, and forget what arrived."""
        self.reply = raw(OK)
        self.received.clear()
        self.refused.clear()

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
    """The next request of a connection; None at its end.

    Raises:
        NotHttpError: the bytes are no request, or it could be read in two ways.
    """
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
