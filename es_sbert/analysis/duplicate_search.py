"""Near-duplicates in an index that is too large to compare all pairs: kNN search proposes candidates.

Each document's vector is searched for. Every proposed pair is compared again with the float32 vectors, so each
reported pair is a real one. The recall is estimated on a random sample that is compared with all documents.

Documents are read in the order of their last writes. So an interrupted search resumes, and documents written during
the search are read at the end. Documents with equal vectors are searched for once: exact copies cost no searches and
do not crowd out other near-duplicates.
"""

from __future__ import annotations

import hashlib
import itertools
import tempfile
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import IO, TypeVar

import numpy as np
import orjson

from es_sbert.analysis.duplicates import (
    DuplicateGroup,
    DuplicateRecall,
    DuplicateSearchResult,
    DuplicateSearchSettings,
    DuplicateSearchState,
    KeyPair,
    RecallSampleDocument,
    groups_of_pairs,
)
from es_sbert.analysis.similarity import Int64Array, pair_cosines, pairs_above_between
from es_sbert.analysis.text_collection import (
    DocumentVersion,
    OnProgress,
    SkippedDocuments,
    TextCollection,
    TextCollectionBuilder,
    no_vector_reason,
    other_model_reason,
    starts_from_counts,
)
from es_sbert.diagnostics.index_size import count_vectors
from es_sbert.encoder.batching import Vectors
from es_sbert.engines.multi_get import batched, multi_get
from es_sbert.engines.protocol import DocumentKey, Engine, IndexState, Json, document_key
from es_sbert.engines.retry import RetryPolicy, make_retrier
from es_sbert.index.mapping import (
    OVERSAMPLE,
    IndexType,
    and_query,
    document_meta_field,
    has_vector_query,
    random_order_query,
)
from es_sbert.index.vector_field import VectorField, index_not_found, read_vector_field, vector_field_from_state
from es_sbert.search.vector_query import MAX_K, SearchMethod, VectorQuery, search_body

T = TypeVar("T")

# Vectors up to this size are compared in memory, which takes three times as much: 700,000 of 384 dimensions.
EXACT_BYTES = 1 << 30

