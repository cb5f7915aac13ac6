"""Recall on real engines, against what numpy says of the same answers."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from contextlib import closing

import numpy as np
import pytest

from es_sbert.config import EngineSettings
from es_sbert.diagnostics.recall import RecallQueries, SearchSetting, measure_recall, sample_queries
from es_sbert.diagnostics.temporary_index import force_merge
from es_sbert.engines.connect import connect
from es_sbert.engines.engine import Engine
from es_sbert.engines.engine_info import EngineType
from es_sbert.errors import IndexMismatch
from es_sbert.index.mapping import IndexType
from es_sbert.index.vector_field import FieldRequest, VectorField, ensure_vector_field
from es_sbert.search.vector_query import SearchMethod, VectorQuery, search_body
from tests.engine.vectors import cosines, fill, load, random_vectors

pytestmark = pytest.mark.one_engine

DIMENSIONS, COUNT, K = 64, 1200, 10


def filled(engine: Engine, index: str, index_type: str, count: int = COUNT) -> VectorField:
    return fill(engine, index, count, DIMENSIONS, index_type)


@pytest.fixture(scope="module")
def measured(engine_url: str) -> Iterator[tuple[Engine, dict[str, VectorField]]]:
    """An engine, and an index of each of two types that tests only look at.

    Of one segment each: searches of several, side by side, tell each other how far they are, and what they leave out
    depends on who is faster.
    """
    fields = {}
    with closing(connect(EngineSettings(url=engine_url))) as engine:
        for index_type in ("hnsw", "int8_hnsw"):
            name = f"test-{uuid.uuid4().hex[:12]}"
            fields[index_type] = filled(engine, name, index_type)
            force_merge(engine, name)
            engine.refresh(name)
        yield engine, fields
        for field in fields.values():
            engine.delete_index(field.index)


@pytest.mark.parametrize(("index_type", "oversample"), [("hnsw", None), ("int8_hnsw", 1.0), ("int8_hnsw", 3.0)])
def test_recall_of_text_queries_matches_numpy(
    measured: tuple[Engine, dict[str, VectorField]], index_type: str, oversample: float | None
) -> None:
    engine, field = measured[0], measured[1][index_type]
    vectors, queries = random_vectors(COUNT, DIMENSIONS), random_vectors(20, DIMENSIONS, seed=7)
    settings = [SearchSetting(count, oversample) for count in (10, 30, 1000)]
    report = measure_recall(engine, field, RecallQueries(queries, [None] * 20), settings, k=K, target=0.95)
    assert (report.documents, report.queries) == (COUNT, 20)
    for row in report.rows:
        shares = []
        for query in queries:
            knn = VectorQuery("embedding", query, K, num_candidates=row.setting.num_candidates, oversample=oversample)
            hits = engine.search(field.index, search_body(engine.info.engine_type, SearchMethod.KNN, knn))["hits"][
                "hits"
            ]
            best = {str(place) for place in np.argsort(-cosines(query, vectors))[:K]}
            shares.append(len(best & {hit["_id"] for hit in hits}) / K)
        assert row.recall.mean == pytest.approx(np.mean(shares), abs=1e-9)
        assert 0 < row.median_ms <= row.p95_ms
    means = [row.recall.mean for row in report.rows]
    assert means[0] < means[-1]
    # Random vectors have many neighbors of nearly the same cosine, which one byte a dimension confuses.
    assert means[-1] > (0.5 if oversample == 1.0 else 0.9)


def test_documents_are_not_their_own_neighbors(measured: tuple[Engine, dict[str, VectorField]]) -> None:
    engine, field = measured[0], measured[1]["hnsw"]
    queries = sample_queries(engine, field, 30, seed=3)
    again = sample_queries(engine, field, 30, seed=3)
    assert sorted(queries.own) == sorted(again.own)  # type: ignore[type-var]
    assert sorted(queries.own) != sorted(sample_queries(engine, field, 30, seed=4).own)  # type: ignore[type-var]
    vectors = random_vectors(COUNT, DIMENSIONS)
    for own, vector in zip(queries.own, queries.vectors, strict=True):
        assert own is not None
        assert cosines(vector, vectors[int(own)][None])[0] == pytest.approx(1, abs=1e-6)
    [row] = measure_recall(engine, field, queries, [SearchSetting(K, None)], k=K, target=0.95).rows
    shares = []
    for own, vector in zip(queries.own, queries.vectors, strict=True):
        assert own is not None
        knn = VectorQuery("embedding", vector, K + 1, num_candidates=K + 1)
        hits = engine.search(field.index, search_body(engine.info.engine_type, SearchMethod.KNN, knn))["hits"]["hits"]
        best = {str(place) for place in np.argsort(-cosines(vector, vectors))[: K + 1]} - {own}
        shares.append(len(best & {hit["_id"] for hit in hits if hit["_id"] != own}) / K)
    assert row.recall.mean == pytest.approx(np.mean(shares), abs=1e-9)


def test_ties_count_as_equally_good(engine: Engine, index_name: str) -> None:
    field = ensure_vector_field(
        engine,
        index_name,
        FieldRequest(
            name="embedding", fingerprint="a" * 32, model_name="model-a", dimensions=DIMENSIONS, index_type="hnsw"
        ),
        shards=1,
        replicas=0,
    )
    vectors = np.repeat(random_vectors(5, DIMENSIONS), 20, axis=0)  # (100, dimensions): five vectors, twenty times each
    load(engine, index_name, "embedding", vectors, lambda row: {"row": row})
    queries = RecallQueries(vectors[::20], [None] * 5)
    [row] = measure_recall(engine, field, queries, [SearchSetting(100, None)], k=10, target=0.95).rows
    assert row.recall.mean == 1.0


def test_fewer_documents_than_k_give_full_recall(engine: Engine, index_name: str) -> None:
    field = filled(engine, index_name, "hnsw", count=4)
    report = measure_recall(
        engine, field, sample_queries(engine, field, 50, 0), [SearchSetting(100, None)], k=K, target=0.5
    )
    assert (report.queries, report.rows[0].recall.mean) == (4, 1.0)
    assert report.recommended == SearchSetting(100, None)


def test_routed_documents_serve_as_queries(engine: Engine, index_name: str) -> None:
    field = ensure_vector_field(
        engine,
        index_name,
        FieldRequest(
            name="embedding", fingerprint="a" * 32, model_name="model-a", dimensions=DIMENSIONS, index_type="hnsw"
        ),
        shards=3,
        replicas=0,
    )
    load(engine, index_name, "embedding", random_vectors(40, DIMENSIONS), lambda row: {"row": row}, routing="one shard")
    queries = sample_queries(engine, field, 50, seed=0)
    assert sorted(map(str, queries.own)) == sorted(map(str, range(40)))


def test_unmeasurable_indices_are_refused(engine: Engine, index_name: str) -> None:
    field = filled(engine, index_name, "hnsw", count=0)
    with pytest.raises(IndexMismatch, match="no document of"):
        sample_queries(engine, field, 10, 0)
    load(engine, index_name, "embedding", random_vectors(1, DIMENSIONS), lambda row: {"row": row})
    with pytest.raises(IndexMismatch, match="no other document"):
        measure_recall(engine, field, sample_queries(engine, field, 10, 0), [SearchSetting(10, None)], k=K, target=0.5)
    engine.delete_index(index_name)
    flat = filled(engine, index_name, "flat", count=10)
    with pytest.raises(IndexMismatch, match="exact already"):
        measure_recall(engine, flat, sample_queries(engine, flat, 10, 0), [SearchSetting(10, None)], k=K, target=0.5)


@pytest.mark.parametrize("index_type", [IndexType.INT4_HNSW, IndexType.BBQ_FLAT])
def test_oversampling_raises_recall_of_quantized_vectors(
    es9_url: str, open_engine: object, fresh_index: object, index_type: IndexType
) -> None:
    engine: Engine = open_engine(es9_url)  # type: ignore[operator]
    assert engine.info.engine_type is EngineType.ELASTICSEARCH
    field = filled(engine, fresh_index(es9_url), index_type)  # type: ignore[operator]
    settings = [SearchSetting(200, 1.0), SearchSetting(200, 5.0)]
    report = measure_recall(engine, field, sample_queries(engine, field, 30, 0), settings, k=K, target=0.95)
    coarse, fine = (row.recall.mean for row in report.rows)
    assert coarse < fine
