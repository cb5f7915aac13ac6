"""Find near-duplicates in an index that is too large to compare all pairs, with candidates from kNN search.

The index is searched for each document's vector. Every candidate pair is compared again with the float32 vectors, so
all reported pairs are near-duplicates. The recall is estimated on a random sample that is compared with all documents.

Documents are read in the order of their last writes. Therefore an interrupted search can resume, and documents written
during the search are read at the end. Documents with equal vectors share one search, so exact copies need no searches
and do not crowd out other near-duplicates.
"""

from __future__ import annotations

import itertools
import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import orjson

from es_sbert.analysis.duplicates import (
    DuplicateGroup,
    DuplicateRecall,
    DuplicateSearchResult,
    DuplicateSearchSettings,
    DuplicateSearchState,
    KeyedVectors,
    KeyPair,
    groups_of_pairs,
)
from es_sbert.analysis.similarity import Int64Array, pair_cosines, pairs_above_between
from es_sbert.analysis.text_collection import (
    OnProgress,
    SkippedDocuments,
    TextCollection,
    TextCollectionBuilder,
    no_vector_reason,
    other_model_reason,
    starts_from_counts,
)
from es_sbert.batched import batched
from es_sbert.diagnostics.index_size import count_vectors
from es_sbert.engines.engine import DocumentKey, Engine, document_key
from es_sbert.engines.multi_get import multi_get
from es_sbert.engines.rest import Json
from es_sbert.engines.retry import RetryPolicy, make_retrier
from es_sbert.index.mapping import (
    OVERSAMPLE,
    IndexType,
    and_query,
    document_meta_field,
    has_vector_query,
    random_order_query,
)
from es_sbert.index.vector_field import read_vector_field, require_index, vector_field_from_state
from es_sbert.index.vector_reading import doc_value_request
from es_sbert.search.vector_query import MAX_K, SearchMethod, VectorQuery, search_body
from es_sbert.vectors import Vectors

# Vectors up to this total size (700,000 of 384 dimensions) are compared in memory, which takes three times as much.
EXACT_BYTES = 1 << 30

_PAGE = 500
_SEARCHES_PER_REQUEST = 100
# Maximum amount by which the engine's cosine may be lower than that of the float32 vectors.
_SLACK = 1e-3
# If all neighbors of a document are near-duplicates, the search is repeated with this many times more neighbors.
_GROWTH = 4
# Maximum number of rounds. Each one after the first covers the writes during the round before.
_ROUNDS = 4
# Writes that the next round reads again, because a write may become visible after one with a higher number.
_OVERLAP = 2000
Priority = Callable[[TextCollection], Sequence[float] | None]


def search_duplicates(
    engine: Engine,
    index: str,
    vector_field: str,
    settings: DuplicateSearchSettings,
    *,
    state: Path,
    retry_seconds: float = 300.0,
    fields: Sequence[str] = (),
    priority: Priority = lambda texts: None,
) -> DuplicateSearchResult:
    """Find the near-duplicates of an index by its kNN search.

    A search that was stopped resumes when it is called again with the same settings and state.

    Args:
        engine, index, vector_field, settings, fields, priority: See `DuplicateSearch` and its `run`.
        state: Checkpoint file; deleted at the end.
        retry_seconds: Maximum time to wait for an engine that is overloaded or does not respond.

    Returns:
        The groups, and the measured recall.

    Raises:
        IndexMissing, IndexMismatch, EngineError: see `DuplicateSearch`.
        UsageError, OutputError: see `DuplicateSearchState`.
    """
    search = DuplicateSearch(engine, index, vector_field, settings, policy=RetryPolicy(retry_seconds))
    with DuplicateSearchState(state, search.identity) as candidates:
        found = search.run(candidates, fields=fields, priority=priority)
        candidates.remove()
    return found


