"""Warnings that a flood of requests cannot turn into a flood of lines."""

from __future__ import annotations

import logging
import time
from collections import Counter
from collections.abc import Callable

_SECONDS = 10.0


class ThrottledLog:
    """Logs each kind of warning at most once in some seconds; the next one says how many were left out.

    Args:
        logger: Where warnings go.
        seconds: Between two of a kind.
        clock: Tells the time, in seconds.
    """

    def __init__(
        self, logger: logging.Logger, seconds: float = _SECONDS, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._logger = logger
        self._seconds = seconds
        self._clock = clock
        self._latest: dict[str, float] = {}
        self._left_out: Counter[str] = Counter()

    def warning(self, kind: str, message: str, *args: object, error: BaseException | None = None) -> None:
        """Log a warning, unless one of its kind was logged a moment ago.

        Args:
            kind: One of few words: all that is remembered.
            message: As `logging` takes it, with its arguments.
            error: Logged with its traceback.
        """
        now = self._clock()
        if now - self._latest.get(kind, -self._seconds) < self._seconds:
            self._left_out[kind] += 1
            return
        self._latest[kind] = now
        left_out = self._left_out.pop(kind, 0)
        if left_out:
            message, args = f"{message} (and %d times more before)", (*args, left_out)
        self._logger.warning(message, *args, exc_info=error)
