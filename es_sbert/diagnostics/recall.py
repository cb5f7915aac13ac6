"""Measure recall@k of approximate against exact search, for several values of num_candidates and oversample.

The exact neighbors of all queries come from one pass over the vectors of the index. The pass works on every engine,
without scripting and in bounded memory.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from es_sbert.confidence_interval import ConfidenceInterval, mean_confidence_interval
from es_sbert.engines.engine import Engine
from es_sbert.engines.engine_info import EngineType
from es_sbert.engines.index_scan import scan_index
from es_sbert.engines.rest import Json
from es_sbert.errors import IndexMismatch, SourceError, UsageError
from es_sbert.index.document_sample import random_hits
from es_sbert.index.mapping import OVERSAMPLE, IndexType, has_vector_query
from es_sbert.index.vector_field import VectorField, check_one_index_type
from es_sbert.index.vector_reading import hit_vectors, vector_request
from es_sbert.messages import pluralize
from es_sbert.search.vector_query import MAX_K, MAX_OVERSAMPLE, SearchMethod, VectorQuery, search_body
from es_sbert.vectors import Vectors

Doubles = NDArray[np.float64]

# Cosines that differ by less than this are ties, because engines store normalized float32 vectors.
TIE_TOLERANCE = 1e-6


@dataclass(frozen=True)
class ExactNeighbors:
    """The result of an exact search for some queries.

    Attributes:
        kth_cosine: Cosine of each query's k-th neighbor (or of its last, if there are fewer), float64. *Shape:*
            ``(queries,)``.
        found: Number of neighbors of each query, at most k.
        cosines: For each query, the exact cosine of every requested document.
        documents: Number of documents that were compared.
    """

    kth_cosine: Doubles
    found: Sequence[int]
    cosines: Sequence[dict[str, float]]
    documents: int

    def hits(self, query: int, ids: Iterable[str]) -> int:
        """Count the documents that are among a query's k nearest. Tied documents count equally."""
        nearest = float(self.kth_cosine[query]) - TIE_TOLERANCE
        cosines = self.cosines[query]
        right = sum(cosines.get(document_id, -2.0) >= nearest for document_id in ids)
        return min(right, self.found[query])


def find_exact_neighbors(
    queries: Vectors,
    own: Sequence[str | None],
    wanted: Sequence[set[str]],
    k: int,
    pages: Iterable[tuple[Sequence[str], Sequence[int], Vectors]],
) -> ExactNeighbors:
    """Compare every vector of the pages with every query.

    Args:
        queries: Vectors of the queries. *Shape:* ``(queries, dimensions)``.
        own: Id of the document that each query was made from, which does not count as a neighbor; None for texts.
        wanted: For each query, the documents whose exact cosine to keep.
        k: Number of neighbors.
        pages: Ids of documents, the first row of each, and their vectors, ``(vectors, dimensions)``. The nearest
            vector of a document counts.
    """
    best = np.full((len(queries), k), -np.inf)  # (queries, k) cosines, in no order
    cosines: list[dict[str, float]] = [{} for _ in wanted]
    documents = 0
    for ids, rows, vectors in pages:
        documents += len(ids)
        page = document_cosines(queries, vectors, rows)  # (queries, documents)
        place = {document_id: row for row, document_id in enumerate(ids)}
        for number, document_id in enumerate(own):
            if document_id in place:
                page[number, place[document_id]] = -np.inf
        for number, some in enumerate(wanted):
            for document_id in some & place.keys():
                cosines[number][document_id] = float(page[number, place[document_id]])
        both = np.concatenate([best, page], axis=1)  # (queries, k + documents)
        best = np.partition(both, both.shape[1] - k, axis=1)[:, -k:]
    counted = np.isfinite(best)
    kth = np.where(counted, best, np.inf).min(axis=1)
    return ExactNeighbors(kth, [int(count) for count in counted.sum(axis=1)], cosines, documents)


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


DEFAULT_CANDIDATES = (10, 20, 50, 100, 200, 500, 1000)
DEFAULT_OVERSAMPLES = (1.0, 1.5, 2.0, 3.0, 5.0)
_PAGE = 500
_VECTOR_PAGE = 250


@dataclass(frozen=True)
class RecallQueries:
    """The queries of a measurement.

    Attributes:
        vectors: *Shape:* ``(queries, dimensions)``.
        own: Id of the document that each query was made from, or None for a text.
    """

    vectors: Vectors
    own: Sequence[str | None]


@dataclass(frozen=True)
class SearchSetting:
    """The parameters of a search.

    Attributes:
        num_candidates: Number of vectors that each shard considers.
        oversample: Multiple of k that is rescored with float32 vectors; None if vectors are not quantized.
    """

    num_candidates: int
    oversample: float | None

    def effort(self, k: int) -> float:
        """Number of vectors that are considered or rescored; settings are ordered by it."""
        return self.num_candidates + k * (self.oversample or 0.0)


