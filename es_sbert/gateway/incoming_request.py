"""A client's HTTP request: its body, read within the configured limits, its JSON, and its credentials."""

from __future__ import annotations

import asyncio
import codecs
import contextlib
import hashlib
import json
import math
import os
import re
import time
import zlib
from collections.abc import AsyncIterator, Callable, Coroutine, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar
from urllib.parse import unquote_to_bytes

import orjson
from starlette.requests import ClientDisconnect, Request
from starlette.types import Message, Receive, Scope

from es_sbert.engines.rest import Json
from es_sbert.errors import RequestTooLarge
from es_sbert.gateway.admission import RequestSlot
from es_sbert.gateway.concurrency import offload_if_large
from es_sbert.gateway.errors import BadRequest, RequestTimeout, UnsupportedMediaType
from es_sbert.gateway.settings import Limits

T = TypeVar("T")

# Headers that authenticate a caller. The gateway's requests on behalf of a caller carry them.
_CREDENTIAL_HEADERS = frozenset({
    b"authorization", b"cookie", b"es-client-authentication", b"es-secondary-authorization",
    b"es-security-runas-user", b"securitytenant", b"x-proxy-roles", b"x-proxy-user",
})  # fmt: skip


def credential_headers(headers: Headers) -> Headers:
    """The headers that authenticate the caller."""
    return [(name, value) for name, value in headers if name in _CREDENTIAL_HEADERS]


_CACHE_SECRET = os.urandom(32)


def caller_cache_key(headers: Headers, *parts: str) -> bytes:
    """A cache key that keeps callers apart: an expression resolves to different indices for different callers.

    It is a keyed hash that contains the credentials, so that they are not kept.

    Args:
        headers: The caller's headers.
        parts: Parts of the request.
    """
    digest = hashlib.blake2b(key=_CACHE_SECRET, digest_size=16)
    for part in parts:
        digest.update(part.encode("utf-8", "surrogatepass") + b"\0")
    for name, value in sorted(credential_headers(headers)):
        digest.update(name + b":" + value + b"\0")
    return digest.digest()


Headers = list[tuple[bytes, bytes]]

_INFLATE_BYTES = 1024 * 1024
_JOIN_INLINE_BYTES = 4 * 1024 * 1024
_GZIP = 16 + zlib.MAX_WBITS
_RESEND = "Send it again, or uncompressed."
_PASS_THROUGH = "X-Es-Sbert: off passes the request through unchanged."
# `.` and `..`, also percent-encoded: engines never need them, and a reverse proxy before an engine might resolve them.
_DOT_SEGMENT = re.compile(rb"(?:^|/|%2f|\\|%5c)(?:\.|%2e){1,2}(?:$|/|%2f|\\|%5c)", re.IGNORECASE)
_NOT_ASCII = re.compile(rb"[^\x21-\x7e]")


class DrainableReceive:
    """An ASGI `receive` whose remaining messages can be discarded.

    Args:
        receive: The `receive` of the server.

    Attributes:
        complete: Whether the last message was received.
    """

    def __init__(self, receive: Receive) -> None:
        self._receive = receive
        self.complete = False

    async def __call__(self) -> Message:
        message = await self._receive()
        self.complete = not message.get("more_body", False)
        return message

    async def drain(self, seconds: float) -> None:
        """Discard the rest of the body: a client whose connection closes before that never reads the response.

        Args:
            seconds: Maximum time to wait for the rest.
        """
        with contextlib.suppress(TimeoutError):  # the connection is closed with a reset then
            async with asyncio.timeout(seconds):
                while not self.complete:
                    await self()


