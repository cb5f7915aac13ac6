"""Near-duplicates: groups of all pairs, or of the candidates of an index's kNN search.

An index that is too large to compare all pairs is searched for each document's vector. Every candidate is compared
again with the float32 vectors, so all reported pairs are near-duplicates. Documents with equal vectors share one
search, so exact copies are always found and do not crowd out other near-duplicates. Memory grows with the number of
near-duplicates, and is limited.
"""

from __future__ import annotations

import hashlib
import sqlite3
from array import array
from collections.abc import Iterable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from es_sbert.analysis.similarity import Int64Array, pair_cosines, pairs_above
from es_sbert.analysis.text_collection import OnProgress, TextCollection, TextCollectionBuilder
from es_sbert.arguments import check_arguments
from es_sbert.batched import batched
from es_sbert.config import DEFAULT_VECTOR_FIELD
from es_sbert.engines.connect import connected
from es_sbert.engines.engine import DocumentKey, Engine, document_key
from es_sbert.engines.index_scan import multi_get, scan_index
from es_sbert.engines.rest import Json
from es_sbert.engines.retry import Retrier, retry_for
from es_sbert.errors import OutputError, UsageError, require_extra
from es_sbert.index.document_vectors import doc_value_request
from es_sbert.index.index_summary import count_vectors
from es_sbert.index.mapping import OVERSAMPLE, IndexType, and_query, has_vector_query
from es_sbert.index.vector_field import read_vector_field, require_index, vector_field_from_state
from es_sbert.messages import pluralize, setting, size_text
from es_sbert.search.vector_query import MAX_K, SearchMethod, VectorQuery, search_body
from es_sbert.settings import DEFAULT_DUPLICATE_COSINE, Candidates, Cosine, Count, Seconds
from es_sbert.vectors import Vectors

if TYPE_CHECKING:
    from es_sbert.engines.connect import EngineOrClient

# Vectors up to this total size (700,000 of 384 dimensions) are compared in memory, which takes three times as much.
EXACT_BYTES = 1 << 30
# Maximum size of the vectors of all documents with near-duplicates, and of their pairs. In memory it takes up to
# three times as much.
MAX_FOUND_BYTES = 4 << 30

# Maximum number of pairs between different groups in memory before the groups are merged; 16 bytes each.
_MAX_PENDING_PAIRS = 4 << 20
_PAGE = 500
_SEARCHES_PER_REQUEST = 100
# Maximum amount by which the engine's cosine may be lower than that of the float32 vectors.
_SLACK = 1e-3
# Number of nearest documents that a search returns.
_NEIGHBORS = 20
# If all neighbors of a document are near-duplicates, the search is repeated with this many times more neighbors.
_GROWTH = 4

# A document and its vectors. *Shape:* (vectors, dimensions).
KeyedVectors = tuple[DocumentKey, Vectors]


class DuplicateGroup(NamedTuple):
    """Texts that say nearly the same.

    Usage:
        ```python
        for group in duplicate_groups(vectors, 0.95):
            print("keep", texts[group.kept], "of", len(group.members))
        ```

    Attributes:
        kept: Position of the text to keep.
        members: Positions of all texts of the group, the kept one included, ascending.
        cosines: Cosine of each member with the kept text. In a chain of near-duplicates it may be below the threshold.
    """

    kept: int
    members: tuple[int, ...]
    cosines: tuple[float, ...]


@dataclass(frozen=True)
class DuplicateSearchResult:
    """The near-duplicates of an index.

    Usage:
        ```python
        found = search_duplicates("docs", "http://localhost:9200")
        print(len(found.groups), "groups of", found.compared, "documents")
        ```

    Attributes:
        texts: The documents that have a near-duplicate, sorted by id.
        groups: The groups; positions refer to `texts`.
        compared: Number of documents that were compared, including those without a near-duplicate.
    """

    texts: TextCollection
    groups: list[DuplicateGroup]
    compared: int


def duplicate_groups(
    vectors: Vectors,
    min_cosine: Cosine = DEFAULT_DUPLICATE_COSINE,
    *,
    starts: Int64Array | None = None,
    block: Count = 2048,
) -> list[DuplicateGroup]:
    """Group the near-duplicates of a collection with an exact search.

    Usage:
        ```python
        print([group.members for group in duplicate_groups(vectors, 0.9)])
        ```

    Two texts are near-duplicates if their cosine is not below the threshold. A group holds all texts that a chain of
    near-duplicates connects (single linkage), and its first text is kept. Texts without near-duplicates are not in any
    group.

    Args:
        vectors, starts, block: See `most_similar_pairs`.
        min_cosine: The threshold, -1 to 1.

    Returns:
        The groups, largest first; groups of equal size are sorted by their first member.

    Raises:
        UsageError: a number is out of range, a vector is zero or not finite, or SciPy is not installed.
    """
    pairs = ((first, second) for first, second, _ in pairs_above(vectors, min_cosine, starts=starts, block=block))
    return _groups_of_pairs(vectors, pairs, starts)


