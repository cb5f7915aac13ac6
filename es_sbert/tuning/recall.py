"""Recall@k of an index's approximate search against exact search, for several num_candidates and oversample."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace

import numpy as np

from es_sbert.encoder.types import Vectors
from es_sbert.engines.protocol import Engine, Json
from es_sbert.errors import IndexMismatch, UsageError
from es_sbert.index.ensure import VectorField
from es_sbert.index.layout import has_vector, in_random_order, vector_path
from es_sbert.index.types import OVERSAMPLE, IndexType
from es_sbert.index.vectors import stored_vectors
from es_sbert.search.queries import search_body
from es_sbert.search.scores import Method
from es_sbert.search.vector_query import MAX_K, MAX_OVERSAMPLE, VectorQuery
from es_sbert.tuning.exact import exact_neighbours
from es_sbert.tuning.interval import Estimate, mean_of_shares

CANDIDATES = (10, 20, 50, 100, 200, 500, 1000)
OVERSAMPLES = (1.0, 1.5, 2.0, 3.0, 5.0)
_PAGE = 500


@dataclass(frozen=True)
class Queries:
    """What is searched for.

    Attributes:
        vectors: *Shape:* ``(queries, dimensions)``.
        own: Id of the document that a query is, or None for a text.
    """

    vectors: Vectors
    own: Sequence[str | None]


@dataclass(frozen=True)
class Setting:
    """One way to search.

    Attributes:
        num_candidates: Vectors that each shard looks at.
        oversample: Multiple of k that is compared again by float32 vectors; None where nothing is quantised.
    """

    num_candidates: int
    oversample: float | None

    def effort(self, k: int) -> float:
        """Vectors looked at, of either kind: what settings are ordered by."""
        return self.num_candidates + k * (self.oversample or 0.0)


@dataclass(frozen=True)
class Measured:
    """A setting with what it finds and takes.

    Attributes:
        recall: Mean recall@k with its interval.
        median_ms, p95_ms: Milliseconds of a search as the client sees it, one at a time.
    """

    setting: Setting
    recall: Estimate
    median_ms: float
    p95_ms: float


@dataclass(frozen=True)
class RecallReport:
    """All settings, and the one to use.

    Attributes:
        index, field, index_type: What was searched.
        k: Neighbours.
        queries: Number of queries.
        documents: Documents with a vector.
        target: The recall to reach.
        rows: In the order of effort.
        recommended: The least effort whose interval lies above the target; None where there is none.
    """

    index: str
    field: str
    index_type: str
    k: int
    queries: int
    documents: int
    target: float
    rows: tuple[Measured, ...]
    recommended: Setting | None

    def as_json(self) -> Json:
        return asdict(self)


def settings_for(index_type: IndexType, k: int, candidates: Sequence[int], oversamples: Sequence[float]
                 ) -> list[Setting]:  # fmt: skip
    """What to measure, least effort first; empty sequences stand for the usual values.

    Raises:
        UsageError: oversample for a type that is not quantised, or a value out of range.
    """
    if index_type not in OVERSAMPLE and oversamples:
        raise UsageError(
            f"{index_type} compares float32 vectors, so there is nothing to oversample", "Leave --oversample out."
        )
    if any(value < k or value > MAX_K for value in candidates):
        raise UsageError(f"--num-candidates must be between k ({k}) and {MAX_K:,}", "Give other values.")
    if any(not 1.0 <= value <= MAX_OVERSAMPLE for value in oversamples):
        raise UsageError(f"--oversample must be between 1 and {MAX_OVERSAMPLE:g}", "Give other values.")
    # The graph alone is asked for k times oversample, so fewer candidates than that make no sense.
    usual = [max(k, value) for value in CANDIDATES if max(k, value) <= MAX_K]
    factors: Sequence[float | None] = (oversamples or OVERSAMPLES) if index_type in OVERSAMPLE else (None,)
    found = {
        Setting(max(count, min(MAX_K, round(k * (factor or 1.0)))), factor)
        for count in (candidates or usual)
        for factor in factors
    }
    return sorted(found, key=lambda setting: (setting.effort(k), setting.oversample or 0.0))


def sample_queries(engine: Engine, field: VectorField, count: int, seed: int) -> Queries:
    """Vectors of documents taken at random.

    Raises:
        IndexMismatch: no document has a vector.
        EngineError: the engine failed.
    """
    random = in_random_order(has_vector(field.name, field.meta), seed)
    # The vectors come with the hits: a look-up by id alone misses documents with a routing of their own.
    source = engine.info.source_with_vectors(_paths(field))
    hits = engine.search(field.index, {"query": random, "size": count, "_source": source})["hits"]["hits"]
    # Of a document with several passages, the first speaks for it.
    vectors = {hit["_id"]: stored_vectors(hit["_source"][field.name], 0)[0][2] for hit in hits}
    if not vectors:
        raise IndexMismatch(
            f"no document of {field.index} has a vector in {field.name}",
            "Embed its documents first: `es-sbert ingest`.",
        )
    return Queries(np.stack(list(vectors.values())), list(vectors))


def measure_recall(engine: Engine, field: VectorField, queries: Queries, settings: Sequence[Setting], *, k: int,
                   target: float, report: Callable[[str], None] = lambda message: None) -> RecallReport:  # fmt: skip
    """Search with every setting, then compare with exact search. The index should be at rest meanwhile.

    Raises:
        IndexMismatch: the index type is exact anyway.
        EngineError: the engine failed.
    """
    index_type = IndexType(field.meta.index_type)
    if index_type is IndexType.FLAT:
        raise IndexMismatch(
            f"{field.index}.{field.name} is of type flat: its search is exact already", "There is nothing to measure."
        )
    engine.refresh(field.index)
    run = _Runner(engine, field, queries, k)
    report(f"{len(queries.vectors):,} queries with each of {len(settings)} settings")
    run.search(settings[0])  # the first look at an index reads it from disk
    answers = [run.search(setting) for setting in settings]
    report("exact search: one pass over all vectors")
    wanted: list[set[str]] = [set() for _ in queries.own]
    for answer in answers:
        for number, ids in enumerate(answer.ids):
            wanted[number].update(ids)
    truth = exact_neighbours(queries.vectors, queries.own, wanted, k, _pages(engine, field))
    rows = []
    for setting, answer in zip(settings, answers, strict=True):
        shares = [
            truth.hits(number, ids) / truth.found[number]
            for number, ids in enumerate(answer.ids)
            if truth.found[number]
        ]
        if not shares:
            raise IndexMismatch(f"{field.index} holds no other document to find", "Measure on a larger index.")
        median, p95 = np.percentile(answer.seconds, [50, 95])
        rows.append(Measured(setting, mean_of_shares(shares, k), 1000 * float(median), 1000 * float(p95)))
    return RecallReport(
        index=field.index, field=field.name, index_type=str(index_type), k=k, queries=len(queries.own),
        documents=truth.documents, target=target, rows=tuple(rows), recommended=recommend(rows, target),
    )  # fmt: skip


def recommend(rows: Sequence[Measured], target: float) -> Setting | None:
    """The first row whose interval begins at the target or above; None where there is none."""
    return next((row.setting for row in rows if row.recall.low >= target), None)


@dataclass(frozen=True)
class _Answers:
    ids: list[list[str]]  # of each query, its own document left out
    seconds: list[float]


class _Runner:
    """Runs all queries with one setting."""

    def __init__(self, engine: Engine, field: VectorField, queries: Queries, k: int) -> None:
        self._engine, self._field, self._queries, self._k = engine, field, queries, k

    def search(self, setting: Setting) -> _Answers:
        answers = _Answers([], [])
        for vector, own in zip(self._queries.vectors, self._queries.own, strict=True):
            # A document finds itself first, which says nothing about its neighbours.
            k = self._k + (own is not None)
            query = VectorQuery(self._field.name, vector, k, num_candidates=max(k, setting.num_candidates),
                                passages=self._field.meta.passages is not None)  # fmt: skip
            if setting.oversample is not None:
                query = replace(query, oversample=setting.oversample)
            body = search_body(self._engine.info.flavour, Method.KNN, query) | {"_source": False}
            begin = time.perf_counter()
            hits = self._engine.search(self._field.index, body)["hits"]["hits"]
            answers.seconds.append(time.perf_counter() - begin)
            answers.ids.append([hit["_id"] for hit in hits if hit["_id"] != own][: self._k])
        return answers


def _paths(field: VectorField) -> list[str]:
    """What of `_source` holds its vectors."""
    return [field.name, vector_path(field.name, field.meta)]


def _pages(engine: Engine, field: VectorField) -> Iterator[tuple[list[str], list[int], Vectors]]:
    """Ids, first rows and vectors of all documents that have one."""
    query = has_vector(field.name, field.meta)
    for page in engine.scan(field.index, query=query, source_includes=_paths(field), page=_PAGE, vectors=True):
        own = [[vector for _, _, vector in stored_vectors(hit["_source"][field.name], 0)] for hit in page]
        rows = [0, *itertools.accumulate(len(vectors) for vectors in own[:-1])]
        yield [hit["_id"] for hit in page], rows, np.stack([vector for vectors in own for vector in vectors])
