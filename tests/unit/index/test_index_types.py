from __future__ import annotations

import pytest

from es_sbert.engines.engine_info import EngineInfo, EngineType
from es_sbert.errors import UsageError
from es_sbert.index.mapping import OPENSEARCH_TYPES, IndexType, parse_index_type

ELASTICSEARCH = EngineInfo(EngineType.ELASTICSEARCH, (9, 5, 0), "http://localhost:9200")
OPENSEARCH = EngineInfo(EngineType.OPENSEARCH, (3, 6, 0), "http://localhost:9200")
OPENSEARCH_2 = EngineInfo(EngineType.OPENSEARCH, (2, 19, 1), "http://localhost:9200")


@pytest.mark.parametrize("name", list(IndexType))
def test_elasticsearch_supports_all_index_types(name: IndexType) -> None:
    assert parse_index_type(name, ELASTICSEARCH, 384) is name


@pytest.mark.parametrize("name", list(IndexType))
def test_opensearch_supports_three_index_types(name: IndexType) -> None:
    if name in OPENSEARCH_TYPES:
        assert parse_index_type(name, OPENSEARCH, 384) is name
    else:
        with pytest.raises(UsageError, match=f"does not support the index type {name}"):
            parse_index_type(name, OPENSEARCH, 384)


@pytest.mark.parametrize("name", [IndexType.HNSW, IndexType.INT8_HNSW])
def test_opensearch_2_supports_graphs(name: IndexType) -> None:
    assert parse_index_type(name, OPENSEARCH_2, 384) is name


def test_opensearch_2_refuses_flat_with_remedy() -> None:
    with pytest.raises(UsageError, match=r"flat needs OpenSearch 3: OpenSearch 2\.19\.1 fails the shards") as caught:
        parse_index_type("flat", OPENSEARCH_2, 384)
    assert "`exact`" in caught.value.remedy


@pytest.mark.parametrize(
    ("name", "dimensions", "message"),
    [
        ("ivf", 384, "does not support the index type ivf"),
        ("bbq_disk", 384, "paid Elasticsearch license"),
        ("int4_hnsw", 383, "odd"),
        ("int4_flat", 383, "odd"),
        ("bbq_hnsw", 63, "at least 64"),
        ("bbq_flat", 63, "at least 64"),
        ("hnsw", 4097, "up to 4096"),
    ],
)
def test_unsupported_index_type_error_has_remedy(name: str, dimensions: int, message: str) -> None:
    with pytest.raises(UsageError, match=message) as caught:
        parse_index_type(name, ELASTICSEARCH, dimensions)
    assert caught.value.remedy
