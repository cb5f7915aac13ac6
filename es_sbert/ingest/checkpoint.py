"""The checkpoint of a load: one SQLite file from which a killed load resumes.

Two processes cannot load the same source at once. The index stays the source of truth: a resumed load looks up every
document again, because acknowledged documents may have been deleted, changed or lost since. The file is used only for
the same index (by UUID), model, text and id field, and is removed when the load ends. A scratch table next to it holds
the records read so far: it finds duplicates and conflicting ids.
"""

from __future__ import annotations

import os
import sqlite3
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from enum import Enum, auto
from itertools import chain
from pathlib import Path
from typing import NamedTuple

import orjson

from es_sbert.batched import batched
from es_sbert.clock import current_timestamp
from es_sbert.engines.engine import DocumentKey
from es_sbert.errors import OutputError, UsageError
from es_sbert.filesystem import safe_file_name
from es_sbert.ingest.dead_letters import id_digest
from es_sbert.ingest.sources.document_source import DocumentSource, Origin
from es_sbert.messages import setting


class SeenStatus(Enum):
    """Status of a document that a load reads, compared with the records that it has seen."""

    NEW = auto()  # not seen in this run; documents of an earlier run are looked up in the index again
    ACKNOWLEDGED = auto()  # acknowledged in this run, and read again because the worker that read it first was lost
    REPEATED = auto()  # the same document was read before
    CONTRADICTED = auto()  # a document with the same id but different content or routing was read before


class SeenRecord(NamedTuple):
    """A document that was read from a source.

    Attributes:
        id: Id of the document.
        content: Hash of the whole document, in hex digits.
        origin: Place of the document in the source.
        routing: Custom routing of the document.
    """

    id: str
    content: str
    origin: Origin
    routing: str | None = None


# Rows per statement: other threads run while SQLite executes it. SQLite allows at least 999 parameters. Every statement
# has the same number, padded with NULL, and so is compiled once.
_ROWS = 128
_KEYS = ", ".join("?" * _ROWS)
# Rows whose key is NULL or exists already are ignored.
_INSERT = f"INSERT OR IGNORE INTO records VALUES {', '.join(['(?, ?, ?, ?, ?, ?, 0)'] * _ROWS)}"
_FIND = f"SELECT * FROM records WHERE id IN ({_KEYS})"
_ACKNOWLEDGE = f"UPDATE records SET acknowledged = 1 WHERE id IN ({_KEYS})"

# key, number of the record, content, source, line, digest of the routing, acknowledged
_Row = tuple[bytes, int, bytes, int, int, bytes | None, int]


def _padded(keys: Sequence[bytes]) -> list[bytes | None]:
    return [*keys, *[None] * (_ROWS - len(keys))]


@dataclass(frozen=True)
class LoadIdentity:
    """The settings that must not change between a load and the load that resumes it.

    Attributes:
        index_uuid: Distinguishes the index from a different one of the same name.
        fingerprint: Fingerprint of the model.
        fields: Vector fields that the load fills: name, template of the embedded text, chunk rules.
        id_field: Field of the id; None for hashes of the content.
        file_options: The options by which files are read: format, delimiter, encoding, None, (), None.
        routing_field: Field of the routing; None for none.
    """

    index_uuid: str
    fingerprint: str
    fields: tuple[tuple[str, str, str | None], ...]
    id_field: str | None
    file_options: tuple[str | tuple[str, ...] | None, ...] = ()
    routing_field: str | None = None


_FORMAT = 2
_SUFFIXES = ("", "-wal", "-shm", "-journal")
_SEEN = "-seen"
_RESTARTED = "the load starts from the beginning"


def default_checkpoint_path(index: str, sources: Sequence[DocumentSource]) -> Path:
    """Return `<source>.<index>.load-state` next to the first source file whose folder is writable.

    If there is none (standard input), the path is `<index>.load-state` in the working folder.
    """
    for source in sources:
        if source.path is not None:
            path = source.path.with_name(f"{source.path.name}.{safe_file_name(index)}.load-state")
            if os.access(path.parent, os.W_OK):
                return path
    return Path(f"{safe_file_name(index)}.load-state")


