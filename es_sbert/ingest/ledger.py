"""The ledger of a load: the outcome of every document, in counts that must add up to the documents read.

It also keeps the versions that the load has written: key of the document → sequence number and primary term.
"""

from __future__ import annotations

import hashlib
import threading
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from enum import IntEnum, StrEnum
from typing import Any

import numpy as np
from numpy.typing import NDArray

from es_sbert.engines.engine import DocumentKey
from es_sbert.engines.rest import Json
from es_sbert.index.text_languages import LanguageSample
from es_sbert.ingest.checkpoint import LoadCheckpoint
from es_sbert.ingest.dead_letters import DeadLetterSink
from es_sbert.ingest.ingest_settings import MIN_RECORDS_READ, ErrorLimit
from es_sbert.ingest.sources.document_source import RejectedRecord
from es_sbert.messages import pluralize, setting

# `_seq_no` and `_primary_term`.
Version = tuple[int, int]
# One row per document: digest of its key, and its version as one number.
PackedVersions = NDArray[np.int64]  # (documents, 2)

# Bits of a packed version that hold the sequence number. A shard takes years of millions of writes a second to use
# them up, and the term has 19 bits left.
_SEQ_NO_BITS = 44
_MAX_TERM = (1 << (63 - _SEQ_NO_BITS)) - 1


def hit_version(hit: Json) -> Version:
    """The version of a hit."""
    return hit["_seq_no"], hit["_primary_term"]


def pack_versions(documents: Sequence[tuple[DocumentKey, Version]]) -> PackedVersions:
    """Pack keys and versions into 16 bytes per document.

    Of two versions of a document, the later one has the greater number: terms are compared first, since a new primary
    may assign the sequence numbers of lost writes again.
    """
    packed = np.empty((len(documents), 2), dtype=np.int64)
    packed[:, 0] = np.frombuffer(b"".join([_key_digest(key) for key, _ in documents]), dtype=np.int64)
    packed[:, 1] = [min(term, _MAX_TERM) << _SEQ_NO_BITS | seq_no for _, (seq_no, term) in documents]
    return packed


def _key_digest(key: DocumentKey) -> bytes:
    """Compute a 64-bit digest: of 370,000 loads of 10 million documents, one has two documents with the same digest."""
    document_id, routing = key
    text = document_id if routing is None else f"{document_id}\0{routing}"
    return hashlib.blake2b(text.encode(), digest_size=8).digest()


class WrittenVersions:
    """The versions that a load has written or found unchanged. Thread-safe.

    At its end, a load compares these versions with the index (`reconcile`). A later version in the index is a write of
    another program. An earlier version means that the write of this load was lost.

    Attributes:
        writes: Number of writes of this load that the engine has executed and acknowledged.
    """

    def __init__(self) -> None:
        self.writes = 0
        self._lock = threading.Lock()
        self._parts: list[PackedVersions] = [np.empty((0, 2), dtype=np.int64)]

    def add(self, versions: PackedVersions, writes: int) -> None:
        """Record that documents of the index have these versions.

        Args:
            writes: Number of writes of this load among them; the other documents were found unchanged.
        """
        with self._lock:
            self.writes += writes
            self._parts.append(versions)

    def packed(self) -> PackedVersions:
        """All versions, in the order in which they were added."""
        with self._lock:
            return np.concatenate(self._parts)


class VersionMatch(IntEnum):
    """Result of comparing a document of the index with the version that a load knows."""

    UNKNOWN = 0  # the load has neither written it nor found it unchanged
    EARLIER = 1  # the index has lost the version that the load knows
    SAME = 2
    LATER = 3  # another program has written the document since then


class VersionComparison:
    """Compares the documents of an index, page by page, with the versions that a load knows.

    Args:
        versions: Versions from the load; of a document that the load has written twice, the later version counts.
    """

    def __init__(self, versions: PackedVersions) -> None:
        order = np.argsort(versions[:, 0], kind="stable")
        keys, numbers = versions[order, 0], versions[order, 1]
        is_first = np.append(True, keys[1:] != keys[:-1])[: len(keys)]
        if not is_first.all():
            first = np.flatnonzero(is_first)
            keys, numbers = keys[first], np.maximum.reduceat(numbers, first)
        self._keys: NDArray[np.int64] = keys
        self._numbers: NDArray[np.int64] = numbers
        self._matches = np.zeros(len(keys), dtype=np.int8)

    def compare(self, found: PackedVersions) -> list[VersionMatch]:
        """Compare a page; return one match per document. Of a document found twice, the later version counts."""
        if not len(self._keys):
            return [VersionMatch.UNKNOWN] * len(found)
        # (documents,) each
        places = np.minimum(np.searchsorted(self._keys, found[:, 0]), len(self._keys) - 1)
        is_known = self._keys[places] == found[:, 0]
        matches = np.int8(VersionMatch.SAME) + np.sign(found[:, 1] - self._numbers[places]).astype(np.int8)
        np.maximum.at(self._matches, places[is_known], matches[is_known])
        return [VersionMatch(match) for match in np.where(is_known, matches, VersionMatch.UNKNOWN).tolist()]

    @property
    def absent_terms(self) -> dict[int, int]:
        """Primary term → documents whose version has this term and that were not found."""
        terms = self._numbers[self._matches == VersionMatch.UNKNOWN] >> _SEQ_NO_BITS
        found, counts = np.unique(terms, return_counts=True)
        return dict(zip(found.tolist(), counts.tolist(), strict=True))


