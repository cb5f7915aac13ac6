"""Forward a request to the engine byte for byte and stream the response back."""

from __future__ import annotations

import gzip
import zlib
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass

import aiohttp
from starlette.types import Send

from es_sbert.errors import EsSbertError
from es_sbert.gateway.concurrency import cancel_on_disconnect
from es_sbert.gateway.proxy.incoming_request import ClientDisconnected, Headers, IncomingRequest
from es_sbert.gateway.proxy.upstream import Upstream, end_to_end_headers


@dataclass(frozen=True)
class OutgoingRequest:
    """What is sent to the engine.

    Attributes:
        method, target, headers: As the caller's, unless they were rewritten.
        body: None passes the caller's own on as it arrives.
    """

    method: str
    target: bytes
    headers: Headers
    body: bytes | None = None

    @classmethod
    def same(cls, incoming: IncomingRequest, body: bytes | None = None) -> OutgoingRequest:
        """The caller's request; the body is what was read of it, where it was read already."""
        return cls(incoming.method, incoming.target, incoming.headers, body)

    @classmethod
    def rewritten(
        cls, incoming: IncomingRequest, body: bytes, target: bytes | None = None, method: str | None = None
    ) -> OutgoingRequest:
        """The caller's request with another body in plain JSON."""
        headers = [(name, value) for name, value in incoming.headers if name not in _BODY_HEADERS]
        kind = incoming.header(b"content-type") or b"application/json"
        return cls(method or incoming.method, target or incoming.target, [*headers, (b"content-type", kind)], body)


_BODY_HEADERS = frozenset({b"content-length", b"content-encoding", b"content-type"})


@dataclass(frozen=True)
class BufferedResponse:
    """What came back, whole.

    Attributes:
        body: Not compressed.
    """

    status: int
    headers: Headers
    body: bytes


async def forward(
    incoming: IncomingRequest,
    send: Send,
    upstream: Upstream,
    outgoing: OutgoingRequest,
    look: Callable[[bytes], None] | None = None,
    amend: Callable[[BufferedResponse], BufferedResponse] | None = None,
    confirm: Awaitable[bool] | None = None,
) -> int:
    """Send a request to the engine and its answer to the caller.

    Where the caller goes away, the connection to the engine is closed too, which ends a search there.

    Args:
        look: Shown the answer's parts as they pass.
        amend: Given an answer that is an error, uncompressed, and gives the one that is sent.
        confirm: Whether the request is still right; awaited before a successful answer is sent on.

    Returns:
        The status of the answer; 0 where the caller did not wait for it.

    Raises:
        EngineUnreachable: no answer came. Nothing has been sent to the caller then.
        RequestTooLarge, BadRequest: as `IncomingRequest.parts`.
        OutdatedRequestError: `confirm` says no. Nothing has been sent to the caller then.
    """
    return await _Exchange(incoming, send, upstream, look, amend, confirm).run(outgoing)


class StaleRewriteError(Exception):
    """A request that was rewritten for indices that are others by now: to be rewritten again."""


