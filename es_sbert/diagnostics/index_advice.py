"""Measure recall, size and latency of an index and of several vector layouts on a sample of it, and recommend one.

A layout is a number of dimensions, an element type and an index type. Documents are sampled at random. For each layout,
a temporary index of one shard and one segment is built from their stored vectors, truncated to the first dimensions.
Recall is measured against the exact ranking by the whole vectors.

Memory and disk are calculated. Bytes per vector of D dimensions, in the files of Lucene and of Elasticsearch's formats:

| part | bytes | source |
|---|---|---|
| float32 vector | 4·D | Lucene99FlatVectorsFormat (`.vec`); kept by every type, for rescoring and merging |
| int8 | D + correction | Lucene99ScalarQuantizedVectorsFormat: 4; Lucene104's (Elasticsearch 9.4+): 16 |
| int4 | ⌈D/2⌉ + correction | the same formats |
| bbq | ⌈D/8⌉ + 14 | ES816BinaryQuantizedVectorsFormat: three floats and a short |
| graph | GRAPH_BYTES | at most 32 neighbors on the lowest layer (m = 16), delta-encoded |

Elasticsearch's guide "Tune approximate kNN search" gives the same numbers, except 4·m bytes for the graph, which is its
heap usage while it is built. For fast searches the file system cache must hold the data that a search reads: the graph
and the vectors it compares. The whole vectors of a quantized type are read only for rescoring.
"""

from __future__ import annotations

import itertools
import math
import shlex
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass

import numpy as np

from es_sbert.bundle.shortened_model import shortened_name, whole_name
from es_sbert.config import DEFAULT_VECTOR_FIELD
from es_sbert.diagnostics.confidence_interval import ConfidenceInterval, mean_confidence_interval
from es_sbert.diagnostics.recall import (
    PREFIX,
    K,
    RecallQueries,
    SearchMeasurement,
    VectorPage,
    document_cosines,
    exact_shares,
    fill_index,
    leftover_indices,
    measure_index,
    measure_searches,
    temporary_index,
)
from es_sbert.engines.engine import Engine
from es_sbert.engines.engine_info import EngineInfo, EngineType
from es_sbert.engines.rest import Json
from es_sbert.errors import IndexMismatch, UsageError
from es_sbert.index.document_sample import random_hits
from es_sbert.index.document_vectors import bulk_vector_value, chunk_values, hit_vectors, vector_request
from es_sbert.index.index_summary import count_vectors
from es_sbert.index.mapping import (
    BBQ_MIN_DIMENSIONS,
    IndexType,
    VectorFieldMeta,
    has_vector_query,
    index_body,
    supported_index_types,
    vector_path,
)
from es_sbert.index.privileges import ADVISE, SEARCH, require_privileges
from es_sbert.index.vector_field import VectorField, check_one_index_type
from es_sbert.messages import pluralize, setting, size_text
from es_sbert.settings import AdviceRequest
from es_sbert.vectors import Vectors

# Minimum number of documents: with fewer, the results are useless, because every search finds nearly all of them.
_MIN_DOCUMENTS = 200
_QUERIES = 300
_QUERY_SHARE = 5  # at most one of this many sampled documents is a query
_SHORTER_LENGTHS = (512, 256, 128, 64)
_VECTOR_PAGE = 250
# A search without a graph reads all vectors. If there are more than this, it is many times slower than with a graph.
MAX_FLAT_VECTORS = 50_000
# Saving of memory or disk, of one copy, below which a migration is not recommended: in bytes, and as a share.
_MIN_SAVED_BYTES = 100_000_000
_MIN_SAVED_SHARE = 0.1
# Minimum bytes of a node and its neighbors in a graph. An index without room for them has no graph.
_MIN_GRAPH_BYTES = 8
_FIELD = "vector"
# Bytes of a node's neighbors at the engines' default of m = 16, between those for random and for clustered vectors
# (docs/results.md).
GRAPH_BYTES = 48
# Mean characters of a vector's number as JSON text, comma included.
_CHARACTERS_PER_NUMBER = 11.5
_OPTIMIZED_FORMAT_SINCE = (9, 4, 0)