@dataclass
class ErrorMonitor:
    """Stops a load once too many of its documents have failed. Thread-safe.

    Attributes:
        limit: The number or share of documents that may fail.
        stop: Called with a message for the user; of several calls, the first one counts.
        dead_letters: The dead-letter file, for the message.
    """

    limit: ErrorLimit
    stop: Callable[[str], None]
    dead_letters: str
    _reason: str = ""

    def check(self, read: int, failed: int, reason: str = "") -> None:
        """Stop the load if too many of its documents have failed.

        Args:
            read: Records read so far.
            failed: Number of these that could not be loaded.
            reason: Why the last one could not be loaded; empty if no further one failed.
        """
        self._reason = reason or self._reason
        if self.limit.is_exceeded(read, failed):
            self.stop(
                f"{failed:,} of the {pluralize(read, 'document')} read could not be loaded, more than "
                f"{setting('max_errors', str(self.limit))} allows. The last: {self._reason}. They are in "
                f"{self.dead_letters}. Correct the source, or add {setting('max_errors', 'off')}"
            )


class DocumentOutcome(StrEnum):
    """The outcome of a document; each has exactly one."""

    INDEXED = "indexed"  # embedded and written
    UPDATED = "updated"  # other fields changed: written with the vector it had
    UNCHANGED = "unchanged"  # the index holds it unchanged
    EMPTY = "empty"  # no text, so no vector
    DUPLICATE = "duplicate"  # the same document was read before in this load
    SUPERSEDED = "superseded"  # a dead letter, or a version read from the index; the index holds a newer version
    DELETED = "deleted"  # removed from the index while it was embedded
    DEAD = "dead"  # in the dead-letter file
    LEFT = "left"  # not sent, because the engine was unreachable or the load interrupted: the next run loads it


class LedgerError(RuntimeError):
    """The counts do not add up: a bug in this program."""


