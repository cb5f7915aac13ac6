"""What became of every document: counts that add up to what was read."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Iterable
from enum import StrEnum
from typing import Any


class Outcome(StrEnum):
    """How a document ends; each ends in exactly one of these."""

    INDEXED = "indexed"  # embedded and written
    UPDATED = "updated"  # other fields changed: written with the vector it had
    UNCHANGED = "unchanged"  # stands in the index as it is
    EMPTY = "empty"  # no text, so no vector
    DUPLICATE = "duplicate"  # the very document was met before in this load
    SUPERSEDED = "superseded"  # a dead letter of which the index holds a later version
    DELETED = "deleted"  # removed from the index while it was embedded
    DEAD = "dead"  # in the dead-letter file
    LEFT = "left"  # not sent, because the engine was lost or the load interrupted: the same command goes on with it


class LedgerError(RuntimeError):
    """The counts do not add up: a mistake in this program."""


class Ledger:
    """Thread-safe counts of one load.

    Attributes:
        read: Records met in the sources.
        truncated: Documents written whose text was longer than the model reads.
        lost_tokens: Tokens that were cut off in them.
        passages: Passages that got vectors in documents that were written.
        retries: Requests and documents that were sent again.
        embedded: Documents that are embedded and whose end is not known yet; of a window that is being embedded, the
            part of its tokens that is.
        lacking: Field of a text → documents that lack it, or have null in it.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._counts: Counter[Outcome] = Counter()
        self.read = 0
        self.truncated = 0
        self.lost_tokens = 0
        self.passages = 0
        self.retries = 0
        self.lacking: Counter[str] = Counter()
        self.embedded = 0.0

    def add_read(self, count: int = 1) -> None:
        with self._lock:
            self.read += count

    def enter(self, outcome: Outcome, count: int = 1) -> None:
        with self._lock:
            self._counts[outcome] += count

    def enter_indexed(self, lost_tokens: int, passages: int = 0) -> None:
        """A document with new vectors was acknowledged.

        Args:
            lost_tokens: Tokens of its text that were cut off.
            passages: Passages that its text was cut into, each with a vector; 0 where the text has one.
        """
        with self._lock:
            self.embedded -= 1
            self._counts[Outcome.INDEXED] += 1
            self.passages += passages
            if lost_tokens:
                self.truncated += 1
                self.lost_tokens += lost_tokens

    def add_lacking(self, fields: Iterable[str]) -> None:
        """A document lacks these fields of its text."""
        with self._lock:
            self.lacking.update(fields)

    def add_retries(self, count: int) -> None:
        with self._lock:
            self.retries += count

    def add_embedded(self, count: float) -> None:
        """Documents were embedded; below 0, they have come to an end other than `INDEXED`, or are embedded again."""
        with self._lock:
            self.embedded += count

    def add(self, other: Ledger) -> None:
        """Enter what another ledger holds, which nobody writes to any more."""
        with self._lock:
            self._counts.update(other._counts)
            self.read += other.read
            self.truncated += other.truncated
            self.lost_tokens += other.lost_tokens
            self.passages += other.passages
            self.retries += other.retries
            self.lacking.update(other.lacking)

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in self.__dict__.items() if name != "_lock"}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state, _lock=threading.Lock())

    def counts(self) -> dict[Outcome, int]:
        """Outcome → documents, all outcomes in their order."""
        with self._lock:
            return {outcome: self._counts[outcome] for outcome in Outcome}

    @property
    def done(self) -> int:
        """Documents whose end is known."""
        with self._lock:
            return self._counts.total()

    @property
    def processed(self) -> int:
        """Documents that are embedded, or have come to their end otherwise; not those that are left."""
        with self._lock:
            ended = self._counts.total() - self._counts[Outcome.LEFT]
            return min(self.read, ended + max(0, round(self.embedded)))

    @property
    def dead(self) -> int:
        """Documents that could not be loaded."""
        with self._lock:
            return self._counts[Outcome.DEAD]

    def verify(self) -> None:
        """Check that every record read has come to an end.

        Raises:
            LedgerError: it has not.
        """
        if self.done != self.read:
            raise LedgerError(f"{self.read} documents were read, but {self.done} accounted for: {self.counts()}")
