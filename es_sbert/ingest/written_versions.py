"""The versions that a load has written: key of the document → sequence number and primary term of the write.

At its end, a load compares these versions with the index (`concurrent_changes`). A later version in the index is a
write of another program. An earlier version means that the write of this load was lost.
"""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Sequence
from enum import IntEnum
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from es_sbert.engines.engine import DocumentKey
from es_sbert.engines.rest import Json

# `_seq_no` and `_primary_term`.
Version = tuple[int, int]
# One row per document: digest of its key, and its version as one number.
PackedVersions = NDArray[np.int64]  # (documents, 2)

# Bits of a packed version that hold the sequence number. A shard takes years of millions of writes a second to use
# them up, and the term has 19 bits left.
_SEQ_NO_BITS = 44
_MAX_TERM = (1 << (63 - _SEQ_NO_BITS)) - 1
_BLOCK = 1 << 16


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


class VersionRecorder(Protocol):
    """Takes the versions of a load."""

    def add(self, versions: PackedVersions, writes: int) -> None:
        """Record that documents of the index have these versions.

        Args:
            writes: Number of writes of this load among them; the other documents were found unchanged.
        """


class WrittenVersions:
    """The versions that a load has written or found unchanged. Thread-safe.

    Attributes:
        writes: Number of writes of this load that the engine has executed and acknowledged.
    """

    def __init__(self) -> None:
        self.writes = 0
        self._lock = threading.Lock()
        self._full: list[PackedVersions] = []
        self._last: PackedVersions = np.empty((_BLOCK, 2), dtype=np.int64)
        self._used = 0

    def __len__(self) -> int:
        return sum(map(len, self._full)) + self._used

    def add(self, versions: PackedVersions, writes: int) -> None:
        """See `VersionRecorder`."""
        with self._lock:
            self.writes += writes
            while len(versions):
                if self._used == len(self._last):
                    self._full.append(self._last)
                    self._last, self._used = np.empty((_BLOCK, 2), dtype=np.int64), 0
                part = versions[: len(self._last) - self._used]
                self._last[self._used : self._used + len(part)] = part
                self._used += len(part)
                versions = versions[len(part) :]

    def packed(self) -> PackedVersions:
        """All versions, in the order in which they were added."""
        with self._lock:
            return np.concatenate([*self._full, self._last[: self._used]])


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
