"""Recall on real engines, against what numpy says of the same answers."""

from __future__ import annotations

import numpy as np
import pytest

from es_sbert.diagnostics.index_advice import read_sample
from es_sbert.diagnostics.recall import K, RecallQueries, force_merge, measure_index
from es_sbert.engines.engine import Engine
from es_sbert.index.mapping import OVERSAMPLE, IndexType
from es_sbert.search.vector_query import SearchMethod, VectorQuery, search_body
from tests.engine.vectors import cosines, fill, random_vectors

pytestmark = pytest.mark.one_engine

DIMENSIONS, COUNT = 64, 1200


@pytest.mark.parametrize("index_type", [IndexType.HNSW, IndexType.INT8_HNSW])
@pytest.mark.parametrize("from_documents", [False, True])
def test_recall_of_the_whole_index_matches_numpy(
    engine: Engine, index_name: str, index_type: IndexType, from_documents: bool
) -> None:
    """In one segment: of several, what a search leaves out depends on which one is faster."""
    field = fill(engine, index_name, COUNT, DIMENSIONS, index_type)
    force_merge(engine, index_name)
    engine.refresh(index_name)
    vectors, queries = random_vectors(COUNT, DIMENSIONS), RecallQueries(random_vectors(20, DIMENSIONS, 7), [None] * 20)
    if from_documents:
        held_out = read_sample(engine, field, COUNT, None).queries
        assert len(held_out.own) == COUNT // 5
        queries = RecallQueries(held_out.vectors[:20], held_out.own[:20])
    measured = measure_index(engine, field, queries)
    oversample = OVERSAMPLE.get(index_type)
    assert [row.num_candidates for row in measured][-6:] == [20, 50, 100, 200, 500, 1000]
    for row in measured:
        shares = []
        for own, query in zip(queries.own, queries.vectors, strict=True):
            k = K + (own is not None)
            knn = VectorQuery("embedding", query, k, num_candidates=row.num_candidates, oversample=oversample)
            body = search_body(engine.info.engine_type, SearchMethod.KNN, knn)
            hits = engine.search(index_name, body)["hits"]["hits"]
            best = [str(place) for place in np.argsort(-cosines(query, vectors)) if str(place) != own][:K]
            shares.append(len(set(best) & {hit["_id"] for hit in hits if hit["_id"] != own}) / K)
        assert row.recall.mean == pytest.approx(np.mean(shares), abs=1e-9)
        assert 0 < row.median_ms <= row.p95_ms
    if index_type is IndexType.HNSW:  # the scores of quantized vectors may rank a farther candidate first
        assert measured[0].recall.mean <= measured[-1].recall.mean
    assert measured[-1].recall.mean > 0.8
