"""Log each kind of warning at most once in a few seconds."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from dataclasses import dataclass

from cachetools import LRUCache

from es_sbert.messages import escape_unprintable

_INTERVAL_SECONDS = 10.0
_MAX_KINDS = 1000


@dataclass
class _LastLine:
    """The last line of a kind.

    Attributes:
        at: When it was logged.
        left_out: How many were left out since.
    """

    at: float
    left_out: int = 0


class ThrottledLog:
    """Logs each kind of warning at most once in some seconds; the next one says how many were left out.

    Args:
        logger: Where warnings go.
        seconds: Between two of a kind.
        clock: Tells the time, in seconds.
    """

    def __init__(
        self, logger: logging.Logger, seconds: float = _INTERVAL_SECONDS, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._logger = logger
        self._seconds = seconds
        self._clock = clock
        self._latest: LRUCache[str, _LastLine] = LRUCache(_MAX_KINDS)

    def warning(self, message: str, *args: str, kind: str = "", error: BaseException | None = None) -> None:
        """Log a warning, unless one of its kind was logged a moment ago.

        Args:
            message: As `logging` takes it.
            args: Of the message; they may come from requests.
            kind: Empty where only the same message with the same arguments is the same kind.
            error: Logged with its traceback.
        """
        self._log(logging.WARNING, kind or message % args, message, args, error)

    def bug(self, message: str, error: Exception) -> None:
        """Log a mistake of this program with its traceback, unless the same one was logged a moment ago."""
        trace = error.__traceback__
        while trace is not None and trace.tb_next is not None:
            trace = trace.tb_next
        where = "" if trace is None else f"{trace.tb_frame.f_code.co_filename}:{trace.tb_lineno}"
        self._log(logging.ERROR, f"{type(error).__name__} at {where}", message, (), error)

    def _log(self, level: int, kind: str, message: str, args: tuple[str, ...], error: BaseException | None) -> None:
        now = self._clock()
        latest = self._latest.get(kind)
        if latest is not None and now - latest.at < self._seconds:
            latest.left_out += 1
            return
        self._latest[kind] = _LastLine(now)
        shown: tuple[object, ...] = tuple(map(escape_unprintable, args))
        if latest is not None and latest.left_out:
            message, shown = f"{message} (and %d times more before)", (*shown, latest.left_out)
        self._logger.log(level, message, *shown, exc_info=error)