class LoadCheckpoint:
    """The open state file of a load. Thread-safe.

    The file keeps what a later process needs to resume: the identity of the load and its start time. The records seen
    and acknowledged so far are in a scratch table, which is discarded when the process ends.

    The file is locked against other processes while it is open. All methods raise OutputError if it cannot be read or
    written.

    Attributes:
        path: The file.
        run: Time when the load was first started; identifies its dead letters.
        resumed: Whether the load resumes that of an earlier process.
        note: A note for the user about an earlier file that cannot be resumed; None if there is none.
    """

    def __init__(self, path: Path, identity: LoadIdentity, *, rereads: bool = False) -> None:
        """Open the checkpoint of a load, or start one.

        Args:
            rereads: Whether a part of a source may be read again, because the worker that read it first was lost: a
                record from the same place is then not a duplicate.

        Raises:
            UsageError: another process is loading with this state.
            OutputError: the file cannot be written.
        """
        self.path = path
        self.note: str | None = None
        self._seen_path = path.with_name(f"{path.name}{_SEEN}")
        self._rereads = rereads
        self._records_seen = 0
        # The table holds numbers of sources.
        self._source_names: list[str] = []
        self._source_numbers: dict[str, int] = {}
        self._lock = threading.Lock()
        self._finished = False
        with self._explained():
            self._db, run = self._opened(identity)
            [(self._untrusted,)] = [map(bool, row) for row in self._db.execute("PRAGMA user_version")]
            self.resumed = run is not None
            self.run = run or current_timestamp()
            self._db.execute("REPLACE INTO load VALUES (?, ?, ?)", (_FORMAT, _packed(identity), self.run))
            self._commit()
            try:
                # The lock is held: no other process has this file open.
                self._seen = _create_seen_table(self._seen_path)
            except BaseException:
                self._db.close()
                raise

    def _opened(self, identity: LoadIdentity) -> tuple[sqlite3.Connection, str | None]:
        """Open the database in a transaction; also return the start of the load that is resumed, None for a new one."""
        try:
            db = _connect(self.path)
            row = _load_row(db)
        except sqlite3.DatabaseError as error:
            if isinstance(error, sqlite3.OperationalError):
                raise
            broken = self.path.with_name(f"{self.path.name}.broken")
            os.replace(self.path, broken)
            for suffix in _SUFFIXES[1:]:
                Path(f"{self.path}{suffix}").unlink(missing_ok=True)
            self.note = (
                f"The state file {self.path} was corrupt ({error}) and has been renamed to {broken.name}: {_RESTARTED}"
            )
            db, row = _connect(self.path), None
        if row is not None and row[:2] == (_FORMAT, _packed(identity)):
            return db, row[2]
        if row is not None:
            self.note = (
                f"The state file {self.path} belongs to a different index, model, text or id field, or to files that "
                f"were read differently ({setting('format')}, {setting('delimiter')}, {setting('encoding')}, earlier "
                f"`types`): {_RESTARTED}"
            )
        for table in ("load", "documents", "letters"):
            db.execute(f"DROP TABLE IF EXISTS {table}")
        db.execute("PRAGMA user_version = 0")
        db.execute("CREATE TABLE load (format INTEGER PRIMARY KEY, identity BLOB, run TEXT)")
        return db, None

    def record_seen(self, records: Sequence[SeenRecord]) -> list[tuple[SeenStatus, Origin]]:
        """Record documents in the order of the source; return the status of each, and where its id was read first."""
        with self._explained():
            first_number = self._records_seen
            self._records_seen += len(records)
            rows = [
                (
                    id_digest(record.id),
                    number,
                    bytes.fromhex(record.content),
                    *self._place(record.origin),
                    _routing_digest(record.routing),
                )
                for number, record in enumerate(records, first_number)
            ]
            # Sort by key, so that neighbors in the table are inserted together; of one key, the first record wins.
            rows.sort()
            statuses = [(SeenStatus.NEW, record.origin) for record in records]
            for batch in batched(rows, _ROWS):
                padding = [None] * (len(batch[0]) * (_ROWS - len(batch)))
                if self._seen.execute(_INSERT, [*chain.from_iterable(batch), *padding]).rowcount == len(batch):
                    continue  # all of them are new
                existing = self._find([key for key, *_ in batch])
                for key, number, content, *_, routing in batch:
                    if existing[key][1] != number:
                        place = number - first_number
                        statuses[place] = self._seen_before(existing[key], (content, routing), records[place].origin)
            return statuses

    def _seen_before(self, row: _Row, content: tuple[bytes, bytes | None], origin: Origin) -> tuple[SeenStatus, Origin]:
        """Determine the status of a record whose id is known, by comparing its content and its routing."""
        _, _, known_content, source, line, known_routing, acknowledged = row
        first_content = known_content, known_routing
        first = Origin(self._source_names[source], line)
        if self._rereads and first_content == content and (first == origin or not acknowledged):
            # The worker that read the record first may be lost and never have sent it; indexing it twice is harmless.
            return (SeenStatus.ACKNOWLEDGED if acknowledged else SeenStatus.NEW), origin
        return (SeenStatus.REPEATED if first_content == content else SeenStatus.CONTRADICTED), first

    def _place(self, origin: Origin) -> tuple[int, int]:
        """Return the place of a record as the table stores it: the number of its source, and its line."""
        if origin.source not in self._source_numbers:
            self._source_numbers[origin.source] = len(self._source_names)
            self._source_names.append(origin.source)
        return self._source_numbers[origin.source], origin.line

    def _find(self, keys: Sequence[bytes]) -> dict[bytes, _Row]:
        """Read rows of the table by their keys."""
        found: dict[bytes, _Row] = {}
        for batch in batched(keys, _ROWS):
            found |= {row[0]: row for row in self._seen.execute(_FIND, _padded(batch))}
        return found

    def record_acknowledged(self, document_ids: Sequence[str]) -> None:
        """Record that the engine has acknowledged these documents."""
        with self._explained():
            for keys in batched(sorted(map(id_digest, document_ids)), _ROWS):
                self._seen.execute(_ACKNOWLEDGE, _padded(keys))

    def seen_keys(self, keys: Sequence[DocumentKey]) -> set[DocumentKey]:
        """Return those of the keys (id and routing) whose documents this load has read."""
        with self._explained():
            seen = self._find([id_digest(document_id) for document_id, _ in keys])
            return {key for key in keys if _has_key(seen.get(id_digest(key[0])), key)}

    def count_acknowledged(self) -> int:
        """Count the acknowledged documents among those that this load has read."""
        with self._explained():
            [(count,)] = self._seen.execute("SELECT COUNT(*) FROM records WHERE acknowledged = 1")
            return int(count)

    def acknowledged_keys(self, documents: Sequence[tuple[DocumentKey, str | None]]) -> set[DocumentKey]:
        """Return the keys of those documents that this load has read with this content and that are acknowledged.

        Args:
            documents: Key (id and routing) and content hash of each, as in a `SeenRecord`; None matches any content.
        """
        with self._explained():
            seen = self._find([id_digest(document_id) for (document_id, _), _ in documents])
            rows = ((seen.get(id_digest(key[0])), key, content) for key, content in documents)
            return {
                key
                for row, key, content in rows
                if row is not None
                and _has_key(row, key)
                and bool(row[-1])
                and (content is None or bytes.fromhex(content) == row[2])
            }

    def mark_untrusted(self) -> None:
        """Record that the engine has altered documents of this load: stored vectors may differ from what was sent."""
        with self._explained():
            # The mark is stored in the file, for the process that resumes this load.
            self._db.execute("PRAGMA user_version = 1")
            self._commit()
            self._seen.execute("UPDATE records SET acknowledged = 0")

    def is_untrusted(self) -> bool:
        """Whether an earlier process of this load has called `mark_untrusted`."""
        return self._untrusted

    def close(self) -> None:
        """Close the file; it is kept for a load that resumes. Does nothing after `finish`."""
        with self._explained():
            if not self._finished:
                self._close_seen_table()
                if self._db.in_transaction:  # a full disk ends it
                    self._db.execute("COMMIT")
                self._db.close()

    def finish(self) -> None:
        """Remove the file, because the load is complete."""
        with self._explained():
            self._finished = True
            self._close_seen_table()
            if os.name == "nt":
                # Windows cannot remove an open file. If another load has opened the file by now, it is kept.
                self._db.close()
                with suppress(PermissionError):  # see above
                    self._remove()
            else:
                self._remove()  # before the lock is released: afterwards, another load may use the file
                self._db.close()

    def _close_seen_table(self) -> None:
        self._seen.close()
        self._seen_path.unlink(missing_ok=True)

    def _remove(self) -> None:
        for suffix in reversed(_SUFFIXES):  # the database itself last
            Path(f"{self.path}{suffix}").unlink(missing_ok=True)

    def _commit(self) -> None:
        self._db.execute("COMMIT")
        self._db.execute("BEGIN")

    @contextmanager
    def _explained(self) -> Iterator[None]:
        """Hold the lock while the block runs, and convert errors of SQLite."""
        with self._lock:
            try:
                yield
            except (sqlite3.Error, OSError) as error:
                if isinstance(error, sqlite3.Error) and "locked" in str(error):
                    remedy = f"Wait until it ends, or set {setting('state')} to a different file."
                    problem = f"another load is running with the state file {self.path}"
                    raise UsageError(problem, remedy).about("state", self.path) from error
                raise OutputError(
                    f"the state file {self.path} cannot be written: {error}",
                    f"Free space or set {setting('state')} to a different file, then run the same command again: it "
                    "resumes the load.",
                ).about("state", self.path) from error


