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
from dataclasses import asdict, dataclass
from enum import Enum, auto
from pathlib import Path

import orjson

from es_sbert.errors import OutputError, UsageError
from es_sbert.ingest.dead_letters import now, safe_name
from es_sbert.ingest.records import Origin
from es_sbert.ingest.sources.find import Source

_FORMAT = 1
_CACHE_KIB = 32 * 1024
# Documents met between two commits while nothing is acknowledged.
_COMMIT_EVERY = 4096
_SUFFIXES = ("", "-wal", "-shm", "-journal")


@dataclass(frozen=True)
class LoadIdentity:
    """What must be the same for a load to go on where another one ended.

    Attributes:
        index_uuid: The index's own; another one of the same name has another.
        fingerprint: The model.
        fields: Vector fields that it fills: name, template of the embedded text, rules for passages.
        id_field: Field of the id; None for hashes of the content.
    """

    index_uuid: str
    fingerprint: str
    fields: tuple[tuple[str, str, str | None], ...]
    id_field: str | None


class Met(Enum):
    """What a load knows of a document that comes out of its source."""

    NEW = auto()  # not met before, or with another content before the load was killed
    ACKNOWLEDGED = auto()  # the engine has taken it, before the load was killed
    REPEATED = auto()  # the very document was met earlier in this source
    CONTRADICTED = auto()  # its id was met earlier in this source, with another content


def default_state(index: str, sources: Sequence[Source]) -> Path:
    """`<source>.<index>.load-state` beside the first file of a load that this user may write beside.

    A load from standard input, or from where nothing may be written, keeps it in the working folder.
    """
    for source in sources:
        if source.path is not None:
            beside = source.path.with_name(f"{source.path.name}.{safe_name(index)}.load-state")
            if os.access(beside.parent, os.W_OK):
                return beside
    return Path(f"{safe_name(index)}.load-state")


class LoadState:
    """The state file of a load, open. Thread-safe; locked against other processes while it is open.

    Attributes:
        path: The file.
        run: When the load was first started: tells its dead letters from others'.
        resumed: Whether it goes on with an earlier process's work.
        note: What must be said about an earlier file that is not gone on with; None where there is nothing.
    """

    def __init__(self, path: Path, identity: LoadIdentity) -> None:
        """Open the state of a load, or begin one.

        Raises:
            UsageError: another process is loading with this state.
            OutputError: the file cannot be written.
        """
        self.path = path
        self.note: str | None = None
        self._lock = threading.Lock()
        self._sources: list[str] = []
        self._pending = 0
        self._finished = False
        with self._explained():
            self._db, known = self._opened(identity)
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
        db.execute("CREATE TABLE load (format INTEGER PRIMARY KEY, identity BLOB, run TEXT, passes INTEGER)")
        db.execute(
            "CREATE TABLE documents (id BLOB PRIMARY KEY, content BLOB, source INTEGER, line INTEGER, pass INTEGER, "
            "acknowledged INTEGER) WITHOUT ROWID"
        )
        db.execute("CREATE TABLE letters (key BLOB PRIMARY KEY) WITHOUT ROWID")
        return db, None

    def meet(self, document_id: str, content_hash: str, origin: Origin) -> tuple[Met, Origin]:
        """Enter a document that comes out of the source.

        Args:
            document_id: Its id.
            content_hash: Hash of the whole document, in hex digits.
            origin: Where it stands.

        Returns:
            What is known of it, and where its id was met first.

        Raises:
            OutputError: the state cannot be written.
        """
        key, content = _key(document_id), bytes.fromhex(content_hash)
        with self._explained():
            if not self._sources or self._sources[-1] != origin.source:
                self._sources.append(origin.source)
            place = (len(self._sources) - 1, origin.line, self._pass)
            row = self._db.execute(
                "SELECT content, source, line, pass, acknowledged FROM documents WHERE id = ?", (key,)
            ).fetchone()
            if row is not None and row[3] == self._pass:
                first = Origin(self._sources[row[1]], row[2])
                return (Met.REPEATED if row[0] == content else Met.CONTRADICTED), first
            acknowledged = row is not None and row[0] == content and bool(row[4])
            self._db.execute(
                "REPLACE INTO documents VALUES (?, ?, ?, ?, ?, ?)", (key, content, *place, int(acknowledged))
            )
            self._pending += 1
            if self._pending >= _COMMIT_EVERY:
                self._commit()
        return (Met.ACKNOWLEDGED if acknowledged else Met.NEW), origin

    def acknowledge(self, document_ids: Iterable[str]) -> None:
        """The engine holds these documents as they were met; on the disk when this returns, but for a power cut.

        Raises:
            OutputError: the state cannot be written.
        """
        keys = [(_key(document_id),) for document_id in document_ids]
        with self._explained():
            self._db.executemany("UPDATE documents SET acknowledged = 1 WHERE id = ?", keys)
            self._commit()

    def holds(self, document_id: str) -> bool:
        """Whether the id was met in this pass over the source.

        Raises:
            OutputError: the state cannot be read.
        """
        with self._explained():
            row = self._db.execute("SELECT pass FROM documents WHERE id = ?", (_key(document_id),)).fetchone()
        return row is not None and row[0] == self._pass

    def remember_letters(self, keys: Iterable[bytes]) -> None:
        """Dead letters that this load has written already.

        Raises:
            OutputError: the state cannot be written.
        """
        with self._explained():
            self._db.executemany("INSERT OR IGNORE INTO letters VALUES (?)", ((key,) for key in keys))
            self._commit()

    def has_letter(self, key: bytes) -> bool:
        """Whether a dead letter was written before the load was killed.

        Raises:
            OutputError: the state cannot be read.
        """
        with self._explained():
            return self._db.execute("SELECT 1 FROM letters WHERE key = ?", (key,)).fetchone() is not None

    def close(self) -> None:
        """Close the file; it stays for a load that goes on. Does nothing after `finish`.

        Raises:
            OutputError: what is pending cannot be written.
        """
        with self._explained():
            if not self._finished:
                self._db.execute("COMMIT")
                self._db.close()

    def finish(self) -> None:
        """The load has come to its end: nothing is left to go on with."""
        with self._lock:
            self._finished = True
            self._db.close()
            for suffix in _SUFFIXES:
                Path(f"{self.path}{suffix}").unlink(missing_ok=True)

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
            except sqlite3.Error as error:
                if "locked" in str(error):
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
