"""Timestamps that never go backwards, even if the machine's clock is set back."""

from __future__ import annotations

import threading
from collections.abc import Callable
from datetime import UTC, datetime, timedelta

_MILLISECOND = timedelta(milliseconds=1)


def current_timestamp() -> str:
    """The current time: UTC in ISO 8601, to the millisecond."""
    return format_timestamp(datetime.now(UTC))


def format_timestamp(time: datetime) -> str:
    """Format a time as `2026-01-31T12:00:00.000Z`; such strings sort by time."""
    return time.astimezone(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def parse_timestamp(value: object) -> str | None:
    """Bring a time to the format of `format_timestamp`; None if it is not a time with a zone.

    Args:
        value: ISO 8601, or milliseconds since 1970: the formats of an engine's `date` field.
    """
    try:
        if isinstance(value, str) and not value.isdecimal():
            time = datetime.fromisoformat(value)
            return None if time.tzinfo is None else format_timestamp(time)
        return format_timestamp(datetime.fromtimestamp(int(value) / 1000, UTC))  # type: ignore[call-overload]
    except (ValueError, TypeError, OverflowError, OSError):
        return None


class Clock:
    """A wall clock that never returns an earlier time than it has returned or observed. Thread-safe.

    This is the physical part of a hybrid logical clock (Kulkarni et al. 2014): a write after an observed time gets a
    later time, even if the machine's clock is behind. With these times, a retry of dead letters recognizes whether the
    index has a later version.

    Args:
        wall: The machine's clock, in UTC.
    """

    def __init__(self, wall: Callable[[], datetime] = lambda: datetime.now(UTC)) -> None:
        self._wall = wall
        self._earliest = datetime.min.replace(tzinfo=UTC)
        self._lock = threading.Lock()

    def now(self) -> str:
        """Return the time: UTC in ISO 8601, to the millisecond."""
        with self._lock:
            self._earliest = max(self._earliest, self._wall())
            return format_timestamp(self._earliest)

    def observe(self, time: str) -> None:
        """Return only times after this one from now on. An invalid time is ignored: dead letters may be edited."""
        seen = parse_timestamp(time)
        if seen is not None:
            with self._lock:
                self._earliest = max(self._earliest, datetime.fromisoformat(seen) + _MILLISECOND)
