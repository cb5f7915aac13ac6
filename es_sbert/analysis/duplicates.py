"""Near-duplicates: groups of pairs, the text to keep of each group, and the checkpoint of a search."""

from __future__ import annotations

import contextlib
import hashlib
import math
import sqlite3
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from enum import StrEnum
from pathlib import Path
from typing import NamedTuple

import numpy as np
import orjson

from es_sbert.analysis.similarity import Int64Array, check_cosine, pair_cosines, pairs_above
from es_sbert.analysis.text_collection import TextCollection
from es_sbert.engines.engine import DocumentKey
from es_sbert.engines.rest import Json
from es_sbert.errors import OutputError, UsageError, require_extra
from es_sbert.messages import escape_unprintable, pluralize
from es_sbert.search.vector_query import MAX_K
from es_sbert.vectors import Vectors

DEFAULT_NEIGHBORS = 20
DEFAULT_SAMPLE = 1000


@dataclass(frozen=True)
class DuplicateSearchSettings:
    """The settings of a search for near-duplicates.

    Attributes:
        min_cosine: Documents with at least this cosine are near-duplicates.
        filter: Query that every document must match; None for all documents.
        neighbors: Number of nearest documents that a search returns. It grows if all of them are near-duplicates.
        num_candidates: Number of vectors that each shard considers in a search; None for the default of searches.
        sample: Number of documents on which the recall is measured.
        seed: Seed of the sample.
    """

    min_cosine: float
    filter: Json | None = None
    neighbors: int = DEFAULT_NEIGHBORS
    num_candidates: int | None = None
    sample: int = DEFAULT_SAMPLE
    seed: int = 0

    def __post_init__(self) -> None:
        check_cosine(self.min_cosine)
        if not 1 <= self.neighbors < MAX_K or not 0 <= self.sample <= MAX_K:
            remedy = f"Use 1 to {MAX_K - 1:,} neighbors and a sample of 0 to {MAX_K:,}."
            raise UsageError(f"{self.neighbors:,} neighbors and a sample of {self.sample:,} were requested", remedy)


@dataclass(frozen=True)
class DuplicateRecall:
    """The recall of a search, measured on a random sample of documents.

    Attributes:
        sampled: Number of sampled documents, which were compared with all others.
        pairs: Number of pairs of a sampled document and a near-duplicate of it.
        found: Number of these pairs whose documents are in the same group.
        shares: For each sampled document with near-duplicates, the share of them in its group.
    """

    sampled: int
    pairs: int
    found: int
    shares: tuple[float, ...] = field(default=(), repr=False)


@dataclass(frozen=True)
class DuplicateSearchResult:
    """The near-duplicates of an index.

    Attributes:
        texts: The documents that have a near-duplicate, sorted by id.
        groups: The groups; positions refer to `texts`.
        compared: Number of documents that were compared, including those without a near-duplicate.
        recall: The measured recall.
        resumed: Whether the search resumed an earlier one.
        unread: Number of documents that were written at the end of the search and were not compared.
    """

    texts: TextCollection
    groups: list[DuplicateGroup]
    compared: int
    recall: DuplicateRecall
    resumed: bool
    unread: int


DEFAULT_MIN_COSINE = 0.95

# Maximum number of pairs between different groups in memory before the groups are merged; 16 bytes each.
_MAX_PENDING_PAIRS = 4 << 20

# Compact dates of ISO 8601 (20260131) have eight digits, milliseconds of any date since 1970 more.
_DATE_DIGITS = 8


class KeepPolicy(StrEnum):
    """The text of a group that is kept; the first if several qualify."""

    FIRST = "first"
    LONGEST = "longest"
    NEWEST = "newest"


class DuplicateGroup(NamedTuple):
    """Texts that say nearly the same.

    Attributes:
        kept: Position of the text to keep.
        members: Positions of all texts of the group, the kept one included, ascending.
        cosines: Cosine of each member with the kept text. In a chain of near-duplicates it may be below the threshold.
    """

    kept: int
    members: tuple[int, ...]
    cosines: tuple[float, ...]


