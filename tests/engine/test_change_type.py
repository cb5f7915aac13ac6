"""An index type changed in place, on real engines: the table of changes, and what searches and sizes say after."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from es_sbert.engines.engine import Engine
from es_sbert.engines.engine_info import EngineType
from es_sbert.errors import IndexMismatch, IndexMissing, RequestFailed, UsageError
from es_sbert.index.index_type_change import ALLOWED_CHANGES, change_index_type, changed_index_options, force_merge
from es_sbert.index.mapping import IndexType
from es_sbert.index.vector_field import FieldRequest, ensure_vector_field, read_vector_field
from es_sbert.search.vector_query import SearchMethod, VectorQuery, search_body
from tests.engine.vectors import cosines, load, random_vectors

DIMENSIONS = 64


def create(engine: Engine, index: str, index_type: str, shards: int = 1) -> None:
    ensure_vector_field(
        engine,
        index,
        FieldRequest(
            name="embedding",
            fingerprint="a" * 32,
            model_name="model-a",
            dimensions=DIMENSIONS,
            index_type=index_type,
            text="{title}",
        ),
        shards=shards,
        replicas=0,
    )


@pytest.fixture(params=["es9", "es8"])
def elastic(request: pytest.FixtureRequest, open_engine: Callable[[str], Engine]) -> Engine:
    return open_engine(request.getfixturevalue(f"{request.param}_url"))


@pytest.fixture
def elastic_index(elastic: Engine, fresh_index: Callable[[str], str]) -> str:
    return fresh_index(elastic.info.url)


@pytest.mark.parametrize("before", list(IndexType))
def test_engine_allows_exactly_the_tables_type_changes(elastic: Engine, elastic_index: str, before: IndexType) -> None:
    create(elastic, elastic_index, before)
    for after in set(IndexType) - {before}:
        state = elastic.get_index(elastic_index)
        assert state is not None
        mapped = state.mappings["properties"]["embedding"]
        options = changed_index_options(mapped["index_options"], after)
        body = {"properties": {"embedding": mapped | {"index_options": options}}}
        if after not in ALLOWED_CHANGES[before]:
            with pytest.raises(RequestFailed, match=r"Cannot update parameter \[index_options\]") as caught:
                elastic.put_mapping(elastic_index, body)
            assert caught.value.status == 400
            continue
        elastic.put_mapping(elastic_index, body)
        elastic.delete_index(elastic_index)
        create(elastic, elastic_index, before)


@pytest.mark.parametrize("shards", [1, 2])
def test_change_reaches_mapping_meta_and_merged_segments(elastic: Engine, elastic_index: str, shards: int) -> None:
    create(elastic, elastic_index, "flat", shards)
    vectors = random_vectors(600, DIMENSIONS)  # (600, dimensions)
    load(elastic, elastic_index, "embedding", vectors, lambda row: {"title": f"t{row}"})
    sizes = []
    for after in ("hnsw", "int8_hnsw", "bbq_hnsw"):
        change_index_type(elastic, elastic_index, "embedding", after)
        force_merge(elastic, elastic_index)
        # Every shard is one segment now, and would be left alone by the next merge but for our help.
        assert elastic.count_segments(elastic_index) == dict.fromkeys(range(shards), 1)
        elastic.refresh(elastic_index)
        sizes.append(elastic.vector_size(elastic_index, "embedding") or 0)
        field = read_vector_field(elastic, elastic_index, "embedding")
        assert (field.meta.index_type, field.meta.text) == (after, "{title}")
        state = elastic.get_index(elastic_index)
        assert state is not None
        assert state.mappings["properties"]["embedding"]["index_options"]["type"] == after
    raw = 600 * DIMENSIONS * 4
    # A graph beside the vectors; then one byte a dimension more; then one bit a dimension in its place.
    assert raw < sizes[0] < sizes[1]
    assert sizes[0] < sizes[2] < sizes[1]

    query = random_vectors(1, DIMENSIONS, seed=9)[0]
    knn = VectorQuery("embedding", query, k=100, num_candidates=600, oversample=6.0)
    hits = elastic.search(elastic_index, search_body(elastic.info.engine_type, SearchMethod.KNN, knn))["hits"]["hits"]
    assert [hit["_id"] for hit in hits[:5]] == [str(row) for row in np.argsort(-cosines(query, vectors))[:5]]
    assert elastic.count(elastic_index) == 600


def test_routed_documents_are_merged(elastic: Engine, elastic_index: str) -> None:
    create(elastic, elastic_index, "flat", shards=2)
    body = b"".join(b'{"index":{"_id":"%d","routing":"r%d"}}\n{"title":"t"}\n' % (row, row % 5) for row in range(50))
    assert all(result.ok for result in elastic.bulk(elastic_index, body))
    force_merge(elastic, elastic_index)
    force_merge(elastic, elastic_index)
    elastic.refresh(elastic_index)
    assert elastic.count(elastic_index) == 50


def test_empty_index_is_merged_without_error(engine: Engine, index_name: str) -> None:
    create(engine, index_name, "flat")
    force_merge(engine, index_name)
    assert engine.count(index_name) == 0


def test_same_type_changes_nothing(engine: Engine, index_name: str) -> None:
    create(engine, index_name, "hnsw")
    before = engine.get_index(index_name)
    assert change_index_type(engine, index_name, "embedding", "hnsw") == "hnsw"
    assert engine.get_index(index_name) == before


def test_impossible_change_is_refused_with_remedy(engine: Engine, index_name: str) -> None:
    create(engine, index_name, "int8_hnsw")
    before = engine.get_index(index_name)
    with pytest.raises(IndexMismatch, match="cannot change") as caught:
        change_index_type(engine, index_name, "embedding", "hnsw")
    assert "es-sbert index migrate ALIAS --index-type hnsw" in caught.value.remedy
    with pytest.raises(UsageError, match="unknown index type 'int9'"):
        change_index_type(engine, index_name, "embedding", "int9")
    with pytest.raises(IndexMismatch, match="no vector field 'other'"):
        change_index_type(engine, index_name, "other", "hnsw")
    with pytest.raises(IndexMissing):
        change_index_type(engine, "test-no-such-index", "embedding", "hnsw")
    if engine.info.engine_type is EngineType.OPENSEARCH:
        with pytest.raises(IndexMismatch, match="OpenSearch 3"):
            change_index_type(engine, index_name, "embedding", "flat")
    assert engine.get_index(index_name) == before


def test_force_merge_touches_one_document_per_one_segment_shard(elastic: Engine, elastic_index: str) -> None:
    create(elastic, elastic_index, "hnsw", shards=3)
    load(elastic, elastic_index, "embedding", random_vectors(300, DIMENSIONS), lambda row: {"title": f"t{row}"})
    force_merge(elastic, elastic_index)
    before = elastic.shard_states(elastic_index)
    force_merge(elastic, elastic_index)
    after = elastic.shard_states(elastic_index)
    assert {shard: after[shard].max_seq_no - state.max_seq_no for shard, state in before.items()} == {0: 1, 1: 1, 2: 1}
