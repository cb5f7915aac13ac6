"""What a load has met and what the engine has acknowledged, on disk, so that a killed load goes on.

One SQLite file a load. It is removed when the load comes to its end; what it says is only ever trusted for the same
index (by its UUID), model, text and id field, and a document counts as acknowledged only with the very content that
the source has now. Losing the file costs time, never a document: without it everything is looked up in the index.
"""

from __future__ import annotations

import hashlib
import os
import sqlite3
import threading
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path

import orjson

from es_sbert.clock import now
from es_sbert.errors import OutputError, UsageError
from es_sbert.ingest.dead_letters import safe_name
from es_sbert.ingest.memory import LoadIdentity, Meeting, Met
from es_sbert.ingest.records import Origin
from es_sbert.ingest.sources.source import Source

_FORMAT = 1
# The system's own cache holds the rest of the file: more here would only grow with the source.
_CACHE_KIB = 8 * 1024
# Documents met between two commits while nothing is acknowledged.
_COMMIT_EVERY = 4096
_SUFFIXES = ("", "-wal", "-shm", "-journal")


def default_state(index: str, sources: Sequence[Source]) -> Path:
    """`<source>.<index>.load-state` beside the first file of a load that this user may write beside.

    A load from elsewhere (standard input, an address, a query), or from where nothing may be written, keeps it in the
    working folder.
    """
    for source in sources:
        if source.path is not None:
            beside = source.path.with_name(f"{source.path.name}.{safe_name(index)}.load-state")
            if os.access(beside.parent, os.W_OK):
                return beside
    return Path(f"{safe_name(index)}.load-state")


class LoadState:
    """The state file of a load, open: a `LoadMemory`. Locked against other processes while it is open."""

    def __init__(self, path: Path, identity: LoadIdentity, *, rereads: bool = False) -> None:
        """Open the state of a load, or begin one.

        Args:
            rereads: Whether a part of a source may be read twice, because who read it was lost: a record that comes
                from the same place again is then no repetition.

        Raises:
            UsageError: another process is loading with this state.
            OutputError: the file cannot be written.
        """
        self.path = path
        self.note: str | None = None
        self._lock = threading.Lock()
        self._names: list[str] = []
        self._numbers: dict[str, int] = {}
        self._pending = 0
        self._finished = False
        self._rereads = rereads
        with self._explained():
            self._db, known = self._opened(identity)
            [(self._distrusted,)] = [map(bool, row) for row in self._db.execute("PRAGMA user_version")]
            self.resumed = known is not None
            self.run, passes = known or (now(), 0)
            self._pass = passes + 1
            self._db.execute(
                "REPLACE INTO load VALUES (?, ?, ?, ?)", (_FORMAT, _packed(identity), self.run, self._pass)
            )
            self._db.execute("COMMIT")
            self._db.execute("BEGIN")

    def _opened(self, identity: LoadIdentity) -> tuple[sqlite3.Connection, tuple[str, int] | None]:
        """The database in a transaction, and run and passes of the load that it goes on with."""
        try:
            db = _connected(self.path)
            row = _load_row(db)
        except sqlite3.DatabaseError as error:
            if isinstance(error, sqlite3.OperationalError):
                raise
            broken = self.path.with_name(f"{self.path.name}.broken")
            os.replace(self.path, broken)
            for suffix in _SUFFIXES[1:]:
                Path(f"{self.path}{suffix}").unlink(missing_ok=True)
            self.note = f"The state file {self.path} was broken ({error}) and is {broken.name} now: begun anew"
            db, row = _connected(self.path), None
        if row is not None and row[:2] == (_FORMAT, _packed(identity)):
            return db, row[2:]
        if row is not None:
            self.note = f"The state file {self.path} was of another index, model, text or id field: begun anew"
        for table in ("load", "documents", "letters"):
            db.execute(f"DROP TABLE IF EXISTS {table}")
        db.execute("PRAGMA user_version = 0")
        db.execute("CREATE TABLE load (format INTEGER PRIMARY KEY, identity BLOB, run TEXT, passes INTEGER)")
        db.execute(
            "CREATE TABLE documents (id BLOB PRIMARY KEY, content BLOB, source INTEGER, line INTEGER, pass INTEGER, "
            "acknowledged INTEGER) WITHOUT ROWID"
        )
        db.execute("CREATE TABLE letters (key BLOB PRIMARY KEY) WITHOUT ROWID")
        return db, None

    def meet(self, meetings: Sequence[Meeting]) -> list[tuple[Met, Origin]]:
        with self._explained():
            return [self._meet(meeting) for meeting in meetings]

    def _meet(self, meeting: Meeting) -> tuple[Met, Origin]:
        origin = meeting.origin
        key, content = _key(meeting.id), bytes.fromhex(meeting.content)
        place = (self._source_number(origin.source), origin.line, self._pass)
        row = self._db.execute(
            "SELECT content, source, line, pass, acknowledged FROM documents WHERE id = ?", (key,)
        ).fetchone()
        if row is not None and row[3] == self._pass:
            first = Origin(self._names[row[1]], row[2])
            if self._rereads and row[0] == content and (first == origin or not row[4]):
                # Whoever met it first may be lost and never have sent it; sent twice, it still stands there once.
                return (Met.ACKNOWLEDGED if row[4] else Met.NEW), origin
            return (Met.REPEATED if row[0] == content else Met.CONTRADICTED), first
        # What was acknowledged before the documents were found to be altered is written again.
        acknowledged = row is not None and row[0] == content and bool(row[4]) and not self._distrusted
        self._db.execute("REPLACE INTO documents VALUES (?, ?, ?, ?, ?, ?)", (key, content, *place, int(acknowledged)))
        self._pending += 1
        if self._pending >= _COMMIT_EVERY:
            self._commit()
        return (Met.ACKNOWLEDGED if acknowledged else Met.NEW), origin

    def _source_number(self, name: str) -> int:
        """What stands for a source's name in the file."""
        if name not in self._numbers:
            self._numbers[name] = len(self._names)
            self._names.append(name)
        return self._numbers[name]

    def acknowledge(self, document_ids: Sequence[str]) -> None:
        keys = [(_key(document_id),) for document_id in document_ids]
        with self._explained():
            self._db.executemany("UPDATE documents SET acknowledged = 1 WHERE id = ?", keys)
            self._commit()

    def holds(self, document_ids: Sequence[str]) -> set[str]:
        find = "SELECT 1 FROM documents WHERE id = ? AND pass = ?"
        with self._explained():
            return {
                document_id
                for document_id in document_ids
                if self._db.execute(find, (_key(document_id), self._pass)).fetchone() is not None
            }

    def count_acknowledged(self, documents: Sequence[tuple[str, str | None]] | None = None) -> int:
        with self._explained():
            if documents is None:
                count = "SELECT COUNT(*) FROM documents WHERE pass = ? AND acknowledged = 1"
                return int(self._db.execute(count, (self._pass,)).fetchone()[0])
            find = "SELECT content FROM documents WHERE id = ? AND pass = ? AND acknowledged = 1"
            rows = [self._db.execute(find, (_key(key), self._pass)).fetchone() for key, _ in documents]
            contents = [None if content is None else bytes.fromhex(content) for _, content in documents]
            return sum(
                row is not None and content in (None, row[0]) for row, content in zip(rows, contents, strict=True)
            )

    def distrust(self) -> None:
        with self._explained():
            self._db.execute("PRAGMA user_version = 1")
            self._commit()

    def is_distrusted(self) -> bool:
        return self._distrusted

    def remember_letters(self, keys: Iterable[bytes]) -> None:
        with self._explained():
            self._db.executemany("INSERT OR IGNORE INTO letters VALUES (?)", ((key,) for key in keys))
            self._commit()

    def has_letter(self, key: bytes) -> bool:
        with self._explained():
            return self._db.execute("SELECT 1 FROM letters WHERE key = ?", (key,)).fetchone() is not None

    def close(self) -> None:
        with self._explained():
            if not self._finished:
                if self._db.in_transaction:  # a full disk ends it
                    self._db.execute("COMMIT")
                self._db.close()

    def finish(self) -> None:
        with self._explained():
            self._finished = True
            # While it is locked: afterwards it may be another load's. What stands in it last goes last.
            for suffix in reversed(_SUFFIXES):
                Path(f"{self.path}{suffix}").unlink(missing_ok=True)
            self._db.close()

    def _commit(self) -> None:
        self._db.execute("COMMIT")
        self._db.execute("BEGIN")
        self._pending = 0

    @contextmanager
    def _explained(self) -> Iterator[None]:
        """The lock is held; errors of SQLite become ours."""
        with self._lock:
            try:
                yield
            except (sqlite3.Error, OSError) as error:
                if isinstance(error, sqlite3.Error) and "locked" in str(error):
                    raise UsageError(
                        f"another load is running with the state file {self.path}",
                        "Wait for its end, or give this load a --state of its own.",
                    ) from error
                raise OutputError(
                    f"the state file {self.path} cannot be written: {error}",
                    "Free space or name another file with --state, then run the same command again: it goes on where "
                    "it was.",
                ) from error


