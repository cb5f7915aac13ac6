"""The threads of a load: stages connected by bounded queues, and the control that stops them."""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any, Generic, TypeVar

from es_sbert.messages import log_event

# Waits longer than this are reported. Shorter ones happen several times a second on a busy engine.
REPORTED_WAIT_SECONDS = 5.0


class LoadHalted(Exception):
    """The load was halted: a document without a vector is left for the next run."""


class TimeLimit:
    """Whether the time of `LoadControl.time_limit` is over."""

    expired = False


class LoadControl:
    """How a load is stopped, from gentle to hard. Thread-safe.

    Attributes:
        stop: Set: no more is read; what was read is finished. (A source failed, or any of the following.)
        halted: Set: nothing more is compared, tokenized or embedded; vectors that exist are sent, and the rest is left
            for the next run. (The user interrupted the load, or any of the following.)
        stop_retrying: Set: failed requests are not retried. (Ctrl-C, or a thread failed.)
        interrupted: Whether the user stopped the load.
        unreachable_reason: Why the engine takes no more documents; None while it does.
        truncated_reason: Why the source was not read to its end; the documents read until then are loaded.
        backoff_reason: Why requests are being retried; None while they succeed.
        exit_warning: What the user must know if the process ends at once, as a sentence; empty for nothing.
    """

    def __init__(self, timer: Callable[[], float] = time.monotonic) -> None:
        self._timer = timer
        self.stop = threading.Event()
        self.halted = threading.Event()
        self.stop_retrying = threading.Event()
        self.interrupted = False
        self.exit_warning = ""
        self.unreachable_reason: str | None = None
        self.truncated_reason: str | None = None
        self.backoff_reason: str | None = None
        self._backoff_since = 0.0
        self._backoff_reported = False
        self._lock = threading.Lock()

    def mark_unreachable(self, reason: str) -> None:
        """The engine takes no more documents: those not sent are left for the next run. The first reason counts."""
        with self._lock:
            first = self.unreachable_reason is None
            self.unreachable_reason = self.unreachable_reason or reason
        if first:
            log_event("engine_lost", reason, logging.ERROR, text="", reason=reason)
        self.halted.set()
        self.stop.set()

    def truncate(self, reason: str) -> None:
        """Stop reading: finish what is in flight. The first reason counts."""
        with self._lock:
            self.truncated_reason = self.truncated_reason or reason
        self.stop.set()

    def set_backoff(self, reason: str) -> None:
        """A request failed and will be retried."""
        now = self._timer()
        with self._lock:
            if self.backoff_reason is None:
                self._backoff_since = now
            self.backoff_reason = reason
            report = not self._backoff_reported and now - self._backoff_since >= REPORTED_WAIT_SECONDS
            self._backoff_reported |= report
        if report:
            log_event("waiting_began", f"waiting for the engine: {reason}", logging.WARNING, reason=reason)

    def clear_backoff(self) -> None:
        """A request succeeded."""
        with self._lock:
            reported = self._backoff_reported
            self.backoff_reason, self._backoff_reported = None, False
            seconds = self._timer() - self._backoff_since
        if reported:
            message = f"the engine takes documents again after {seconds:,.1f} s"
            log_event("waiting_ended", message, logging.WARNING, seconds=round(seconds, 3))

    def interrupt(self) -> None:
        """Stop on behalf of the user: send the vectors that exist, and leave the rest for the next run."""
        self.interrupted = True
        self.abort()

    @contextmanager
    def time_limit(self, seconds: float) -> Iterator[TimeLimit]:
        """Abort the loads of the block after some seconds. Unlike an interrupt, this does not outlast the block."""
        reasons = self.unreachable_reason, self.truncated_reason
        limit = TimeLimit()

        def expire() -> None:
            limit.expired = True
            self.abort()

        timer = threading.Timer(seconds, expire)
        timer.daemon = True
        timer.start()
        try:
            yield limit
        finally:
            timer.cancel()
            timer.join()
            if limit.expired:
                # Requests that were not retried any more may have ended a load as if the engine had failed.
                self.unreachable_reason, self.truncated_reason = reasons
                for event in (self.stop_retrying, self.halted, self.stop):
                    event.clear()
                if self.interrupted:  # perhaps a moment ago
                    self.abort()

    def check(self) -> None:
        """Check that the load goes on.

        Raises:
            LoadHalted: it was halted.
        """
        if self.halted.is_set():
            raise LoadHalted

    def abort(self) -> None:
        """Stop without retries: what is not sent yet is left for the next run."""
        self.stop_retrying.set()
        self.halted.set()
        self.stop.set()


