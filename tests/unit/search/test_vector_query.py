from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from es_sbert.engines.engine_info import EngineType
from es_sbert.engines.rest import Json
from es_sbert.errors import UsageError
from es_sbert.index.mapping import IndexType, VectorFieldMeta
from es_sbert.search.search_scope import choose_method
from es_sbert.search.vector_query import (
    MAX_K,
    SearchMethod,
    VectorQuery,
    cosine_from_score,
    parse_filter,
    score_from_cosine,
    search_body,
    vector_clause,
)
from tests.raised import raises, raises_as_recorded
from tests.unit.golden import assert_golden

VECTOR = np.array([0.1, -0.5, 0.25], dtype=np.float32)
FILTER = {"bool": {"must": [{"term": {"language": "en"}}, {"range": {"year": {"gte": 2020}}}]}}

QUERIES = {
    "plain": VectorQuery("embedding", VECTOR, k=5),
    "filter": VectorQuery("embedding", VECTOR, k=5, filter=FILTER),
    "candidates": VectorQuery("embedding", VECTOR, k=5, num_candidates=500),
    "passages": VectorQuery("embedding", VECTOR, k=5, filter=FILTER, passages=True, inner_hits="embedding"),
    "quantized-passages": VectorQuery("embedding", VECTOR, k=5, oversample=1.5, passages=True, inner_hits="embedding"),
    "quantized": VectorQuery("embedding", VECTOR, k=5, filter=FILTER, oversample=1.5),
    "minimum": VectorQuery("embedding", VECTOR, k=5, filter=FILTER, min_cosine=0.3, boost=2.0),
    "minimum-passages": VectorQuery("embedding", VECTOR, k=5, passages=True, min_cosine=0.3, boost=2.0),
}


@pytest.mark.parametrize("engine_type", list(EngineType))
@pytest.mark.parametrize("method", list(SearchMethod))
@pytest.mark.parametrize("name", list(QUERIES))
def test_bodies_match_golden_files(engine_type: EngineType, method: SearchMethod, name: str) -> None:
    assert_golden(engine_type, f"{method}-{name}", search_body(engine_type, method, QUERIES[name]))


@pytest.mark.parametrize("engine_type", list(EngineType))
@pytest.mark.parametrize("method", list(SearchMethod))
@pytest.mark.parametrize("name", ["filter", "passages", "minimum", "minimum-passages"])
def test_clauses_match_golden_files(engine_type: EngineType, method: SearchMethod, name: str) -> None:
    clause = vector_clause(engine_type, method, QUERIES[name])
    assert_golden(engine_type, f"clause-{method}-{name}", clause)
    if method is SearchMethod.EXACT or engine_type is EngineType.OPENSEARCH:
        assert search_body(engine_type, method, QUERIES[name])["query"] == clause


@pytest.mark.parametrize(
    "filter", [{"nested": {"path": "n", "query": {}}}, {"bool": {"must": [{"nested": {"path": "n"}}]}}]
)
def test_filtered_chunk_clause_is_rejected_on_elasticsearch(filter: Json) -> None:
    query = VectorQuery("v", VECTOR, filter=filter, passages=True)
    with raises_as_recorded(UsageError):
        vector_clause(EngineType.ELASTICSEARCH, SearchMethod.KNN, query)
    assert search_body(EngineType.ELASTICSEARCH, SearchMethod.KNN, query)["knn"]["filter"] == filter
    assert vector_clause(EngineType.OPENSEARCH, SearchMethod.KNN, query)


def values(body: Any, key: str) -> list[Any]:
    """All values under a key, at any depth."""
    if isinstance(body, dict):
        return [v for k, v in body.items() if k == key] + [x for v in body.values() for x in values(v, key)]
    return [x for v in body for x in values(v, key)] if isinstance(body, list) else []


floats = st.floats(-1, 1, width=32).filter(lambda x: abs(x) > 1e-3)


@given(
    vector=st.lists(floats, min_size=1, max_size=20),
    k=st.integers(1, MAX_K),
    filter=st.none()
    | st.dictionaries(st.sampled_from(["term", "range"]), st.dictionaries(st.text(), st.integers()), min_size=1),
    engine_type=st.sampled_from(EngineType),
    method=st.sampled_from(SearchMethod),
)
def test_body_has_size_k_and_excludes_the_vector(
    vector: list[float], k: int, filter: Json | None, engine_type: EngineType, method: SearchMethod
) -> None:
    body = search_body(engine_type, method, VectorQuery("v", np.array(vector, dtype=np.float32), k, filter))
    assert body["size"] == k
    assert body["_source"] == {"excludes": ["v"]}
    if filter is not None:
        # The filter is inside the search, never beside it.
        assert set(body) == {"knn" if "knn" in body else "query", "size", "_source"}
        assert any(inner == filter or (isinstance(inner, list) and filter in inner) for inner in values(body, "filter"))
    if method is SearchMethod.KNN:
        assert next(value for value in values(body, "k") if isinstance(value, int)) == k
        candidates = values(body, "num_candidates") + values(body, "ef_search")
        assert k <= candidates[0] <= MAX_K