def fits_memory(engine: Engine, index: str, vector_field: str, filter: Json | None = None) -> bool:
    """Whether all pairs of an index can be compared in memory: its vectors take `EXACT_BYTES` at most.

    Raises:
        IndexMissing: the index does not exist.
        IndexMismatch: the vector field does not exist.
        EngineError: the engine failed.
    """
    vector = read_vector_field(engine, index, vector_field)
    return 4 * count_vectors(engine, index, vector, filter) * vector.meta.dimensions <= EXACT_BYTES


class DuplicateSearch:
    """Finds near-duplicates by the index's kNN search.

    Args:
        engine: The engine to use.
        index: Index or alias.
        vector_field: Field that holds the vectors.
        settings: The settings of the search.
        policy: Time limits for retrying transient failures.
        on_wait: Called with the reason when a request is retried.

    Raises:
        IndexMissing: the index does not exist.
        IndexMismatch: the vector field does not exist, or its vectors cannot be read.
        EngineError: the engine failed. All methods may raise this.
    """

    def __init__(
        self,
        engine: Engine,
        index: str,
        vector_field: str,
        settings: DuplicateSearchSettings,
        *,
        policy: RetryPolicy,
        on_wait: Callable[[str], None] = lambda reason: None,
    ) -> None:
        self._engine = engine
        self._settings = settings
        self._on_progress: OnProgress = lambda done, total: None
        self._retrying = make_retrier(policy, on_wait)
        self._state = state = self._retrying(partial(require_index, engine, index))
        # Search the index, not the alias: the alias may move, and OpenSearch applies its filter after the kNN search.
        self._index = state.name
        own = state.alias_filter(index)
        self._filter = settings.filter if own is None else and_query(own, settings.filter)
        self._vector = vector_field_from_state(engine, state, vector_field)
        self._doc_values = doc_value_request(engine.info.engine_type, [self._vector])
        # A multi-get must have fewer ids than a search may return hits.
        self._page = max(1, min(_PAGE, self._state.result_window - 1))
        self._total = 0

    @property
    def index_type(self) -> IndexType:
        """The index type of the vector field."""
        return IndexType(self._vector.meta.index_type)

    @property
    def identity(self) -> str:
        """The index and the settings as text. Only a search with the same identity can be resumed."""
        settings = self._settings
        parts = [
            self._state.uuid, self._vector.name, self._vector.meta.fingerprint,
            settings.min_cosine, self._filter, settings.neighbors, settings.num_candidates, settings.sample,
            settings.seed,
        ]  # fmt: skip
        return orjson.dumps(parts).decode()

    def run(
        self,
        state: DuplicateSearchState,
        *,
        fields: Sequence[str] = (),
        priority: Priority = lambda texts: None,
        on_progress: OnProgress = lambda done, total: None,
    ) -> DuplicateSearchResult:
        """Run or resume the search until it is complete.

        Args:
            state: The checkpoint, opened with `identity`.
            fields: Additional document fields to read.
            priority: Returns the priority of each document. The first one with the greatest priority is kept.
            on_progress: Called with the number of documents compared so far and the total.

        Returns:
            The groups, and the measured recall.

        Raises:
            OutputError: the checkpoint cannot be written.
        """
        self._on_progress = on_progress
        if not state.resumed:
            state.start([-1] * self._shards, self._sample())
        sample = state.sample(self._vector.meta.dimensions)
        for number in range(_ROUNDS):
            ends = [self._latest_seq_no(shard) for shard in range(self._shards)]
            # The second round always runs, because it reads the overlap with the first.
            if number > 1 and ends == state.positions:
                break
            self._total = state.compared + self._count_after(state.positions)
            for shard, end in enumerate(ends):
                self._compare_shard(shard, end, state, sample)
        texts, pairs, lost = self._confirm_pairs(state, fields)
        if lost:
            # Documents with equal vectors share the search of one of them. If that one was deleted or changed, search
            # for the others again.
            for part in batched(sorted(lost, key=str), self._page):
                again = self._candidates(list(_vectors_by_key(self._look_up(part))))
                state.add(again, [], state.positions, state.compared)
            texts, pairs, _ = self._confirm_pairs(state, fields)
        groups = groups_of_pairs(texts.vectors, [pairs], starts=texts.starts, priority=priority(texts))
        recall = self._recall(texts, groups, state, [key for key, _ in sample])
        unread = self._count_after(state.positions)
        return DuplicateSearchResult(texts, groups, state.compared, recall, state.resumed, unread)

    @property
    def _shards(self) -> int:
        return self._state.shards

    def _query(self) -> Json:
        """Build a query for the documents that have a vector and match the filter."""
        return and_query(has_vector_query(self._vector.name, self._vector.meta), self._filter)

    def _sample(self) -> list[KeyedVectors]:
        """Read random documents with their vectors."""
        if not self._settings.sample:
            return []
        body = {
            "query": random_order_query(self._query(), self._settings.seed), "_source": False,
            "size": min(self._settings.sample, self._state.result_window), "track_total_hits": False,
        }  # fmt: skip
        keys = [document_key(hit) for hit in self._hits(body)["hits"]]
        return [one for part in batched(keys, self._page) for one in _vectors_by_key(self._look_up(part))]

    def _hits(self, body: Json, shard: int | None = None) -> Json:
        """Search the index or one shard, and return the `hits`."""
        preference = None if shard is None else f"_shards:{shard}"
        found: Json = self._retrying(partial(self._engine.search, self._index, body, preference=preference))["hits"]
        return found

    def _count_skipped(self) -> SkippedDocuments:
        """Count the documents that are not compared, by reason."""
        meta = self._vector.meta
        fingerprint = f"{document_meta_field(self._vector.name)}.fingerprint"
        has_vector = has_vector_query(self._vector.name, meta)
        reasons: dict[str, Json] = {
            no_vector_reason(self._vector): {"must_not": [has_vector]},
            other_model_reason(self._vector): {
                "filter": [has_vector, {"exists": {"field": fingerprint}}],
                "must_not": [{"term": {fingerprint: meta.fingerprint}}],
            },
        }
        skipped = SkippedDocuments()
        for reason, clauses in reasons.items():
            query = and_query({"bool": clauses}, self._filter)
            hits = self._hits({"query": query, "size": 1, "_source": False, "track_total_hits": True})
            if hits["total"]["value"]:
                skipped.add(reason, hits["hits"][0]["_id"], hits["total"]["value"])
        return skipped

    def _latest_seq_no(self, shard: int) -> int:
        """Find the greatest `_seq_no` that a search of the shard sees; -1 if the shard has no documents."""
        body: Json = {
            "query": self._query(), "sort": [{"_seq_no": "desc"}], "size": 1, "_source": False,
            "track_total_hits": False,
        }  # fmt: skip
        hits = self._hits(body, shard)["hits"]
        return int(hits[0]["sort"][0]) if hits else -1

    def _count_after(self, positions: Sequence[int]) -> int:
        """Count the documents that were written after these positions."""
        count = 0
        for shard, position in enumerate(positions):
            query = and_query({"range": {"_seq_no": {"gt": position}}}, self._query())
            hits = self._hits({"query": query, "size": 0, "track_total_hits": True}, shard)
            count += int(hits["total"]["value"])
        return count

    def _compare_shard(self, shard: int, end: int, state: DuplicateSearchState, sample: list[KeyedVectors]) -> None:
        """Search for the documents of a shard whose last write is between the position and `end`."""
        position = max(-1, state.positions[shard] - _OVERLAP)
        while position < end:
            reader = TextCollectionBuilder(self._vector)
            read = partial(self._engine.read_changes, self._index, shard, position, end, page=self._page, vectors=True)
            query, extra = reader.query(self._query()), self._doc_values
            hits = self._retrying(partial(read, query=query, source_includes=reader.includes, extra=extra))
            if not hits:
                # They were deleted, or this copy of the shard does not show them yet: `unread` counts these documents.
                return
            reader.add(hits)
            documents = reader.collection()
            pairs, compared = self._new_candidates(documents, state, state.positions[shard])
            exact = _sample_pairs(sample, documents, self._settings.min_cosine)
            position = hits[-1]["_seq_no"]
            positions = list(state.positions)
            positions[shard] = max(positions[shard], position)
            state.add(pairs, exact, positions, state.compared + compared)
            self._on_progress(state.compared, max(self._total, state.compared))

    def _new_candidates(
        self, documents: TextCollection, state: DuplicateSearchState, position: int
    ) -> tuple[list[KeyPair], int]:
        """Find near-duplicates of documents that have not been compared yet, by the engine's scores or equal vectors.

        Args:
            documents: The documents.
            state: The checkpoint.
            position: Documents up to this `_seq_no` may have been compared.

        Returns:
            The pairs, and the number of documents that were newly compared.
        """
        owned = list(_vectors_by_key(documents))
        firsts = state.first_with_vectors(owned)
        pairs: list[KeyPair] = []
        wanted: list[KeyedVectors] = []
        compared = 0
        for (key, vectors), (first, is_new), version in zip(owned, firsts, documents.versions, strict=True):
            if first != key:
                pairs.append((first, key))
            if is_new or version.sequence > position:
                compared += 1
                if first == key:
                    wanted.append((key, vectors))
        return pairs + self._candidates(wanted), compared

    def _candidates(self, owned: Sequence[KeyedVectors]) -> list[KeyPair]:
        """Find near-duplicates of documents by the engine's scores."""
        pairs: list[KeyPair] = []
        searches = [(key, vector) for key, vectors in owned for vector in vectors]
        most = min(MAX_K, self._state.result_window) - 1
        k = min(self._settings.neighbors, most)
        while searches:
            full = []
            for part in batched(searches, _SEARCHES_PER_REQUEST):
                for (key, vector), hits in zip(part, self._search([vector for _, vector in part], k), strict=True):
                    pairs += [(key, other) for other in hits if other != key]
                    if len(hits) > k:
                        full.append((key, vector))
            searches = full if k < most else []
            k = min(most, k * _GROWTH)
        return pairs

    def _search(self, vectors: Sequence[Vectors], k: int) -> list[list[DocumentKey]]:
        """Search for the nearest documents of each vector that may reach the threshold, its own document included."""
        candidates = self._settings.num_candidates
        query = VectorQuery(
            self._vector.name,
            vectors[0],
            k + 1,
            filter=self._filter,
            num_candidates=None if candidates is None else max(k + 1, candidates),
            oversample=OVERSAMPLE.get(self.index_type),
            passages=self._vector.meta.passages is not None,
            min_cosine=max(-1.0, self._settings.min_cosine - _SLACK),
        )
        engine_type, fields = self._engine.info.engine_type, {"_source": False, "track_total_hits": False}
        bodies = [search_body(engine_type, SearchMethod.KNN, replace(query, vector=one)) | fields for one in vectors]
        answers = self._retrying(partial(self._engine.multi_search, self._index, bodies))
        return [[document_key(hit) for hit in answer["hits"]["hits"]] for answer in answers]

    def _confirm_pairs(
        self, state: DuplicateSearchState, fields: Sequence[str]
    ) -> tuple[TextCollection, tuple[Int64Array, Int64Array], set[DocumentKey]]:
        """Confirm the pairs that reach the threshold with the documents' current vectors.

        Returns:
            The documents of all candidates, positions of the pairs, and the documents that lost a candidate because it
            was deleted or changed.
        """
        numbers: dict[DocumentKey, int] = {}
        with tempfile.TemporaryFile(dir=state.path.parent) as file:
            reader = TextCollectionBuilder(self._vector, fields, file)
            for page in state.documents():
                numbers |= {key: number for number, key in page}
                for some in batched(page, self._page):
                    self._read_current([key for _, key in some], reader)
            documents = replace(reader.collection(), skipped=self._count_skipped())
        keys = documents.keys
        positions = {numbers[key]: position for position, key in enumerate(keys)}
        pages = [np.empty((2, 0), np.int64)]
        pages += [np.array([[positions.get(n, -1) for n in side.tolist()] for side in page]) for page in state.pairs()]
        pairs = np.hstack(pages)  # (2, pairs)
        gone = (pairs < 0).any(axis=0)
        there = pairs[:, ~gone]
        cosines = pair_cosines(documents.vectors, there[0], there[1], documents.starts)
        # A cosine this far from the engine's score means that a document has changed.
        changed = cosines < self._settings.min_cosine - 2 * _SLACK
        lost = np.concatenate([pairs[:, gone].max(axis=0, initial=-1), there[:, changed].ravel()])
        right = there[:, cosines >= self._settings.min_cosine]
        return documents, (right[0], right[1]), {keys[place] for place in set(lost.tolist()) - {-1}}

    def _recall(
        self,
        texts: TextCollection,
        groups: list[DuplicateGroup],
        state: DuplicateSearchState,
        sample: list[DocumentKey],
    ) -> DuplicateRecall:
        """Compute the recall: the share of near-duplicates of the sampled documents that are in the same group."""
        keys = texts.keys
        group_of = {keys[member]: number for number, group in enumerate(groups) for member in group.members}
        together = {
            pair: pair[0] in group_of and group_of[pair[0]] == group_of.get(pair[1]) for pair in state.sample_pairs()
        }
        # Documents that were deleted or changed after they were compared do not count as missed.
        missed = [pair for pair, hit in together.items() if not hit]
        still = set(self._still_near_duplicates(missed))
        together = {pair: hit for pair, hit in together.items() if hit or pair in still}
        hits: dict[DocumentKey, list[bool]] = {key: [] for key in sample}
        for pair, hit in together.items():
            for key in pair:
                hits.get(key, []).append(hit)
        shares = tuple(sum(own) / len(own) for own in hits.values() if own)
        return DuplicateRecall(len(sample), len(together), sum(together.values()), shares)

    def _still_near_duplicates(self, pairs: Sequence[KeyPair]) -> Iterator[KeyPair]:
        """Yield the pairs that are still near-duplicates by the documents' current vectors."""
        for some in batched(pairs, max(1, self._page // 2)):
            documents = self._look_up(list(dict.fromkeys(key for pair in some for key in pair)))
            place = {key: number for number, key in enumerate(documents.keys)}
            there = [pair for pair in some if pair[0] in place and pair[1] in place]
            first, second = (np.array([place[pair[side]] for pair in there], np.int64) for side in (0, 1))
            cosines = pair_cosines(documents.vectors, first, second, documents.starts)
            yield from itertools.compress(there, cosines >= self._settings.min_cosine)

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


def _vectors_by_key(documents: TextCollection) -> Iterator[KeyedVectors]:
    """Yield the key and the vectors of each document."""
    ends = [*documents.starts[1:].tolist(), len(documents.vectors)]
    for key, start, end in zip(documents.keys, documents.starts.tolist(), ends, strict=True):
        yield key, documents.vectors[start:end]


def _sample_pairs(sample: Sequence[KeyedVectors], documents: TextCollection, min_cosine: float) -> list[KeyPair]:
    """Find the near-duplicates of the sampled documents among other documents by exact comparison."""
    if not sample or not len(documents):
        return []
    keys = documents.keys
    own = [vectors for _, vectors in sample]
    starts = {"first_starts": starts_from_counts(list(map(len, own))), "second_starts": documents.starts}
    near = pairs_above_between(np.concatenate(own), documents.vectors, min_cosine, **starts)
    return [
        (sample[one][0], keys[two])
        for first, second, _ in near
        for one, two in zip(first.tolist(), second.tolist(), strict=True)
        if sample[one][0] != keys[two]
    ]