@dataclass(frozen=True)
class RecallMeasurement:
    """The recall and the latency of a setting.

    Attributes:
        setting: The setting.
        recall: Mean recall@k with its interval.
        median_ms, p95_ms: Milliseconds of a search as the client sees it, one at a time.
    """

    setting: SearchSetting
    recall: ConfidenceInterval
    median_ms: float
    p95_ms: float


@dataclass(frozen=True)
class RecallReport:
    """All settings, and the recommended one.

    Attributes:
        index, field, index_type: The index and the field that were searched, and the type of the field.
        k: Number of neighbors.
        queries: Number of queries.
        documents: Number of documents with a vector.
        target: The recall to reach.
        rows: The measurements in the order of effort.
        recommended: The setting with the least effort whose interval is not below the target; None if there is none.
    """

    index: str
    field: str
    index_type: str
    k: int
    queries: int
    documents: int
    target: float
    rows: tuple[RecallMeasurement, ...]
    recommended: SearchSetting | None

    def as_json(self) -> Json:
        return asdict(self)


def recall_settings(
    index_type: IndexType, k: int, candidates: Sequence[int], oversamples: Sequence[float]
) -> list[SearchSetting]:
    """List the settings to measure, least effort first. Empty sequences mean the default values.

    Raises:
        UsageError: the index type is not quantized but `oversamples` is given, or a value is out of range.
    """
    if index_type not in OVERSAMPLE and oversamples:
        raise UsageError(
            f"{index_type} compares float32 vectors, so there is nothing to oversample", "Leave `oversample` out."
        )
    if any(value < k or value > MAX_K for value in candidates):
        raise UsageError(f"`num_candidates` must be between k ({k}) and {MAX_K:,}", "Use values in this range.")
    if any(not 1.0 <= value <= MAX_OVERSAMPLE for value in oversamples):
        raise UsageError(f"`oversample` must be between 1 and {MAX_OVERSAMPLE:g}", "Use other values.")
    # Raise smaller numbers of candidates: the graph is searched for k times oversample vectors and needs as many.
    usual = [max(k, value) for value in DEFAULT_CANDIDATES if max(k, value) <= MAX_K]
    factors: Sequence[float | None] = (oversamples or DEFAULT_OVERSAMPLES) if index_type in OVERSAMPLE else (None,)
    found = {
        SearchSetting(max(count, min(MAX_K, round(k * (factor or 1.0)))), factor)
        for count in (candidates or usual)
        for factor in factors
    }
    return sorted(found, key=lambda setting: (setting.effort(k), setting.oversample or 0.0))


def read_queries(path: Path) -> list[str]:
    """Read queries from a UTF-8 file with one query per line. Empty lines are skipped.

    Raises:
        SourceError: the file cannot be read, is not text, or holds no queries.
    """
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except OSError as error:
        raise SourceError(f"{path} cannot be read: {error.strerror}", "Check the path and its permissions.") from error
    except UnicodeDecodeError as error:
        raise SourceError(f"{path} is not UTF-8 text", "Write one query per line, in UTF-8.") from error
    queries = [line.strip() for line in lines if line.strip()]
    if not queries:
        raise SourceError(f"{path} holds no queries", "Write one query per line.")
    return queries


def sample_queries(engine: Engine, field: VectorField, count: int, seed: int) -> RecallQueries:
    """Use the vectors of random documents as queries.

    Raises:
        IndexMismatch: no document has a vector.
        EngineError: the engine failed.
    """
    # Use the first chunk of a document as the query.
    vectors = {key: stored[0][2] for key, stored in random_vectors(engine, field, count, seed).items()}
    if not vectors:
        remedy = "Embed its documents first: `es-sbert ingest`."
        raise IndexMismatch(f"no document of {field.index} has a vector in {field.name}", remedy)
    return RecallQueries(np.stack(list(vectors.values())), list(vectors))


def random_vectors(
    engine: Engine, field: VectorField, count: int, seed: int
) -> dict[str, list[tuple[int, int, Vectors]]]:
    """Read the stored vectors of random documents; see `hit_vectors`. Of documents with the same id, one counts.

    Args:
        count: Maximum number of documents; no more than the index's `index.max_result_window`.

    Raises:
        IndexMismatch: the engine does not return a vector.
        EngineError: the engine failed.
    """
    request = vector_request(engine.info, [field])
    source = request.pop("_source")
    has_vector = has_vector_query(field.name, field.meta)
    hits = random_hits(engine, field.index, has_vector, count, seed, source=source, extra=request, page=_VECTOR_PAGE)
    return {hit["_id"]: hit_vectors(hit, field) for hit in hits}


