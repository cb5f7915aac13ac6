"""Estimate memory and disk of a vector field for every index type.

Bytes per vector of D dimensions, in the files of Lucene and of Elasticsearch's own formats:

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

import math
from dataclasses import dataclass

from es_sbert.engines.engine_info import EngineInfo, EngineType
from es_sbert.index.mapping import BBQ_MIN_DIMENSIONS, IndexType

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
