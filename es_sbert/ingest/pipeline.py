"""The threads of a load: stages connected by bounded queues, and the control that stops them."""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from typing import Any, Generic, TypeVar

from es_sbert.messages import log_event

# Seconds without a request that went through. Shorter waits are a busy engine's everyday, several in a second.
REPORTED_WAIT_SECONDS = 5.0


class LoadHalted(Exception):
    """No further request is begun for a document that has no vector yet: it is left for the next run."""


class LoadControl:
    """How a load is stopped, from gentle to hard. Thread-safe.

    Attributes:
        stop: Set: no more is read; what was read is finished. (A source gave up, or any of the following.)
        halted: Set: nothing more is compared, tokenised or embedded; vectors that exist are sent, and all else is left
            for the next run. (The user interrupted the load, or any of the following.)
        no_waiting: Set: a request that fails is not tried again. (Ctrl-C, or a thread failed.)
        aborted: Set: every thread ends at once, because one of them failed.
        interrupted: Whether the user stopped the load.
        left_behind: What a process that ends at once leaves behind, as a sentence; empty for nothing.
    """

    def __init__(self, timer: Callable[[], float] = time.monotonic) -> None:
        self._timer = timer
        self.stop = threading.Event()
        self.halted = threading.Event()
        self.no_waiting = threading.Event()
        self.aborted = threading.Event()
        self.interrupted = False
        self.left_behind = ""
        self._lost: str | None = None
        self._cut_short: str | None = None
        self._waiting: str | None = None
        self._waiting_since = 0.0
        self._waiting_told = False
        self._lock = threading.Lock()

    @property
    def lost(self) -> str | None:
        """Why the engine takes no more documents; None while it does."""
        with self._lock:
            return self._lost

    def mark_unreachable(self, reason: str) -> None:
        """The engine takes no more: whatever is unsent is left to the next run. The first reason counts."""
        with self._lock:
            first = self._lost is None
            self._lost = self._lost or reason
        if first:
            log_event("engine_lost", reason, logging.ERROR, text="", reason=reason)
        self.halted.set()
        self.stop.set()

    @property
    def truncated_reason(self) -> str | None:
        """Why the source was not read to its end, though what was read could be finished."""
        with self._lock:
            return self._cut_short

    def cut(self, reason: str) -> None:
        """The source gives no more: finish what is in flight."""
        with self._lock:
            self._cut_short = self._cut_short or reason
        self.stop.set()

    @property
    def waiting(self) -> str | None:
        """Why requests are being tried again just now; None while they go through."""
        with self._lock:
            return self._waiting

    def waits(self, reason: str) -> None:
        """A request was refused and is tried again."""
        now = self._timer()
        with self._lock:
            if self._waiting is None:
                self._waiting_since = now
            self._waiting = reason
            tell = not self._waiting_told and now - self._waiting_since >= REPORTED_WAIT_SECONDS
            self._waiting_told |= tell
        if tell:
            log_event("waiting_began", f"waiting for the engine: {reason}", logging.WARNING, reason=reason)

    def clear_backoff(self) -> None:
        """A request went through."""
        with self._lock:
            ended = self._waiting_told
            self._waiting, self._waiting_told = None, False
            seconds = self._timer() - self._waiting_since
        if ended:
            message = f"the engine takes documents again after {seconds:,.1f} s"
            log_event("waiting_ended", message, logging.WARNING, seconds=round(seconds, 3))

    def interrupt(self) -> None:
        """The user wants to stop: send the vectors that exist, and leave the rest for the next run."""
        self.interrupted = True
        self.no_waiting.set()
        self.halted.set()
        self.stop.set()

    def check(self) -> None:
        """Make sure that documents are still to be worked on.

        Raises:
            Halted: they are not.
        """
        if self.halted.is_set():
            raise LoadHalted

    def abort(self) -> None:
        """End all threads."""
        self.aborted.set()
        self.no_waiting.set()
        self.halted.set()
        self.stop.set()


T = TypeVar("T")


class LoadAborted(Exception):
    """The load is off: a stage that waits on a channel ends with this."""