def duplicate_groups(
    vectors: Vectors,
    min_cosine: float = DEFAULT_MIN_COSINE,
    *,
    starts: Int64Array | None = None,
    priority: Sequence[float] | None = None,
    block: int = 2048,
) -> list[DuplicateGroup]:
    """Group the near-duplicates of a collection with an exact search.

    Two texts are near-duplicates if their cosine is not below the threshold. A group holds all texts that a chain of
    near-duplicates connects (single linkage). Texts without near-duplicates are not in any group.

    Args:
        vectors, starts, block: See `most_similar_pairs`.
        min_cosine: The threshold, -1 to 1.
        priority: Priority of each text. The first member with the greatest priority is kept; None keeps the first
            member.

    Returns:
        The groups, largest first; groups of equal size are sorted by their first member.

    Raises:
        UsageError: a number is out of range, a vector is zero or not finite, or SciPy is not installed.
    """
    count = len(vectors) if starts is None else len(starts)
    if priority is not None and len(priority) != count:
        raise UsageError(f"{len(priority)} priorities for {count} texts", "Pass one priority per text.")
    pairs = ((first, second) for first, second, _ in pairs_above(vectors, min_cosine, starts=starts, block=block))
    return groups_of_pairs(vectors, pairs, starts=starts, priority=priority)


def groups_of_pairs(
    vectors: Vectors,
    pairs: Iterable[tuple[Int64Array, Int64Array]],
    *,
    starts: Int64Array | None = None,
    priority: Sequence[float] | None = None,
) -> list[DuplicateGroup]:
    """Group near-duplicates as `duplicate_groups` does, from known pairs.

    Args:
        vectors, starts, priority: See `duplicate_groups`.
        pairs: Positions of the first and the second texts of pairs, in batches. *Shape:* ``(pairs,)`` each.

    Returns:
        The groups, in the order of `duplicate_groups`.
    """
    require_extra("analysis", "scipy")
    labels = np.arange(len(vectors) if starts is None else len(starts))  # (texts,): the group of each text
    held: list[tuple[Int64Array, Int64Array]] = []
    size = 0
    for first, second in pairs:
        # Pairs within a group can be ignored.
        apart = labels[first] != labels[second]
        if apart.any():
            held.append((first[apart], second[apart]))
            size += len(held[-1][0])
        if size >= _MAX_PENDING_PAIRS:
            labels, held, size = _merge_groups(labels, held), [], 0
    return _build_groups(_merge_groups(labels, held), vectors, starts, priority)


def keep_priorities(texts: TextCollection, keep: KeepPolicy, date_field: str | None = None) -> list[float] | None:
    """Compute the priorities of texts (the text with the greatest is kept); None if the first text is kept.

    Args:
        texts: The texts.
        keep: The policy.
        date_field: Field with the date of a text, for `newest`; the collection must contain it. Texts without a date
            count as the oldest.

    Raises:
        UsageError: a date cannot be read, no text has a date, or `date_field` is missing.
    """
    if keep is KeepPolicy.FIRST:
        return None
    if keep is KeepPolicy.LONGEST:
        return [len(text) for text in texts.texts]
    if date_field is None:
        raise UsageError('`keep="newest"` requires the date of each text', "Set `date_field` to its field.")
    dates = [
        _latest_timestamp(values[date_field], name, date_field) if date_field in values else -math.inf
        for name, values in zip(texts.ids, texts.values, strict=True)
    ]
    if dates and max(dates) == -math.inf:
        raise UsageError(
            f"none of the {pluralize(len(texts), 'text')} has a date in {date_field}",
            "Set `date_field` to another field.",
        )
    return dates


def _latest_timestamp(value: object, name: str, date_field: str) -> float:
    """Parse one or several dates; return the latest in milliseconds since 1970, or minus infinity without a date."""
    if value is None or value == "":
        return -math.inf
    if isinstance(value, list):
        return max((_latest_timestamp(one, name, date_field) for one in value), default=-math.inf)
    if isinstance(value, int | float) and not isinstance(value, bool):
        return float(value)
    if isinstance(value, str):
        # Formats without types, such as CSV, hold numbers as text.
        if len(value) > _DATE_DIGITS and value.isascii() and value.isdigit():
            return float(value)
        with contextlib.suppress(ValueError):  # what is not a date is refused below
            date = datetime.fromisoformat(value.strip())
            return 1000 * (date if date.tzinfo else date.replace(tzinfo=UTC)).timestamp()
    raise UsageError(
        f"the date of {escape_unprintable(name)} in {date_field} cannot be read: "
        f"{escape_unprintable(repr(value))[:80]}",
        "Use ISO 8601 (2026-01-31T12:00:00Z) or milliseconds since 1970, or leave the document out with `filter`.",
    )


