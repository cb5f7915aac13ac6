from __future__ import annotations

import pytest

from es_sbert.engines.engine_info import EngineType
from es_sbert.errors import UsageError
from es_sbert.index.mapping import IndexType, VectorFieldMeta
from es_sbert.search.search_scope import choose_method, choose_oversample
from es_sbert.search.vector_query import SearchMethod


def meta(index_type: IndexType) -> VectorFieldMeta:
    return VectorFieldMeta(fingerprint="f", model="m", dimensions=3, index_type=index_type)


@pytest.mark.parametrize(
    ("engine_type", "index_type", "exact", "method"),
    [
        (EngineType.ELASTICSEARCH, IndexType.HNSW, False, SearchMethod.KNN),
        (EngineType.ELASTICSEARCH, IndexType.HNSW, True, SearchMethod.EXACT),
        (EngineType.ELASTICSEARCH, IndexType.FLAT, True, SearchMethod.KNN),  # exact as it is, without a script
        (EngineType.ELASTICSEARCH, IndexType.INT8_FLAT, True, SearchMethod.EXACT),
        (EngineType.OPENSEARCH, IndexType.HNSW, False, SearchMethod.KNN),
        (EngineType.OPENSEARCH, IndexType.HNSW, True, SearchMethod.EXACT),
        (EngineType.OPENSEARCH, IndexType.FLAT, False, SearchMethod.EXACT),  # no kNN without a graph
    ],
)
def test_choose_method(engine_type: EngineType, index_type: IndexType, exact: bool, method: SearchMethod) -> None:
    assert choose_method(engine_type, meta(index_type), exact) is method


def test_oversampling_defaults_to_the_index_type() -> None:
    assert choose_oversample(meta(IndexType.HNSW)) is None
    assert choose_oversample(meta(IndexType.BBQ_HNSW)) == 3.0
    assert choose_oversample(meta(IndexType.BBQ_HNSW), 5.0) == 5.0
    with pytest.raises(UsageError, match="oversample requires a quantized index type"):
        choose_oversample(meta(IndexType.FLAT), 2.0)
