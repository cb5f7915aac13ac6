"""Measure recall@10 and latency of approximate search, in an index or in a temporary index of sampled vectors.

The exact neighbors of all queries come from one pass over all vectors. The pass works on every engine, without
scripting and in bounded memory. Temporary indices are merged into one segment, and deleted after any error.
"""

from __future__ import annotations

import itertools
import time
import uuid
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import numpy as np
import orjson
from numpy.typing import NDArray

from es_sbert.batched import slice_by_size
from es_sbert.diagnostics.confidence_interval import ConfidenceInterval, Doubles, mean_confidence_interval
from es_sbert.engines.engine import Engine
from es_sbert.engines.index_scan import scan_index
from es_sbert.engines.rest import Json
from es_sbert.errors import EngineError
from es_sbert.index.document_vectors import hit_vectors, vector_request
from es_sbert.index.mapping import OVERSAMPLE, IndexType, has_vector_query
from es_sbert.index.vector_field import VectorField
from es_sbert.search.search_scope import choose_method
from es_sbert.search.vector_query import VectorQuery, search_body
from es_sbert.vectors import Vectors

K = 10
# Cosines that differ by less than this are ties, because engines store normalized float32 vectors.
TIE_TOLERANCE = 1e-6
_NUM_CANDIDATES = (10, 20, 50, 100, 200, 500, 1000)
_PAGE = 500
_WARM_UP_SEARCHES = 20

# Prefix of the names of all temporary indices.
PREFIX = "es-sbert-advise-"
_BULK_BYTES = 5 << 20
_POLL_SECONDS = 0.2

# Ids of documents, the row of each one's first vector, and all vectors, *shape:* ``(vectors, dimensions)``.
VectorPage = tuple[Sequence[str], Sequence[int], Vectors]


