"""What reading a source gives: records, and places where there should have been one."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple


# Named tuples: one of each is made per record, and a frozen dataclass takes three times as long to make.
class Origin(NamedTuple):
    """Where a record stands, for messages.

    Attributes:
        source: The file as it was named on the command line, `-` for standard input, or `index NAME`.
        line: First line of the record, from 1; 0 where there are no lines.
    """

    source: str
    line: int = 0

    def __str__(self) -> str:
        return f"{self.source}:{self.line}" if self.line else self.source


class Record(NamedTuple):
    """One object of a source.

    Attributes:
        origin: Where it stands.
        fields: The object, parsed.
        source: The object as JSON in one line. For JSON Lines these are the source's own bytes, so that
            numbers and spacing reach the engine exactly as they were written.
        id: Its id, where the source names it apart from the fields.
        superseded: Whether a later record of the same source takes its place.
        written: When it was the document's last word, in UTC, ISO 8601, where the source says so (a dead letter).
    """

    origin: Origin
    fields: dict[str, Any]
    source: bytes
    id: str | None = None
    written: str | None = None
    superseded: bool = False


@dataclass(frozen=True, slots=True)
class Reject:
    """Input that is not a document.

    Attributes:
        origin: Where it stands.
        reason: Why it cannot be loaded.
        raw: Its first bytes, at most `SAMPLE_BYTES`.
        size: Its full size in bytes, where known.
        document: The object as JSON in one line, where it could be parsed.
        id: Its id, where it has one.
        partial: Whether `document` is only a part of it.
    """

    origin: Origin
    reason: str
    raw: bytes = b""
    size: int = 0
    document: bytes | None = None
    id: str | None = None
    partial: bool = False
