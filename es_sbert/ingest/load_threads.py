"""The threads of a load: stages connected by bounded queues, and the control that stops them."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from queue import Empty, Full, Queue
from typing import Any, Generic, TypeVar

from es_sbert.errors import EsSbertError
from es_sbert.messages import log_event

# Waits longer than this are reported. Shorter ones happen several times a second on a busy engine.
REPORTED_WAIT_SECONDS = 5.0


class EmbeddingStopped(Exception):
    """Embedding has stopped: a document without a vector is left for the next run."""


class EngineWait:
    """Whether requests are being retried. Thread-safe. The start and end of longer waits are logged.

    Attributes:
        reason: Reason why requests are being retried; None while they succeed.
    """

    def __init__(self, timer: Callable[[], float] = time.monotonic) -> None:
        self._timer = timer
        self.reason: str | None = None
        self._since = 0.0
        self._reported = False
        self._lock = threading.Lock()

    def begin(self, reason: str) -> None:
        """Record that a request failed and will be retried."""
        now = self._timer()
        with self._lock:
            if self.reason is None:
                self._since = now
            self.reason = reason
            report = not self._reported and now - self._since >= REPORTED_WAIT_SECONDS
            self._reported |= report
        if report:
            log_event("waiting_began", f"waiting for the engine: {reason}", logging.WARNING, reason=reason)

    def end(self) -> None:
        """Record that a request succeeded."""
        with self._lock:
            reported = self._reported
            self.reason, self._reported = None, False
            seconds = self._timer() - self._since
        if reported:
            message = f"the engine accepts documents again after {seconds:,.1f} s"
            log_event("waiting_ended", message, logging.WARNING, seconds=round(seconds, 3))


class LoadControl:
    """Stops a load at one of three levels, each of which includes the ones before it. Thread-safe.

    Usage:
        ```python
        control = LoadControl()  # another thread calls control.interrupt()
        report = load_files("docs", "docs.jsonl.gz", "http://localhost:9200", control=control)
        print(report.interrupted)
        ```

    Args:
        on_start: Called when the load begins, after all waits that only a signal of the system ends.

    Attributes:
        stop_reading: Level 1: nothing more is read; what was read is finished. (A source failed.)
        stop_embedding: Level 2: nothing more is compared, tokenized or embedded, and no bulk request is sent again;
            what is not written is left for the next run. (The engine takes no more documents.)
        stop_retrying: Level 3: no failed request is retried. (Ctrl-C, or a thread failed.)
        reason: Reason why the load ends before its source; None if it does not, or because the user interrupted it.
        engine_lost: Whether the engine cannot be reached or refuses all further documents, as without a privilege, in
            a closed index, or once an alias has moved. Not even vectors that exist are sent then.
        interrupted: Whether the user stopped the load.
        engine_wait: Whether requests are being retried.
    """

    def __init__(self, on_start: Callable[[], object] = lambda: None) -> None:
        self.on_start = on_start
        self.stop_reading = threading.Event()
        self.stop_embedding = threading.Event()
        self.stop_retrying = threading.Event()
        self.reason: str | None = None
        self.engine_lost = False
        self.interrupted = False
        self.engine_wait = EngineWait()
        self._lock = threading.Lock()

    def end_early(self, reason: str) -> None:
        """Stop reading: finish what is in flight. The first reason counts."""
        with self._lock:
            self.reason = self.reason or reason
        self.stop_reading.set()

    def stop_sending(self, reason: str) -> None:
        """Stop because the engine takes no more documents; leave the rest for the next run. The first reason counts."""
        with self._lock:
            first, self.engine_lost = not self.engine_lost, True
            if first:
                self.reason = reason  # more important than the reason of a source
        if first:
            log_event("engine_lost", reason, logging.ERROR, text="", reason=reason)
        self.stop_embedding.set()
        self.stop_reading.set()

    def stop_sending_after(self, error: EsSbertError) -> None:
        """Stop because the engine is unreachable, or refuses a request; see `stop_sending`."""
        self.stop_sending(f"{error.message} ({error.remedy.rstrip('.')})")

    def interrupt(self) -> None:
        """Stop on behalf of the user: send the vectors that exist, and leave the rest for the next run."""
        self.interrupted = True
        self.abort()

    def abort(self) -> None:
        """Stop without retries: what is not sent yet is left for the next run."""
        self.stop_retrying.set()
        self.stop_embedding.set()
        self.stop_reading.set()

    def check(self) -> None:
        """Check that embedding has not been stopped.

        Raises:
            EmbeddingStopped: embedding has been stopped.
        """
        if self.stop_embedding.is_set():
            raise EmbeddingStopped

    @contextmanager
    def time_limit(self, seconds: float) -> Iterator[threading.Event]:
        """Abort the loads of the block after some seconds, and set the event. This does not outlast the block."""
        before = self.reason, self.engine_lost
        expired = threading.Event()

        def expire() -> None:
            expired.set()
            self.abort()

        timer = threading.Timer(seconds, expire)
        timer.daemon = True
        timer.start()
        try:
            yield expired
        finally:
            timer.cancel()
            timer.join()
            if expired.is_set():
                # Undone: a request that was not retried may have ended a load as if the engine had failed.
                self.reason, self.engine_lost = before
                for event in (self.stop_retrying, self.stop_embedding, self.stop_reading):
                    event.clear()
                if self.interrupted:  # the interrupt may have set the events that were just cleared
                    self.abort()


T = TypeVar("T")


class StageAborted(Exception):
    """Another stage has failed and recorded its error: this one ends, for example while it waits on a queue."""


_TICK_SECONDS = 0.2
_SHUTDOWN_SECONDS = 1.0
_END = object()


class ClosableQueue(Generic[T]):
    """A bounded queue with one producer and any number of consumers. Thread-safe.

    Before Python 3.13 the standard library's queue can be neither closed nor aborted: a producer that waits on a full
    queue would hang if its consumer died.

    Args:
        capacity: Maximum number of entries; `put` blocks while the queue is full.
    """

    def __init__(self, capacity: int) -> None:
        self._entries: Queue[Any] = Queue(capacity)
        self._aborted = threading.Event()

    def put(self, entry: T) -> None:
        """Add an entry; blocks while the queue is full.

        Raises:
            StageAborted: `abort` was called.
        """
        self._retry(partial(self._entries.put, entry, timeout=_TICK_SECONDS))

    def __iter__(self) -> Iterator[T]:
        """Yield entries until the queue is closed; several consumers share them.

        Raises:
            StageAborted: `abort` was called.
        """
        while (entry := self._retry(partial(self._entries.get, timeout=_TICK_SECONDS))) is not _END:
            yield entry
        self.close()  # for the other consumers

    def _retry(self, call: Callable[[], Any]) -> Any:
        """Call a method of the queue until it does not time out."""
        while not self._aborted.is_set():
            with suppress(Full, Empty):  # tried again
                return call()
        raise StageAborted

    def close(self) -> None:
        """Close the queue: the producer has no more entries. Blocks while the queue is full."""
        self._retry(partial(self._entries.put, _END, timeout=_TICK_SECONDS))

    def abort(self) -> None:
        """End the producer and all consumers."""
        self._aborted.set()


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
        # Daemons: a thread that hangs in a request must not keep the process alive after a second interrupt.
        thread = threading.Thread(target=self._run, args=(work,), name=f"ingest-{name}", daemon=True)
        self._threads.append(thread)
        thread.start()

    def _run(self, work: Callable[[], None]) -> None:
        try:
            work()
        except StageAborted:
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
                # Threads get time to close files, but a thread that hangs in a request is not waited for.
                thread.join(_SHUTDOWN_SECONDS)
            raise
        if self._error is not None:
            raise self._error
        # A last tick, which shows the end even if all work was done before the first one.
        tick()
