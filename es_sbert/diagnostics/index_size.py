"""Estimate memory and disk of a vector field for every index type, and measure the size of an index.

Bytes per vector of D dimensions, in the files of Lucene and of Elasticsearch's own formats:

| part | bytes | source |
|---|---|---|
| float32 vector | 4·D | Lucene99FlatVectorsFormat (`.vec`); kept by every type, for rescoring and merging |
| bfloat16 vector | 2·D | ES93GenericFlatVectorsFormat, used instead with `element_type: bfloat16` |
| byte vector | D | Lucene99FlatVectorsFormat, with `element_type: byte` |
| int8 | D + correction | Lucene99ScalarQuantizedVectorsFormat: 4; Lucene104's (Elasticsearch 9.4+): 16 |
| int4 | ⌈D/2⌉ + correction | the same formats |
| bbq | ⌈D/8⌉ + 14 | ES816BinaryQuantizedVectorsFormat: three floats and a short |
| graph | GRAPH_BYTES·m/16 | at most 2·m neighbors on the lowest layer, delta-encoded |

Elasticsearch's guide "Tune approximate kNN search" gives the same numbers, except 4·m bytes for the graph, which is its
heap usage while it is built. For fast searches the file system cache must hold the data that a search reads: the graph
and the vectors it compares. The whole vectors of a quantized type are read only for rescoring.
"""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass

from es_sbert.engines.engine import Engine
from es_sbert.engines.engine_info import EngineInfo, EngineType
from es_sbert.engines.rest import Json
from es_sbert.errors import UsageError
from es_sbert.index.earlier_segments import IndexTypeShare, read_index_type_share
from es_sbert.index.index_summary import count_chunks
from es_sbert.index.mapping import (
    BBQ_MIN_DIMENSIONS,
    ElementType,
    IndexType,
    and_query,
    has_vector_query,
    is_element_type_of,
    parse_element_type,
    supported_index_types,
    vector_path,
)
from es_sbert.index.vector_field import VectorField, read_vector_field, require_index
from es_sbert.messages import pluralize, size_text

DEFAULT_M = 16  # neighbors of a node, the engines' default
# Bytes of a node's neighbors at m = 16, between those for random and for clustered vectors (docs/results.md).
GRAPH_BYTES = 48
# Mean characters of a vector's number as JSON text, comma included. Bytes have a sign or not, and one or two digits.
_CHARACTERS_PER_NUMBER = {ElementType.FLOAT: 11.5, ElementType.BFLOAT16: 11.5, ElementType.BYTE: 3.4}
_OPTIMIZED_FORMAT_SINCE = (9, 4, 0)


@dataclass(frozen=True)
class VectorIndexSize:
    """Size of one copy of all vectors in bytes.

    Attributes:
        index_type: Index type of the field.
        element_type: Element type of the whole vectors.
        vectors: Whole vectors (float32, bfloat16 or bytes), on disk.
        quantized: Quantized vectors, on disk; 0 if there are none.
        graph: The graph, on disk; 0 if there is none.
        source: The second copy of the vectors inside `_source`, on disk.
        memory: The part that should fit into the file system cache, outside the heap.
    """

    index_type: IndexType
    element_type: ElementType
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

    def as_json(self) -> Json:
        return asdict(self) | {"index": self.index, "disk": self.disk}


def estimate_size(
    info: EngineInfo,
    index_type: IndexType,
    count: int,
    dimensions: int,
    m: int = DEFAULT_M,
    element_type: ElementType = ElementType.FLOAT,
) -> VectorIndexSize:
    """Estimate the size of `count` vectors in one copy (replicas not counted), merged.

    Args:
        info: The engine. Engines and versions have different formats.
        index_type: Index type of the field.
        count: Number of vectors.
        dimensions: Dimensions of each vector.
        m: Neighbors of a node in the graph.
        element_type: Element type of the whole vectors.
    """
    vectors = count * element_type.size * dimensions
    quantized = count * _quantized_bytes(info, index_type, dimensions)
    graph = round(count * GRAPH_BYTES * m / DEFAULT_M) if index_type.endswith("hnsw") else 0
    source = round(count * _source_bytes(info, index_type, dimensions, element_type))
    memory = graph + (quantized or vectors)
    return VectorIndexSize(index_type, element_type, vectors, quantized, graph, source, memory)


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