def measure_recall(
    engine: Engine,
    field: VectorField,
    queries: RecallQueries,
    settings: Sequence[SearchSetting],
    *,
    k: int,
    target: float,
    report: Callable[[str], None] = lambda message: None,
) -> RecallReport:
    """Search with every setting, then compare with exact search. The index should not be written to at the same time.

    Raises:
        IndexMismatch: searches of the index type are exact already, the type was changed in place, or the index holds
            too few documents.
        EngineError: the engine failed.
    """
    index_type = IndexType(field.meta.index_type)
    if index_type is IndexType.FLAT:
        raise IndexMismatch(
            f"{field.index}.{field.name} is of type flat, whose search is exact already", "There is nothing to measure."
        )
    check_one_index_type(engine, field)
    engine.refresh(field.index)
    report(f"{pluralize(len(queries.vectors), 'query', 'queries')} with each of {pluralize(len(settings), 'setting')}")
    _search_all(engine, field, queries, settings[0], k)  # the first search reads the index from disk
    answers = [_search_all(engine, field, queries, setting, k) for setting in settings]
    report("exact search: one pass over all vectors")
    wanted = [set(itertools.chain(*found)) for found in zip(*(ids for ids, _ in answers), strict=True)]
    exact = find_exact_neighbors(queries.vectors, queries.own, wanted, k, _read_vector_pages(engine, field))
    rows = []
    for setting, (found, seconds) in zip(settings, answers, strict=True):
        shares = [
            exact.hits(number, ids) / exact.found[number] for number, ids in enumerate(found) if exact.found[number]
        ]
        if not shares:
            raise IndexMismatch(f"{field.index} holds no other document to find", "Measure on a larger index.")
        median, p95 = (1000 * np.percentile(seconds, [50, 95])).tolist()
        rows.append(RecallMeasurement(setting, mean_confidence_interval(shares, k), median, p95))
    recommended = recommend_setting(rows, target)
    count, documents = len(queries.own), exact.documents
    return RecallReport(field.index, field.name, str(index_type), k, count, documents, target, tuple(rows), recommended)


def recommend_setting(rows: Sequence[RecallMeasurement], target: float) -> SearchSetting | None:
    """Choose the setting of the first row whose interval is not below the target; None if there is none."""
    return next((row.setting for row in rows if row.recall.low >= target), None)


def _search_all(
    engine: Engine, field: VectorField, queries: RecallQueries, setting: SearchSetting, k: int
) -> tuple[list[list[str]], list[float]]:
    """Search for all queries with one setting, one at a time.

    Returns:
        The ids of each query's hits, without the document that the query was made from, and the seconds of each search.
    """
    found: list[list[str]] = []
    seconds: list[float] = []
    for vector, own in zip(queries.vectors, queries.own, strict=True):
        # A document finds itself first, so ask for one hit more.
        count = k + (own is not None)
        query = VectorQuery(
            field.name,
            vector,
            count,
            num_candidates=max(count, setting.num_candidates),
            oversample=setting.oversample,
            passages=field.meta.passages is not None,
        )
        body = search_body(engine.info.engine_type, SearchMethod.KNN, query) | {"_source": False}
        begin = time.perf_counter()
        hits = engine.search(field.index, body)["hits"]["hits"]
        seconds.append(time.perf_counter() - begin)
        found.append([hit["_id"] for hit in hits if hit["_id"] != own][:k])
    return found, seconds


def _read_vector_pages(engine: Engine, field: VectorField) -> Iterator[tuple[list[str], list[int], Vectors]]:
    """Read pages with the ids, first rows and vectors of all documents that have a vector."""
    query = has_vector_query(field.name, field.meta)
    extra = vector_request(engine.info, [field])
    for _, page, _ in scan_index(engine, field.index, query=query, source_includes=(), page=_PAGE, extra=extra):
        own = [[vector for _, _, vector in hit_vectors(hit, field)] for hit in page]
        rows = [0, *itertools.accumulate(len(vectors) for vectors in own[:-1])]
        yield [hit["_id"] for hit in page], rows, np.stack([vector for vectors in own for vector in vectors])


def recall_lines(report: RecallReport, engine_type: EngineType) -> list[str]:
    """Format a table of all settings and the recommendation as lines."""
    quantized = report.rows[0].setting.oversample is not None
    name = "ef_search" if engine_type is EngineType.OPENSEARCH else "num_candidates"
    head = f"{name:>14}" + (f"{'oversample':>12}" if quantized else "")
    shown = [
        f"{report.index}.{report.field}: {report.index_type}, {pluralize(report.documents, 'document')}, "
        f"{pluralize(report.queries, 'query', 'queries')}",
        f"{head}{f'recall@{report.k}':>12}{'95 % interval':>18}{'median ms':>11}{'p95 ms':>9}",
    ]
    for row in report.rows:
        oversample = f"{row.setting.oversample:>12g}" if quantized else ""
        interval = f"{row.recall.low:.4f}–{row.recall.high:.4f}"
        shown.append(
            f"{row.setting.num_candidates:>14}{oversample}{row.recall.mean:>12.4f}{interval:>18}"
            f"{row.median_ms:>11.1f}{row.p95_ms:>9.1f}"
        )
    if report.recommended is None:
        best = max(report.rows, key=lambda row: row.recall.mean)
        shown.append(
            f"No setting reaches {report.target:g} with 95 % confidence; the best is {best.recall.mean:.4f}. Use a "
            "larger `sample` for narrower intervals, higher values, or a more precise index type."
        )
    else:
        with_oversample = f" and oversample {report.recommended.oversample:g}" if quantized else ""
        shown.append(
            f"Recommended for {report.target:g}: num_candidates {report.recommended.num_candidates}{with_oversample}"
        )
    return shown
