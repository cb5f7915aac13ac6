"""Run work outside the event loop, or concurrently."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Coroutine, Generator, Iterable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

T = TypeVar("T")


# Parsing or serializing this much JSON takes well below a millisecond.
INLINE_BYTES = 16 * 1024
_MEDIUM_BYTES = 256 * 1024
_MAX_PAUSE_SECONDS = 1.0


class _HalfBusyThread:
    """A thread that sleeps after each call for as long as the call took, so it is busy at most half of the time."""

    def __init__(self) -> None:
        self._pool = ThreadPoolExecutor(1, thread_name_prefix="large-requests")
        self._next_start = time.monotonic()  # when the next call may begin

    async def run(self, function: Callable[..., T], *args: Any) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._pool, self._call, function, *args)

    def _call(self, function: Callable[..., T], *args: Any) -> T:
        time.sleep(max(0.0, self._next_start - time.monotonic()))
        start = time.monotonic()
        try:
            return function(*args)
        finally:
            end = time.monotonic()
            self._next_start = end + min(end - start, _MAX_PAUSE_SECONDS)


# One thread each, since every running thread competes with the event loop for the interpreter lock. Very large requests
# have a separate thread, so that other requests do not queue behind them.
_medium = ThreadPoolExecutor(1, thread_name_prefix="medium-requests")
_large = _HalfBusyThread()


async def offload_if_large(size: int, function: Callable[..., T], *args: Any) -> T:
    """Call a function, in a thread if the request is large, so that the event loop is not blocked.

    Args:
        size: Bytes of the request.
        function: Must not do I/O.
        args: Arguments of the function.
    """
    if size <= INLINE_BYTES:
        return function(*args)
    if size <= _MEDIUM_BYTES:
        return await asyncio.get_running_loop().run_in_executor(_medium, function, *args)
    return await _large.run(function, *args)


async def offload_steps(size: int, steps: Generator[None, None, T]) -> T:
    """Run a generator as `offload_if_large` does. Other requests may run between its steps.

    Args:
        size: Bytes of the request.
        steps: Short steps without I/O.
    """
    while not (result := await offload_if_large(size, _next_step, steps)):
        pass
    value: T = result[0]
    return value


def _next_step(steps: Generator[None, None, T]) -> list[T]:
    """Run one step; return a list of the generator's value once it has ended, else an empty list."""
    try:
        next(steps)
    except StopIteration as end:
        return [end.value]
    return []


async def gather_or_cancel(work: Iterable[Coroutine[Any, Any, T]]) -> list[T]:
    """Run coroutines concurrently; if one fails, cancel the others."""
    coroutines = list(work)
    if len(coroutines) == 1:
        return [await coroutines[0]]
    tasks = [asyncio.ensure_future(coroutine) for coroutine in coroutines]
    try:
        return await asyncio.gather(*tasks)
    finally:
        for task in tasks:
            task.cancel()
