"""`--max-errors`: stops a load of which too much cannot be loaded."""

from __future__ import annotations

import re
import threading
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass

from es_sbert.errors import UsageError

# A share means nothing before so many records were read.
MIN_READ = 1000
# Kinds of reasons that are counted; a source with more has no frequent one.
_KINDS = 1000
_NAMED = 3
_REASON_CHARACTERS = 160


@dataclass(frozen=True)
class ErrorLimit:
    """How many documents may fail before a load stops.

    Attributes:
        count: The most that may fail; None where a share is given, or nothing.
        share: The largest part of the records read that may fail, 0 to 1, once `MIN_READ` were read.
    """

    count: int | None = None
    share: float | None = None

    @classmethod
    def parse(cls, text: str) -> ErrorLimit:
        """Read `100`, `5%`, `0.5%` or `off`.

        Raises:
            UsageError: it is none of these.
        """
        if text.strip().lower() == "off":
            return cls()
        match = re.fullmatch(r"(\d+)|(\d+(?:\.\d+)?) ?%", text.strip(), re.ASCII)
        if match is None or (match[2] is not None and float(match[2]) > 100):
            raise UsageError(
                f"--max-errors {text!r} is neither a number nor a percentage",
                "Write a number of documents (100), a part of those read (5%), or off.",
            )
        return cls(count=int(match[1])) if match[1] is not None else cls(share=float(match[2]) / 100)

    def is_exceeded(self, read: int, failed: int) -> bool:
        """Whether a load with these counts is to stop."""
        if self.count is not None:
            return failed > self.count
        return self.share is not None and read >= MIN_READ and failed > self.share * read

    def __str__(self) -> str:
        if self.count is not None:
            return f"{self.count:,}"
        return "off" if self.share is None else f"{self.share * 100:g}%"


DEFAULT_LIMIT = ErrorLimit(share=0.1)
NO_LIMIT = ErrorLimit()


class ErrorReasons:
    """Counts why documents could not be loaded; reasons that differ in names and numbers only are one. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._counts: Counter[str] = Counter()
        self._first: dict[str, str] = {}

    def add(self, reason: str) -> None:
        """Count a failure."""
        kind = _kind(reason)
        with self._lock:
            if kind in self._first or len(self._first) < _KINDS:
                self._first.setdefault(kind, reason)
                self._counts[kind] += 1

    def most_frequent(self) -> list[tuple[int, str]]:
        """The most frequent kinds of reasons: how often each was met, and the first of its kind."""
        with self._lock:
            return [(count, _shortened(self._first[kind])) for kind, count in self._counts.most_common(_NAMED)]


class ErrorMonitor:
    """Stops a load once too many of its documents have failed. Thread-safe.

    Args:
        limit: How many may fail.
        stop: Called once, with what to say to the user.
        letters: The dead-letter file, for the message.
    """

    def __init__(self, limit: ErrorLimit, stop: Callable[[str], None], letters: str) -> None:
        self._limit = limit
        self._stop = stop
        self._letters = letters
        self._reasons = ErrorReasons()
        self._stopped = threading.Event()

    def add(self, reason: str) -> None:
        """A document could not be loaded."""
        self._reasons.add(reason)

    def check(self, read: int, failed: int) -> None:
        """Stop the load if too much of it has failed.

        Args:
            read: Records read so far.
            failed: Documents of them that could not be loaded.
        """
        if self._stopped.is_set() or not self._limit.is_exceeded(read, failed):
            return
        self._stopped.set()
        reasons = "; ".join(f"{count:,} × {reason}" for count, reason in self._reasons.most_frequent())
        self._stop(
            f"{failed:,} of the {read:,} documents read could not be loaded, more than --max-errors {self._limit} "
            f"allows. Most frequent: {reasons}. They are in {self._letters}. Correct the source, or add "
            "--max-errors off"
        )


def _kind(reason: str) -> str:
    """A reason without what differs from document to document: quoted text and numbers."""
    plain = re.sub(r"'[^']*'|\"[^\"]*\"", "…", reason)
    return re.sub(r"\d+", "0", re.sub(r"the id \S+ ", "the id … ", plain))[:_REASON_CHARACTERS]


def _shortened(reason: str) -> str:
    return reason if len(reason) <= _REASON_CHARACTERS else f"{reason[: _REASON_CHARACTERS - 1]}…"