@dataclass(frozen=True)
class VectorIndexSize:
    """Size of one copy of all vectors in bytes.

    Attributes:
        vectors: Whole vectors, on disk.
        quantized: Quantized vectors, on disk; 0 if there are none.
        graph: The graph, on disk; 0 if there is none.
        source: The second copy of the vectors inside `_source`, on disk.
        memory: The part that should fit into the file system cache, outside the heap.
    """

    vectors: int
    quantized: int
    graph: int
    source: int
    memory: int

    @property
    def index(self) -> int:
        """Bytes on disk of the vector index, without `_source`."""
        return self.vectors + self.quantized + self.graph

    @property
    def disk(self) -> int:
        """Bytes on disk."""
        return self.index + self.source


def estimate_size(
    info: EngineInfo,
    index_type: IndexType,
    count: int,
    dimensions: int,
) -> VectorIndexSize:
    """Estimate the size of `count` vectors in one copy (replicas not counted), merged.

    Args:
        info: The engine. Engines and versions have different formats.
        index_type: Index type of the field.
        count: Number of vectors.
        dimensions: Dimensions of each vector.
    """
    vectors = count * 4 * dimensions
    quantized = count * _quantized_bytes(info, index_type, dimensions)
    graph = count * GRAPH_BYTES if index_type.endswith("hnsw") else 0
    source = round(count * _source_bytes(info, index_type, dimensions))
    memory = graph + (quantized or vectors)
    return VectorIndexSize(vectors, quantized, graph, source, memory)


def _quantized_bytes(info: EngineInfo, index_type: IndexType, dimensions: int) -> int:
    """Compute the bytes of one quantized vector."""
    is_optimized = info.engine_type is EngineType.ELASTICSEARCH and info.version >= _OPTIMIZED_FORMAT_SINCE
    correction = 16 if is_optimized else 4
    sizes = {
        "int8": dimensions + correction,
        "int4": math.ceil(dimensions / 2) + correction,
        "bbq": math.ceil(dimensions / 8) + 14,
    }
    return sizes.get(index_type.partition("_")[0], 0)


def _source_bytes(info: EngineInfo, index_type: IndexType, dimensions: int) -> float:
    """Estimate the bytes of one vector inside `_source`, as numbers in JSON text.

    Elasticsearch 9.2+ does not store vectors there, nor does OpenSearch 3 in an index with graphs (`index.knn`).
    """
    is_derived = info.derives_vectors_in_source and index_type is not IndexType.FLAT
    if info.excludes_vectors_from_source or is_derived:
        return 0.0
    return _CHARACTERS_PER_NUMBER * dimensions


def is_unsupported(index_type: IndexType, dimensions: int) -> bool:
    """Whether an index type does not support vectors of this length."""
    too_short = index_type.startswith("bbq") and dimensions < BBQ_MIN_DIMENSIONS
    is_odd = index_type.startswith("int4") and dimensions % 2 == 1
    return too_short or is_odd


@dataclass(frozen=True)
class VectorLayout:
    """A layout of stored vectors: length of a vector, and index type of the field."""

    dimensions: int
    index_type: IndexType

    @property
    def layout(self) -> VectorLayout:
        return VectorLayout(self.dimensions, self.index_type)

    def __str__(self) -> str:
        return f"{self.dimensions} dimensions, {self.index_type}"

    def size(self, info: EngineInfo, vectors: int) -> VectorIndexSize:
        """Estimate the size of one copy of this number of vectors."""
        return estimate_size(info, self.index_type, vectors, self.dimensions)


def layout_of(meta: VectorFieldMeta) -> VectorLayout:
    """The layout of a vector field."""
    return VectorLayout(meta.dimensions, IndexType(meta.index_type))


@dataclass(frozen=True)
class VectorSample:
    """Sampled documents of an index, and queries.

    Attributes:
        vectors: Vectors of all documents, one after another. *Shape:* ``(vectors, dimensions)``.
        starts: Row of each document's first vector.
        spans: Position of the first character of each vector's text, and of the one after the last.
        queries: Vectors to search for, not those of the sampled documents.
    """

    vectors: Vectors
    starts: Sequence[int]
    spans: Sequence[tuple[int, int]]
    queries: RecallQueries

    @property
    def page(self) -> VectorPage:
        """All documents, numbered from 0."""
        return [str(number) for number in range(len(self.starts))], self.starts, self.vectors

    def cut_queries(self, dimensions: int | None = None) -> RecallQueries:
        """The queries by their first values; none is one of the numbered documents."""
        return RecallQueries(self.queries.vectors[:, :dimensions], [None] * len(self.queries.own))

    def exact_recalls(self, dimensions: int) -> list[float]:
        """Compute the recall of exact search by vectors that are truncated to their first `dimensions` values."""
        cut = document_cosines(self.cut_queries(dimensions).vectors, self.vectors[:, :dimensions], self.starts)
        nearest = np.argpartition(-cut, K - 1, axis=1)[:, :K]  # (queries, K)
        return exact_shares(self.cut_queries(), [nearest.astype(str).tolist()], [self.page])[0]


