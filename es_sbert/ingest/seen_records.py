"""The records that a load has read so far, in a scratch SQLite table.

It finds duplicates and conflicting ids, and remembers what the engine has acknowledged. Only the process that writes
the table uses it: it is not synced to disk, and the next load overwrites the table of a killed one.
"""

from __future__ import annotations

import hashlib
import sqlite3
from collections.abc import Sequence
from enum import Enum, auto
from itertools import chain
from pathlib import Path
from typing import NamedTuple

from es_sbert.engines.multi_get import batched
from es_sbert.ingest.records import Origin


class SeenStatus(Enum):
    """What a load knows of a document that comes out of its source."""

    NEW = auto()  # not seen in this run; what an earlier run has seen is looked up in the index again
    ACKNOWLEDGED = auto()  # acknowledged in this run, and read again since the worker that read it first was lost
    REPEATED = auto()  # the very document was met earlier in this source
    CONTRADICTED = auto()  # its id was met earlier in this source, with another content


class SeenRecord(NamedTuple):
    """A document that comes out of the source.

    Attributes:
        id: Its id.
        content: Hash of the whole document, in hex digits.
        origin: Where it stands.
    """

    id: str
    content: str
    origin: Origin


# The system's own cache holds the rest of the file: more here would only grow with the source.
_CACHE_KIB = 8 * 1024
# Rows of one statement: other threads run while SQLite works on it. It allows 999 parameters or more. A statement has
# always as many, padded with NULL, and so is compiled once.
_ROWS = 128
_KEYS = ", ".join("?" * _ROWS)
# A row with NULL as its key is left out, like one whose key is there already.
_INSERT = f"INSERT OR IGNORE INTO records VALUES {', '.join(['(?, ?, ?, ?, ?, 0)'] * _ROWS)}"
_FIND = f"SELECT * FROM records WHERE id IN ({_KEYS})"
_ACKNOWLEDGE = f"UPDATE records SET acknowledged = 1 WHERE id IN ({_KEYS})"

# key, number of the meeting that entered it, content, source, line, acknowledged
_Row = tuple[bytes, int, bytes, int, int, int]


class SeenRecordTable:
    """Not thread-safe.

    Args:
        path: The file; one that is there is overwritten.
        rereads: Whether a part of a source may be read twice, because the worker that read it was lost: a record that
            comes from the same place again is then no duplicate.

    Raises:
        sqlite3.Error, OSError: the file cannot be written. So do all methods.
    """

    def __init__(self, path: Path, *, rereads: bool) -> None:
        self._path = path
        self._rereads = rereads
        self._meetings = 0
        self._names: list[str] = []
        self._numbers: dict[str, int] = {}
        path.unlink(missing_ok=True)
        self._db = sqlite3.connect(path, isolation_level=None, check_same_thread=False, timeout=0)
        for pragma in (
            "locking_mode = EXCLUSIVE",
            "journal_mode = OFF",
            "synchronous = OFF",
            f"cache_size = -{_CACHE_KIB}",
        ):
            self._db.execute(f"PRAGMA {pragma}")
        self._db.execute(
            "CREATE TABLE records (id BLOB PRIMARY KEY, meeting INTEGER, content BLOB, source INTEGER, line INTEGER, "
            "acknowledged INTEGER) WITHOUT ROWID"
        )
        # One transaction for all: without a journal it costs nothing to keep open.
        self._db.execute("BEGIN")

    def meet(self, meetings: Sequence[SeenRecord]) -> list[tuple[SeenStatus, Origin]]:
        """See `LoadCheckpoint.meet`."""
        first_number = self._meetings
        self._meetings += len(meetings)
        rows = [
            (_key(meeting.id), number, bytes.fromhex(meeting.content), *self._place(meeting.origin))
            for number, meeting in enumerate(meetings, first_number)
        ]
        # Neighbours of the table are entered together; of one key, the first that was met wins.
        rows.sort()
        answers = [(SeenStatus.NEW, meeting.origin) for meeting in meetings]
        for some in batched(rows, _ROWS):
            padding = [None] * (len(some[0]) * (_ROWS - len(some)))
            if self._db.execute(_INSERT, [*chain.from_iterable(some), *padding]).rowcount == len(some):
                continue  # all of them are new
            found = self._find([key for key, *_ in some])
            for key, number, content, *_ in some:
                if found[key][1] != number:
                    place = number - first_number
                    answers[place] = self._seen_before(found[key], content, meetings[place].origin)
        return answers

    def acknowledge(self, document_ids: Sequence[str]) -> None:
        """See `LoadCheckpoint.acknowledge`."""
        for keys in batched(sorted(map(_key, document_ids)), _ROWS):
            self._db.execute(_ACKNOWLEDGE, _padded(keys))

    def holds(self, document_ids: Sequence[str]) -> set[str]:
        """See `LoadCheckpoint.holds`."""
        seen = self._find([_key(document_id) for document_id in document_ids])
        return {document_id for document_id in document_ids if _key(document_id) in seen}

    def count_acknowledged(self, documents: Sequence[tuple[str, str | None]] | None = None) -> int:
        """See `LoadCheckpoint.count_acknowledged`."""
        if documents is None:
            [(count,)] = self._db.execute("SELECT COUNT(*) FROM records WHERE acknowledged = 1")
            return int(count)
        seen = self._find([_key(document_id) for document_id, _ in documents])
        rows = ((seen.get(_key(document_id)), content) for document_id, content in documents)
        return sum(
            row is not None and bool(row[5]) and (content is None or bytes.fromhex(content) == row[2])
            for row, content in rows
        )

    def forget_acknowledged(self) -> None:
        """No record counts as acknowledged any more."""
        self._db.execute("UPDATE records SET acknowledged = 0")

    def close(self) -> None:
        """Remove the table; does nothing the second time."""
        self._db.close()
        self._path.unlink(missing_ok=True)

    def _find(self, keys: Sequence[bytes]) -> dict[bytes, _Row]:
        """Rows by their keys."""
        found: dict[bytes, _Row] = {}
        for some in batched(keys, _ROWS):
            found |= {row[0]: row for row in self._db.execute(_FIND, _padded(some))}
        return found

    def _seen_before(self, row: _Row, content: bytes, origin: Origin) -> tuple[SeenStatus, Origin]:
        _, _, known, source, line, acknowledged = row
        first = Origin(self._names[source], line)
        if self._rereads and known == content and (first == origin or not acknowledged):
            # The worker that read it first may be lost and never have sent it; indexing it twice is harmless.
            return (SeenStatus.ACKNOWLEDGED if acknowledged else SeenStatus.NEW), origin
        return (SeenStatus.REPEATED if known == content else SeenStatus.CONTRADICTED), first

    def _place(self, origin: Origin) -> tuple[int, int]:
        """Number of the source in this table, and line."""
        if origin.source not in self._numbers:
            self._numbers[origin.source] = len(self._names)
            self._names.append(origin.source)
        return self._numbers[origin.source], origin.line


def _padded(keys: Sequence[bytes]) -> list[bytes | None]:
    return [*keys, *[None] * (_ROWS - len(keys))]


def _key(document_id: str) -> bytes:
    # A digest keeps the table small; 128 bits do not collide by chance.
    return hashlib.blake2b(document_id.encode(), digest_size=16).digest()
