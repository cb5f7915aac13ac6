"""The records that a load has read so far: tells duplicates and contradictions, and what the engine has acknowledged.

A table of digests in a file, so that memory does not grow with the source. The table is only of use to the process that
writes it: it is not synchronised with the disk, and the file of a killed load is overwritten by the next one.
"""

from __future__ import annotations

import hashlib
import sqlite3
from collections.abc import Sequence
from pathlib import Path

from es_sbert.ingest.memory import Meeting, Met
from es_sbert.ingest.records import Origin

# The system's own cache holds the rest of the file: more here would only grow with the source.
_CACHE_KIB = 8 * 1024
# Keys of one query; SQLite allows 999 parameters or more.
_LOOKUP = 256
_FIND = f"SELECT * FROM records WHERE id IN ({', '.join('?' * _LOOKUP)})"

# key, content, source, line, acknowledged
_Row = tuple[bytes, bytes, int, int, int]


class SeenRecords:
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
            "CREATE TABLE records (id BLOB PRIMARY KEY, content BLOB, source INTEGER, line INTEGER, "
            "acknowledged INTEGER) WITHOUT ROWID"
        )
        # One transaction for all: without a journal it costs nothing to keep open.
        self._db.execute("BEGIN")

    def meet(self, meetings: Sequence[Meeting]) -> list[tuple[Met, Origin]]:
        """See `LoadMemory.meet`."""
        keys = [_key(meeting.id) for meeting in meetings]
        seen = self._find(keys)
        entered: list[_Row] = []
        answers = []
        for key, meeting in zip(keys, meetings, strict=True):
            content, row = bytes.fromhex(meeting.content), seen.get(key)
            if row is None:
                row = (key, content, self._source_number(meeting.origin.source), meeting.origin.line, 0)
                seen[key] = row
                entered.append(row)
                answers.append((Met.NEW, meeting.origin))
            else:
                answers.append(self._seen_before(row, content, meeting.origin))
        # Neighbours of the table are written together.
        self._db.executemany("INSERT INTO records VALUES (?, ?, ?, ?, ?)", sorted(entered))
        return answers

    def acknowledge(self, document_ids: Sequence[str]) -> None:
        """See `LoadMemory.acknowledge`."""
        keys = sorted(map(_key, document_ids))
        self._db.executemany("UPDATE records SET acknowledged = 1 WHERE id = ?", ((key,) for key in keys))

    def holds(self, document_ids: Sequence[str]) -> set[str]:
        """See `LoadMemory.holds`."""
        seen = self._find([_key(document_id) for document_id in document_ids])
        return {document_id for document_id in document_ids if _key(document_id) in seen}

    def count_acknowledged(self, documents: Sequence[tuple[str, str | None]] | None = None) -> int:
        """See `LoadMemory.count_acknowledged`."""
        if documents is None:
            [(count,)] = self._db.execute("SELECT COUNT(*) FROM records WHERE acknowledged = 1")
            return int(count)
        seen = self._find([_key(document_id) for document_id, _ in documents])
        rows = ((seen.get(_key(document_id)), content) for document_id, content in documents)
        return sum(
            row is not None and bool(row[4]) and (content is None or bytes.fromhex(content) == row[1])
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
        for start in range(0, len(keys), _LOOKUP):
            some: list[bytes | None] = list(keys[start : start + _LOOKUP])
            # Always the same number of parameters, so that SQLite compiles the statement once.
            some += [None] * (_LOOKUP - len(some))
            found |= {row[0]: row for row in self._db.execute(_FIND, some)}
        return found

    def _seen_before(self, row: _Row, content: bytes, origin: Origin) -> tuple[Met, Origin]:
        _, known, source, line, acknowledged = row
        first = Origin(self._names[source], line)
        if self._rereads and known == content and (first == origin or not acknowledged):
            # The worker that read it first may be lost and never have sent it; indexing it twice is harmless.
            return (Met.ACKNOWLEDGED if acknowledged else Met.NEW), origin
        return (Met.REPEATED if known == content else Met.CONTRADICTED), first

    def _source_number(self, name: str) -> int:
        """The number of a source's name in the table."""
        if name not in self._numbers:
            self._numbers[name] = len(self._names)
            self._names.append(name)
        return self._numbers[name]


def _key(document_id: str) -> bytes:
    # A digest keeps the table small; 128 bits do not collide by chance.
    return hashlib.blake2b(document_id.encode(), digest_size=16).digest()
