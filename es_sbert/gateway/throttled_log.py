"""Warnings and bugs in the log, where a flood of requests makes no flood of lines."""

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
        self._log(logging.WARNING, kind, message, args, error)

    def bug(self, message: str, error: Exception) -> None:
        """Log a mistake of this program with its traceback, unless the same one was logged a moment ago."""
        trace = error.__traceback__
        while trace is not None and trace.tb_next is not None:
            trace = trace.tb_next
        where = "" if trace is None else f"{trace.tb_frame.f_code.co_filename}:{trace.tb_lineno}"
        self._log(logging.ERROR, f"{type(error).__name__} at {where}", message, (), error)

    def _log(self, level: int, kind: str, message: str, args: tuple[object, ...], error: BaseException | None) -> None:
        now = self._clock()
        if now - self._latest.get(kind, -self._seconds) < self._seconds:
            self._left_out[kind] += 1
            return
        self._latest[kind] = now
        left_out = self._left_out.pop(kind, 0)
        if left_out:
            message, args = f"{message} (and %d times more before)", (*args, left_out)
        self._logger.log(level, message, *args, exc_info=error)
