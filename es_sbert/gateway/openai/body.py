"""Bodies of requests to the gateway's own API, read within a limit, and callers who go away."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import TYPE_CHECKING, Any, TypeVar

from starlette.requests import ClientDisconnect, Request

from es_sbert.errors import RequestTooLarge

if TYPE_CHECKING:
    from es_sbert.gateway.admission import Slot

T = TypeVar("T")


def is_plain_json(request: Request) -> bool:
    """Whether the body says that it is JSON, not compressed."""
    # A page of another origin may post text without asking first, but not JSON.
    media_type = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    return media_type == "application/json" and request.headers.get("content-encoding", "identity") == "identity"


async def read_body(request: Request, limit: int, slot: Slot) -> bytes:
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
        raise _too_large(limit)
    parts: list[bytes] = []
    size, complete = 0, False
    while not complete:
        message = await slot.timer.next(request.receive, size)
        if message["type"] == "http.disconnect":
            raise ClientDisconnect
        part: bytes = message.get("body", b"")
        size += len(part)
        if size > limit:
            raise _too_large(limit)
        slot.reserve(len(part))
        parts.append(part)
        complete = not message.get("more_body", False)
    slot.acquire()
    return b"".join(parts)


def _too_large(limit: int) -> RequestTooLarge:
    return RequestTooLarge(f"the body is larger than {limit:,} bytes", "Send it in several requests.")


async def while_connected(request: Request, work: Coroutine[Any, Any, T]) -> T:
    """Do some work for a caller, and give it up when the caller goes away. The body has been read before.

    Raises:
        ClientDisconnect: the caller went away.
    """
    task = asyncio.ensure_future(work)
    gone = asyncio.ensure_future(_disconnected(request))
    try:
        await asyncio.wait([task, gone], return_when=asyncio.FIRST_COMPLETED)
        if task.done():
            return task.result()
        raise ClientDisconnect
    finally:
        gone.cancel()
        task.cancel()


async def _disconnected(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass
