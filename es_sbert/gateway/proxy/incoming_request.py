"""A client's HTTP request and its body, read within the configured limits."""

from __future__ import annotations

import asyncio
import contextlib
import re
import zlib
from collections.abc import AsyncIterator
from dataclasses import dataclass, field

from starlette.requests import ClientDisconnect, Request
from starlette.types import Message, Receive, Scope

from es_sbert.errors import RequestTooLarge
from es_sbert.gateway.admission import AdmissionControl, RequestSlot
from es_sbert.gateway.errors import BadRequest
from es_sbert.gateway.settings import Limits

Headers = list[tuple[bytes, bytes]]

_INFLATE_BYTES = 1024 * 1024
_JOIN_INLINE_BYTES = 4 * 1024 * 1024
_GZIP_OR_ZLIB = 32 + zlib.MAX_WBITS
_RESEND = "Send it again, or uncompressed."
_GZIP_MEMBER = b"\x1f\x8b"  # a file of gzip may be several, one after another
# `.` and `..`, also percent-encoded: an engine never needs them, and a reverse proxy before it might follow them.
_DOT_SEGMENT = re.compile(rb"(?:^|/|%2f|\\|%5c)(?:\.|%2e){1,2}(?:$|/|%2f|\\|%5c)", re.IGNORECASE)
_NOT_ASCII = re.compile(rb"[^\x21-\x7e]")


class ClientDisconnected(Exception):
    """The caller closed the connection before the request was complete."""


class DrainableReceive:
    """A request's messages, of which the rest can be thrown away.

    Args:
        receive: The server's.

    Attributes:
        complete: Whether all of them have come.
    """

    def __init__(self, receive: Receive) -> None:
        self._receive = receive
        self.complete = False

    async def __call__(self) -> Message:
        message = await self._receive()
        self.complete = not message.get("more_body", False)
        return message

    async def rest(self, seconds: float) -> None:
        """Read what is left of a body: where a connection closes before that, its caller never sees the answer.

        Args:
            seconds: How long it may take to arrive.
        """
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                while not self.complete:
                    await self()


@dataclass(eq=False)
class IncomingRequest:
    """A request.

    Attributes:
        method: In capitals.
        path: As sent, percent-encoding untouched.
        query: What stands behind the question mark, as sent.
        headers: As sent, names in small letters.
        content_length: What the headers say of the body's bytes; 0 where they say nothing.
        has_body: Whether a body comes at all.
        slot: What the request takes of what the gateway has. It counts as one as soon as its body is complete.
        complete: Set once the whole body has arrived.
    """

    method: str
    path: bytes
    query: bytes
    headers: Headers
    limits: Limits
    receive: Receive
    slot: RequestSlot
    # Asked several times for each request, so found out once.
    content_length: int = field(init=False)
    has_body: bool = field(init=False)
    complete: asyncio.Event = field(init=False, default_factory=asyncio.Event)

    def __post_init__(self) -> None:
        stated = self.header(b"content-length")
        self.content_length = int(stated) if stated.isdigit() else 0
        self.has_body = self.content_length > 0 or bool(self.header(b"transfer-encoding"))

    @classmethod
    def of(cls, scope: Scope, receive: Receive, limits: Limits, slot: RequestSlot | None = None) -> IncomingRequest:
        """The request of an ASGI scope.

        Args:
            slot: Of the gateway's admission; None where the request is the only one.

        Raises:
            BadRequest: a target that is no path of the engine.
            RequestTooLarge: the body says itself that it is.
            Overloaded: it has no body, and too many requests are being answered.
        """
        slot = slot or RequestSlot(AdmissionControl(limits), limits)
        path: bytes = scope.get("raw_path") or scope["path"].encode()
        if not path.startswith(b"/") or _DOT_SEGMENT.search(path):
            raise BadRequest(
                "the path of the request is not one of an engine", "Ask for a path that begins with / and has no dots."
            )
        target = _percent_encode(path), _percent_encode(scope["query_string"])
        incoming = cls(scope["method"], *target, scope["headers"], limits, receive, slot)
        if incoming.content_length > limits.body_bytes:
            raise incoming.too_large()
        if not incoming.has_body:
            slot.acquire()
            incoming.complete.set()
        return incoming

    @property
    def target(self) -> bytes:
        """Path and query as they stand in the request line."""
        return self.path + b"?" + self.query if self.query else self.path

    def header(self, name: bytes) -> bytes:
        """The first value of a header; empty where there is none."""
        for key, value in self.headers:
            if key == name:
                return value
        return b""

    def too_large(self) -> RequestTooLarge:
        limit = self.limits.body_bytes
        return RequestTooLarge(
            f"the body of the request is larger than {limit:,} bytes",
            "Send smaller requests, or start the gateway with a larger --max-body.",
        )

    async def parts(self) -> AsyncIterator[bytes]:
        """The body as it arrives.

        Raises:
            RequestTooLarge: more bytes than the limit.
            RequestTimeout: they come too slowly.
            Overloaded: the body is complete, and too many requests are being answered.
            CallerGone: the connection closed.
        """
        received = 0
        while not self.complete.is_set():
            message = await self.slot.timer.next(self.receive, received)
            if message["type"] == "http.disconnect":
                raise ClientDisconnected
            part: bytes = message.get("body", b"")
            received += len(part)
            if received > self.limits.body_bytes:
                raise self.too_large()
            last = not message.get("more_body", False)
            if last or 0 < self.content_length <= received:
                # Before the last part is handed on: a request that is refused must not be complete for the engine.
                self.slot.acquire()
            if last:
                self.complete.set()
            if part:
                yield part

    async def body(self) -> bytes:
        """The whole body, as sent.

        Raises:
            Overloaded: there is no memory for it, or as in `parts`.
            RequestTooLarge, RequestTimeout, CallerGone: as `parts`.
        """
        parts = []
        async for part in self.parts():
            self.slot.reserve(len(part))
            parts.append(part)
        if sum(map(len, parts)) <= _JOIN_INLINE_BYTES:
            return b"".join(parts)
        # A thread that joins large bodies lets the event loop go on meanwhile.
        return await asyncio.to_thread(b"".join, parts)

    async def wait_disconnected(self) -> None:
        """Comes back once the caller has gone, or has its whole answer."""
        if self.has_body:
            await self.complete.wait()
        while (await self.receive())["type"] != "http.disconnect":
            pass


