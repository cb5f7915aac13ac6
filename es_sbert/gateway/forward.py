"""Forward a request to the engine byte for byte and stream the response back."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass

import aiohttp
from starlette.requests import ClientDisconnect
from starlette.types import Send

from es_sbert.errors import EsSbertError, RequestTooLarge
from es_sbert.gateway.incoming_request import Headers, IncomingRequest
from es_sbert.gateway.upstream import Upstream, end_to_end_headers


@dataclass(frozen=True)
class OutgoingRequest:
    """A request to the engine.

    Attributes:
        method, target, headers: From the client's request, unless rewritten.
        body: None streams the client's body.
    """

    method: str
    target: bytes
    headers: Headers
    body: bytes | None = None

    @classmethod
    def unchanged(cls, incoming: IncomingRequest, body: bytes | None = None) -> OutgoingRequest:
        """Create a request equal to the client's; `body` is its body, if that has been read."""
        return cls(incoming.method, incoming.target, incoming.headers, body)

    @classmethod
    def with_body(
        cls, incoming: IncomingRequest, body: bytes, target: bytes | None = None, method: str | None = None
    ) -> OutgoingRequest:
        """Create a request like the client's, but with this body of uncompressed JSON."""
        headers = [(name, value) for name, value in incoming.headers if name not in _BODY_HEADERS]
        kind = incoming.header(b"content-type") or b"application/json"
        return cls(method or incoming.method, target or incoming.target, [*headers, (b"content-type", kind)], body)


_BODY_HEADERS = frozenset({b"content-length", b"content-encoding", b"content-type"})


@dataclass(frozen=True)
class BufferedResponse:
    """A response of the engine that was read completely.

    Attributes:
        body: Not compressed.
    """

    status: int
    headers: Headers
    body: bytes


class StaleRewriteError(Exception):
    """A request was rewritten for indices that have changed since: rewrite it again."""


# The status of a request that is too large.
TOO_LARGE = 413


class RefusedAsTooLargeError(Exception):
    """The engine, or a proxy before it, refused a request as too large (413)."""


@dataclass(frozen=True)
class ResponseHooks:
    """Additional steps of `forward` for a response.

    Attributes:
        on_chunk: Called with each chunk of the body, as the engine sent it.
        confirm_valid: Awaited before a successful response is sent. If false, `forward` raises `StaleRewriteError`.
        enlarged: Whether the gateway has made the request larger. If the engine then refuses it as too large, `forward`
            raises `RefusedAsTooLargeError`.
    """

    on_chunk: Callable[[bytes], None] | None = None
    confirm_valid: Awaitable[bool] | None = None
    enlarged: bool = False


async def forward(
    incoming: IncomingRequest,
    send: Send,
    upstream: Upstream,
    outgoing: OutgoingRequest,
    hooks: ResponseHooks = ResponseHooks(),
) -> int:
    """Send a request to the engine and stream the response to the client.

    If the client disconnects, the connection to the engine is closed too, which cancels a search there.

    Returns:
        Status of the response; 0 if the client disconnected.

    Raises:
        EngineUnreachable: the engine did not respond. Nothing was sent to the client.
        StaleRewriteError: `hooks.confirm_valid` is false. Nothing was sent to the client.
        RefusedAsTooLargeError: see `hooks.enlarged`. Nothing was sent to the client.
        RequestTooLarge, BadRequest: see `IncomingRequest.stream`.
    """
    response = _ClientResponse(send)
    try:
        await incoming.cancel_on_disconnect(
            _exchange(incoming, response, upstream, outgoing, hooks), lambda: response.complete
        )
    except ClientDisconnect:  # nobody waits for the response
        return 0
    return response.status


