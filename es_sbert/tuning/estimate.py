"""Memory and disk of a vector field, by index type: arithmetic, no engine.

Bytes of one vector of D dimensions, in the files of Lucene and of Elasticsearch's own formats:

| part | bytes | source |
|---|---|---|
| float32 vector | 4·D | Lucene99FlatVectorsFormat (`.vec`); kept by every type, for rescoring and merging |
| int8 | D + correction | Lucene99ScalarQuantizedVectorsFormat: 4; Lucene104's (Elasticsearch 9.4+): 16 |
| int4 | ⌈D/2⌉ + correction | the same formats |
| bbq | ⌈D/8⌉ + 14 | ES816BinaryQuantizedVectorsFormat: three floats and a short |
| graph | GRAPH_BYTES·m/16 | at most 2·m neighbours on the lowest layer, written as small differences |

Elasticsearch's guide "Tune approximate kNN search" counts the same with 4·m bytes for the graph, which is its memory on
the heap while it is built. What has to stay in the file system's cache for fast searches is what the search walks
through: the graph and the numbers it compares. Float32 vectors of a quantised type are read for rescoring alone.
"""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass

from es_sbert.engines.protocol import EngineInfo, Flavour, Json
from es_sbert.index.types import IndexType

M = 16  # neighbours of a node, the engines' default
# Bytes that a node's neighbours take at m = 16, between what random and what clustered vectors need (docs/results.md).
GRAPH_BYTES = 48
# Characters of a number of a vector as JSON text, comma included.
_DIGITS = 11.5
_OPTIMISED = (9, 4, 0)


@dataclass(frozen=True)
class Size:
    """Bytes that one copy of all vectors takes.

    Attributes:
        index_type: Of the field.
        vectors: float32 vectors, on disk.
        quantised: Their copy in fewer bits, on disk; 0 where there is none.
        graph: The graph, on disk; 0 where there is none.
        source: The vector's second copy inside `_source`, on disk.
        memory: What should fit into the file system's cache, outside the heap.
    """

    index_type: IndexType
    vectors: int
    quantised: int
    graph: int
    source: int
    memory: int

    @property
    def index(self) -> int:
        """Bytes on disk of the vector index, without `_source`."""
        return self.vectors + self.quantised + self.graph

    @property
    def disk(self) -> int:
        """Bytes on disk."""
        return self.index + self.source

    def as_json(self) -> Json:
        return asdict(self) | {"index": self.index, "disk": self.disk}


def estimate(info: EngineInfo, index_type: IndexType, count: int, dimensions: int, m: int = M) -> Size:
    """Size of `count` vectors in one copy (replicas not counted), merged.

    Args:
        info: Engines and versions store differently.
        index_type: Of the field.
        count: Vectors.
        dimensions: Of each.
        m: Neighbours of a node in the graph.
    """
    vectors = count * 4 * dimensions
    quantised = count * _quantised(info, index_type, dimensions)
    graph = round(count * GRAPH_BYTES * m / M) if index_type.endswith("hnsw") else 0
    return Size(
        index_type, vectors, quantised, graph, round(count * _source(info, index_type, dimensions)),
        memory=graph + (quantised or vectors),
    )  # fmt: skip


def _quantised(info: EngineInfo, index_type: IndexType, dimensions: int) -> int:
    """Bytes of one quantised vector."""
    correction = 16 if _is_optimised(info) else 4
    match index_type:
        case IndexType.INT8_HNSW | IndexType.INT8_FLAT:
            return dimensions + correction
        case IndexType.INT4_HNSW | IndexType.INT4_FLAT:
            return math.ceil(dimensions / 2) + correction
        case IndexType.BBQ_HNSW | IndexType.BBQ_FLAT:
            return math.ceil(dimensions / 8) + 14
        case IndexType.HNSW | IndexType.FLAT:
            return 0


def _is_optimised(info: EngineInfo) -> bool:
    return info.flavour is Flavour.ELASTICSEARCH and info.version >= _OPTIMISED


def _source(info: EngineInfo, index_type: IndexType, dimensions: int) -> float:
    """Bytes of one vector inside `_source`, as numbers in JSON text.

    Elasticsearch 9.2+ takes vectors out of it; OpenSearch does in an index that has graphs (`index.knn`).
    """
    if info.hides_vectors_in_source or (info.flavour is Flavour.OPENSEARCH and index_type is not IndexType.FLAT):
        return 0.0
    return _DIGITS * dimensions
