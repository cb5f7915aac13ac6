"""Checkpoint of a near-duplicate search: candidates and progress, in a SQLite file.

Each page of documents is one transaction, so a killed process loses only its last page.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

import numpy as np
import orjson

from es_sbert.analysis.similarity import Int64Array
from es_sbert.encoder.batching import Vectors
from es_sbert.engines.protocol import DocumentKey
from es_sbert.errors import OutputError, UsageError

# Tells our files from others of SQLite: "esbd".
_APPLICATION_ID = 0x65736264
_VERSION = 1
_SCHEMA = """
CREATE TABLE search (identity TEXT NOT NULL, positions TEXT NOT NULL, compared INTEGER NOT NULL);
CREATE TABLE documents (number INTEGER PRIMARY KEY, id TEXT NOT NULL, key TEXT NOT NULL UNIQUE);
CREATE TABLE pairs (first INTEGER, second INTEGER, PRIMARY KEY (first, second)) WITHOUT ROWID;
CREATE TABLE vectors (hash BLOB PRIMARY KEY, key TEXT NOT NULL) WITHOUT ROWID;
CREATE TABLE sample (number INTEGER PRIMARY KEY, key TEXT NOT NULL, vectors BLOB NOT NULL);
CREATE TABLE sample_pairs (first TEXT, second TEXT, PRIMARY KEY (first, second)) WITHOUT ROWID;
"""
_PAGE = 100_000
KeyPair = tuple[DocumentKey, DocumentKey]


class RecallSampleDocument(NamedTuple):
    """A document whose near-duplicates are also found exactly.

    Attributes:
        key: What tells it apart.
        vectors: *Shape:* ``(vectors, dimensions)``.
    """

    key: DocumentKey
    vectors: Vectors


class DuplicateSearchState:
    """Pairs of documents that are near-duplicates as far as the engine's scores tell, and how far the search is.

    Not thread-safe. Use as a context manager.

    Args:
        path: The file; created if it is missing.
        identity: What must be the same for a search to resume.

    Attributes:
        path: The file.
        resumed: Whether an earlier search is resumed.
        positions: Up to which `_seq_no` the documents of each shard were compared; empty at the beginning.
        compared: Documents that were compared.

    Raises:
        UsageError: the file is not ours or holds another search, or another process works with it.
        OutputError: the file cannot be read or written. So do all methods.
    """

    def __init__(self, path: Path, identity: str) -> None:
        self.path = path
        self.positions: list[int] = []
        self.compared = 0
        try:
            self._db = sqlite3.connect(path, isolation_level=None, timeout=0)
        except sqlite3.OperationalError as error:
            raise self._cannot_write(error) from error
        try:
            self._db.execute("PRAGMA locking_mode = EXCLUSIVE")
            self._db.execute("BEGIN EXCLUSIVE")
            self.resumed = self._read(identity)
            self._db.execute("COMMIT")
        except BaseException as error:
            self._db.close()
            if isinstance(error, sqlite3.OperationalError) and "locked" in str(error):
                raise UsageError(
                    f"another process works with {path}", "Wait until it is done, or give --state another file."
                ) from error
            if isinstance(error, sqlite3.OperationalError):
                raise self._cannot_write(error) from error
            if isinstance(error, sqlite3.DatabaseError):
                raise self._not_our_file() from error
            raise

    def __enter__(self) -> DuplicateSearchState:
        return self

    def __exit__(self, *_: object) -> None:
        self._db.close()

    def remove(self) -> None:
        """Close and delete the file: the search is over."""
        self._db.close()
        self.path.unlink(missing_ok=True)

    def start(self, positions: Sequence[int], sample: Iterable[RecallSampleDocument]) -> None:
        """Begin a search: nothing was compared yet."""
        self._write(
            lambda: self._db.executemany(
                "INSERT INTO sample (key, vectors) VALUES (?, ?)",
                ((_encode_key(one.key), one.vectors.astype("<f4").tobytes()) for one in sample),
            ),
            list(positions),
            0,
        )

    def sample(self, dimensions: int) -> list[RecallSampleDocument]:
        """The sampled documents."""
        with self._errors():
            rows = self._db.execute("SELECT key, vectors FROM sample ORDER BY number").fetchall()
        return [
            RecallSampleDocument(_decode_key(key), np.frombuffer(vectors, "<f4").reshape(-1, dimensions))
            for key, vectors in rows
        ]

    def first_with_vectors(
        self, hashes: Sequence[bytes], keys: Sequence[DocumentKey]
    ) -> list[tuple[DocumentKey, bool]]:
        """Of each document: the first one that had the same vectors, and whether that is new.

        The first one may be the document itself. They are remembered with the next `add`.
        """
        found: list[tuple[DocumentKey, bool]] = []
        with self._errors():
            if not self._db.in_transaction:
                self._db.execute("BEGIN")
            for digest, key in zip(hashes, keys, strict=True):
                text = _encode_key(key)
                inserted = self._db.execute("INSERT OR IGNORE INTO vectors VALUES (?, ?)", (digest, text)).rowcount
                [(first,)] = self._db.execute("SELECT key FROM vectors WHERE hash = ?", (digest,))
                found.append((_decode_key(first), inserted == 1))
        return found

    def add(
        self, pairs: Iterable[KeyPair], sample_pairs: Iterable[KeyPair], positions: Sequence[int], compared: int
    ) -> None:
        """Add what a page of documents has brought, and how far the search is now."""

        def insert() -> None:
            for pair in pairs:
                first, second = sorted(map(self._number, pair))
                self._db.execute("INSERT OR IGNORE INTO pairs VALUES (?, ?)", (first, second))
            for pair in sample_pairs:
                self._db.execute("INSERT OR IGNORE INTO sample_pairs VALUES (?, ?)", sorted(map(_encode_key, pair)))

        self._write(insert, list(positions), compared)

    def documents(self) -> Iterator[list[tuple[int, DocumentKey]]]:
        """Numbers and keys of the documents that are in a pair, sorted by id, in pages."""
        with self._errors():
            cursor = self._db.execute("SELECT number, key FROM documents ORDER BY id, key")
            while rows := cursor.fetchmany(_PAGE):
                yield [(number, _decode_key(key)) for number, key in rows]

    def pairs(self) -> Iterator[tuple[Int64Array, Int64Array]]:
        """Numbers of the documents of the pairs, in pages."""
        with self._errors():
            cursor = self._db.execute("SELECT first, second FROM pairs")
            while rows := cursor.fetchmany(_PAGE):
                first, second = np.array(rows, np.int64).T
                yield first, second

    def sample_pairs(self) -> list[KeyPair]:
        """The near-duplicates of the sampled documents, found exactly."""
        with self._errors():
            return [
                (_decode_key(first), _decode_key(second))
                for first, second in self._db.execute("SELECT * FROM sample_pairs")
            ]

    def _write(self, insert: Callable[[], object], positions: list[int], compared: int) -> None:
        with self._errors():
            if not self._db.in_transaction:
                self._db.execute("BEGIN")
            insert()
            self._db.execute(
                "UPDATE search SET positions = ?, compared = ?", (orjson.dumps(positions).decode(), compared)
            )
            self._db.execute("COMMIT")
        self.positions, self.compared = positions, compared

    @contextmanager
    def _errors(self) -> Iterator[None]:
        try:
            yield
        except sqlite3.Error as error:
            raise self._cannot_write(error) from error

    def _number(self, key: DocumentKey) -> int:
        text = _encode_key(key)
        self._db.execute("INSERT OR IGNORE INTO documents (id, key) VALUES (?, ?)", (key[0], text))
        [(number,)] = self._db.execute("SELECT number FROM documents WHERE key = ?", (text,))
        return int(number)

    def _read(self, identity: str) -> bool:
        """Whether the file holds this search; if it holds none, it is set up for this one."""
        [(ours,)] = self._db.execute("PRAGMA application_id")
        [(version,)] = self._db.execute("PRAGMA user_version")
        tables = [name for (name,) in self._db.execute("SELECT name FROM sqlite_master WHERE type = 'table'")]
        if tables and ours != _APPLICATION_ID:
            raise self._not_our_file()
        if tables and version == _VERSION:
            rows = self._db.execute("SELECT identity, positions, compared FROM search").fetchall()
            if rows and rows[0][0] == identity:
                self.positions, self.compared = orjson.loads(rows[0][1]), rows[0][2]
                return bool(self.positions)
            if rows and rows[0][2]:
                raise UsageError(
                    f"{self.path} holds a search with other options, or of another index or model, that has compared "
                    f"{rows[0][2]:,} documents",
                    "Use the same options to resume it, give --state another file, or delete this one.",
                )
        for name in tables:
            self._db.execute(f"DROP TABLE {name}")
        for statement in _SCHEMA.strip().split("\n"):
            self._db.execute(statement)
        self._db.execute(f"PRAGMA application_id = {_APPLICATION_ID}")
        self._db.execute(f"PRAGMA user_version = {_VERSION}")
        self._db.execute("INSERT INTO search VALUES (?, '[]', 0)", (identity,))
        return False

    def _not_our_file(self) -> UsageError:
        return UsageError(f"{self.path} is not the state of a search for near-duplicates", "Give --state another file.")

    def _cannot_write(self, error: sqlite3.Error) -> OutputError:
        return OutputError(
            f"the state file {self.path} cannot be used: {error}", "Free disk space, or give --state another file."
        )


def _encode_key(key: DocumentKey) -> str:
    return orjson.dumps(key).decode()


def _decode_key(text: str) -> DocumentKey:
    document_id, routing = orjson.loads(text)
    return document_id, routing
