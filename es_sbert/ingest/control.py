"""What a load's threads tell each other: stop reading, the engine is lost, everything is off."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable

from es_sbert.events import record

# Seconds without a request that went through. Shorter waits are a busy engine's everyday, several in a second.
WORTH_TELLING = 5.0


class Halted(Exception):
    """No further request is begun for a document that has no vector yet: it is left for the next run."""


class Control:
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

    def lose(self, reason: str) -> None:
        """The engine takes no more: whatever is unsent is left to the next run. The first reason counts."""
        with self._lock:
            first = self._lost is None
            self._lost = self._lost or reason
        if first:
            record("engine_lost", reason, logging.ERROR, text="", reason=reason)
        self.halted.set()
        self.stop.set()

    @property
    def cut_short(self) -> str | None:
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
            tell = not self._waiting_told and now - self._waiting_since >= WORTH_TELLING
            self._waiting_told |= tell
        if tell:
            record("waiting_began", f"waiting for the engine: {reason}", logging.WARNING, reason=reason)

    def goes_on(self) -> None:
        """A request went through."""
        with self._lock:
            ended = self._waiting_told
            self._waiting, self._waiting_told = None, False
            seconds = self._timer() - self._waiting_since
        if ended:
            message = f"the engine takes documents again after {seconds:,.1f} s"
            record("waiting_ended", message, logging.WARNING, seconds=round(seconds, 3))

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
            raise Halted

    def abort(self) -> None:
        """End all threads."""
        self.aborted.set()
        self.no_waiting.set()
        self.halted.set()
        self.stop.set()