class Ledger:
    """Thread-safe counts of one load. Other modules read its counts, and change them by its methods.

    Attributes:
        read: Number of records read from the sources.
        truncated: Number of written documents whose text was longer than the model reads.
        lost_tokens: Number of tokens that were cut off in truncated documents.
        words, new_words: Number of words of texts, and of those that were not in the tokenizer's cache of words.
        chunks: Number of chunks that got vectors, in documents that were written.
        retries: Number of requests and documents that were sent again.
        rejected: Number of records that are not documents. Their ids are unknown, so pruning is unsafe.
        rerouted: Number of documents whose routing in the index differs from the source's.
        embedded: Number of documents that are embedded and have no outcome yet. A window in progress counts by the
            fraction of its tokens that are embedded.
        outcomes: Outcome → number of documents.
        missing_fields: Text field → number of documents in which it is missing or null.
        dropped: Vector field → number of documents that lost their vector, because their text changed and this load
            does not fill the field.
        languages: The languages of a sample of the texts that were embedded.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self.read = self.truncated = self.lost_tokens = self.chunks = self.retries = self.words = self.new_words = 0
        self.rejected = self.rerouted = 0
        self.embedded = 0.0
        self.outcomes: Counter[DocumentOutcome] = Counter()
        self.missing_fields: Counter[str] = Counter()
        self.dropped: Counter[str] = Counter()
        self.languages = LanguageSample()

    def add(self, **counts: float) -> None:
        """Add to sums by their names, such as `add(read=1)`.

        `embedded` may be below 0: documents with an outcome other than `INDEXED`, or to embed again.
        """
        with self._lock:
            for name, count in counts.items():
                setattr(self, name, getattr(self, name) + count)

    def add_outcome(self, outcome: DocumentOutcome, count: int = 1) -> None:
        with self._lock:
            self.outcomes[outcome] += count

    def add_indexed(self, documents: Sequence[tuple[int, int]]) -> None:
        """Count documents with new vectors that were acknowledged.

        Args:
            documents: For each document, the number of truncated tokens, and the number of chunks; 0 chunks if its text
                has a single vector.
        """
        with self._lock:
            self.embedded -= len(documents)
            self.outcomes[DocumentOutcome.INDEXED] += len(documents)
            for lost_tokens, chunks in documents:
                self.chunks += chunks
                self.truncated += lost_tokens > 0
                self.lost_tokens += lost_tokens

    def add_missing_fields(self, fields: Iterable[str]) -> None:
        """Count a document that lacks these fields of its text."""
        with self._lock:
            self.missing_fields.update(fields)

    def add_texts(self, texts: Iterable[str]) -> None:
        """Offer texts that are embedded to the sample of languages."""
        with self._lock:
            self.languages.add(texts)

    def merge(self, other: Ledger) -> None:
        """Add the counts of another ledger, which is no longer written to."""
        with self._lock:
            for name, value in other.__getstate__().items():
                if isinstance(value, Counter):
                    getattr(self, name).update(value)
                elif name not in ("embedded", "languages"):
                    setattr(self, name, getattr(self, name) + value)
            self.languages.merge(other.languages)

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in self.__dict__.items() if name != "_lock"}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state, _lock=threading.Lock())

    def counts(self) -> dict[str, int]:
        """Name of each outcome → number of documents, all outcomes in their order."""
        with self._lock:
            return {outcome.value: self.outcomes[outcome] for outcome in DocumentOutcome}

    @property
    def processed(self) -> int:
        """Number of documents that are embedded or have another outcome, without those left for the next run."""
        with self._lock:
            finished = self.outcomes.total() - self.outcomes[DocumentOutcome.LEFT]
            return min(self.read, finished + max(0, round(self.embedded)))

    @property
    def dead(self) -> int:
        """Number of documents that could not be loaded."""
        return self.outcomes[DocumentOutcome.DEAD]

    def verify(self) -> None:
        """Check that every record read has an outcome.

        Raises:
            LedgerError: the counts do not add up.
        """
        total = self.outcomes.total()
        if total != self.read:
            raise LedgerError(f"{self.read} documents were read, but {total} accounted for: {self.counts()}")


@dataclass
class OutcomeRecorder:
    """Updates ledger, checkpoint and dead letters together, so that they stay consistent. Thread-safe.

    Args:
        dead_letters: Receives the documents that cannot be loaded.
        checkpoint: Records what the index holds; None if the index itself is the source.
        errors: Stops the load when too many documents fail; None for no limit.
        add_versions: Receives the versions of acknowledged documents, for the comparison at the end; see
            `WrittenVersions.add`. None for no comparison.

    Attributes:
        ledger: The counts.
        rejected_versions: Id and `_seq_no` of the documents of the index that could not be embedded or written.
        left: Documents that are left for the next run.
        lacking: Number of documents that lacked a current vector at the end of a watch; None for other loads, or if
            unknown.
    """

    dead_letters: DeadLetterSink
    checkpoint: LoadCheckpoint | None = None
    errors: ErrorMonitor | None = None
    add_versions: Callable[[PackedVersions, int], None] | None = None
    ledger: Ledger = field(default_factory=Ledger, init=False)
    rejected_versions: set[tuple[str, int]] = field(default_factory=set, init=False)
    left: set[DocumentKey] = field(default_factory=set, init=False)
    lacking: int | None = None

    def record_read(self) -> None:
        self.ledger.add(read=1)
        if self.ledger.read == MIN_RECORDS_READ:
            # Check now, because earlier failures count from here on. Later, only a new failure can exceed the limit.
            self._check_errors()

    def add(self, outcome: DocumentOutcome, count: int = 1) -> None:
        """Count documents with this outcome."""
        self.ledger.add_outcome(outcome, count)

    def leave(self, keys: Sequence[DocumentKey]) -> None:
        """Leave documents for the next run. At most those of a dozen windows are in progress when a load stops."""
        self.left.update(keys)
        self.ledger.add_outcome(DocumentOutcome.LEFT, len(keys))

    def _check_errors(self, reason: str = "") -> None:
        if self.errors is not None:
            self.errors.check(self.ledger.read, self.ledger.dead, reason)

    def record_in_index(self, documents: Sequence[tuple[DocumentKey, Version | None]], writes: int = 0) -> None:
        """Record that the index holds these documents as the source has them, or with the vectors of this load.

        Args:
            documents: Key and version of each; None for an unknown version.
            writes: Number of documents that this load has written; the others were found unchanged.
        """
        if self.checkpoint is not None and documents:
            self.checkpoint.record_acknowledged([document_id for (document_id, _), _ in documents])
        if self.add_versions is not None and (documents or writes):
            versioned = [(key, version) for key, version in documents if version is not None]
            self.add_versions(pack_versions(versioned), writes)

    def record_dead_letter(self, letter: RejectedRecord, *, is_document: bool = True) -> None:
        """Record a document that could not be loaded, or input that is not a document."""
        self._write(letter)
        if not is_document:
            self.ledger.rejected += 1  # only the thread that reads the sources finds such input
        self.ledger.add_outcome(DocumentOutcome.DEAD)
        self._check_errors(letter.reason)

    def merge(self, ledger: Ledger, letters: Sequence[RejectedRecord]) -> None:
        """Record the outcomes of a part of the load that another process has loaded."""
        for letter in letters:
            self._write(letter)
        self.ledger.merge(ledger)
        # Workers have no error limit: a part is not the whole source.
        self._check_errors(letters[-1].reason if letters else "")

    def _write(self, letter: RejectedRecord) -> None:
        self.dead_letters.write(letter)
        if letter.id is not None and letter.seq_no is not None:
            self.rejected_versions.add((letter.id, letter.seq_no))