def _build_groups(
    labels: Int64Array, vectors: Vectors, starts: Int64Array | None, priority: Sequence[float] | None
) -> list[DuplicateGroup]:
    """Build the groups of more than one text."""
    order = np.argsort(labels, kind="stable")
    borders = np.flatnonzero(np.diff(labels[order])) + 1
    members = [group for group in np.split(order, borders) if len(group) > 1]
    members.sort(key=lambda group: (-len(group), int(group[0])))
    if not members:
        return []
    kept = [
        int(group[0]) if priority is None else max(group.tolist(), key=lambda text: (priority[text], -text))
        for group in members
    ]
    # Compute the cosines for all groups at once, because there may be many small groups.
    sizes = [len(group) for group in members]
    cosines = pair_cosines(vectors, np.repeat(kept, sizes), np.concatenate(members), starts)
    return [
        DuplicateGroup(best, tuple(group.tolist()), tuple(own.tolist()))
        for best, group, own in zip(kept, members, np.split(cosines, np.cumsum(sizes)[:-1]), strict=True)
    ]


def _merge_groups(labels: Int64Array, pairs: Sequence[tuple[Int64Array, Int64Array]]) -> Int64Array:
    """Merge the groups that these pairs connect; return the group of each text."""
    from scipy.sparse import coo_array
    from scipy.sparse.csgraph import connected_components

    if not pairs:
        return labels
    first, second = (labels[np.concatenate(side)] for side in zip(*pairs, strict=True))
    graph = coo_array((np.ones(len(first), np.int8), (first, second)), shape=(len(labels), len(labels)))
    _, groups = connected_components(graph, directed=False)
    return np.asarray(groups[labels], np.int64)


# SQLite's application id of these files: "esbd".
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
# A document and its vectors. *Shape:* (vectors, dimensions).
KeyedVectors = tuple[DocumentKey, Vectors]