T = TypeVar("T")


class LoadAborted(Exception):
    """The load was aborted: stages that wait on a queue end with this."""


class ClosableQueue(Generic[T]):
    """A bounded queue with one producer and any number of consumers. Thread-safe.

    Before Python 3.13 the standard library's queue can be neither closed nor aborted: a producer that waits on a full
    queue would hang if its consumer died.

    Args:
        capacity: Largest number of entries; `put` blocks beyond.
    """

    def __init__(self, capacity: int) -> None:
        self._entries: deque[T] = deque()
        self._capacity = capacity
        self._closed = False
        self._aborted = False
        self._changed = threading.Condition()

    def put(self, entry: T) -> None:
        """Add an entry; blocks while the queue is full.

        Raises:
            LoadAborted: `abort` was called.
        """
        with self._changed:
            while len(self._entries) >= self._capacity and not self._aborted:
                self._changed.wait()
            if self._aborted:
                raise LoadAborted
            self._entries.append(entry)
            self._changed.notify_all()

    def __iter__(self) -> Iterator[T]:
        """Entries until the queue is closed; several consumers share them.

        Raises:
            LoadAborted: `abort` was called.
        """
        while True:
            with self._changed:
                while not self._entries and not self._closed and not self._aborted:
                    self._changed.wait()
                if self._aborted:
                    raise LoadAborted
                if not self._entries:
                    return
                entry = self._entries.popleft()
                self._changed.notify_all()
            yield entry

    def close(self) -> None:
        """The producer has no more entries."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()

    def abort(self) -> None:
        """End the producer and all consumers."""
        with self._changed:
            self._aborted = True
            self._changed.notify_all()


_TICK_SECONDS = 0.2
_SHUTDOWN_SECONDS = 1.0


class StageThreads:
    """Threads connected by queues.

    Usage:
        ```python
        threads = StageThreads(control)
        lines = threads.add_stage("read", read_lines(), capacity=8)
        threads.start("write", lambda: write_lines(lines))
        threads.wait()
        ```
    """

    def __init__(self, control: LoadControl) -> None:
        self._control = control
        self._queues: list[ClosableQueue[Any]] = []
        self._threads: list[threading.Thread] = []
        self._error: BaseException | None = None
        self._lock = threading.Lock()

    def add_stage(self, name: str, results: Iterable[T], capacity: int) -> ClosableQueue[T]:
        """Start a thread that iterates over the results of a stage.

        Returns:
            The queue of the results; it is aborted when a stage fails.
        """
        queue: ClosableQueue[T] = ClosableQueue(capacity)
        self._queues.append(queue)
        if self._error is not None:  # an earlier stage has failed, perhaps before it could know of this queue
            queue.abort()

        def put_results() -> None:
            for result in results:
                queue.put(result)
            queue.close()

        self.start(name, put_results)
        return queue

    def start(self, name: str, work: Callable[[], None]) -> None:
        """Start a thread."""
        # Daemons: a thread that hangs in a request must not keep a process alive that was told twice to end.
        thread = threading.Thread(target=self._run, args=(work,), name=f"ingest-{name}", daemon=True)
        self._threads.append(thread)
        thread.start()

    def _run(self, work: Callable[[], None]) -> None:
        try:
            work()
        except LoadAborted:
            pass  # another stage has failed and recorded its error
        except BaseException as error:
            with self._lock:
                self._error = self._error or error
            self._abort()

    def _abort(self) -> None:
        self._control.abort()
        for queue in self._queues:
            queue.abort()

    def wait(self, tick: Callable[[], None] = lambda: None) -> None:
        """Wait for all stages; call `tick` several times a second in this thread, and once after all have succeeded.

        Raises:
            BaseException: the first error of any stage, or one that reached this thread (KeyboardInterrupt); all
                stages are aborted.
        """
        try:
            for thread in self._threads:
                while thread.is_alive():
                    thread.join(_TICK_SECONDS)
                    tick()
        except BaseException:
            self._abort()
            for thread in self._threads:
                # Time to close files; a thread that hangs in a request is not waited for.
                thread.join(_SHUTDOWN_SECONDS)
            raise
        if self._error is not None:
            raise self._error
        # Also shows the end of work that was done before the first tick.
        tick()