def _routing_digest(routing: str | None) -> bytes | None:
    return None if routing is None else id_digest(routing)


def _has_key(row: _Row | None, key: DocumentKey) -> bool:
    """Whether a row that was found by the id of a key also has the routing of the key."""
    return row is not None and row[5] == _routing_digest(key[1])


def _create_seen_table(path: Path) -> sqlite3.Connection:
    """Create the scratch table of the records that were read; an existing file is overwritten."""
    path.unlink(missing_ok=True)
    db = sqlite3.connect(path, isolation_level=None, check_same_thread=False, timeout=0)
    # A negative cache_size is in KiB: 8 MiB. The operating system's page cache holds the rest of the file.
    for pragma in ("locking_mode = EXCLUSIVE", "journal_mode = OFF", "synchronous = OFF", "cache_size = -8192"):
        db.execute(f"PRAGMA {pragma}")
    db.execute(
        "CREATE TABLE records (id BLOB PRIMARY KEY, number INTEGER, content BLOB, source INTEGER, line INTEGER, "
        "routing BLOB, acknowledged INTEGER) WITHOUT ROWID"
    )
    # A single transaction is kept open: without a journal, it costs nothing.
    db.execute("BEGIN")
    return db


def _connect(path: Path) -> sqlite3.Connection:
    """Open the file, check it, lock it for this process, and begin a transaction."""
    while True:
        path.touch()
        before = _file_id(path)
        db = _open_locked(path)
        # Another load may have finished and removed the file between opening and locking: the lock of a removed file
        # is useless. The inode of an open file is not reused.
        if before is not None and _file_id(path) == before:
            return db
        db.close()