def _connected(path: Path) -> sqlite3.Connection:
    """The file, checked, locked for this process and in a transaction."""
    while True:
        path.touch()
        before = _file_id(path)
        db = _locked(path)
        # Another load may have come to its end and removed what was opened before it was locked: such a file
        # keeps nobody out. The number of a file that is open is not given to another one.
        if before is not None and _file_id(path) == before:
            return db
        db.close()


def _file_id(path: Path) -> tuple[int, int] | None:
    """What tells a file from any other that stood or will stand at its path; None where there is none."""
    try:
        found = path.stat()
    except FileNotFoundError:
        return None
    return found.st_dev, found.st_ino


def _locked(path: Path) -> sqlite3.Connection:
    db = sqlite3.connect(path, isolation_level=None, check_same_thread=False, timeout=0)
    try:
        # A write-ahead log: a commit is one write, and a cut anywhere leaves the commits before it.
        for pragma in ("locking_mode = EXCLUSIVE", "journal_mode = WAL", "synchronous = NORMAL",
                       f"cache_size = -{_CACHE_KIB}"):  # fmt: skip
            db.execute(f"PRAGMA {pragma}")
        db.execute("BEGIN IMMEDIATE")
        [(verdict,), *_] = db.execute("PRAGMA quick_check(1)").fetchall()
        if verdict != "ok":
            raise sqlite3.DatabaseError(verdict)
    except BaseException:
        db.close()
        raise
    return db


def _load_row(db: sqlite3.Connection) -> tuple[int, bytes, str, int] | None:
    """(format, identity, run, passes) of the load that the file is of; None where it is of none."""
    if not db.execute("SELECT 1 FROM sqlite_master WHERE name = 'load'").fetchone():
        return None
    row: tuple[int, bytes, str, int] | None = db.execute("SELECT * FROM load").fetchone()
    return row


def _packed(identity: LoadIdentity) -> bytes:
    return orjson.dumps(asdict(identity), option=orjson.OPT_SORT_KEYS)


def _key(document_id: str) -> bytes:
    # A digest keeps the file small; 128 bits do not collide by chance.
    return hashlib.blake2b(document_id.encode(), digest_size=16).digest()