_PAGE = 500
_SEARCHES_PER_REQUEST = 100  # of one request
# By how much the engine's cosine may lie below that of the float32 vectors.
_SLACK = 1e-3
# A document all of whose neighbors are near-duplicates is searched for again with so many times more.
_GROWTH = 4
# Rounds over what was written while the round before ran, the first one included.
_ROUNDS = 4
# Writes that are read once more by the next round: one may become visible after another with a later number.
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
        state: File of the state; deleted at the end.
        retry_seconds: How long to wait for an engine that is overloaded or does not answer.

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
        IndexMissing: no such index.
        IndexMismatch: no such vector field.
        EngineError: the engine failed.
    """
    field = read_vector_field(engine, index, vector_field)
    return 4 * count_vectors(engine, index, field, filter) * field.meta.dimensions <= EXACT_BYTES


class DuplicateSearch:
    """Finds near-duplicates by the index's kNN search.

    Args:
        engine: Where.
        index: Index or alias.
        vector_field: Field that holds the vectors.
        settings: What is searched for.
        policy: How long transient failures are retried.
        on_wait: Called with the reason when a request is retried.

    Raises:
        IndexMissing: no such index.
        IndexMismatch: no such vector field.
        EngineError: the engine failed. So do all methods.
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
        state = self._retrying(partial(engine.get_index, index))
        if state is None:
            raise index_not_found(index, engine)
        self._state: IndexState = state
        # Not the alias: it may be moved during the search, and OpenSearch applies its filter after the search by kNN.
        self._index = state.name
        own = state.alias_filter(index)
        self._filter = settings.filter if own is None else and_query(own, settings.filter)
        self._vector: VectorField = vector_field_from_state(engine, state, vector_field)
        # Ids of a lookup must be fewer than the hits that a search may return.
        self._page = max(1, min(_PAGE, self._state.result_window - 1))
        self._total = 0

    @property
    def index_type(self) -> IndexType:
        """Of the vector field."""
        return IndexType(self._vector.meta.index_type)

    @property
    def identity(self) -> str:
        """What must be the same for a search to resume another one."""
        settings = self._settings
        parts = [
            self._state.settings["index.uuid"], self._vector.name, self._vector.meta.fingerprint,
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
        """Search to the end.

        Args:
            state: Opened with `identity`.
            fields: Further fields of the documents to keep.
            priority: Gives each document's priority: the one with the greatest is kept, of several the first.
            on_progress: Called with the number of documents compared, and that of all documents.

        Raises:
            OutputError: the state cannot be written.
        """
        self._on_progress = on_progress
        if not state.resumed:
            state.start([-1] * self._shards, self._sample())
        sample = state.sample(self._vector.meta.dimensions)
        for number in range(_ROUNDS):
            ends = [self._latest_seq_no(shard) for shard in range(self._shards)]
            # The second round comes always, for the overlap with the first.
            if number > 1 and ends == state.positions:
                break
            self._total = state.compared + self._count_after(state.positions)
            for shard, end in enumerate(ends):
                self._compare_shard(shard, end, state, sample)
        texts, pairs, lost = self._confirm_pairs(state, fields)
        if lost:
            # Documents that were a copy of one that is gone or another by now have not been searched for themselves.
            self._search_again(lost, state)
            texts, pairs, _ = self._confirm_pairs(state, fields)
        groups = groups_of_pairs(texts.vectors, *pairs, starts=texts.starts, priority=priority(texts))
        return DuplicateSearchResult(
            texts,
            groups,
            state.compared,
            self._recall(texts, groups, state, sample),
            state.resumed,
            self._count_after(state.positions),
        )

    @property
    def _shards(self) -> int:
        return int(self._state.settings["index.number_of_shards"])

    def _query(self) -> Json:
        """The documents that have a vector and match the filter."""
        return and_query(has_vector_query(self._vector.name, self._vector.meta), self._filter)

    def _sample(self) -> list[RecallSampleDocument]:
        """Some documents at random."""
        if not self._settings.sample:
            return []
        body: Json = {
            "query": random_order_query(self._query(), self._settings.seed), "_source": False,
            "size": min(self._settings.sample, self._state.result_window), "track_total_hits": False,
        }  # fmt: skip
        hits = self._retrying(partial(self._engine.search, self._index, body))["hits"]["hits"]
        return [
            RecallSampleDocument(key, vectors)
            for part in batched([document_key(hit) for hit in hits], self._page)
            for key, vectors in _vectors_by_key(self._look_up(part))
        ]

    def _count_skipped(self) -> SkippedDocuments:
        """Documents that are not compared, by the reason."""
        name, meta = self._vector.name, self._vector.meta
        own = f"{document_meta_field(name)}.fingerprint"
        other: Json = {
            "filter": [has_vector_query(name, meta), {"exists": {"field": own}}],
            "must_not": [{"term": {own: meta.fingerprint}}],
        }
        reasons: dict[str, Json] = {
            no_vector_reason(self._vector): {"must_not": [has_vector_query(name, meta)]},
            other_model_reason(self._vector): other,
        }
        skipped = SkippedDocuments()
        for reason, clauses in reasons.items():
            query = and_query({"bool": clauses}, self._filter)
            body: Json = {"query": query, "size": 1, "_source": False, "track_total_hits": True}
            hits = self._retrying(partial(self._engine.search, self._index, body))["hits"]
            if hits["total"]["value"]:
                skipped.counts[reason] = hits["total"]["value"]
                skipped.first[reason] = hits["hits"][0]["_id"]
        return skipped

    def _latest_seq_no(self, shard: int) -> int:
        """The greatest `_seq_no` that a search of the shard sees; -1 where it has no document."""
        body: Json = {
            "query": self._query(), "sort": [{"_seq_no": "desc"}], "size": 1, "_source": False,
            "track_total_hits": False,
        }  # fmt: skip
        search = partial(self._engine.search, self._index, body, preference=f"_shards:{shard}")
        hits = self._retrying(search)["hits"]["hits"]
        return int(hits[0]["sort"][0]) if hits else -1

    def _count_after(self, positions: Sequence[int]) -> int:
        """Documents that were written since."""
        count = 0
        for shard, position in enumerate(positions):
            query = and_query({"range": {"_seq_no": {"gt": position}}}, self._query())
            body: Json = {"query": query, "size": 0, "track_total_hits": True}
            search = partial(self._engine.search, self._index, body, preference=f"_shards:{shard}")
            count += int(self._retrying(search)["hits"]["total"]["value"])
        return count

    def _compare_shard(
        self, shard: int, end: int, state: DuplicateSearchState, sample: list[RecallSampleDocument]
    ) -> None:
        """Search for the documents of a shard whose last write is between the position and `end`."""
        position = max(-1, state.positions[shard] - _OVERLAP)
        while position < end:
            reader = TextCollectionBuilder(self._vector)
            read = partial(
                self._engine.read_changes,
                self._index,
                shard,
                position,
                end,
                query=reader.query(self._query()),
                source_includes=reader.includes,
                page=self._page,
                vectors=True,
            )
            hits = self._retrying(read)
            if not hits:
                # Deleted since, or another copy of the shard was asked that does not show them yet: see `unread`.
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
        """Near-duplicates of documents that were not compared yet, by the engine's scores or by equal vectors.

        Args:
            position: Documents up to this `_seq_no` may have been compared.

        Returns:
            The pairs, and the number of documents that were compared now.
        """
        owned = list(_vectors_by_key(documents))
        firsts = state.first_with_vectors([_vectors_digest(vectors) for _, vectors in owned], [key for key, _ in owned])
        pairs = [(first, key) for (first, _), (key, _) in zip(firsts, owned, strict=True) if first != key]
        new = [
            is_new or version.sequence > position
            for (_, is_new), version in zip(firsts, documents.versions, strict=True)
        ]
        wanted = [one for (first, _), one, it in zip(firsts, owned, new, strict=True) if it and first == one[0]]
        return pairs + self._candidates(wanted), sum(new)

    def _candidates(self, owned: Sequence[tuple[DocumentKey, Vectors]]) -> list[KeyPair]:
        """Near-duplicates of documents, given by their vectors, by the engine's scores."""
        pairs: list[KeyPair] = []
        searches = [(key, vector) for key, vectors in owned for vector in vectors]
        most = min(MAX_K, self._state.result_window) - 1
        k = min(self._settings.neighbors, most)
        while searches:
            full = []
            for part in batched(searches, _SEARCHES_PER_REQUEST):
                for (key, vector), hits in zip(part, self._search([vector for _, vector in part], k), strict=True):
                    others = [other for other in hits if other != key]
                    pairs += [(key, other) for other in others]
                    if len(hits) > k:
                        full.append((key, vector))
            searches = full if k < most else []
            k = min(most, k * _GROWTH)
        return pairs

    def _search(self, vectors: Sequence[Vectors], k: int) -> list[list[DocumentKey]]:
        """Of each vector: its nearest documents that may reach the threshold, itself among them."""
        meta = self._vector.meta
        candidates = self._settings.num_candidates
        bodies = [
            search_body(
                self._engine.info.engine_type,
                SearchMethod.KNN,
                VectorQuery(
                    self._vector.name,
                    vector,
                    k + 1,
                    filter=self._filter,
                    num_candidates=None if candidates is None else max(k + 1, candidates),
                    oversample=OVERSAMPLE.get(self.index_type),
                    passages=meta.passages is not None,
                    min_cosine=max(-1.0, self._settings.min_cosine - _SLACK),
                ),
            )
            | {"_source": False, "track_total_hits": False}
            for vector in vectors
        ]
        answers = self._retrying(partial(self._engine.multi_search, self._index, bodies))
        return [[document_key(hit) for hit in answer["hits"]["hits"]] for answer in answers]

    def _confirm_pairs(
        self, state: DuplicateSearchState, fields: Sequence[str]
    ) -> tuple[TextCollection, tuple[Int64Array, Int64Array], set[DocumentKey]]:
        """The pairs that reach the threshold by the vectors that the documents have now.

        Returns:
            The documents of all candidates, positions of the pairs, and the documents that lost a candidate because it
            was deleted or changed.
        """
        positions: dict[int, int] = {}  # number of a candidate's document → position
        ids: list[str] = []
        texts: list[str] = []
        values: list[Json] = []
        versions: list[DocumentVersion] = []
        counts: list[int] = []
        with tempfile.TemporaryFile(dir=state.path.parent) as file:
            for page in state.documents():
                for some in batched(page, self._page):
                    part = self._look_up([key for _, key in some], fields)
                    places = {key: len(ids) + place for place, key in enumerate(part.keys)}
                    positions |= {number: places[key] for number, key in some if key in places}
                    ids += part.ids
                    texts += part.texts
                    values += part.values
                    versions += part.versions
                    counts += [len(vectors) for _, vectors in _vectors_by_key(part)]
                    file.write(part.vectors.astype(np.float32).tobytes())
            vectors = _memory_map(file, self._vector.meta.dimensions)
        starts = starts_from_counts(counts)
        model = self._vector.meta.model
        documents = TextCollection(ids, texts, vectors, starts, self._count_skipped(), values, versions, model)
        pairs = np.hstack(
            [np.empty((2, 0), np.int64)]
            + [np.array([[positions.get(n, -1) for n in side.tolist()] for side in page]) for page in state.pairs()]
        )  # (2, pairs)
        gone = (pairs < 0).any(axis=0)
        there = pairs[:, ~gone]
        cosines = pair_cosines(vectors, there[0], there[1], starts)
        # Only a document that was changed since is so far from the engine's score.
        changed = cosines < self._settings.min_cosine - 2 * _SLACK
        lost = np.concatenate([pairs[:, gone].max(axis=0, initial=-1), there[:, changed].ravel()])
        keys = documents.keys
        right = there[:, cosines >= self._settings.min_cosine]
        return documents, (right[0], right[1]), {keys[place] for place in set(lost.tolist()) - {-1}}

    def _recall(
        self,
        texts: TextCollection,
        groups: Sequence[DuplicateGroup],
        state: DuplicateSearchState,
        sample: Sequence[RecallSampleDocument],
    ) -> DuplicateRecall:
        """How many of the sample's near-duplicates are in one group."""
        keys = texts.keys
        group_of = {keys[member]: number for number, group in enumerate(groups) for member in group.members}
        together = {
            pair: pair[0] in group_of and group_of[pair[0]] == group_of.get(pair[1]) for pair in state.sample_pairs()
        }
        # Documents that are gone or changed since they were compared were not missed.
        missed = [pair for pair, hit in together.items() if not hit]
        still = set(self._still_near_duplicates(missed))
        together = {pair: hit for pair, hit in together.items() if hit or pair in still}
        hits: dict[DocumentKey, list[bool]] = {one.key: [] for one in sample}
        for pair, hit in together.items():
            for key in pair:
                hits.get(key, []).append(hit)
        shares = tuple(sum(own) / len(own) for own in hits.values() if own)
        return DuplicateRecall(len(sample), len(together), sum(together.values()), shares)

    def _still_near_duplicates(self, pairs: Sequence[KeyPair]) -> Iterator[KeyPair]:
        """Those of some pairs that are near-duplicates by the vectors that the documents have now."""
        for some in batched(pairs, max(1, self._page // 2)):
            documents = self._look_up(list(dict.fromkeys(key for pair in some for key in pair)))
            place = {key: number for number, key in enumerate(documents.keys)}
            there = [pair for pair in some if pair[0] in place and pair[1] in place]
            first, second = (np.array([place[pair[side]] for pair in there], np.int64) for side in (0, 1))
            cosines = pair_cosines(documents.vectors, first, second, documents.starts)
            yield from itertools.compress(there, cosines >= self._settings.min_cosine)

    def _search_again(self, keys: set[DocumentKey], state: DuplicateSearchState) -> None:
        for part in batched(sorted(keys, key=str), self._page):
            pairs = self._candidates(list(_vectors_by_key(self._look_up(part))))
            state.add(pairs, [], state.positions, state.compared)

    def _look_up(self, keys: Sequence[DocumentKey], fields: Sequence[str] = ()) -> TextCollection:
        """The current documents in the order of these keys, without those that were deleted or no longer match."""
        reader = TextCollectionBuilder(self._vector, fields)
        find = partial(
            multi_get,
            self._engine,
            self._index,
            [document_id for document_id, _ in keys],
            query=reader.query(self._query()),
            source=self._engine.info.source_with_vectors(reader.includes),
            result_window=self._state.result_window,
        )
        hits = self._retrying(find)
        reader.add(hits[key] for key in keys if key in hits)
        return reader.collection()


def _vectors_by_key(documents: TextCollection) -> Iterator[tuple[DocumentKey, Vectors]]:
    """Of each document: its vectors."""
    ends = [*documents.starts[1:].tolist(), len(documents.vectors)]
    for key, start, end in zip(documents.keys, documents.starts.tolist(), ends, strict=True):
        yield key, documents.vectors[start:end]


def _sample_pairs(
    sample: Sequence[RecallSampleDocument], documents: TextCollection, min_cosine: float
) -> list[KeyPair]:
    """The near-duplicates of the sampled documents among others, exactly."""
    if not sample or not len(documents):
        return []
    keys = documents.keys
    starts = starts_from_counts([len(one.vectors) for one in sample])
    return [
        (sample[one].key, keys[two])
        for first, second, _ in pairs_above_between(
            np.concatenate([one.vectors for one in sample]),
            documents.vectors,
            min_cosine,
            first_starts=starts,
            second_starts=documents.starts,
        )
        for one, two in zip(first.tolist(), second.tolist(), strict=True)
        if sample[one].key != keys[two]
    ]


def _memory_map(file: IO[bytes], dimensions: int) -> Vectors:
    """The vectors of a file, which need not fit into memory. *Shape:* ``(vectors, dimensions)``."""
    size = file.tell()
    file.flush()
    if not size:
        return np.empty((0, dimensions), np.float32)
    return np.memmap(file, np.float32, "r", shape=(size // (4 * dimensions), dimensions))


def _vectors_digest(vectors: Vectors) -> bytes:
    return hashlib.sha256(vectors.astype("<f4").tobytes()).digest()[:16]