@dataclass(frozen=True)
class RecallQueries:
    """The queries of a measurement.

    Attributes:
        vectors: *Shape:* ``(queries, dimensions)``.
        own: Id of the document that each query was made from, which does not count as a neighbor; None for a text.
    """

    vectors: Vectors
    own: Sequence[str | None]


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
    pages: Iterable[VectorPage],
) -> list[list[float]]:
    """Compute the recall of searches, by comparing every vector of the pages with every query.

    Args:
        answers: For each setting, the ids that were found for each query.
        pages: All documents. The nearest vector of a document counts.

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


@dataclass(frozen=True)
class SearchMeasurement:
    """Recall and latency of searches with one number of candidates.

    Attributes:
        num_candidates: Candidates of each shard; None for the default.
        recall: Mean recall@10 with its 95 % interval.
        median_ms, p95_ms: Milliseconds of a search as the client sees it, one at a time.
    """

    num_candidates: int | None
    recall: ConfidenceInterval
    median_ms: float
    p95_ms: float


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
    hits = max(_hits_to_request(own) for own in queries.own)
    # With fewer candidates, engines search for as many as are returned and rescored.
    settings = [each for each in _NUM_CANDIDATES if each >= hits * OVERSAMPLE.get(index_type, 1.0)]
    return measure_searches(engine, field, queries, settings, queries, _read_vector_pages(engine, field))


def measure_searches(
    engine: Engine,
    field: VectorField,
    queries: RecallQueries,
    candidates: Sequence[int | None],
    ranked: RecallQueries,
    pages: Iterable[VectorPage],
) -> list[SearchMeasurement]:
    """Search with each number of candidates, and compare the hits with an exact ranking.

    Args:
        queries: The queries to search for.
        candidates: Candidates of each shard; None for the default.
        ranked: The same queries by their whole vectors, for the exact ranking.
        pages: All documents with their whole vectors.
    """
    found = [_search_all(engine, field, queries, number) for number in candidates]
    shares = exact_shares(ranked, [ids for ids, _ in found], pages)
    measured = []
    for number, own, (_, seconds) in zip(candidates, shares, found, strict=True):
        median, p95 = (1000 * np.percentile(seconds, [50, 95])).tolist()
        measured.append(SearchMeasurement(number, mean_confidence_interval(own), median, p95))
    return measured


def _hits_to_request(own: str | None) -> int:
    """Return the number of hits of a search; a document as the query finds itself first."""
    return K + (own is not None)


def _search_all(
    engine: Engine, field: VectorField, queries: RecallQueries, num_candidates: int | None
) -> tuple[list[list[str]], list[float]]:
    """Search for all queries, one at a time, as `es-sbert search` does.

    Returns:
        The ids of each query's hits, without the document that the query was made from, and the seconds of each search.
    """
    bodies: list[Json] = []
    for vector, own in zip(queries.vectors, queries.own, strict=True):
        count = _hits_to_request(own)
        query = VectorQuery(
            field.name,
            vector,
            count,
            num_candidates=num_candidates,
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


def _read_vector_pages(engine: Engine, field: VectorField) -> Iterator[VectorPage]:
    """Read pages with the ids, first rows and vectors of all documents that have a vector."""
    query = has_vector_query(field.name, field.meta)
    extra = vector_request(engine.info, [field])
    for _, page, _ in scan_index(engine, field.index, query=query, source_includes=(), page=_PAGE, extra=extra):
        own = [[vector for _, _, vector in hit_vectors(hit, field)] for hit in page]
        rows = [0, *itertools.accumulate(len(vectors) for vectors in own[:-1])]
        yield [hit["_id"] for hit in page], rows, np.stack([vector for vectors in own for vector in vectors])


def leftover_indices(engine: Engine) -> list[str]:
    """List existing temporary indices, left by a command that was killed or in use by one that is still running.

    Raises:
        EngineError: the engine failed.
    """
    return [state.name for state in engine.resolve_indices(f"{PREFIX}*")]


@contextmanager
def temporary_index(engine: Engine, body: Json, report: Callable[[str], None]) -> Iterator[str]:
    """Create an index under a new name, and delete it at the end, even after an error or an interrupt.

    Args:
        engine: The engine.
        body: Body of `PUT /index`.
        report: Called with a warning if the index cannot be deleted.

    Yields:
        The name of the index.

    Raises:
        EngineError: the engine failed.
    """
    name = f"{PREFIX}{uuid.uuid4().hex[:12]}"
    try:
        engine.create_index(name, body)
        yield name
    finally:
        # Even if the request failed, the engine may have created the index.
        try:
            engine.delete_index(name)
        except (EngineError, KeyboardInterrupt) as error:
            reason = error.message if isinstance(error, EngineError) else "interrupted"
            report(f"Warning: the temporary index {name} may still exist ({reason}). Delete it: `DELETE /{name}`")
            if isinstance(error, KeyboardInterrupt):
                raise


def fill_index(engine: Engine, name: str, documents: Iterable[Json]) -> None:
    """Write documents under the ids 0, 1, 2, …, and merge them into one segment; return when the graph is built.

    Args:
        engine: The engine.
        name: The index.
        documents: Documents that orjson can write, numpy arrays included.

    Raises:
        RequestFailed: the engine rejected a document.
        EngineError: the engine failed.
    """
    actions = (
        b'{"index":{"_id":"%d"}}\n%b\n' % (number, orjson.dumps(document, option=orjson.OPT_SERIALIZE_NUMPY))
        for number, document in enumerate(documents)
    )
    for group in slice_by_size(actions, len, _BULK_BYTES):
        for result in engine.bulk(name, b"".join(group), actions=len(group)):
            if not result.ok:
                raise result.error(engine.info.label, f"writing to the temporary index {name}")
    force_merge(engine, name)
    engine.refresh(name)


def force_merge(engine: Engine, name: str) -> None:
    """Merge every shard into one segment, and wait until the merge is done.

    Raises:
        EngineError: the engine failed; the merge may continue in the background.
    """
    engine.refresh(name)
    task = engine.start_force_merge(name)
    while not engine.is_task_done(task):
        time.sleep(_POLL_SECONDS)
