"""Measure recall@10 and latency of approximate search in an index, for several values of num_candidates.

The exact neighbors of all queries come from one pass over the vectors of the index. The pass works on every engine,
without scripting and in bounded memory.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from es_sbert.confidence_interval import ConfidenceInterval, mean_confidence_interval
from es_sbert.engines.engine import Engine
from es_sbert.engines.index_scan import scan_index
from es_sbert.engines.rest import Json
from es_sbert.index.mapping import OVERSAMPLE, IndexType, has_vector_query
from es_sbert.index.vector_field import VectorField
from es_sbert.index.vector_reading import hit_vectors, vector_request
from es_sbert.search.search_scope import choose_method
from es_sbert.search.vector_query import VectorQuery, search_body
from es_sbert.vectors import Vectors

Doubles = NDArray[np.float64]

K = 10
# Cosines that differ by less than this are ties, because engines store normalized float32 vectors.
TIE_TOLERANCE = 1e-6
_NUM_CANDIDATES = (10, 20, 50, 100, 200, 500, 1000)
_PAGE = 500
_WARM_UP_SEARCHES = 20


@dataclass(frozen=True)
class RecallQueries:
    """The queries of a measurement.

    Attributes:
        vectors: *Shape:* ``(queries, dimensions)``.
        own: Id of the document that each query was made from, which does not count as a neighbor; None for a text.
    """

    vectors: Vectors
    own: Sequence[str | None]


@dataclass(frozen=True)
class SearchMeasurement:
    """Recall and latency of searches with one number of candidates.

    Attributes:
        recall: Mean recall@10 with its 95 % interval.
        median_ms, p95_ms: Milliseconds of a search as the client sees it, one at a time.
    """

    num_candidates: int
    recall: ConfidenceInterval
    median_ms: float
    p95_ms: float


def summarize(shares: Sequence[float], seconds: Sequence[float]) -> tuple[ConfidenceInterval, float, float]:
    """Return the mean of recalls, and the median and the 95th percentile of latencies in milliseconds."""
    median, p95 = (1000 * np.percentile(seconds, [50, 95])).tolist()
    return mean_confidence_interval(shares, K), median, p95


def document_cosines(queries: Vectors, vectors: Vectors, starts: Sequence[int] | NDArray[np.int64]) -> Doubles:
    """Compute the cosine of each query with each document. If a document has several vectors, the nearest one counts.

    Args:
        queries: Vectors of the queries. *Shape:* ``(queries, dimensions)``.
        vectors: Vectors of all documents. *Shape:* ``(vectors, dimensions)``.
        starts: Row of each document's first vector. *Shape:* ``(documents,)``.

    Returns:
        *Shape:* ``(queries, documents)``, within [-1, 1].
    """
    cosines = np.maximum.reduceat(_normalize(queries) @ _normalize(vectors).T, starts, axis=1)
    return np.clip(cosines, -1.0, 1.0)


def _normalize(vectors: Vectors) -> Doubles:
    """Scale vectors to length 1, in float64. *Shape:* as `vectors`."""
    wide = np.asarray(vectors, dtype=np.float64)
    unit: Doubles = wide / np.linalg.norm(wide, axis=1, keepdims=True)
    return unit


def exact_shares(
    queries: RecallQueries,
    answers: Sequence[Sequence[Sequence[str]]],
    pages: Iterable[tuple[Sequence[str], Sequence[int], Vectors]],
) -> list[list[float]]:
    """Compute the recall of searches, by comparing every vector of the pages with every query.

    Args:
        answers: For each setting, the ids that were found for each query.
        pages: Ids of documents, the first row of each, and their vectors, ``(vectors, dimensions)``. The nearest
            vector of a document counts.

    Returns:
        For each setting, the share of its `K` nearest documents that was found for each query with a neighbor. Tied
        documents count equally.
    """
    wanted = [set(itertools.chain(*found)) for found in zip(*answers, strict=True)]
    best = np.full((len(queries.own), K), -np.inf)  # (queries, K) cosines, in no order
    cosines: list[dict[str, float]] = [{} for _ in wanted]
    for ids, rows, vectors in pages:
        page = document_cosines(queries.vectors, vectors, rows)  # (queries, documents)
        place = {document_id: row for row, document_id in enumerate(ids)}
        for number, own in enumerate(queries.own):
            if own is not None and own in place:
                page[number, place[own]] = -np.inf
            for document_id in wanted[number] & place.keys():
                cosines[number][document_id] = float(page[number, place[document_id]])
        both = np.concatenate([best, page], axis=1)  # (queries, K + documents)
        best = np.partition(both, both.shape[1] - K, axis=1)[:, -K:]
    neighbors = np.isfinite(best).sum(axis=1)
    least = np.where(np.isfinite(best), best, np.inf).min(axis=1) - TIE_TOLERANCE

    def share(query: int, ids: Sequence[str]) -> float:
        right = sum(cosines[query].get(document_id, -2.0) >= least[query] for document_id in ids)
        return min(1.0, float(right / neighbors[query]))

    return [[share(number, ids) for number, ids in enumerate(answer) if neighbors[number]] for answer in answers]


def measure_index(engine: Engine, field: VectorField, queries: RecallQueries) -> list[SearchMeasurement]:
    """Search the index with each number of candidates, then compare with exact search.

    The index should not be written to at the same time.

    Returns:
        The measurements, the fewest candidates first; none if searches of the index type are exact.

    Raises:
        EngineError: the engine failed.
    """
    index_type = IndexType(field.meta.index_type)
    if index_type is IndexType.FLAT:
        return []
    # With fewer candidates, engines search for as many as are rescored.
    settings = [each for each in _NUM_CANDIDATES if each >= K * OVERSAMPLE.get(index_type, 1.0)]
    found = [search_all(engine, field, queries, candidates) for candidates in settings]
    shares = exact_shares(queries, [ids for ids, _ in found], _read_vector_pages(engine, field))
    return [
        SearchMeasurement(candidates, *summarize(own, seconds))
        for candidates, own, (_, seconds) in zip(settings, shares, found, strict=True)
    ]


def search_all(
    engine: Engine, field: VectorField, queries: RecallQueries, num_candidates: int | None = None
) -> tuple[list[list[str]], list[float]]:
    """Search for all queries, one at a time, as `es-sbert search` does.

    Args:
        num_candidates: Candidates of each shard; None for the default.

    Returns:
        The ids of each query's hits, without the document that the query was made from, and the seconds of each search.
    """
    bodies: list[Json] = []
    for vector, own in zip(queries.vectors, queries.own, strict=True):
        count = K + (own is not None)  # a document finds itself first
        query = VectorQuery(
            field.name,
            vector,
            count,
            num_candidates=None if num_candidates is None else max(count, num_candidates),
            oversample=OVERSAMPLE.get(IndexType(field.meta.index_type)),
            passages=field.meta.passages is not None,
        )
        method = choose_method(engine.info.engine_type, field.meta, exact=False)
        bodies.append(search_body(engine.info.engine_type, method, query) | {"_source": False})
    for body in bodies[:_WARM_UP_SEARCHES]:  # the first searches read the index from disk
        engine.search(field.index, body)
    found: list[list[str]] = []
    seconds: list[float] = []
    for body, own in zip(bodies, queries.own, strict=True):
        begin = time.perf_counter()
        hits = engine.search(field.index, body)["hits"]["hits"]
        seconds.append(time.perf_counter() - begin)
        found.append([hit["_id"] for hit in hits if hit["_id"] != own][:K])
    return found, seconds


def _read_vector_pages(engine: Engine, field: VectorField) -> Iterator[tuple[list[str], list[int], Vectors]]:
    """Read pages with the ids, first rows and vectors of all documents that have a vector."""
    query = has_vector_query(field.name, field.meta)
    extra = vector_request(engine.info, [field])
    for _, page, _ in scan_index(engine, field.index, query=query, source_includes=(), page=_PAGE, extra=extra):
        own = [[vector for _, _, vector in hit_vectors(hit, field)] for hit in page]
        rows = [0, *itertools.accumulate(len(vectors) for vectors in own[:-1])]
        yield [hit["_id"] for hit in page], rows, np.stack([vector for vectors in own for vector in vectors])
