"""Measure recall, size and latency of several vector layouts on a sample of an index, and recommend one.

A layout is a number of dimensions, an element type and an index type. Documents are sampled at random. For each layout,
a temporary index of one shard and one segment is built from their stored vectors, truncated to the first dimensions.
Recall is measured against the exact ranking by the whole vectors.
"""

from __future__ import annotations

import itertools
import math
import shlex
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass

import numpy as np

from es_sbert.bundle.shortened_model import shortened_name, whole_name
from es_sbert.confidence_interval import ConfidenceInterval, mean_confidence_interval
from es_sbert.config import DEFAULT_VECTOR_FIELD
from es_sbert.diagnostics.index_size import VectorIndexSize, count_vectors, estimate_size, is_unsupported
from es_sbert.diagnostics.recall import TIE_TOLERANCE, Doubles, document_cosines, random_vectors
from es_sbert.diagnostics.temporary_index import PREFIX, fill_index, leftover_indices, temporary_index
from es_sbert.engines.engine import Engine
from es_sbert.engines.engine_info import EngineInfo
from es_sbert.engines.rest import Json
from es_sbert.errors import IndexMismatch, UsageError
from es_sbert.index.document_vectors import bulk_vector_value, chunk_values
from es_sbert.index.mapping import (
    OVERSAMPLE,
    ElementType,
    IndexType,
    VectorFieldMeta,
    has_vector_query,
    index_body,
    parse_element_type,
    parse_index_type,
    supported_element_types,
    supported_index_types,
    vector_path,
)
from es_sbert.index.privileges import ADVISE, SEARCH, require_privileges
from es_sbert.index.vector_field import VectorField, check_one_index_type
from es_sbert.messages import pluralize, size_text
from es_sbert.search.search_scope import choose_method
from es_sbert.search.vector_query import VectorQuery, search_body
from es_sbert.vectors import Vectors

K = 10
# Minimum number of documents: with fewer, the results are useless, because every search finds nearly all of them.
_MIN_DOCUMENTS = 200
_QUERY_SHARE = 5  # at most one of this many sampled documents is a query
_SHORTER_LENGTHS = (512, 256, 128, 64)
# A search without a graph reads all vectors. If there are more than this, it is many times slower than with a graph.
FLAT_MOST_VECTORS = 50_000
# Saving of memory or disk, of one copy, below which a migration is not recommended: in bytes, and as a share.
_MIN_SAVED_BYTES = 100_000_000
_MIN_SAVED_SHARE = 0.1
# Minimum bytes of a node and its neighbors in a graph. An index without room for them has no graph.
_LEAST_GRAPH_BYTES = 8
_FIELD = "vector"


@dataclass(frozen=True, order=True)
class VectorLayout:
    """A layout of stored vectors.

    Attributes:
        dimensions: Length of a vector.
        element_type: Type of its numbers.
        index_type: Index type of the field.
    """

    dimensions: int
    element_type: ElementType
    index_type: IndexType

    def __str__(self) -> str:
        return f"{self.dimensions} dimensions, {self.element_type}, {self.index_type}"


@dataclass(frozen=True)
class VectorSample:
    """Sampled documents of an index, and queries.

    Attributes:
        vectors: Vectors of all documents, one after another. *Shape:* ``(vectors, dimensions)``.
        starts: Row of each document's first vector.
        spans: Position of the first character of each vector's text, and of the one after the last.
        queries: Vectors to search for, not those of the sampled documents. *Shape:* ``(queries, dimensions)``.
    """

    vectors: Vectors
    starts: Sequence[int]
    spans: Sequence[tuple[int, int]]
    queries: Vectors

    @property
    def documents(self) -> int:
        return len(self.starts)