@dataclass(eq=False)
class IncomingRequest:
    """A client's request.

    Attributes:
        method: Upper case.
        path: Path as sent, with its percent-encoding.
        query: Query string as sent, without the question mark.
        headers: Headers as sent, with names in lower case.
        limits: The limits. `body_bytes` applies to the body as sent and to the decompressed body.
        slot: The request's share of the gateway's limits. The request counts as soon as its body is complete.
        content_length: Bytes of the body according to the header `Content-Length`; 0 without that header.
        has_body: Whether the request has a body.
        body_received: Set when the whole body has arrived.
    """

    method: str
    path: bytes
    query: bytes
    headers: Headers
    limits: Limits
    receive: Receive
    slot: RequestSlot
    content_length: int = field(init=False)
    has_body: bool = field(init=False)
    body_received: asyncio.Event = field(init=False, default_factory=asyncio.Event)

    def __post_init__(self) -> None:
        length = self.header(b"content-length")
        self.content_length = int(length) if length.isdigit() else 0
        self.has_body = self.content_length > 0 or bool(self.header(b"transfer-encoding"))

    @classmethod
    def from_scope(cls, scope: Scope, receive: Receive, limits: Limits, slot: RequestSlot) -> IncomingRequest:
        """Create the request of an ASGI scope.

        Raises:
            BadRequest: the path is malformed or has dot segments.
            RequestTooLarge: the content length exceeds the limit.
            Overloaded: the request has no body, and the gateway is at its limit of concurrent requests.
        """
        path: bytes = scope.get("raw_path") or scope["path"].encode()
        if not path.startswith(b"/") or _DOT_SEGMENT.search(path):
            raise BadRequest(
                "the path of the request is malformed", "Send a path that begins with / and has no segments . or .."
            )
        target = _percent_encode(path), _percent_encode(scope["query_string"])
        incoming = cls(scope["method"], *target, scope["headers"], limits, receive, slot)
        if incoming.content_length > limits.body_bytes:
            raise incoming.body_too_large()
        if not incoming.has_body:
            slot.acquire()
            incoming.body_received.set()
        return incoming

    @property
    def plain_query(self) -> bytes:
        """The query string, with its parameters decoded."""
        return unquote_to_bytes(self.query.replace(b"+", b" "))

    @property
    def target(self) -> bytes:
        """Path and query, as in the request line."""
        return self.path + b"?" + self.query if self.query else self.path

    def header(self, name: bytes) -> bytes:
        """The first value of a header; empty if there is none."""
        for key, value in self.headers:
            if key == name:
                return value
        return b""

    def body_too_large(self) -> RequestTooLarge:
        return RequestTooLarge(
            f"the body of the request is larger than {self.limits.body_bytes:,} bytes",
            "Send smaller requests. For requests to the engine, --max-body of es-sbert serve sets the limit.",
        )

    async def stream(self) -> AsyncIterator[bytes]:
        """Yield the body as it arrives.

        Raises:
            RequestTooLarge: the body exceeds the limit.
            RequestTimeout: the body arrives too slowly.
            Overloaded: the body is complete, and the gateway is at its limit of concurrent requests.
            ClientDisconnect: the connection closed.
        """
        received, waited = 0, 0.0
        while not self.body_received.is_set():
            start = time.monotonic()
            message = await self._next_message(received, waited)
            waited += time.monotonic() - start
            if message["type"] == "http.disconnect":
                raise ClientDisconnect
            chunk: bytes = message.get("body", b"")
            received += len(chunk)
            if received > self.limits.body_bytes:
                raise self.body_too_large()
            last = not message.get("more_body", False)
            if last or 0 < self.content_length <= received:
                # Acquire the slot before the last chunk is passed on: the engine must never get a complete request
                # that is then refused.
                self.slot.acquire()
            if last:
                self.body_received.set()
            if chunk:
                yield chunk

    async def _next_message(self, received: int, waited: float) -> Message:
        """Receive the next message of the body. Only time spent waiting for the client counts.

        Args:
            received: Bytes received before.
            waited: Seconds that it took to receive them.

        Raises:
            RequestTimeout: the message did not arrive in time.
        """
        limits = self.limits
        seconds, reason = min(
            (limits.idle_seconds, f"paused for {limits.idle_seconds:g} seconds"),
            (limits.body_seconds - waited, f"did not arrive within {limits.body_seconds:g} seconds"),
            (
                limits.body_grace_seconds + received / limits.body_rate - waited,
                f"arrived at less than {limits.body_rate:,} bytes per second",
            ),
        )
        try:
            async with asyncio.timeout(seconds):
                return await self.receive()
        except TimeoutError:
            raise RequestTimeout(f"the request's body {reason}", "Send it again, in smaller requests.") from None

    async def body(self) -> bytes:
        """Read the whole body, as sent.

        Raises:
            Overloaded: request bodies use all memory that is allowed for them, or see `stream`.
            RequestTooLarge, RequestTimeout, ClientDisconnect: see `stream`.
        """
        chunks = []
        async for chunk in self.stream():
            self.slot.reserve(len(chunk))
            chunks.append(chunk)
        if sum(map(len, chunks)) <= _JOIN_INLINE_BYTES:
            return b"".join(chunks)
        # Joining a large body takes long enough to delay other requests.
        return await asyncio.to_thread(b"".join, chunks)

    @property
    def content_encoding(self) -> bytes:
        """The content encoding of the body, in lower case."""
        return self.header(b"content-encoding").strip().lower()

    async def cancel_on_disconnect(
        self, work: Coroutine[Any, Any, T], answered: Callable[[], bool] = lambda: False
    ) -> T:
        """Run work for the client, and cancel it when the client disconnects.

        Args:
            work: May read the body.
            answered: Whether the whole response was sent; a disconnect after that is ignored.

        Raises:
            ClientDisconnect: the client disconnected.
        """
        doing = asyncio.current_task()
        assert doing is not None, "inside a task"
        gone = False

        async def watch() -> None:
            nonlocal gone
            if self.has_body:
                await self.body_received.wait()
            while (await self.receive())["type"] != "http.disconnect":
                pass
            if not answered():
                gone = True
                doing.cancel()

        watching = asyncio.create_task(watch())
        try:
            return await work
        except asyncio.CancelledError:
            if not gone:
                raise
            doing.uncancel()
            raise ClientDisconnect from None
        finally:
            watching.cancel()