@dataclass(frozen=True)
class LayoutMeasurement(VectorLayout):
    """The performance of a layout on the sample, and its size for the whole index.

    Attributes:
        recall: Mean recall@10 against exact search by whole float vectors, with its 95 % interval.
        median_ms, p95_ms: Milliseconds of a search as the client sees it, one at a time.
        lacks_graph: Whether the engine built no graph because the sample is small. The recall is then that of a flat
            index.
        memory_estimate, disk_estimate: Estimated bytes of one copy of all vectors of the index.
        command: Command that gives the index this layout; None for the layout that it already has.
    """

    recall: ConfidenceInterval
    median_ms: float
    p95_ms: float
    lacks_graph: bool
    memory_estimate: int
    disk_estimate: int
    command: str | None


@dataclass(frozen=True)
class IndexAdvice:
    """The quality of the index, all layouts, and the recommended one; the names are those of the JSON output.

    Attributes:
        index, field: The index and the field that were sampled.
        engine: Name and version of the engine, such as `Elasticsearch 9.4.3`.
        k: The number of nearest documents whose recall is measured.
        current: Layout of the index.
        vectors: Number of vectors in the whole index.
        sampled: Number of documents in the sample.
        queries: Number of queries.
        from_file: Whether the queries are texts of a file; otherwise they are documents of the index.
        min_recall: The recall to keep.
        searches: Searches of the whole index, the fewest candidates first; none if they are exact.
        recommended_num_candidates: The fewest candidates whose interval is not below `min_recall`; None for none.
        layouts: The measured layouts, the least memory first.
        recommended: The layout with the least memory whose interval is not below `min_recall`, or the current one if
            that saves too little; None if there is none.
    """

    index: str
    field: str
    engine: str
    k: int
    current: VectorLayout
    vectors: int
    sampled: int
    queries: int
    from_file: bool
    min_recall: float
    searches: Sequence[SearchMeasurement]
    recommended_num_candidates: int | None
    layouts: Sequence[LayoutMeasurement]
    recommended: LayoutMeasurement | None


def layouts_to_measure(info: EngineInfo, whole: int, vectors: int, request: AdviceRequest) -> list[VectorLayout]:
    """List the layouts of the requested lengths that the engine supports.

    Types without a graph are left out if the index has more than 50,000 vectors.

    Args:
        info: The engine.
        whole: Dimensions of the index.
        vectors: Number of vectors in the index.
        request: The measurement to make.

    Raises:
        UsageError: more dimensions than those of the index are requested.
    """
    too_long = [length for length in request.dimensions if length > whole]
    if too_long:
        problem = f"the vectors have {whole} dimensions, not {too_long[0]}"
        raise UsageError(problem, f"Use at most {whole}.").about("dimensions", too_long[0])
    lengths = request.dimensions or (whole, *(length for length in _SHORTER_LENGTHS if length < whole))
    types = [kind for kind in supported_index_types(info) if kind.endswith("hnsw") or vectors <= MAX_FLAT_VECTORS]
    return [
        VectorLayout(*combination)
        for combination in itertools.product(sorted(set(lengths), reverse=True), types)
        if not is_unsupported(combination[1], combination[0])
    ]


