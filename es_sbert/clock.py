"""Times that order what a load writes, however often somebody sets the machine's clock back."""

from __future__ import annotations

import threading
from collections.abc import Callable
from datetime import UTC, datetime, timedelta

_TICK = timedelta(milliseconds=1)


def now() -> str:
    """UTC in ISO 8601, to the millisecond."""
    return iso(datetime.now(UTC))


def iso(time: datetime) -> str:
    """`2026-01-31T12:00:00.000Z`; such times sort as text."""
    return time.astimezone(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


class Clock:
    """A wall clock that never falls behind a time that it has given out or been shown. Thread-safe.

    The physical part of a hybrid logical clock (Kulkarni et al. 2014): whatever is written after something that was
    observed has a later time, even where the machine's clock says otherwise. `--retry` tells by such times whether the
    index holds a later version than a dead letter.

    Args:
        wall: The machine's clock, in UTC.
    """

    def __init__(self, wall: Callable[[], datetime] = lambda: datetime.now(UTC)) -> None:
        self._wall = wall
        self._earliest = datetime.min.replace(tzinfo=UTC)
        self._lock = threading.Lock()

    def now(self) -> str:
        """UTC in ISO 8601, to the millisecond."""
        with self._lock:
            self._earliest = max(self._earliest, self._wall())
            return iso(self._earliest)

    def observe(self, time: str) -> None:
        """Give out later times only; what is no time is passed over: letters may have been edited by hand."""
        try:
            seen = datetime.fromisoformat(time)
        except ValueError:
            return
        if seen.tzinfo is None:
            return
        with self._lock:
            self._earliest = max(self._earliest, seen + _TICK)