NO_ENCODING = (b"", b"identity")


def decompress_body(body: bytes, incoming: IncomingRequest) -> bytes:
    """Undo a body's content encoding.

    Raises:
        UnsupportedMediaType: the encoding is not gzip. Engines also read deflate, and others as if there were none.
        RequestTooLarge: the decompressed body exceeds the limit.
        Overloaded: request bodies use all memory that is allowed for them.
        BadRequest: the body is damaged, or something follows the compressed data. Engines read the part before.
    """
    encoding = incoming.content_encoding
    if encoding in NO_ENCODING or not body:
        return body
    if encoding not in (b"gzip", b"x-gzip"):
        name = encoding.decode("latin-1")
        raise UnsupportedMediaType(
            f"the gateway cannot read a body with the content encoding {name!r}",
            f"Use gzip, or send it uncompressed. {_PASS_THROUGH}",
        )
    decompressor = zlib.decompressobj(_GZIP)
    chunks: list[bytes] = []
    size = 0
    while body and not decompressor.eof:
        try:
            chunk = decompressor.decompress(body, _INFLATE_BYTES)
        except zlib.error as error:
            raise BadRequest(f"the compressed body cannot be read: {error}", _RESEND) from None
        body = decompressor.unconsumed_tail
        size += len(chunk)
        if size > incoming.limits.body_bytes:
            raise incoming.body_too_large()
        incoming.slot.reserve(len(chunk))
        chunks.append(chunk)
    if not decompressor.eof or decompressor.unused_data:
        raise BadRequest("the body is not exactly one complete gzip stream", _RESEND)
    return b"".join(chunks)


def _percent_encode(target: bytes) -> bytes:
    """Percent-encode the bytes that a request line may not contain."""
    return _NOT_ASCII.sub(lambda match: b"%%%02X" % match[0][0], target)


def is_uncompressed_json(request: Request) -> bool:
    """Whether the headers say that the body is uncompressed JSON."""
    # Browsers let a page of another origin post text without a preflight request, but not JSON.
    media_type = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    return media_type == "application/json" and request.headers.get("content-encoding", "identity") == "identity"


class UnreadableJson(BadRequest):
    """JSON that the gateway cannot read. Engines read some of it: some of their APIs ignore what follows the object."""

    def __init__(self, reason: str) -> None:
        super().__init__(
            f"the gateway cannot read the request as JSON: {reason}",
            f"Send one JSON object without duplicate keys. {_PASS_THROUGH}",
        )


async def read_json(incoming: IncomingRequest, raw: bytes) -> bytes:
    """Return the text of a JSON body: not compressed.

    A body that only the engine can read is refused, because it may contain a semantic query, or a text to embed.

    Args:
        raw: The body, as sent.

    Raises:
        UnsupportedMediaType: the body is not JSON, or has another encoding than gzip.
        RequestTooLarge, Overloaded, BadRequest: see `decompress_body`.
    """
    if not raw:
        return raw
    require_json_type(incoming.header(b"content-type").decode("latin-1"))
    # The size of a compressed body is known only after decompression.
    size = len(raw) if incoming.content_encoding in NO_ENCODING else incoming.limits.body_bytes
    return await offload_if_large(size, decompress_body, raw, incoming)


