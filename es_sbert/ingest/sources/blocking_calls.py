"""Run calls that may block for a long time, and abandon them when the load stops."""

from __future__ import annotations

import contextlib
import queue
import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any, TypeVar

from es_sbert.ingest.sources.document_source import ReadCancelled

T = TypeVar("T")

_TICK_SECONDS = 0.1


class BlockingCalls:
    """Runs calls one after another in one thread of its own; a call that still runs when `stop` is set is abandoned.

    One thread for all calls: a database's cursor may belong to the thread that opened it. It is a daemon, so a process
    ends while it is blocked. `close` it.

    Args:
        stop: Set when the answers are no longer wanted.
    """

    def __init__(self, stop: threading.Event) -> None:
        self._stop = stop
        self._calls: queue.SimpleQueue[tuple[Callable[[], Any], Future[Any]] | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._run, name="ingest-blocking-calls", daemon=True)
        self._blocked = False

    def __call__(self, call: Callable[[], T]) -> T:
        """The call's answer.

        Raises:
            ReadingStopped: `stop` was set before the call answered.
            BaseException: what the call raised.
        """
        if self._stop.is_set():
            raise ReadCancelled
        answer = self._begun(call)
        while not answer.done():
            if self._stop.is_set():
                self._blocked = True
                raise ReadCancelled
            _wait(answer)
        return answer.result()

    def close(self, last: Callable[[], object] = lambda: None) -> None:
        """End the thread.

        Args:
            last: Called in it first, unless it is blocked: closes what the calls have opened.
        """
        if self._blocked:
            self._calls.put(None)
        elif self._thread.ident is None:
            last()  # nothing was called
        else:
            answer = self._begun(last)
            self._calls.put(None)
            # Files and connections are let go of, but who wants to stop does not wait long for it.
            _wait(answer)
            while not answer.done() and not self._stop.is_set():
                _wait(answer)

    def _begun(self, call: Callable[[], T]) -> Future[T]:
        if self._thread.ident is None:
            self._thread.start()
        answer: Future[T] = Future()
        self._calls.put((call, answer))
        return answer

    def _run(self) -> None:
        while (entry := self._calls.get()) is not None:
            call, answer = entry
            try:
                answer.set_result(call())
            except BaseException as error:  # for the thread that waits for the answer
                answer.set_exception(error)
            # A thread that waits for its next call holds nothing of the last one.
            del entry, call, answer


def _wait(answer: Future[Any]) -> None:
    """Wait a moment for an answer; what it is, the caller asks."""
    with contextlib.suppress(TimeoutError):
        answer.exception(_TICK_SECONDS)