class ClosableQueue(Generic[T]):
    """First in, first out; bounded by entries. Thread-safe.

    Python's own queue can be neither closed nor aborted (before 3.13), and a producer that waits on a full one
    whose consumer died would wait for ever.

    Args:
        capacity: Entries that may wait; `put` blocks beyond.
        producers: How many producers call `close`; iteration ends after the last one's.
    """

    def __init__(self, capacity: int, producers: int = 1) -> None:
        self._entries: deque[T] = deque()
        self._capacity = capacity
        self._producers = producers
        self._aborted = False
        self._changed = threading.Condition()

    def put(self, entry: T) -> None:
        """Add an entry, waiting for room.

        Raises:
            Aborted: `abort` was called.
        """
        with self._changed:
            while len(self._entries) >= self._capacity and not self._aborted:
                self._changed.wait()
            if self._aborted:
                raise LoadAborted
            self._entries.append(entry)
            self._changed.notify_all()

    def __iter__(self) -> Iterator[T]:
        """Entries until every producer has closed; several consumers share them.

        Raises:
            Aborted: `abort` was called.
        """
        while True:
            with self._changed:
                while not self._entries and self._producers > 0 and not self._aborted:
                    self._changed.wait()
                if self._aborted:
                    raise LoadAborted
                if not self._entries:
                    return
                entry = self._entries.popleft()
                self._changed.notify_all()
            yield entry

    def close(self) -> None:
        """One producer has no more."""
        with self._changed:
            self._producers -= 1
            self._changed.notify_all()

    def abort(self) -> None:
        """Wake everybody up; nothing is handed on any more."""
        with self._changed:
            self._aborted = True
            self._changed.notify_all()


_TICK_SECONDS = 0.2
_SHUTDOWN_SECONDS = 1.0


class Pipeline:
    """Threads joined by channels.

    Usage:
        stages = Stages(control)
        lines: Channel[str] = stages.channel(8)
        stages.start("read", lambda: read_into(lines), closes=[lines])
        stages.start("write", lambda: write_from(lines))
        stages.wait()
    """

    def __init__(self, control: LoadControl) -> None:
        self._control = control
        self._channels: list[ClosableQueue[Any]] = []
        self._threads: list[threading.Thread] = []
        self._error: BaseException | None = None
        self._lock = threading.Lock()

    def channel(self, capacity: int, producers: int = 1) -> ClosableQueue[Any]:
        """A channel that is aborted with the stages."""
        made: ClosableQueue[Any] = ClosableQueue(capacity, producers)
        self._channels.append(made)
        return made

    def start(self, name: str, work: Callable[[], None], closes: list[ClosableQueue[Any]] | None = None) -> None:
        """Run `work` in a thread of its own; when it ends, it counts as one producer less of `closes`."""

        def body() -> None:
            try:
                work()
            except LoadAborted:
                pass  # another stage failed and has left its error
            except BaseException as error:
                self._fail(error)
            else:
                for channel in closes or []:
                    channel.close()

        # Daemons: a thread that hangs in a request must not keep a process alive that was told twice to end.
        thread = threading.Thread(target=body, name=f"ingest-{name}", daemon=True)
        self._threads.append(thread)
        thread.start()

    def _fail(self, error: BaseException) -> None:
        with self._lock:
            self._error = self._error or error
        self._abort()

    def _abort(self) -> None:
        self._control.abort()
        for channel in self._channels:
            channel.abort()

    def wait(self, tick: Callable[[], None] = lambda: None) -> None:
        """Wait for all stages, calling `tick` several times a second in this thread and once when all have ended well.

        Raises:
            BaseException: the first error of any stage, or one that reached this thread (KeyboardInterrupt);
                all stages are told to end.
        """
        try:
            for thread in self._threads:
                while thread.is_alive():
                    thread.join(_TICK_SECONDS)
                    tick()
        except BaseException:
            self._abort()
            for thread in self._threads:
                # Time to let go of files; one that hangs in a request is not waited for.
                thread.join(_SHUTDOWN_SECONDS)
            raise
        if self._error is not None:
            raise self._error
        # The end is shown too, also of work that was done before anyone looked.
        tick()
