"""A request passed on byte for byte, and its answer passed back as it comes."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator
from dataclasses import dataclass

import aiohttp
from starlette.types import Send

from es_sbert.errors import EngineUnreachable, EsSbertError
from es_sbert.gateway.incoming import CallerGone, Headers, Incoming
from es_sbert.gateway.upstream import Upstream, passed_on

logger = logging.getLogger(__name__)


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


async def forward(incoming: Incoming, send: Send, upstream: Upstream, outgoing: Outgoing) -> int:
    """Send a request to the engine and its answer to the caller.

    Where the caller goes away, the connection to the engine is closed too, which ends a search there.

    Returns:
        The status of the answer; 0 where the caller did not wait for it.

    Raises:
        EngineUnreachable: no answer came. Nothing has been sent to the caller then.
        BodyTooLarge, BadRequest: as `Incoming.parts`.
    """
    passing = asyncio.current_task()
    assert passing is not None, "inside a task"
    gone = False

    async def watch() -> None:
        nonlocal gone
        await incoming.disconnected()
        gone = True
        passing.cancel()

    watching = asyncio.create_task(watch())
    try:
        return await _exchange(incoming, send, upstream, outgoing)
    except CallerGone:
        return 0
    except asyncio.CancelledError:
        if gone:
            passing.uncancel()
            return 0
        raise
    finally:
        watching.cancel()


async def _exchange(incoming: Incoming, send: Send, upstream: Upstream, outgoing: Outgoing) -> int:
    body = _Body(incoming)
    data = outgoing.body
    stream = await body.start() if data is None and incoming.has_body else data
    status = 0
    try:
        async with upstream.send(outgoing.method, outgoing.target, outgoing.headers, stream) as answer:
            upstream.learn(answer)
            headers = passed_on(answer.raw_headers)
            await send({"type": "http.response.start", "status": answer.status, "headers": headers})
            status = answer.status
            while part := await answer.content.readany():
                more = not answer.content.at_eof()
                await send({"type": "http.response.body", "body": part, "more_body": more})
                if not more:
                    return status
            await send({"type": "http.response.body", "body": b""})
            return status
    except (aiohttp.ClientError, TimeoutError) as error:
        if body.problem is not None:
            raise body.problem from None
        failure = upstream.failure(error)
        if not status:
            raise failure from error
        # The caller has a part of the answer. Without its end the server closes the connection, and the caller sees it.
        logger.warning("an answer to %s broke off: %s", outgoing.method, failure.message)
        return status


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
        raise EngineUnreachable(
            f"the engine at {upstream.url} compressed an answer that was to be plain",
            "Look at what stands between the gateway and the engine.",
        )
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