class _Exchange:
    """One request and its answer."""

    def __init__(
        self,
        incoming: IncomingRequest,
        send: Send,
        upstream: Upstream,
        look: Callable[[bytes], None] | None,
        amend: Callable[[BufferedResponse], BufferedResponse] | None,
        confirm: Awaitable[bool] | None,
    ) -> None:
        self._amend = amend
        self._confirm = confirm
        self._incoming = incoming
        self._send = send
        self._upstream = upstream
        self._look = look
        self._status = 0
        self._answered = False

    async def run(self, outgoing: OutgoingRequest) -> int:
        try:
            await cancel_on_disconnect(self._incoming, self._pass(outgoing), lambda: self._answered)
        except ClientDisconnected:
            return 0
        return self._status

    async def _pass(self, outgoing: OutgoingRequest) -> None:
        body = _RequestBody(self._incoming)
        stream = await body.start() if outgoing.body is None and self._incoming.has_body else outgoing.body
        try:
            async with self._upstream.send(outgoing.method, outgoing.target, outgoing.headers, stream) as answer:
                if not 200 <= answer.status <= 599:
                    raise self._upstream.malformed_response(f"the status {answer.status}, which ends no request")
                self._upstream.detect_engine_type(answer)
                if self._confirm is not None and answer.status == 200 and not await self._confirm:
                    raise StaleRewriteError
                if self._amend is not None and answer.status >= 400:
                    await self._give_amended(answer, self._amend)
                else:
                    await self._give(answer)
        except (aiohttp.ClientError, TimeoutError) as error:
            if body.problem is not None and not self._status:
                raise body.problem from None
            if body.problem is not None:
                return  # the caller has a part of the answer; the server closes the connection
            failure = self._upstream.failure(error)
            if not self._status:
                raise failure from error
            # The caller has a part of the answer. Without its end the server closes the connection, which tells.
            self._upstream.log.warning(
                "an answer to %s broke off: %s", outgoing.method, failure.message, kind="broken off"
            )

    async def _give(self, answer: aiohttp.ClientResponse) -> None:
        headers = end_to_end_headers(answer.raw_headers)
        await self._send({"type": "http.response.start", "status": answer.status, "headers": headers})
        self._status = answer.status
        while part := await answer.content.readany():
            if self._look is not None:
                self._look(part)
            self._answered = answer.content.at_eof()
            await self._send({"type": "http.response.body", "body": part, "more_body": not self._answered})
            if self._answered:
                return
        self._answered = True
        await self._send({"type": "http.response.body", "body": b""})

    async def _give_amended(
        self, answer: aiohttp.ClientResponse, amend: Callable[[BufferedResponse], BufferedResponse]
    ) -> None:
        body, headers = await answer.read(), end_to_end_headers(answer.raw_headers)
        if answer.headers.get("content-encoding") == "gzip":
            try:
                body = gzip.decompress(body)
            except (OSError, EOFError, zlib.error) as error:
                raise self._upstream.failure(aiohttp.ClientPayloadError()) from error
            headers = [(name, value) for name, value in headers if name.lower() != b"content-encoding"]
        self._answered, self._status = True, answer.status
        await send_response(self._send, amend(BufferedResponse(answer.status, headers, body)))


async def fetch_response(upstream: Upstream, outgoing: OutgoingRequest) -> BufferedResponse:
    """Send a request to the engine and wait for its whole answer, uncompressed.

    Raises:
        EngineUnreachable: no answer came.
    """
    plain = [(name, value) for name, value in outgoing.headers if name != b"accept-encoding"]
    try:
        async with upstream.send(outgoing.method, outgoing.target, plain, outgoing.body) as answer:
            upstream.detect_engine_type(answer)
            body = await answer.read()
    except (aiohttp.ClientError, TimeoutError) as error:
        raise upstream.failure(error) from error
    if answer.headers.get("content-encoding", "identity") != "identity":
        raise upstream.malformed_response("a compressed answer where a plain one was asked for")
    return BufferedResponse(answer.status, end_to_end_headers(answer.raw_headers), body)


async def send_response(send: Send, answer: BufferedResponse) -> int:
    """Send a whole answer to the caller, whatever length it had before."""
    headers = [(name, value) for name, value in answer.headers if name.lower() != b"content-length"]
    headers.append((b"content-length", str(len(answer.body)).encode()))
    await send({"type": "http.response.start", "status": answer.status, "headers": headers})
    await send({"type": "http.response.body", "body": answer.body})
    return answer.status


class _RequestBody:
    """A body on its way to the engine. What stops it is kept: the client library wraps it in errors of its own."""

    def __init__(self, incoming: IncomingRequest) -> None:
        self._incoming = incoming
        self._parts = incoming.parts()
        self.problem: EsSbertError | ClientDisconnected | None = None

    async def start(self) -> bytes | AsyncIterator[bytes]:
        """The whole body where it has arrived at once, which most do."""
        first = await anext(self._parts, b"")
        return first if self._incoming.complete.is_set() else self._all(first)

    async def _all(self, first: bytes) -> AsyncIterator[bytes]:
        yield first
        try:
            async for part in self._parts:
                yield part
        except (EsSbertError, ClientDisconnected) as error:
            self.problem = error
            raise