def fits_memory(engine: Engine, index: str, vector_field: str, filter: Json | None = None) -> bool:
    """Whether all pairs of an index can be compared in memory: its vectors take `EXACT_BYTES` at most.

    Raises:
        IndexMissing: the index does not exist.
        IndexMismatch: the vector field does not exist.
        EngineError: the engine failed.
    """
    vector = read_vector_field(engine, index, vector_field)
    return 4 * count_vectors(engine, index, vector, filter) * vector.meta.dimensions <= EXACT_BYTES


@check_arguments
def search_duplicates(
    index: str,
    engine: EngineOrClient = None,
    vector_field: str = DEFAULT_VECTOR_FIELD,
    min_cosine: Cosine = DEFAULT_DUPLICATE_COSINE,
    *,
    filter: Json | None = None,
    num_candidates: Candidates | None = None,
    fields: Sequence[str] = (),
    on_progress: OnProgress = lambda done, total: None,
    retry_seconds: Seconds = 0.0,
) -> DuplicateSearchResult:
    """Find the near-duplicates of an index by its kNN search.

    Usage:
        ```python
        found = search_duplicates("docs", "http://localhost:9200", min_cosine=0.9)
        print([found.texts.ids[group.kept] for group in found.groups])
        ```

    Args:
        index: Index or alias.
        engine: As for `SemanticIndex`.
        vector_field: Field that holds the vectors.
        min_cosine: Documents with at least this cosine are near-duplicates.
        filter: Query that every document must match; None for all documents.
        num_candidates: Number of vectors that each shard considers in a search; None for the default of searches.
        fields: Additional document fields to read.
        on_progress: Called with the number of documents compared so far and the total.
        retry_seconds: Seconds for which requests are retried if the engine is overloaded or does not respond.

    Returns:
        The groups; the document with the lowest id of each is kept.

    Raises:
        UsageError: a number is out of range, there are too many near-duplicates for the memory, or SciPy is not
            installed.
        IndexMissing: the index does not exist.
        IndexMismatch: the vector field does not exist, its vectors cannot be read, or the index was replaced while it
            was read.
        EngineError: the engine failed.
        OutputError: a temporary file cannot be written.
    """
    require_extra("analysis", "scipy")
    # A temporary file: there are as many rows as different vectors.
    temporary, retrying = sqlite3.connect("", isolation_level=None), retry_for(retry_seconds)
    with closing(temporary) as firsts, connected(engine, retry_seconds) as opened:
        try:
            search = _DuplicateSearch(opened, index, vector_field, min_cosine, filter, num_candidates, retrying, firsts)
            return search.run(fields, on_progress)
        except sqlite3.Error as error:
            raise OutputError(
                f"a temporary file of the search cannot be written: {error}",
                "Free disk space, or set TMPDIR to a folder on another disk.",
            ) from error