def read_sample(engine: Engine, field: VectorField, documents: int, queries: Vectors | None) -> VectorSample:
    """Read the vectors of random documents, and choose the query vectors.

    Args:
        documents: Maximum number of documents.
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
    held_out = 0 if queries is not None else min(_QUERIES, count // _QUERY_SHARE)
    wanted = min(documents + held_out, count, engine.result_window(field.index))
    request = vector_request(engine.info, [field])
    source = request.pop("_source")
    hits = random_hits(engine, field.index, has_vector, wanted, source=source, extra=request, page=_VECTOR_PAGE)
    found = {hit["_id"]: hit_vectors(hit, field) for hit in hits}  # of documents with the same id, one counts
    stored = list(found.values())
    if queries is None:
        # Use the first chunk of a document as the query.
        query_vectors = np.stack([vectors[0][2] for vectors in stored[:held_out]])
        asked = RecallQueries(query_vectors, list(found)[:held_out])
    else:
        asked = RecallQueries(queries, [None] * len(queries))
    sampled = stored[held_out:]
    starts = [0, *itertools.accumulate(len(vectors) for vectors in sampled[:-1])]
    spans = [(start, end) for vectors in sampled for start, end, _ in vectors]
    return VectorSample(np.stack([vector for vectors in sampled for _, _, vector in vectors]), starts, spans, asked)


def advise(
    engine: Engine,
    name: str,
    field: VectorField,
    request: AdviceRequest,
    queries: Vectors | None = None,
    *,
    report: Callable[[str], None] = lambda message: None,
) -> IndexAdvice:
    """Measure the index and all layouts, and recommend one. Only temporary indices are written, and deleted at the end.

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
        UsageError: more dimensions than those of the index are requested.
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
    sample = read_sample(engine, field, request.sample, queries)
    documents = len(sample.starts)
    asked = pluralize(len(sample.queries.own), "search", "searches")
    report(f"{asked} of {field.index} with each num_candidates, and one pass over its vectors")
    searches = measure_index(engine, field, sample.queries)
    for length in () if request.dimensions else dict.fromkeys(layout.dimensions for layout in layouts):
        shares = sample.exact_recalls(length)
        # Skip lengths whose exact search misses the recall: no index could do better.
        if mean_confidence_interval(shares).high < request.min_recall:
            layouts = [layout for layout in layouts if layout.dimensions != length]
            report(
                f"{length} dimensions are left out: even exact search by vectors truncated to them has a recall of "
                f"{np.mean(shares):.3f}. {setting('dimensions', length)} measures them anyway."
            )
    rows = []
    for number, layout in enumerate(layouts, 1):
        report(f"{number}/{len(layouts)} temporary indices of {pluralize(documents, 'document')}: {layout}")
        found, lacks_graph = _measure_layout(engine, meta, layout, sample, report)
        size, command = layout.size(info, total), change_command(name, field, layout)
        rows.append(
            LayoutMeasurement(
                layout.dimensions,
                layout.index_type,
                found.recall,
                found.median_ms,
                found.p95_ms,
                lacks_graph,
                size.memory,
                size.disk,
                command,
            )
        )
    rows.sort(key=lambda row: (row.memory_estimate, row.disk_estimate, -row.recall.mean))
    enough = [search.num_candidates for search in searches if search.recall.low >= request.min_recall]
    return IndexAdvice(
        index=field.index,
        field=field.name,
        engine=info.label,
        k=K,
        current=layout_of(meta),
        vectors=total,
        sampled=documents,
        queries=len(sample.queries.own),
        from_file=queries is not None,
        min_recall=request.min_recall,
        searches=searches,
        recommended_num_candidates=enough[0] if enough else None,
        layouts=rows,
        recommended=recommend_layout(rows, layout_of(meta), request.min_recall),
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
    sizes = ((now.memory_estimate, smallest.memory_estimate), (now.disk_estimate, smallest.disk_estimate))
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
    current = layout_of(field.meta)
    if layout == current:
        return None
    command = ["es-sbert", "index", "migrate", name]
    if layout.dimensions != current.dimensions:
        command += ["--model", shortened_name(whole_name(field.meta.model), layout.dimensions)]
    if layout.index_type != current.index_type:
        command += ["--index-type", str(layout.index_type)]
    if name == field.index:
        command.append("--replace-index")
    if field.name != DEFAULT_VECTOR_FIELD:
        command += ["--vector-field", field.name]
    return shlex.join(command)


def _measure_layout(
    engine: Engine,
    stored: VectorFieldMeta,
    layout: VectorLayout,
    sample: VectorSample,
    report: Callable[[str], None],
) -> tuple[SearchMeasurement, bool]:
    """Measure one layout in a temporary index; also returns whether it has no graph because the sample is small."""
    meta = stored.model_copy(update=asdict(layout))
    body = index_body(engine.info.engine_type, _FIELD, meta, shards=1, replicas=0)
    body["settings"]["index.refresh_interval"] = "-1"
    cut, whole = sample.cut_queries(layout.dimensions), sample.cut_queries()
    with temporary_index(engine, body, report) as name:
        fill_index(engine, name, _cut_documents(engine.info, meta, sample))
        temporary = VectorField(name, _FIELD, meta)
        [found] = measure_searches(engine, temporary, cut, [None], whole, [sample.page])
        size = engine.vector_size(name, vector_path(_FIELD, meta))
    estimate = layout.size(engine.info, len(sample.vectors))
    least = estimate.index - estimate.graph + _MIN_GRAPH_BYTES * len(sample.vectors)
    lacks_graph = size is not None and bool(estimate.graph) and size < least
    return found, lacks_graph


def _cut_documents(info: EngineInfo, meta: VectorFieldMeta, sample: VectorSample) -> Iterator[Json]:
    """Yield the sampled documents, with only their vectors, of unit length."""
    cut = sample.vectors[:, : meta.dimensions]
    stored = np.asarray(cut / np.linalg.norm(cut, axis=1, keepdims=True), np.float32)
    for begin, end in itertools.pairwise([*sample.starts, len(stored)]):
        if meta.passages is None:
            yield {_FIELD: bulk_vector_value(info, stored[begin])}
        else:
            yield {_FIELD: chunk_values(info, sample.spans[begin:end], stored[begin:end])}


_QUALITY_HEAD = f"{f'recall@{K}':>9}  {'95 % interval':>13}  {'median ms':>9}  {'p95 ms':>7}"


def _format_quality(row: SearchMeasurement | LayoutMeasurement) -> str:
    interval = f"{row.recall.low:.4f}–{row.recall.high:.4f}"
    return f"{row.recall.mean:>9.4f}  {interval:>13}  {row.median_ms:>9.1f}  {row.p95_ms:>7.1f}"


def advice_lines(advice: IndexAdvice) -> list[str]:
    """Format the report as lines of text."""
    what = "queries of the file" if advice.from_file else "of its documents as queries"
    vectors = pluralize(advice.vectors, "vector")
    lines = [f"{advice.index}.{advice.field} ({advice.engine}): {advice.current}, {vectors}"]
    if advice.searches:
        lines.append(f"Searches of the whole index, with {advice.queries:,} {what}:")
        lines.append(f"{'num_candidates':>14}  {_QUALITY_HEAD}")
        for search in advice.searches:
            mark = " ← recommended" if search.num_candidates == advice.recommended_num_candidates else ""
            lines.append(f"{search.num_candidates:>14}  {_format_quality(search)}{mark}")
        if advice.recommended_num_candidates is None:
            lines.append(
                f"None of these reaches a recall of {advice.min_recall:g} with 95 % confidence: use a more precise "
                "index type."
            )
    lines += [
        f"Layouts, measured on {pluralize(advice.sampled, 'document')} with the same queries; recall against exact "
        f"search by whole vectors; memory and disk calculated for all {vectors}, one copy:",
        f"{'dimensions':>10}  {'index type':10}  {_QUALITY_HEAD}  {'memory':>9}  {'disk':>9}",
    ]
    for row in advice.layouts:
        memory, disk = size_text(row.memory_estimate), size_text(row.disk_estimate)
        mark = " ← recommended" if row is advice.recommended else " (now)" if row.layout == advice.current else ""
        lines.append(f"{row.dimensions:>10}  {row.index_type:10}  {_format_quality(row)}  {memory:>9}  {disk:>9}{mark}")
    without_graph = sorted({str(row.index_type) for row in advice.layouts if row.lacks_graph})
    if without_graph:
        lines.append(
            f"{advice.engine} did not build a graph for so few vectors of {' and '.join(without_graph)}. Their recall "
            f"is that of flat types. Measure with a larger {setting('sample')}."
        )
    best, smallest = advice.recommended, smallest_layout(advice.layouts, advice.min_recall)
    if best is None or smallest is None:
        return [
            *lines,
            f"No layout keeps a recall of {advice.min_recall:g} with 95 % confidence. Use more queries, or a lower "
            f"{setting('min_recall')}.",
        ]
    qualified = f"Of the layouts whose recall lies above {advice.min_recall:g} with 95 % confidence"
    if best is not smallest:
        saved = size_text(best.memory_estimate - smallest.memory_estimate)
        lines.append(
            f"There is nothing to gain. {qualified}, {smallest} takes the least memory, {saved} less than now. "
            f"A change is recommended if it saves {size_text(_MIN_SAVED_BYTES)} and {_MIN_SAVED_SHARE:.0%} of memory "
            "or of disk."
        )
        return lines
    lines.append(f"Recommended: {best}. {qualified}, it takes the least memory.")
    lines.append(f"  {best.command}" if best.command else "The index has this layout already.")
    return lines