@dataclass(frozen=True)
class LayoutMeasurement:
    """The performance of a layout on the sample, and its size for the whole index.

    Attributes:
        layout: The layout.
        recall: Mean recall@10 against exact search by whole float vectors, with its 95 % interval.
        median_ms, p95_ms: Milliseconds of a search as the client sees it, one at a time.
        sample_bytes: Bytes on disk of vectors and graph of the sample; None if the engine does not report them.
        estimate: Estimated size of one copy of all vectors of the index.
        sample_estimate: Estimated size of the sample's vectors.
        changes: Command that gives the index this layout; None for the layout that it already has.
    """

    layout: VectorLayout
    recall: ConfidenceInterval
    median_ms: float
    p95_ms: float
    sample_bytes: int | None
    estimate: VectorIndexSize
    sample_estimate: VectorIndexSize
    changes: str | None

    @property
    def lacks_graph(self) -> bool:
        """Whether the engine built no graph because the sample is small. The recall is then that of a flat index."""
        if self.sample_bytes is None or not self.sample_estimate.graph:
            return False
        without = self.sample_estimate.index - self.sample_estimate.graph
        nodes = self.sample_estimate.vectors // (self.layout.dimensions * self.layout.element_type.size)
        return self.sample_bytes < without + _LEAST_GRAPH_BYTES * nodes

    def as_json(self) -> Json:
        return {
            **asdict(self.layout),
            "recall": asdict(self.recall),
            "median_ms": self.median_ms,
            "p95_ms": self.p95_ms,
            "lacks_graph": self.lacks_graph,
            "memory_estimate": self.estimate.memory,
            "disk_estimate": self.estimate.disk,
            "command": self.changes,
        }


@dataclass(frozen=True)
class IndexAdvice:
    """All layouts, and the recommended one.

    Attributes:
        index, field: The index and the field that were sampled.
        engine: Name and version of the engine, such as `Elasticsearch 9.4.3`.
        current: Layout of the index.
        vectors: Number of vectors in the whole index.
        sampled: Number of documents in the sample.
        queries: Number of queries.
        from_file: Whether the queries are texts of a file; otherwise they are documents of the index.
        min_recall: The recall to keep.
        rows: The measured layouts, the least memory first.
        cut_recall: Dimensions → recall of exact search by truncated vectors in a quarter and in all of the sample.
        recommended: The layout with the least memory whose interval is not below `min_recall`, or the current one if
            that saves too little; None if there is none.
    """

    index: str
    field: str
    engine: str
    current: VectorLayout
    vectors: int
    sampled: int
    queries: int
    from_file: bool
    min_recall: float
    rows: tuple[LayoutMeasurement, ...]
    cut_recall: dict[int, tuple[float, float]]
    recommended: LayoutMeasurement | None

    @property
    def expected_recall(self) -> float | None:
        """Extrapolated recall of the recommended layout in the whole index; None without a recommendation.

        Assumes that every further quadrupling of the documents loses as much recall as that from a quarter of the
        sample to the whole sample.
        """
        if self.recommended is None:
            return None
        quarter, whole = self.cut_recall[self.recommended.layout.dimensions]
        growth = max(0.0, math.log(max(self.vectors, 1) / self.sampled, 4))
        return min(1.0, max(0.0, self.recommended.recall.mean + min(0.0, whole - quarter) * growth))

    def as_json(self) -> Json:
        best = self.recommended
        names = ("index", "field", "engine", "vectors", "sampled", "queries", "from_file", "min_recall")
        return {name: getattr(self, name) for name in names} | {
            "k": K,
            "current": asdict(self.current),
            "layouts": [row.as_json() for row in self.rows],
            "recommended": None if best is None else best.as_json(),
            "expected_recall": self.expected_recall,
        }


@dataclass(frozen=True)
class AdviceRequest:
    """The measurement to make.

    Attributes:
        sample: Number of documents.
        queries: Number of documents that serve as queries if there is no file of queries.
        seed: Seed of the random sample.
        min_recall: The recall@10 to keep.
        dimensions: Lengths of vectors; empty for the whole length and some shorter ones, without those whose exact
            search misses the recall.
        element_types, index_types: Names; empty for all types of the engine, without flat types if the index has more
            than 50,000 vectors.
    """

    sample: int = 5_000
    queries: int = 300
    seed: int = 0
    min_recall: float = 0.95
    dimensions: tuple[int, ...] = ()
    element_types: tuple[str, ...] = ()
    index_types: tuple[str, ...] = ()