NAN = float("nan")


@pytest.mark.parametrize(
    ("name", "wrong"),
    [
        ("k", [0, -1, MAX_K + 1]),
        ("num_candidates", [0, 9, MAX_K + 1]),
        ("min_cosine", [-1.1, 1.1, NAN]),
        ("boost", [0.0, -1.0, NAN, float("inf")]),
        ("oversample", [0.5, 10.5, NAN]),
    ],
)
def test_values_out_of_range_are_rejected(name: str, wrong: list[Any]) -> None:
    for value in wrong:
        with raises(UsageError, name, value):
            VectorQuery("v", VECTOR, **{"k": 10, name: value})


@pytest.mark.parametrize("vector", [[], [0.0, 0.0], [1.0, float("nan")], [float("inf"), 1.0], [[1.0, 2.0]]])
def test_invalid_query_vectors_are_rejected(vector: Any) -> None:
    with raises(UsageError, "vector"):
        VectorQuery("v", np.array(vector, dtype=np.float32))


@pytest.mark.parametrize("text", ["", "{", "term: a", '["a"]', '"a"', "{}", "null", "NaN"])
def test_filter_is_a_json_object(text: str) -> None:
    assert parse_filter('{"term": {"a": 1}}') == {"term": {"a": 1}}
    with raises(UsageError, "filter"):
        parse_filter(text)


@given(st.floats(-1, 1), st.sampled_from(EngineType), st.sampled_from(SearchMethod))
def test_score_and_cosine_are_inverse(cosine: float, engine_type: EngineType, method: SearchMethod) -> None:
    score = score_from_cosine(cosine, engine_type, method)
    assert cosine_from_score(score, engine_type, method) == pytest.approx(cosine, abs=1e-12)


@pytest.mark.parametrize(
    ("engine_type", "method", "score", "cosine"),
    [
        (EngineType.ELASTICSEARCH, SearchMethod.KNN, 0.75, 0.5),
        (EngineType.ELASTICSEARCH, SearchMethod.EXACT, 1.5, 0.5),
        (EngineType.OPENSEARCH, SearchMethod.EXACT, 0.75, 0.5),
        (EngineType.ELASTICSEARCH, SearchMethod.KNN, 1.0000001, 1.0),
        (EngineType.ELASTICSEARCH, SearchMethod.EXACT, -1e-7, -1.0),
    ],
)
def test_known_scores(engine_type: EngineType, method: SearchMethod, score: float, cosine: float) -> None:
    assert cosine_from_score(score, engine_type, method) == cosine


def meta(index_type: IndexType) -> VectorFieldMeta:
    return VectorFieldMeta(fingerprint="f", model="m", dimensions=3, index_type=index_type)


@pytest.mark.parametrize(
    ("engine_type", "index_type", "methods"),
    [
        (EngineType.ELASTICSEARCH, IndexType.HNSW, "knn exact"),
        (EngineType.ELASTICSEARCH, IndexType.FLAT, "knn knn"),  # exact without a script
        (EngineType.ELASTICSEARCH, IndexType.INT8_FLAT, "knn exact"),
        (EngineType.OPENSEARCH, IndexType.HNSW, "knn exact"),
        (EngineType.OPENSEARCH, IndexType.FLAT, "exact exact"),  # no kNN without a graph
    ],
)
def test_choose_method(engine_type: EngineType, index_type: IndexType, methods: str) -> None:
    assert [choose_method(engine_type, meta(index_type), exact) for exact in (False, True)] == methods.split()


def test_quantized_vectors_are_oversampled_up_to_the_limit_of_the_engine() -> None:
    for k, expected in ((5, 8), (9_000, MAX_K)):
        body = search_body(EngineType.OPENSEARCH, SearchMethod.KNN, VectorQuery("v", VECTOR, k, oversample=1.5))
        assert values(body, "k") == [expected]
        assert expected <= values(body, "ef_search")[0] <= MAX_K