class _DuplicateSearch:
    """One search for near-duplicates; see `search_duplicates`."""

    def __init__(
        self,
        engine: Engine,
        index: str,
        vector_field: str,
        min_cosine: float,
        filter: Json | None,
        num_candidates: int | None,
        retrying: Retrier,
        firsts: sqlite3.Connection,
    ) -> None:
        self._engine = engine
        self._min_cosine = min_cosine
        self._num_candidates = num_candidates
        self._retrying = retrying
        self._state = state = retrying(partial(require_index, engine, index))
        # Search the index, not the alias: the alias may move, and OpenSearch applies its filter after the kNN search.
        self._index = state.name
        own = state.alias(index).get("filter")
        self._filter = filter if own is None else and_query(own, filter)
        self._vector = vector_field_from_state(engine, state, vector_field)
        self._doc_values = doc_value_request(engine.info.engine_type, [self._vector])
        # A multi-get must have fewer ids than a search may return hits.
        self._page = max(1, min(_PAGE, state.result_window - 1))
        # Candidates: documents, and the numbers of the two documents of each pair one after the other.
        self._numbers: dict[DocumentKey, int] = {}
        self._pairs = array("q")
        # The first document with each vector.
        self._firsts = firsts
        firsts.execute("CREATE TABLE firsts (hash BLOB PRIMARY KEY, id TEXT, routing TEXT) WITHOUT ROWID")

    def run(self, fields: Sequence[str], on_progress: OnProgress) -> DuplicateSearchResult:
        total, compared = self._retrying(partial(self._engine.count, self._index, self._query())), 0
        reader = TextCollectionBuilder(self._vector)
        skipped = reader.skipped
        for _, hits, is_rewritten in scan_index(
            self._engine,
            self._index,
            query=reader.query(self._filter),
            source_includes=reader.includes,
            page=self._page,
            vectors=True,
            extra=self._doc_values,
            retrying=self._retrying,
        ):
            reader = TextCollectionBuilder(self._vector)
            reader.skipped = skipped
            reader.add(hits)
            documents = reader.collection()
            self._add_candidates(documents)
            self._check_memory(len(self._numbers))
            compared += 0 if is_rewritten else len(documents)
            on_progress(compared, max(total, compared))
        texts, pairs, lost = self._confirm_pairs(fields)
        if lost:
            # Documents with equal vectors share the search of one of them. If that one was deleted or changed, search
            # for the others again.
            for part in batched(_sorted(lost), self._page):
                self._add_neighbors(list(_vectors_by_key(self._look_up(part))))
            texts, pairs, _ = self._confirm_pairs(fields)
        groups = _groups_of_pairs(texts.vectors, [pairs], texts.starts)
        return DuplicateSearchResult(replace(texts, skipped=skipped), groups, compared)

    def _check_memory(self, vectors: int) -> None:
        """Check that this number of vectors of near-duplicates, and the pairs, do not take too much memory.

        Raises:
            UsageError: they do.
        """
        if 4 * self._vector.meta.dimensions * vectors + 8 * len(self._pairs) > MAX_FOUND_BYTES:
            raise UsageError(
                f"{pluralize(len(self._numbers), 'document')} of {self._index} or more have near-duplicates, which do "
                f"not fit into {size_text(MAX_FOUND_BYTES)} of memory",
                f"Analyze a part of the documents with {setting('filter')}, or use a higher {setting('min_cosine')}.",
            ).about("min_cosine", self._min_cosine)

    def _query(self) -> Json:
        """Build a query for the documents that have a vector and match the filter."""
        return and_query(has_vector_query(self._vector.name, self._vector.meta), self._filter)

    def _add_candidates(self, documents: TextCollection) -> None:
        """Add the pairs of documents that are near-duplicates by the engine's scores or by equal vectors."""
        searched: list[KeyedVectors] = []
        self._firsts.execute("BEGIN")
        for key, vectors in _vectors_by_key(documents):
            digest = hashlib.blake2b(vectors.astype("<f4").tobytes(), digest_size=16).digest()
            self._firsts.execute("INSERT OR IGNORE INTO firsts VALUES (?, ?, ?)", (digest, *key))
            query = "SELECT id, routing FROM firsts WHERE hash = ?"
            first: DocumentKey = self._firsts.execute(query, (digest,)).fetchone()
            if first == key:
                searched.append((key, vectors))
            else:
                self._add_pair(first, key)
        self._firsts.execute("COMMIT")
        self._add_neighbors(searched)

    def _add_pair(self, first: DocumentKey, second: DocumentKey) -> None:
        self._pairs.extend(sorted(self._numbers.setdefault(key, len(self._numbers)) for key in (first, second)))

    def _add_neighbors(self, owned: Sequence[KeyedVectors]) -> None:
        """Add the near-duplicates of documents by the engine's scores."""
        searches = [(key, vector) for key, vectors in owned for vector in vectors]
        most = min(MAX_K, self._state.result_window) - 1
        k = min(_NEIGHBORS, most)
        while searches:
            full = []
            for part in batched(searches, _SEARCHES_PER_REQUEST):
                for (key, vector), hits in zip(part, self._search([vector for _, vector in part], k), strict=True):
                    for other in hits:
                        if other != key:
                            self._add_pair(key, other)
                    if len(hits) > k:
                        full.append((key, vector))
            searches = full if k < most else []
            k = min(most, k * _GROWTH)

    def _search(self, vectors: Sequence[Vectors], k: int) -> list[list[DocumentKey]]:
        """Search for the nearest documents of each vector that may reach the threshold, its own document included."""
        candidates = self._num_candidates
        query = VectorQuery(
            self._vector.name,
            vectors[0],
            k + 1,
            filter=self._filter,
            num_candidates=None if candidates is None else max(k + 1, candidates),
            oversample=OVERSAMPLE.get(IndexType(self._vector.meta.index_type)),
            passages=self._vector.meta.passages is not None,
            min_cosine=max(-1.0, self._min_cosine - _SLACK),
        )
        engine_type, fields = self._engine.info.engine_type, {"_source": False, "track_total_hits": False}
        bodies = [search_body(engine_type, SearchMethod.KNN, replace(query, vector=one)) | fields for one in vectors]
        answers = self._retrying(partial(self._engine.multi_search, self._index, bodies))
        return [[document_key(hit) for hit in answer["hits"]["hits"]] for answer in answers]

    def _confirm_pairs(
        self, fields: Sequence[str]
    ) -> tuple[TextCollection, tuple[Int64Array, Int64Array], set[DocumentKey]]:
        """Confirm the pairs that reach the threshold with the documents' current vectors.

        Returns:
            The documents of all candidates, positions of the pairs, and the documents that lost a candidate because it
            was deleted or changed.
        """
        reader = TextCollectionBuilder(self._vector, fields)
        for some in batched(_sorted(self._numbers), self._page):
            self._read_current(some, reader)
            self._check_memory(reader.vector_count)
        documents = reader.collection()
        keys = documents.keys
        positions = np.full(len(self._numbers), -1)  # (candidates,)
        for position, key in enumerate(keys):
            positions[self._numbers[key]] = position
        pairs = positions[np.unique(np.array(self._pairs, np.int64).reshape(-1, 2), axis=0)].T  # (2, pairs)
        gone = (pairs < 0).any(axis=0)
        there = pairs[:, ~gone]
        cosines = pair_cosines(documents.vectors, there[0], there[1], documents.starts)
        # A cosine this far from the engine's score means that a document has changed.
        changed = cosines < self._min_cosine - 2 * _SLACK
        lost = np.concatenate([pairs[:, gone].max(axis=0, initial=-1), there[:, changed].ravel()])
        right = there[:, cosines >= self._min_cosine]
        return documents, (right[0], right[1]), {keys[place] for place in set(lost.tolist()) - {-1}}

    def _look_up(self, keys: Sequence[DocumentKey]) -> TextCollection:
        """Read the current documents with these keys, in order. Skip those that were deleted or no longer match."""
        reader = TextCollectionBuilder(self._vector)
        self._read_current(keys, reader)
        return reader.collection()

    def _read_current(self, keys: Sequence[DocumentKey], reader: TextCollectionBuilder) -> None:
        """Add the current documents with these keys to a reader, as in `_look_up`."""
        ids, query = [document_id for document_id, _ in keys], reader.query(self._query())
        source, window = self._engine.info.source_with_vectors(reader.includes), self._state.result_window
        find = partial(multi_get, self._engine, self._index, ids, query=query, source=source, result_window=window)
        hits = self._retrying(partial(find, extra=self._doc_values))
        reader.add(hits[key] for key in keys if key in hits)