async def _exchange(
    incoming: IncomingRequest,
    response: _ClientResponse,
    upstream: Upstream,
    outgoing: OutgoingRequest,
    hooks: ResponseHooks,
) -> None:
    body = _RequestBody(incoming)
    stream = await body.start() if outgoing.body is None and incoming.has_body else outgoing.body
    try:
        async with upstream.send(outgoing.method, outgoing.target, outgoing.headers, stream) as reply:
            if not 200 <= reply.status <= 599:
                raise upstream.malformed_response(f"the status {reply.status} is not final")
            upstream.detect_engine_type(reply)
            if hooks.confirm_valid is not None and reply.status == 200 and not await hooks.confirm_valid:
                raise StaleRewriteError
            if hooks.enlarged and reply.status == TOO_LARGE:
                raise RefusedAsTooLargeError
            await response.stream(reply, hooks.on_chunk)
    except (aiohttp.ClientError, TimeoutError) as error:
        if body.problem is not None and not response.status:
            raise body.problem from None
        if body.problem is not None:
            return  # the response has started; the server closes the connection
        failure = upstream.transport_error(error)
        if not response.status:
            raise failure from error
        # The response has started. The server closes the connection before its end, so the client notices.
        path = incoming.path.decode("ascii", "replace")
        upstream.log.warning(
            "the response to %s %s was cut off: %s", outgoing.method, path, failure.message, kind=f"broken off {path}"
        )


class _ClientResponse:
    """The response to the client.

    Attributes:
        status: 0 until the response starts.
        complete: Whether all of it was sent.
    """

    def __init__(self, send: Send) -> None:
        self._send = send
        self.status = 0
        self.complete = False

    async def stream(self, reply: aiohttp.ClientResponse, on_chunk: Callable[[bytes], None] | None) -> None:
        headers = end_to_end_headers(reply.raw_headers)
        await self._send({"type": "http.response.start", "status": reply.status, "headers": headers})
        self.status = reply.status
        while chunk := await reply.content.readany():
            if on_chunk is not None:
                on_chunk(chunk)
            self.complete = reply.content.at_eof()
            await self._send({"type": "http.response.body", "body": chunk, "more_body": not self.complete})
            if self.complete:
                return
        self.complete = True
        await self._send({"type": "http.response.body", "body": b""})


async def fetch_response(upstream: Upstream, outgoing: OutgoingRequest) -> BufferedResponse:
    """Send a request to the engine and read its response, uncompressed.

    Raises:
        EngineUnreachable: the engine did not respond.
    """
    plain = [(name, value) for name, value in outgoing.headers if name != b"accept-encoding"]
    reply, body = await upstream.fetch(outgoing.method, outgoing.target, plain, outgoing.body)
    if reply.headers.get("content-encoding", "identity") != "identity":
        raise upstream.malformed_response("the response is compressed although the request did not accept that")
    return BufferedResponse(reply.status, end_to_end_headers(reply.raw_headers), body)


def enlarged_error(what: str, size: int) -> RequestTooLarge:
    """The error for a request that the gateway has made too large for the engine, and cannot split.

    Args:
        what: Name of the request, for messages.
        size: Bytes of the request as the gateway sent it.
    """
    return RequestTooLarge(
        f"{what} has {size:,} bytes with its vectors, and the engine, or a proxy before it, refuses it as too large",
        "Raise http.max_content_length of the engine or the limit of the proxy (client_max_body_size of nginx).",
    )


async def send_response(send: Send, response: BufferedResponse) -> int:
    """Send a response to the client with the right content length; returns its status."""
    headers = [(name, value) for name, value in response.headers if name.lower() != b"content-length"]
    headers.append((b"content-length", str(len(response.body)).encode()))
    await send({"type": "http.response.start", "status": response.status, "headers": headers})
    await send({"type": "http.response.body", "body": response.body})
    return response.status


class _RequestBody:
    """The client's body, streamed to the engine. Keeps the error that stops it, since aiohttp wraps errors."""

    def __init__(self, incoming: IncomingRequest) -> None:
        self._incoming = incoming
        self._chunks = incoming.stream()
        self.problem: EsSbertError | ClientDisconnect | None = None

    async def start(self) -> bytes | AsyncIterator[bytes]:
        """Return the whole body if it has arrived in one chunk, as most do; else a stream."""
        first = await anext(self._chunks, b"")
        return first if self._incoming.body_received.is_set() else self._stream(first)

    async def _stream(self, first: bytes) -> AsyncIterator[bytes]:
        yield first
        try:
            async for chunk in self._chunks:
                yield chunk
        except (EsSbertError, ClientDisconnect) as error:
            self.problem = error
            raise