def require_json_type(content_type: str) -> None:
    """Check the type of a body.

    Args:
        content_type: Value of the header, with its parameters.

    Raises:
        UnsupportedMediaType: it is not that of JSON, as `application/json`, `application/x-ndjson` and the media types
            of clients, `application/vnd.elasticsearch+json`.
    """
    media_type = content_type.partition(";")[0].strip().lower()
    if not media_type.endswith("json"):
        raise UnsupportedMediaType(
            f"the gateway cannot read a body with the content type {content_type!r}",
            f"Send it as JSON, with Content-Type: application/json. {_PASS_THROUGH}",
        )


def parse_object(raw: bytes, *, finite: bool = True) -> Json:
    """Parse a JSON object, which may contain comments. Integers keep all digits.

    Args:
        finite: Whether to reject numbers that are too large for a float.

    Raises:
        UnreadableJson: the text is not a JSON object in UTF-8, has a duplicate key, or is nested too deeply.
    """
    # Engines also read UTF-16 and UTF-32, in which each character of JSON's syntax has a zero byte.
    if b"\0" in raw:
        raise UnreadableJson("it has zero bytes, as UTF-16 and UTF-32 do. Send it in UTF-8")
    try:
        return _parse_object(raw, finite)
    except UnreadableJson:
        if b"/" not in raw:
            raise
        return _parse_object(blank_comments(raw), finite)


def _parse_object(raw: bytes, finite: bool) -> Json:
    number = _parse_finite if finite else None
    try:
        value = json.loads(
            raw, object_pairs_hook=_reject_duplicate_keys, parse_constant=_reject_constant, parse_float=number
        )
    except UnreadableJson:
        raise
    except (ValueError, RecursionError) as error:
        raise UnreadableJson(str(error)) from None
    if not isinstance(value, dict):
        raise UnreadableJson("it is not an object")
    return value


# A string or comment without an end takes the rest, which would otherwise be searched again from each of its quotes.
_STRING_OR_COMMENT = re.compile(
    rb'(?P<comment>/\*.*?\*/|//[^\r\n]*)|/\*.*|"[^"\\]*(?:\\.[^"\\]*)*(?:"|\\?\Z)', re.DOTALL
)


def blank_comments(raw: bytes) -> bytes:
    """Replace the comments in JSON, `/* */` and `//`, by as many spaces, so that offsets stay the same."""
    return _STRING_OR_COMMENT.sub(lambda match: b" " * len(match[0]) if match["comment"] else match[0], raw)


def require_utf8(text: bytes) -> None:
    """Check that a text is UTF-8. Engines also read longer forms of its characters, in which a name looks different.

    Raises:
        UnreadableJson: the text is not UTF-8. Lone surrogates are allowed.
    """
    try:
        if not text.isascii():
            text.decode("utf-8", "surrogatepass")
    except UnicodeDecodeError as error:
        raise UnreadableJson(f"it is not UTF-8 at byte {error.start}") from None


def without_byte_order_marks(body: bytes) -> bytes:
    """Remove the byte order mark of UTF-8 from each line: engines parse each line of NDJSON separately."""
    return body.removeprefix(codecs.BOM_UTF8).replace(b"\n" + codecs.BOM_UTF8, b"\n")


def write_object(value: Json) -> bytes:
    """Serialize JSON in UTF-8, on one line."""
    with contextlib.suppress(TypeError):  # written below
        return orjson.dumps(value)
    # orjson rejects lone surrogates and integers of more than 64 bits, which engines accept.
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"), allow_nan=False).encode(
        "utf-8", "surrogatepass"
    )


def _reject_duplicate_keys(pairs: Sequence[tuple[str, Any]]) -> Json:
    result = dict(pairs)
    if len(result) != len(pairs):
        raise UnreadableJson("an object has a key twice")
    return result


def _reject_constant(name: str) -> Any:
    raise UnreadableJson(f"{name} is not a JSON value")


def _parse_finite(digits: str) -> float:
    """Parse a finite float; Python parses larger numbers as infinity."""
    number = float(digits)
    if math.isinf(number):
        raise UnreadableJson(f"{digits} is too large a number")
    return number
