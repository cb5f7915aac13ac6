"""What a load's threads tell each other: stop reading, the engine is lost, everything is off."""

from __future__ import annotations

import threading


class Control:
    """Three kinds of stop, from gentle to hard. Thread-safe.

    Attributes:
        stop: Set: no more is read; what was read is finished. (Ctrl-C, or the engine is lost.)
        aborted: Set: every thread ends at once, because one of them failed.
    """

    def __init__(self) -> None:
        self.stop = threading.Event()
        self.aborted = threading.Event()
        self.interrupted = False
        self._lost: str | None = None
        self._cut_short: str | None = None
        self._waiting: str | None = None
        self._lock = threading.Lock()

    @property
    def lost(self) -> str | None:
        """Why the engine takes no more documents; None while it does."""
        with self._lock:
            return self._lost

    def lose(self, reason: str) -> None:
        """The engine takes no more: whatever is unsent becomes a dead letter. The first reason counts."""
        with self._lock:
            self._lost = self._lost or reason
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
        with self._lock:
            self._waiting = reason

    def goes_on(self) -> None:
        """A request went through."""
        with self._lock:
            self._waiting = None

    def interrupt(self) -> None:
        """The user wants to stop: finish what is in flight."""
        self.interrupted = True
        self.stop.set()

    def abort(self) -> None:
        """End all threads."""
        self.aborted.set()
        self.stop.set()
