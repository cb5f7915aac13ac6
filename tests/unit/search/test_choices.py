from __future__ import annotations

import pytest

from es_sbert.engines.protocol import Flavour
from es_sbert.errors import UsageError
from es_sbert.index.meta import VectorFieldMeta
from es_sbert.index.types import IndexType
from es_sbert.search.choices import method_for, oversample_for
from es_sbert.search.scores import Method


def meta(index_type: IndexType) -> VectorFieldMeta:
    return VectorFieldMeta(fingerprint="f", model="m", dimensions=3, index_type=index_type)


@pytest.mark.parametrize(
    ("flavour", "index_type", "exact", "method"),
    [
        (Flavour.ELASTICSEARCH, IndexType.HNSW, False, Method.KNN),
        (Flavour.ELASTICSEARCH, IndexType.HNSW, True, Method.EXACT),
        (Flavour.ELASTICSEARCH, IndexType.FLAT, True, Method.KNN),  # exact as it is, without a script
        (Flavour.ELASTICSEARCH, IndexType.INT8_FLAT, True, Method.EXACT),
        (Flavour.OPENSEARCH, IndexType.HNSW, False, Method.KNN),
        (Flavour.OPENSEARCH, IndexType.HNSW, True, Method.EXACT),
        (Flavour.OPENSEARCH, IndexType.FLAT, False, Method.EXACT),  # no kNN without a graph
    ],
)
def test_methods(flavour: Flavour, index_type: IndexType, exact: bool, method: Method) -> None:
    assert method_for(flavour, meta(index_type), exact) is method


def test_oversampling_is_the_types_own_unless_asked_for() -> None:
    assert oversample_for(meta(IndexType.HNSW)) is None
    assert oversample_for(meta(IndexType.BBQ_HNSW)) == 3.0
    assert oversample_for(meta(IndexType.BBQ_HNSW), 5.0) == 5.0
    with pytest.raises(UsageError, match="nothing to oversample"):
        oversample_for(meta(IndexType.FLAT), 2.0)