def _file_id(path: Path) -> tuple[int, int] | None:
    """Return the identity of the file at a path, which changes if the file is replaced; None if there is none."""
    try:
        status = path.stat()
    except FileNotFoundError:
        return None
    return status.st_dev, status.st_ino


def _open_locked(path: Path) -> sqlite3.Connection:
    db = sqlite3.connect(path, isolation_level=None, check_same_thread=False, timeout=0)
    try:
        # A write-ahead log is used: a commit is one write, and a crash keeps the commits before it.
        for pragma in ("locking_mode = EXCLUSIVE", "journal_mode = WAL", "synchronous = NORMAL"):
            db.execute(f"PRAGMA {pragma}")
        db.execute("BEGIN IMMEDIATE")
        [(verdict,), *_] = db.execute("PRAGMA quick_check(1)").fetchall()
        if verdict != "ok":
            raise sqlite3.DatabaseError(verdict)
    except BaseException:
        db.close()
        raise
    return db


def _load_row(db: sqlite3.Connection) -> tuple[int, bytes, str] | None:
    """Read (format, identity, run) of the load; None if the file has no load, or a different version of the table."""
    columns = [row[1] for row in db.execute("PRAGMA table_info(load)")]
    if columns != ["format", "identity", "run"]:
        return None
    row: tuple[int, bytes, str] | None = db.execute("SELECT * FROM load").fetchone()
    return row


def _packed(identity: LoadIdentity) -> bytes:
    return orjson.dumps(asdict(identity), option=orjson.OPT_SORT_KEYS)