def _source_bytes(info: EngineInfo, index_type: IndexType, dimensions: int, element_type: ElementType) -> float:
    """Estimate the bytes of one vector inside `_source`, as numbers in JSON text.

    Elasticsearch 9.2+ does not store vectors there, nor does OpenSearch 3 in an index with graphs (`index.knn`).
    """
    is_derived = info.derives_vectors_in_source and index_type is not IndexType.FLAT
    if info.excludes_vectors_from_source or is_derived:
        return 0.0
    return _CHARACTERS_PER_NUMBER[element_type] * dimensions


@dataclass(frozen=True)
class MeasuredSize:
    """The measured size of an index and its vectors.

    Attributes:
        index: The concrete index.
        index_type: Index type of the field.
        vectors: Bytes of the vectors on disk in the primary shards; None if the engine does not report them.
        store: Bytes on disk of the whole index, including documents.
        segments: Number of segments in all primary shards. They keep deleted and replaced documents until a merge.
        stored: Share of the index that is stored in the index type.
    """

    index: str
    index_type: IndexType
    vectors: int | None
    store: int
    segments: int
    stored: IndexTypeShare

    def as_json(self) -> Json:
        plain = asdict(self)
        del plain["stored"]
        return plain | {"index_type_share": self.stored.share}


@dataclass(frozen=True)
class SizeReport:
    """Sizes of one copy of each type, and of an index if one was named.

    Attributes:
        engine: Name and version of the engine, such as `Elasticsearch 9.5.0`.
        documents, dimensions: Number and length of the vectors in the calculation; each passage counts.
        copies: Number of primaries and replicas; the sizes are multiplied by it in the text report.
        sizes: Size for each index type of the engine.
        real: Measured size of the index, or None.
    """

    engine: str
    documents: int
    dimensions: int
    copies: int
    sizes: tuple[VectorIndexSize, ...]
    real: MeasuredSize | None

    @property
    def error(self) -> float | None:
        """Relative error of the estimate. None if the real size is not known, or some vectors are stored in an earlier
        index type."""
        if self.real is None or not self.real.vectors or not self.real.stored.is_whole:
            return None
        expected = next(size.index for size in self.sizes if size.index_type is self.real.index_type)
        return expected / self.real.vectors - 1

    def as_json(self) -> Json:
        real = None if self.real is None else self.real.as_json() | {"estimate_error": self.error}
        plain = {name: getattr(self, name) for name in ("engine", "documents", "dimensions", "copies")}
        return plain | {"types": [size.as_json() for size in self.sizes], "real": real}


