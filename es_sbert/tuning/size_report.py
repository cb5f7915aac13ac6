"""Estimated sizes of all index types, beside the size that an index really has."""

from __future__ import annotations

from dataclasses import dataclass

from es_sbert.engines.protocol import Engine, Flavour, Json
from es_sbert.errors import UsageError
from es_sbert.index.ensure import VectorField, read_vector_field
from es_sbert.index.layout import has_vector, vector_path
from es_sbert.index.meta import document_meta_field
from es_sbert.index.types import BBQ_MIN_DIMENSIONS, OPENSEARCH_TYPES, IndexType
from es_sbert.tuning.bytes import size_text
from es_sbert.tuning.estimate import Size, estimate


@dataclass(frozen=True)
class Real:
    """What the vectors of an index take.

    Attributes:
        index: The concrete index.
        index_type: Of the field.
        vectors: Bytes on disk in the primary shards; None where the engine does not tell.
        store: Bytes on disk of the whole index, documents and all.
        segments: In all primary shards; documents that were deleted or replaced stay in them until they are merged.
    """

    index: str
    index_type: IndexType
    vectors: int | None
    store: int
    segments: int


@dataclass(frozen=True)
class SizeReport:
    """Sizes of one copy of each type, and of an index where one was named.

    Attributes:
        engine: `Elasticsearch 9.5.0`.
        documents, dimensions: What was calculated with; of passages, each counts.
        copies: Primary and replicas: what the sizes are multiplied by for people.
        sizes: Of each index type of the engine.
        real: What the index takes.
    """

    engine: str
    documents: int
    dimensions: int
    copies: int
    sizes: tuple[Size, ...]
    real: Real | None

    @property
    def error(self) -> float | None:
        """How far the estimate is from the vectors' real size, as a share of it; None where that is not known."""
        if self.real is None or not self.real.vectors:
            return None
        expected = next(size.index for size in self.sizes if size.index_type is self.real.index_type)
        return expected / self.real.vectors - 1

    def as_json(self) -> Json:
        real = None if self.real is None else self.real.__dict__ | {"estimate_error": self.error}
        return {
            "engine": self.engine, "documents": self.documents, "dimensions": self.dimensions, "copies": self.copies,
            "types": [size.as_json() for size in self.sizes], "real": real,
        }  # fmt: skip


def size_report(engine: Engine, index: str | None, vector_field: str, *, documents: int | None = None,
                dimensions: int | None = None, m: int, copies: int = 1) -> SizeReport:  # fmt: skip
    """Sizes for given numbers, or for those of an index.

    Raises:
        UsageError: neither an index nor both numbers, or an index and a number of dimensions.
        IndexMissing, IndexMismatch: no such index or field.
        EngineError: the engine failed.
    """
    real = None
    if index is None:
        if documents is None or dimensions is None:
            raise UsageError(
                "what to calculate with is missing", "Name an index, or give --documents and --dimensions."
            )
    else:
        field = read_vector_field(engine, index, vector_field)
        if dimensions not in (None, field.meta.dimensions):
            raise UsageError(
                f"the vectors of {field.index} have {field.meta.dimensions} dimensions",
                "Leave --dimensions out, or the index.",
            )
        dimensions = field.meta.dimensions
        engine.refresh(field.index)
        if documents is None:
            documents = _vectors(engine, field)
            path = vector_path(vector_field, field.meta)
            real = Real(
                field.index, IndexType(field.meta.index_type), engine.vector_size(field.index, path),
                engine.store_size(field.index), sum(engine.segments(field.index)),
            )  # fmt: skip
    types = IndexType if engine.info.flavour is Flavour.ELASTICSEARCH else OPENSEARCH_TYPES
    sizes = tuple(
        estimate(engine.info, index_type, documents, dimensions, m)
        for index_type in types
        if not _is_impossible(index_type, dimensions)
    )
    return SizeReport(engine.info.label, documents, dimensions, copies, sizes, real)


def _vectors(engine: Engine, field: VectorField) -> int:
    """Vectors that a field holds: one a document, or one a passage."""
    query = has_vector(field.name, field.meta)
    if field.meta.passages is None:
        return engine.count(field.index, query)
    passages: Json = {"sum": {"field": f"{document_meta_field(field.name)}.passages"}}
    answer = engine.search(field.index, {"size": 0, "query": query, "aggs": {"passages": passages}})
    return int(answer["aggregations"]["passages"]["value"])


def _is_impossible(index_type: IndexType, dimensions: int) -> bool:
    too_short = index_type.startswith("bbq") and dimensions < BBQ_MIN_DIMENSIONS
    return too_short or (index_type.startswith("int4") and dimensions % 2 == 1)


def size_lines(report: SizeReport) -> list[str]:
    """The report for people."""
    times = f", {report.copies} copies" if report.copies > 1 else ""
    lines = [
        f"{report.engine}: {report.documents:,} vectors of {report.dimensions} dimensions{times}",
        f"{'index type':12}{'memory':>11}{'disk':>11}   of which vectors, quantised, graph, _source",
    ]
    for size in report.sizes:
        parts = (size.vectors, size.quantised, size.graph, size.source)
        shown = ", ".join(size_text(report.copies * part) if part else "–" for part in parts)
        memory, disk = size_text(report.copies * size.memory), size_text(report.copies * size.disk)
        lines.append(f"{size.index_type:12}{memory:>11}{disk:>11}   {shown}")
    real = report.real
    if real is not None:
        measured = "not told by this engine" if real.vectors is None else size_text(real.vectors)
        off = "" if report.error is None else f"; the estimate of {real.index_type} is {100 * report.error:+.1f} % off"
        lines += [
            f"{real.index} in one copy: vectors and graph {measured} on disk ({real.segments} segments){off}",
            f"  the whole index, documents and all: {size_text(real.store)}",
        ]
    return lines
