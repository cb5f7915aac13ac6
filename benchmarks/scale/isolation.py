"""Runs a function in a new process that ends after a while."""

from __future__ import annotations

import multiprocessing
import traceback
from collections.abc import Callable
from multiprocessing.connection import Connection
from typing import Any, TypeVar

T = TypeVar("T")


class TimeLimitReached(Exception):
    """The function did not end in time."""


class ProcessFailed(Exception):
    """The function failed in its process; the message is its traceback."""


def _answer(connection: Connection, call: Callable[..., Any], arguments: tuple[Any, ...]) -> None:
    try:
        connection.send((call(*arguments), None))
    except BaseException:
        connection.send((None, traceback.format_exc()))


def within(limit: float, call: Callable[..., T], *arguments: Any) -> T:
    """What a function of a module returns in a new process, whose memory holds nothing else.

    Args:
        limit: Seconds after which the process is killed.

    Raises:
        TimeLimitReached: it was killed.
        ProcessFailed: the function raised an error, or the process ended without an answer.
    """
    context = multiprocessing.get_context("spawn")
    receiver, sender = context.Pipe(duplex=False)
    process = context.Process(target=_answer, args=(sender, call, arguments))
    process.start()
    sender.close()
    try:
        if not receiver.poll(limit):
            process.kill()
            raise TimeLimitReached(f"stopped after {limit:,.0f} s")
        result, error = receiver.recv()
    except EOFError:
        process.join()
        raise ProcessFailed(f"the process ended with {process.exitcode} and no answer") from None
    finally:
        receiver.close()
        if process.is_alive():
            process.join(10)
        if process.is_alive():
            process.kill()
            process.join()
    if error is not None:
        raise ProcessFailed(error)
    answer: T = result
    return answer