def layouts_to_measure(info: EngineInfo, whole: int, vectors: int, request: AdviceRequest) -> list[VectorLayout]:
    """List all requested layouts that the engine supports.

    Args:
        info: The engine.
        whole: Dimensions of the index.
        vectors: Number of vectors in the index.
        request: The measurement to make.

    Raises:
        UsageError: more dimensions than those of the index are requested, or a type that the engine lacks.
    """
    too_long = [length for length in request.dimensions if length > whole]
    if too_long:
        raise UsageError(f"the vectors have {whole} dimensions, not {too_long[0]}", f"Use at most {whole}.")
    lengths = request.dimensions or (whole, *(length for length in _SHORTER_LENGTHS if length < whole))
    elements = [parse_element_type(name, info) for name in request.element_types] or supported_element_types(info)
    types = [parse_index_type(name, info, whole) for name in request.index_types] or [
        index_type
        for index_type in supported_index_types(info)
        if index_type.endswith("hnsw") or vectors <= FLAT_MOST_VECTORS
    ]
    layouts = [
        VectorLayout(*combination)
        for combination in itertools.product(sorted(set(lengths), reverse=True), elements, types)
        if not is_unsupported(combination[2], combination[0])
    ]
    if not layouts:
        raise UsageError(
            f"{info.label} supports none of these layouts: int4 requires an even number of dimensions, and bbq "
            "at least 64",
            "Leave out `dimensions` or `index_type`.",
        )
    return layouts


