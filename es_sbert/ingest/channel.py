"""A bounded queue between two stages that can be closed by its producers and aborted by anybody."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Iterator
from typing import Generic, TypeVar

T = TypeVar("T")


class Aborted(Exception):
    """The load is off: a stage that waits on a channel ends with this."""


class Channel(Generic[T]):
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
                raise Aborted
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
                    raise Aborted
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
