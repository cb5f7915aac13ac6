"""A request passed on byte for byte, and its answer passed back as it comes."""

from __future__ import annotations

import gzip
import zlib
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass

import aiohttp
from starlette.types import Send

from es_sbert.errors import EsSbertError
from es_sbert.gateway.tasks import while_connected
from es_sbert.gateway.wire.headers import passed_on
from es_sbert.gateway.wire.incoming import CallerGone, Headers, Incoming
from es_sbert.gateway.wire.upstream import Upstream


@dataclass(frozen=True)
class Outgoing:
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
    def same(cls, incoming: Incoming, body: bytes | None = None) -> Outgoing:
        """The caller's request; the body is what was read of it, where it was read already."""
        return cls(incoming.method, incoming.target, incoming.headers, body)

    @classmethod
    def rewritten(
        cls, incoming: Incoming, body: bytes, target: bytes | None = None, method: str | None = None
    ) -> Outgoing:
        """The caller's request with another body in plain JSON."""
        headers = [(name, value) for name, value in incoming.headers if name not in _OF_THE_BODY]
        kind = incoming.header(b"content-type") or b"application/json"
        return cls(method or incoming.method, target or incoming.target, [*headers, (b"content-type", kind)], body)


_OF_THE_BODY = frozenset({b"content-length", b"content-encoding", b"content-type"})


@dataclass(frozen=True)
class Answer:
    """What came back, whole.

    Attributes:
        body: Not compressed.
    """

    status: int
    headers: Headers
    body: bytes


async def forward(incoming: Incoming, send: Send, upstream: Upstream, outgoing: Outgoing,
                  look: Callable[[bytes], None] | None = None, amend: Callable[[Answer], Answer] | None = None,
                  confirm: Awaitable[bool] | None = None) -> int:  # fmt: skip
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
        RequestTooLarge, BadRequest: as `Incoming.parts`.
        OutdatedRequestError: `confirm` says no. Nothing has been sent to the caller then.
    """
    return await _Exchange(incoming, send, upstream, look, amend, confirm).run(outgoing)


class OutdatedRequestError(Exception):
    """A request that was rewritten for indices that are others by now: to be rewritten again."""


class _Exchange:
    """One request and its answer."""

    def __init__(self, incoming: Incoming, send: Send, upstream: Upstream,
                 look: Callable[[bytes], None] | None, amend: Callable[[Answer], Answer] | None,
                 confirm: Awaitable[bool] | None) -> None:  # fmt: skip
        self._amend = amend
        self._confirm = confirm
        self._incoming = incoming
        self._send = send
        self._upstream = upstream
        self._look = look
        self._status = 0
        self._answered = False

    async def run(self, outgoing: Outgoing) -> int:
        try:
            await while_connected(self._incoming, self._pass(outgoing), lambda: self._answered)
        except CallerGone:
            return 0
        return self._status

    async def _pass(self, outgoing: Outgoing) -> None:
        body = _Body(self._incoming)
        stream = await body.start() if outgoing.body is None and self._incoming.has_body else outgoing.body
        try:
            async with self._upstream.send(outgoing.method, outgoing.target, outgoing.headers, stream) as answer:
                if not 200 <= answer.status <= 599:
                    raise self._upstream.strange(f"the status {answer.status}, which ends no request")
                self._upstream.learn(answer)
                if self._confirm is not None and answer.status == 200 and not await self._confirm:
                    raise OutdatedRequestError
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
        headers = passed_on(answer.raw_headers)
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

    async def _give_amended(self, answer: aiohttp.ClientResponse, amend: Callable[[Answer], Answer]) -> None:
        body, headers = await answer.read(), passed_on(answer.raw_headers)
        if answer.headers.get("content-encoding") == "gzip":
            try:
                body = gzip.decompress(body)
            except (OSError, EOFError, zlib.error) as error:
                raise self._upstream.failure(aiohttp.ClientPayloadError()) from error
            headers = [(name, value) for name, value in headers if name.lower() != b"content-encoding"]
        self._answered, self._status = True, answer.status
        await reply(self._send, amend(Answer(answer.status, headers, body)))


async def fetch(upstream: Upstream, outgoing: Outgoing) -> Answer:
    """Send a request to the engine and wait for its whole answer, uncompressed.

    Raises:
        EngineUnreachable: no answer came.
    """
    plain = [(name, value) for name, value in outgoing.headers if name != b"accept-encoding"]
    try:
        async with upstream.send(outgoing.method, outgoing.target, plain, outgoing.body) as answer:
            upstream.learn(answer)
            body = await answer.read()
    except (aiohttp.ClientError, TimeoutError) as error:
        raise upstream.failure(error) from error
    if answer.headers.get("content-encoding", "identity") != "identity":
        raise upstream.strange("a compressed answer where a plain one was asked for")
    return Answer(answer.status, passed_on(answer.raw_headers), body)


async def reply(send: Send, answer: Answer) -> int:
    """Send a whole answer to the caller, whatever length it had before."""
    headers = [(name, value) for name, value in answer.headers if name.lower() != b"content-length"]
    headers.append((b"content-length", str(len(answer.body)).encode()))
    await send({"type": "http.response.start", "status": answer.status, "headers": headers})
    await send({"type": "http.response.body", "body": answer.body})
    return answer.status


class _Body:
    """A body on its way to the engine. What stops it is kept: the client library wraps it in errors of its own."""

    def __init__(self, incoming: Incoming) -> None:
        self._incoming = incoming
        self._parts = incoming.parts()
        self.problem: EsSbertError | CallerGone | None = None

    async def start(self) -> bytes | AsyncIterator[bytes]:
        """The whole body where it has arrived at once, which most do."""
        first = await anext(self._parts, b"")
        return first if self._incoming.complete.is_set() else self._all(first)

    async def _all(self, first: bytes) -> AsyncIterator[bytes]:
        yield first
        try:
            async for part in self._parts:
                yield part
        except (EsSbertError, CallerGone) as error:
            self.problem = error
            raise