def read_sample(engine: Engine, field: VectorField, request: AdviceRequest, queries: Vectors | None) -> VectorSample:
    """Read the vectors of random documents, and choose the query vectors.

    Args:
        engine: The engine.
        field: The vector field.
        request: Sizes and seed of the sample.
        queries: Query vectors; None to use the vectors of further random documents. *Shape:* ``(queries, dimensions)``.

    Returns:
        The sample; no query is the vector of a sampled document, unless it was passed.

    Raises:
        IndexMismatch: the index holds too few documents with a vector.
        EngineError: the engine failed.
    """
    has_vector = has_vector_query(field.name, field.meta)
    count = engine.count(field.index, has_vector)
    if count < _MIN_DOCUMENTS:
        raise IndexMismatch(
            f"{field.index} has {pluralize(count, 'document')} with a vector, too few to compare layouts",
            f"Load at least {_MIN_DOCUMENTS:,} first; the vectors of fewer documents take very little memory.",
        )
    held_out = 0 if queries is not None else min(request.queries, count // _QUERY_SHARE)
    wanted = min(request.sample + held_out, count, engine.result_window(field.index))
    found = list(random_vectors(engine, field, wanted, request.seed).values())
    if queries is None:
        # Use the first chunk of a document as the query.
        queries = np.stack([stored[0][2] for stored in found[:held_out]])
    documents = found[held_out:]
    starts = [0, *itertools.accumulate(len(stored) for stored in documents[:-1])]
    spans = [(start, end) for stored in documents for start, end, _ in stored]
    return VectorSample(np.stack([vector for stored in documents for _, _, vector in stored]), starts, spans, queries)


def exact_cosines(sample: VectorSample, dimensions: int | None = None) -> Doubles:
    """Compute the cosine of each query with each document by the first `dimensions` values; None uses all values.

    Returns:
        *Shape:* ``(queries, documents)``.
    """
    return document_cosines(sample.queries[:, :dimensions], sample.vectors[:, :dimensions], sample.starts)


def query_recalls(cosines: Doubles, found: Sequence[Sequence[int]], k: int = K) -> list[float]:
    """Compute the share of each query's k nearest documents that were found. Tied documents count equally.

    Args:
        cosines: Exact cosines of whole vectors. *Shape:* ``(queries, documents)``.
        found: For each query, the columns of the documents that were found.
    """
    k = min(k, cosines.shape[1])
    nearest = np.partition(cosines, -k, axis=1)[:, -k] - TIE_TOLERANCE
    return [
        min(k, int((row[list(columns)] >= least).sum())) / k
        for row, columns, least in zip(cosines, found, nearest, strict=True)
    ]


def exact_recalls(whole: Doubles, cut: Doubles, documents: int | None = None) -> list[float]:
    """Compute the recall of exact search by truncated vectors for each query.

    Args:
        whole, cut: Cosines of whole and of truncated vectors. *Shape:* ``(queries, documents)``.
        documents: Search only this number of documents, the first ones; None searches all.
    """
    whole, cut = whole[:, :documents], cut[:, :documents]
    k = min(K, whole.shape[1])
    return query_recalls(whole, np.argpartition(-cut, k - 1, axis=1)[:, :k].tolist())


def advise(
    engine: Engine,
    name: str,
    field: VectorField,
    request: AdviceRequest,
    queries: Vectors | None = None,
    *,
    report: Callable[[str], None] = lambda message: None,
) -> IndexAdvice:
    """Measure all layouts and recommend one. Only temporary indices are written, and they are deleted at the end.

    Args:
        engine: The engine.
        name: Index or alias as the user gave it, for commands.
        field: The vector field.
        request: The measurement to make.
        queries: Vectors of texts to search for; None searches for documents of the index. *Shape:* ``(queries,
            dimensions)``.
        report: Called with progress messages.

    Raises:
        AccessDenied: the user may not create temporary indices.
        IndexMismatch: the index has too few vectors, or its index type was changed in place.
        UsageError: the engine supports none of the layouts, or lacks a requested type.
        EngineError: the engine failed.
    """
    info, meta = engine.info, field.meta
    require_privileges(engine, field.index, SEARCH)
    require_privileges(engine, f"{PREFIX}*", ADVISE)
    for leftover in leftover_indices(engine):
        report(f"{leftover} is a temporary index of another run. If that has ended, delete it: `DELETE /{leftover}`")
    check_one_index_type(engine, field)
    engine.refresh_if_allowed(field.index)
    total = count_vectors(engine, field.index, field)
    layouts = layouts_to_measure(info, meta.dimensions, total, request)
    sample = read_sample(engine, field, request, queries)
    whole = exact_cosines(sample)
    cut_recall: dict[int, tuple[float, float]] = {}
    for length in dict.fromkeys(layout.dimensions for layout in layouts):
        cut = exact_cosines(sample, length)
        shares, quarter = exact_recalls(whole, cut), exact_recalls(whole, cut, sample.documents // 4)
        cut_recall[length] = float(np.mean(quarter)), float(np.mean(shares))
        # Unless `dimensions` is given, skip lengths whose exact search misses the recall: no index could do better.
        if not request.dimensions and mean_confidence_interval(shares, K).high < request.min_recall:
            layouts = [layout for layout in layouts if layout.dimensions != length]
            report(
                f"{length} dimensions are left out: even exact search by vectors truncated to them has a recall of "
                f"{np.mean(shares):.3f}. `dimensions={length}` measures them anyway."
            )
    largest = max((_sizes(info, layout, len(sample.vectors)).disk for layout in layouts), default=0)
    report(
        f"{pluralize(sample.documents, 'document')} with {len(sample.vectors):,} of "
        f"{pluralize(total, 'vector')}, {len(sample.queries):,} "
        f"queries: {pluralize(len(layouts), 'temporary index', 'temporary indices')}, one at a time, of up to "
        f"{size_text(largest)}"
    )
    current = VectorLayout(meta.dimensions, meta.element_type, IndexType(meta.index_type))

    rows = []
    for number, layout in enumerate(layouts, 1):
        report(f"{number}/{len(layouts)}: {layout}")
        sizes = _sizes(info, layout, total), _sizes(info, layout, len(sample.vectors))
        measured = _measure_layout(engine, meta, layout, sample, whole, report)
        rows.append(LayoutMeasurement(layout, *measured, *sizes, change_command(name, field, layout)))
    rows.sort(key=lambda row: (row.estimate.memory, row.estimate.disk, -row.recall.mean))
    return IndexAdvice(
        field.index,
        field.name,
        info.label,
        current,
        total,
        sample.documents,
        len(sample.queries),
        queries is not None,
        request.min_recall,
        tuple(rows),
        cut_recall,
        recommend_layout(rows, current, request.min_recall),
    )


def recommend_layout(
    rows: Sequence[LayoutMeasurement], current: VectorLayout, min_recall: float
) -> LayoutMeasurement | None:
    """Choose the smallest layout whose interval is not below the recall, or the current one if that saves too little.

    Args:
        rows: The measurements, in the order of memory and disk.
        current: Layout of the index.
        min_recall: The recall to keep.
    """
    smallest = smallest_layout(rows, min_recall)
    now = next((row for row in rows if row.layout == current), None)
    if smallest is None or now is None or now.recall.low < min_recall:
        return smallest
    sizes = ((now.estimate.memory, smallest.estimate.memory), (now.estimate.disk, smallest.estimate.disk))
    is_worth_it = any(old - new >= max(_MIN_SAVED_BYTES, _MIN_SAVED_SHARE * old) for old, new in sizes)
    return smallest if is_worth_it else now


def smallest_layout(rows: Sequence[LayoutMeasurement], min_recall: float) -> LayoutMeasurement | None:
    """Find the first layout whose interval is not below the recall; None without one."""
    return next((row for row in rows if row.recall.low >= min_recall), None)


def change_command(name: str, field: VectorField, layout: VectorLayout) -> str | None:
    """Return the command that changes an index to this layout; None if the index has it already.

    Args:
        name: Index or alias as the user gave it.
        field: The vector field.
        layout: The layout.
    """
    meta = field.meta
    current = VectorLayout(meta.dimensions, meta.element_type, IndexType(meta.index_type))
    if layout == current:
        return None
    command = ["es-sbert", "index", "migrate", name]
    if layout.dimensions != current.dimensions:
        command += ["--model", shortened_name(whole_name(meta.model), layout.dimensions)]
    if layout.index_type != current.index_type:
        command += ["--index-type", str(layout.index_type)]
    if layout.element_type != current.element_type:
        command += ["--element-type", str(layout.element_type)]
    if name == field.index:
        command.append("--replace-index")
    if field.name != DEFAULT_VECTOR_FIELD:
        command += ["--vector-field", field.name]
    return shlex.join(command)


def _sizes(info: EngineInfo, layout: VectorLayout, count: int) -> VectorIndexSize:
    return estimate_size(info, layout.index_type, count, layout.dimensions, element_type=layout.element_type)


def _measure_layout(
    engine: Engine,
    stored: VectorFieldMeta,
    layout: VectorLayout,
    sample: VectorSample,
    whole: Doubles,
    report: Callable[[str], None],
) -> tuple[ConfidenceInterval, float, float, int | None]:
    """Measure recall, median and 95th percentile of the latency, and size of one layout in a temporary index."""
    meta = VectorFieldMeta(
        fingerprint=stored.fingerprint,
        model=stored.model,
        dimensions=layout.dimensions,
        element_type=layout.element_type,
        index_type=layout.index_type,
        passages=stored.passages,
    )
    body = index_body(engine.info.engine_type, _FIELD, meta, shards=1, replicas=0)
    body["settings"]["index.refresh_interval"] = "-1"
    with temporary_index(engine, body, report) as name:
        fill_index(engine, name, _cut_documents(engine.info, meta, sample))
        found, seconds = _search(engine, name, meta, sample.queries[:, : layout.dimensions])
        size = engine.vector_size(name, vector_path(_FIELD, meta))
    median, p95 = (1000 * np.percentile(seconds, [50, 95])).tolist()
    recall = mean_confidence_interval(query_recalls(whole, found), K)
    return recall, median, p95, size


def _cut_documents(info: EngineInfo, meta: VectorFieldMeta, sample: VectorSample) -> Iterator[Json]:
    """Yield the sampled documents, with only their vectors, of unit length."""
    cut = sample.vectors[:, : meta.dimensions]
    stored = np.asarray(cut / np.linalg.norm(cut, axis=1, keepdims=True), np.float32)
    for begin, end in itertools.pairwise([*sample.starts, len(stored)]):
        if meta.passages is None:
            yield {_FIELD: bulk_vector_value(info, stored[begin])}
        else:
            yield {_FIELD: chunk_values(info, sample.spans[begin:end], stored[begin:end])}


def _search(engine: Engine, name: str, meta: VectorFieldMeta, queries: Vectors) -> tuple[list[list[int]], list[float]]:
    """Search for all queries, one at a time, as `es-sbert search` does.

    Returns:
        The document numbers of each query's hits, and the seconds of each search.
    """
    engine_type = engine.info.engine_type
    method = choose_method(engine_type, meta, exact=False)
    oversample = OVERSAMPLE.get(IndexType(meta.index_type))
    options: Json = {"oversample": oversample, "passages": meta.passages is not None}
    bodies = [
        search_body(engine_type, method, VectorQuery(_FIELD, query, K, **options)) | {"_source": False}
        for query in queries
    ]
    for body in bodies[:20]:  # the first searches read the index from disk
        engine.search(name, body)
    found: list[list[int]] = []
    seconds: list[float] = []
    for body in bodies:
        begin = time.perf_counter()
        hits = engine.search(name, body)["hits"]["hits"]
        seconds.append(time.perf_counter() - begin)
        found.append([int(hit["_id"]) for hit in hits])
    return found, seconds


def advice_lines(advice: IndexAdvice) -> list[str]:
    """Format the report as lines of text."""
    what = "queries of the file" if advice.from_file else "of its documents as queries"
    lines = [
        f"{advice.index}.{advice.field} ({advice.engine}): {advice.current}, {pluralize(advice.vectors, 'vector')}",
        f"measured on {pluralize(advice.sampled, 'document')} with {advice.queries:,} {what}; recall@{K} "
        "against exact search by "
        f"whole vectors; memory and disk calculated for all {pluralize(advice.vectors, 'vector')}, one copy",
        f"{'dimensions':>10}  {'element':8}  {'index type':10}  {f'recall@{K}':>9}  {'95 % interval':>13}  "
        f"{'median ms':>9}  {'p95 ms':>7}  {'memory':>9}  {'disk':>9}",
    ]
    current = next((row for row in advice.rows if row.layout == advice.current), None)
    for row in advice.rows:
        layout, recall = row.layout, row.recall
        memory, disk = size_text(row.estimate.memory), size_text(row.estimate.disk)
        mark = " ← recommended" if row is advice.recommended else " (now)" if row is current else ""
        lines.append(
            f"{layout.dimensions:>10}  {layout.element_type:8}  {layout.index_type:10}  {recall.mean:>9.4f}  "
            f"{f'{recall.low:.4f}–{recall.high:.4f}':>13}  {row.median_ms:>9.1f}  {row.p95_ms:>7.1f}  {memory:>9}  "
            f"{disk:>9}{mark}"
        )
    without_graph = sorted({str(row.layout.index_type) for row in advice.rows if row.lacks_graph})
    if without_graph:
        lines.append(
            f"{advice.engine} did not build a graph for so few vectors of {' and '.join(without_graph)}. Their recall "
            "is that of flat types. Measure with a larger `sample`."
        )
    return lines + _recommendation_lines(advice)


def _recommendation_lines(advice: IndexAdvice) -> list[str]:
    best, expected = advice.recommended, advice.expected_recall
    if best is None or expected is None:
        return [
            f"No layout keeps a recall of {advice.min_recall:g} with 95 % confidence. Use more queries, or a lower "
            "`min_recall`."
        ]
    smallest = smallest_layout(advice.rows, advice.min_recall) or best
    qualified = f"Of the layouts whose recall lies above {advice.min_recall:g} with 95 % confidence"
    if best is smallest:
        lines = [f"Recommended: {best.layout}. {qualified}, it takes the least memory."]
    else:
        saved = size_text(best.estimate.memory - smallest.estimate.memory)
        lines = [
            f"There is nothing to gain. {qualified}, {smallest.layout} takes the least memory, {saved} less than now. "
            f"A change is recommended if it saves {size_text(_MIN_SAVED_BYTES)} and {_MIN_SAVED_SHARE:.0%} of memory "
            "or of disk."
        ]
    if best.layout.dimensions != advice.current.dimensions and advice.vectors > advice.sampled:
        low = (
            " That is below the minimum: measure again with a larger `sample`." if expected < advice.min_recall else ""
        )
        lines.append(
            f"Extrapolated to {pluralize(advice.vectors, 'vector')}, its recall is about {expected:.3f}, "
            "because truncated vectors confuse more documents in a "
            f"larger index.{low}"
        )
    if best.changes:
        lines.append(f"  {best.changes}")
    elif best is smallest:
        lines.append("The index has this layout already.")
    return lines