class DuplicateSearchState:
    """The checkpoint of a search: pairs that are near-duplicates by the engine's scores, and the progress.

    Not thread-safe. Use as a context manager.

    Args:
        path: The file; created if it is missing.
        identity: Identity of the search; a search with another identity is not resumed.

    Attributes:
        path: The file.
        resumed: Whether an earlier search is resumed.
        positions: The `_seq_no` up to which each shard's documents were compared; empty at the beginning.
        compared: Number of documents that were compared.

    Raises:
        UsageError: the file is not a checkpoint, belongs to another search, or is used by another process.
        OutputError: the file cannot be read or written. All methods may raise this.
    """

    def __init__(self, path: Path, identity: str) -> None:
        self.path = path
        self.positions: list[int] = []
        self.compared = 0
        with self._errors():
            self._db = sqlite3.connect(path, isolation_level=None, timeout=0)
        try:
            with self._errors():
                self._db.execute("PRAGMA locking_mode = EXCLUSIVE")
                self._db.execute("BEGIN EXCLUSIVE")
                self.resumed = self._read(identity)
                self._db.execute("COMMIT")
        except BaseException:
            self._db.close()
            raise

    def __enter__(self) -> DuplicateSearchState:
        return self

    def __exit__(self, *_: object) -> None:
        self._db.close()

    def remove(self) -> None:
        """Close and delete the file at the end of the search."""
        self._db.close()
        self.path.unlink(missing_ok=True)

    def start(self, positions: Sequence[int], sample: Iterable[KeyedVectors]) -> None:
        """Start a search from the beginning.

        Args:
            positions: The positions before the first document of each shard.
            sample: Documents whose near-duplicates are also found by exact comparison.
        """
        with self._transaction(positions, 0):
            self._db.executemany(
                "INSERT INTO sample (key, vectors) VALUES (?, ?)",
                ((_encode_key(key), vectors.astype("<f4").tobytes()) for key, vectors in sample),
            )

    def sample(self, dimensions: int) -> list[KeyedVectors]:
        """Read the sampled documents."""
        with self._errors():
            rows = self._db.execute("SELECT key, vectors FROM sample ORDER BY number").fetchall()
        return [(_decode_key(key), np.frombuffer(vectors, "<f4").reshape(-1, dimensions)) for key, vectors in rows]

    def first_with_vectors(self, documents: Iterable[KeyedVectors]) -> list[tuple[DocumentKey, bool]]:
        """Find for each document the first document with the same vectors, and whether these vectors are new.

        The first document may be the document itself. The next `add` commits new vectors.
        """
        found: list[tuple[DocumentKey, bool]] = []
        with self._errors():
            self._begin()
            for key, vectors in documents:
                row = hashlib.sha256(vectors.astype("<f4").tobytes()).digest()[:16], _encode_key(key)
                inserted = self._db.execute("INSERT OR IGNORE INTO vectors VALUES (?, ?)", row).rowcount
                [(first,)] = self._db.execute("SELECT key FROM vectors WHERE hash = ?", row[:1])
                found.append((_decode_key(first), inserted == 1))
        return found

    def add(
        self, pairs: Iterable[KeyPair], sample_pairs: Iterable[KeyPair], positions: Sequence[int], compared: int
    ) -> None:
        """Add the pairs of a page of documents, and update the progress."""
        with self._transaction(positions, compared):
            for pair in pairs:
                numbers = sorted(map(self._number, pair))
                self._db.execute("INSERT OR IGNORE INTO pairs VALUES (?, ?)", numbers)
            for pair in sample_pairs:
                self._db.execute("INSERT OR IGNORE INTO sample_pairs VALUES (?, ?)", sorted(map(_encode_key, pair)))

    def documents(self) -> Iterator[list[tuple[int, DocumentKey]]]:
        """Read numbers and keys of the documents in pairs, sorted by id, in pages."""
        with self._errors():
            cursor = self._db.execute("SELECT number, key FROM documents ORDER BY id, key")
            while rows := cursor.fetchmany(_PAGE):
                yield [(number, _decode_key(key)) for number, key in rows]

    def pairs(self) -> Iterator[tuple[Int64Array, Int64Array]]:
        """Read the document numbers of the pairs, in pages."""
        with self._errors():
            cursor = self._db.execute("SELECT first, second FROM pairs")
            while rows := cursor.fetchmany(_PAGE):
                first, second = np.array(rows, np.int64).T
                yield first, second

    def sample_pairs(self) -> list[KeyPair]:
        """Return the near-duplicate pairs of the sampled documents, as found by exact comparison."""
        with self._errors():
            rows = self._db.execute("SELECT first, second FROM sample_pairs").fetchall()
        return [(_decode_key(first), _decode_key(second)) for first, second in rows]

    def _begin(self) -> None:
        if not self._db.in_transaction:
            self._db.execute("BEGIN")

    @contextmanager
    def _transaction(self, positions: Sequence[int], compared: int) -> Iterator[None]:
        """Commit the insertions together with the progress."""
        with self._errors():
            self._begin()
            yield
            progress = orjson.dumps(positions).decode(), compared
            self._db.execute("UPDATE search SET positions = ?, compared = ?", progress)
            self._db.execute("COMMIT")
        self.positions, self.compared = list(positions), compared

    @contextmanager
    def _errors(self) -> Iterator[None]:
        try:
            yield
        except sqlite3.Error as error:
            # Errors that do not come from SQLite itself, such as a closed file, have no code.
            code = getattr(error, "sqlite_errorcode", None)
            if code == sqlite3.SQLITE_BUSY:
                raise UsageError(
                    f"another process is using {self.path}", "Wait until it has ended, or use another `state` file."
                ) from error
            if code == sqlite3.SQLITE_NOTADB:
                raise self._not_our_file() from error
            raise OutputError(
                f"the state file {self.path} cannot be used: {error}", "Free disk space, or use another `state` file."
            ) from error

    def _number(self, key: DocumentKey) -> int:
        text = _encode_key(key)
        self._db.execute("INSERT OR IGNORE INTO documents (id, key) VALUES (?, ?)", (key[0], text))
        [(number,)] = self._db.execute("SELECT number FROM documents WHERE key = ?", (text,))
        return int(number)

    def _read(self, identity: str) -> bool:
        """Whether the file holds this search. A file without a search is set up for this one."""
        [(ours,)] = self._db.execute("PRAGMA application_id")
        [(version,)] = self._db.execute("PRAGMA user_version")
        tables = [name for (name,) in self._db.execute("SELECT name FROM sqlite_master WHERE type = 'table'")]
        if tables and ours != _APPLICATION_ID:
            raise self._not_our_file()
        if tables and version == _VERSION:
            [(stored, positions, compared)] = self._db.execute("SELECT identity, positions, compared FROM search")
            if stored == identity:
                self.positions, self.compared = orjson.loads(positions), compared
                return bool(self.positions)
            if compared:
                raise UsageError(
                    f"{self.path} holds a search with other settings, or of another index or model, that has compared "
                    f"{pluralize(compared, 'document')}",
                    "Use the same settings to resume it, use another `state` file, or delete this one.",
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
        return UsageError(f"{self.path} is not the state of a search for near-duplicates", "Use another `state` file.")


def _encode_key(key: DocumentKey) -> str:
    return orjson.dumps(key).decode()


def _decode_key(text: str) -> DocumentKey:
    document_id, routing = orjson.loads(text)
    return document_id, routing