def size_report(
    engine: Engine,
    index: str | None,
    vector_field: str,
    *,
    documents: int | None = None,
    dimensions: int | None = None,
    m: int,
    copies: int = 1,
    element_type: str | None = None,
) -> SizeReport:
    """Estimate sizes for given numbers, or for those of an index.

    Args:
        engine: The engine.
        index: The index, or None.
        vector_field: Vector field of the index.
        documents: Number of vectors; None for that of the index.
        dimensions: Length of a vector; None for that of the index.
        m: Neighbors of a node in the graph.
        copies: Number of primaries and replicas.
        element_type: Element type of the whole vectors; None for that of the index, or float.

    Raises:
        UsageError: neither `index` nor both of `documents` and `dimensions` are set, `dimensions` is not that of the
            index, or the engine does not support the element type.
        IndexMissing, IndexMismatch: the index or the field does not exist.
        EngineError: the engine failed.
    """
    real, stored_type = None, ElementType.FLOAT
    if index is None:
        if documents is None or dimensions is None:
            remedy = "Name an index, or set `documents` and `dimensions`."
            raise UsageError("an index, or the number and the dimensions of the vectors, is required", remedy)
    else:
        field = read_vector_field(engine, index, vector_field)
        stored_type = field.meta.element_type
        if dimensions not in (None, field.meta.dimensions):
            reason = f"the vectors of {field.index} have {field.meta.dimensions} dimensions"
            raise UsageError(reason, "Leave out `dimensions`, or the index.")
        dimensions = field.meta.dimensions
        engine.refresh(field.index)
        if documents is None:
            documents = count_vectors(engine, field.index, field)
            index_type, name = IndexType(field.meta.index_type), field.index
            vectors = engine.vector_size(name, vector_path(vector_field, field.meta))
            segments = sum(engine.count_segments(name).values())
            stored = read_index_type_share(engine, require_index(engine, name), vector_field)
            real = MeasuredSize(name, index_type, vectors, engine.store_size(name), segments, stored)
    numbers = stored_type if element_type is None else parse_element_type(element_type, engine.info)
    sizes = tuple(
        estimate_size(engine.info, index_type, documents, dimensions, m, numbers)
        for index_type in supported_index_types(engine.info)
        if not is_unsupported(index_type, dimensions, numbers)
    )
    if real is not None and numbers is not stored_type:
        real = None  # the size of vectors with another element type cannot be compared
    return SizeReport(engine.info.label, documents, dimensions, copies, sizes, real)


def count_vectors(engine: Engine, index: str, field: VectorField, filter: Json | None = None) -> int:
    """Count the vectors in a field: one per document, or one per passage.

    Args:
        engine: The engine.
        index: The index of the field, or an alias, whose filter applies.
        field: The field.
        filter: Query for the documents to count; None counts all.
    """
    query = and_query(has_vector_query(field.name, field.meta), filter)
    return engine.count(index, query) if field.meta.passages is None else count_chunks(engine, index, field.name, query)


def is_unsupported(index_type: IndexType, dimensions: int, element_type: ElementType = ElementType.FLOAT) -> bool:
    """Whether an index type does not support vectors of this length or element type."""
    too_short = index_type.startswith("bbq") and dimensions < BBQ_MIN_DIMENSIONS
    is_odd = index_type.startswith("int4") and dimensions % 2 == 1
    return too_short or is_odd or not is_element_type_of(element_type, index_type)


def size_lines(report: SizeReport) -> list[str]:
    """Format the report as lines of text."""
    times = f", {report.copies} copies" if report.copies > 1 else ""
    lines = [
        f"{report.engine}: {pluralize(report.documents, 'vector')} of {report.dimensions} dimensions{times}",
        f"{'index type':12}{'memory':>11}{'disk':>11}   of which vectors, quantized, graph, _source",
    ]
    for size in report.sizes:
        parts = (size.vectors, size.quantized, size.graph, size.source)
        shown = ", ".join(size_text(report.copies * part) if part else "–" for part in parts)
        memory, disk = size_text(report.copies * size.memory), size_text(report.copies * size.disk)
        lines.append(f"{size.index_type:12}{memory:>11}{disk:>11}   {shown}")
    real = report.real
    if real is not None:
        measured = "not reported by this engine" if real.vectors is None else size_text(real.vectors)
        off = "" if report.error is None else f"; the estimate of {real.index_type} is {100 * report.error:+.1f} % off"
        lines += [
            f"{real.index} in one copy: vectors and graph {measured} on disk ({real.segments} segments){off}",
            f"  the whole index, documents and all: {size_text(real.store)}",
        ]
        if not real.stored.is_whole:
            lines.append(
                f"  {real.stored.describe()}, so the real size cannot be compared with an estimate. "
                f"{real.stored.remedy}"
            )
    return lines
