"""Sizes by arithmetic."""

from __future__ import annotations

import pytest

from es_sbert.diagnostics.index_advice import estimate_size
from es_sbert.engines.engine_info import EngineInfo, EngineType
from es_sbert.index.mapping import IndexType

ES9 = EngineInfo(EngineType.ELASTICSEARCH, (9, 5, 0), "http://es9")
ES8 = EngineInfo(EngineType.ELASTICSEARCH, (8, 19, 8), "http://es8")
OPENSEARCH = EngineInfo(EngineType.OPENSEARCH, (3, 6, 0), "http://opensearch")
OPENSEARCH_2 = EngineInfo(EngineType.OPENSEARCH, (2, 19, 1), "http://opensearch")


@pytest.mark.parametrize(
    ("info", "index_type", "quantized", "graph", "source", "memory"),
    [
        (ES9, "hnsw", 0, 48, 0, 1536 + 48),
        (ES9, "int8_hnsw", 400, 48, 0, 448),
        (ES8, "int8_hnsw", 388, 48, 4416, 436),
        (OPENSEARCH_2, "hnsw", 0, 48, 4416, 1536 + 48),
    ],
)
def test_size_of_a_million_vectors_of_384_dimensions(
    info: EngineInfo, index_type: str, quantized: int, graph: int, source: int, memory: int
) -> None:
    size = estimate_size(info, IndexType(index_type), 1_000_000, 384)
    parts = (size.vectors, size.quantized, size.graph, size.source, size.memory)
    assert parts == tuple(1_000_000 * part for part in (1536, quantized, graph, source, memory))
    assert size.disk == sum(parts[:4])