def decompress_body(body: bytes, incoming: IncomingRequest) -> bytes | None:
    """The body without its content encoding; None where that is none that can be undone here.

    Raises:
        RequestTooLarge: it unfolds beyond the limit.
        Overloaded: there is no memory for it.
        BadRequest: it is damaged.
    """
    encoding = incoming.header(b"content-encoding").strip().lower()
    if encoding in (b"", b"identity") or not body:
        return body
    if encoding not in (b"gzip", b"x-gzip", b"deflate", b"x-deflate"):
        return None
    # Some send deflate without zlib's head, and engines take it.
    bare = encoding.endswith(b"deflate") and not _has_zlib_header(body)
    parts: list[bytes] = []
    size = 0
    while True:
        unfolding = zlib.decompressobj(-zlib.MAX_WBITS if bare else _GZIP_OR_ZLIB)
        while body and not unfolding.eof:
            try:
                part = unfolding.decompress(body, _INFLATE_BYTES)
            except zlib.error as error:
                raise BadRequest(f"the compressed body cannot be read: {error}", _RESEND) from None
            body = unfolding.unconsumed_tail
            size += len(part)
            if size > incoming.limits.body_bytes:
                raise incoming.too_large()
            incoming.slot.reserve(len(part))
            parts.append(part)
        if not unfolding.eof:
            raise BadRequest("the compressed body ends too early", _RESEND)
        body = unfolding.unused_data
        if not body:
            return b"".join(parts)
        if not body.startswith(_GZIP_MEMBER):
            return None


def _has_zlib_header(body: bytes) -> bool:
    """Whether a body begins as RFC 1950 says: method 8, and a checksum over the first two bytes."""
    return len(body) > 1 and body[0] & 0x0F == zlib.DEFLATED and int.from_bytes(body[:2]) % 31 == 0


def _percent_encode(target: bytes) -> bytes:
    """Percent-encodes what may not stand in a request line as it is."""
    return _NOT_ASCII.sub(lambda found: b"%%%02X" % found[0][0], target)


def is_uncompressed_json(request: Request) -> bool:
    """Whether the body says that it is JSON, not compressed."""
    # A page of another origin may post text without asking first, but not JSON.
    media_type = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    return media_type == "application/json" and request.headers.get("content-encoding", "identity") == "identity"


async def read_body(request: Request, limit: int, slot: RequestSlot) -> bytes:
    """The body of a request, which counts as one once its body is complete.

    Args:
        limit: Most bytes.
        slot: What the request takes of what the gateway has.

    Raises:
        RequestTooLarge: it is larger; the rest of it is not read.
        RequestTimeout: it comes too slowly.
        Overloaded: too many requests are being answered, or there is no memory for its body.
        ClientDisconnect: the caller went away.
    """
    announced = request.headers.get("content-length", "")
    if announced.isdecimal() and int(announced) > limit:
        raise _body_too_large(limit)
    parts: list[bytes] = []
    size, complete = 0, False
    while not complete:
        message = await slot.timer.next(request.receive, size)
        if message["type"] == "http.disconnect":
            raise ClientDisconnect
        part: bytes = message.get("body", b"")
        size += len(part)
        if size > limit:
            raise _body_too_large(limit)
        slot.reserve(len(part))
        parts.append(part)
        complete = not message.get("more_body", False)
    slot.acquire()
    return b"".join(parts)


def _body_too_large(limit: int) -> RequestTooLarge:
    return RequestTooLarge(f"the body is larger than {limit:,} bytes", "Send it in several requests.")