def _sorted(keys: Iterable[DocumentKey]) -> list[DocumentKey]:
    return sorted(keys, key=lambda key: (key[0], key[1] or ""))


def _vectors_by_key(documents: TextCollection) -> Iterator[KeyedVectors]:
    """Yield the key and the vectors of each document."""
    ends = [*documents.starts[1:].tolist(), len(documents.vectors)]
    for key, start, end in zip(documents.keys, documents.starts.tolist(), ends, strict=True):
        yield key, documents.vectors[start:end]


def _groups_of_pairs(
    vectors: Vectors,
    pairs: Iterable[tuple[Int64Array, Int64Array]],
    starts: Int64Array | None,
) -> list[DuplicateGroup]:
    """Group near-duplicates as `duplicate_groups` does, from known pairs.

    Args:
        vectors, starts: See `duplicate_groups`.
        pairs: Positions of the first and the second texts of pairs, in batches. *Shape:* ``(pairs,)`` each.
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
    labels = _merge_groups(labels, held)
    order = np.argsort(labels, kind="stable")
    borders = np.flatnonzero(np.diff(labels[order])) + 1
    members = [group for group in np.split(order, borders) if len(group) > 1]
    members.sort(key=lambda group: (-len(group), int(group[0])))
    if not members:
        return []
    kept = [int(group[0]) for group in members]
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
