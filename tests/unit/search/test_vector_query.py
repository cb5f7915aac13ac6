from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from es_sbert.engines.engine_info import EngineType
from es_sbert.engines.rest import Json
from es_sbert.errors import UsageError
from es_sbert.search.vector_query import MAX_K, SearchMethod, VectorQuery, parse_filter, search_body, vector_clause
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
    with pytest.raises(UsageError, match="nested query on Elasticsearch") as caught:
        vector_clause(EngineType.ELASTICSEARCH, SearchMethod.KNN, query)
    assert "body's own `knn` section" in caught.value.remedy
    assert search_body(EngineType.ELASTICSEARCH, SearchMethod.KNN, query)["knn"]["filter"] == filter
    assert vector_clause(EngineType.OPENSEARCH, SearchMethod.KNN, query)


def test_field_named_nested_is_accepted() -> None:
    query = VectorQuery("v", VECTOR, filter={"term": {"nested": "x"}}, passages=True)
    assert vector_clause(EngineType.ELASTICSEARCH, SearchMethod.KNN, query)


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


@given(st.integers(1, MAX_K))
def test_candidates_are_between_k_and_the_engine_limit(k: int) -> None:
    assert k <= VectorQuery("v", VECTOR, k).candidates <= MAX_K


@pytest.mark.parametrize(("k", "oversample", "expected"), [(10, None, 10), (5, 1.5, 8), (9_000, 3.0, MAX_K)])
def test_oversampling_is_capped_at_the_engine_limit(k: int, oversample: float | None, expected: int) -> None:
    query = VectorQuery("v", VECTOR, k, oversample=oversample)
    assert query.oversampled_k == expected
    body = search_body(EngineType.OPENSEARCH, SearchMethod.KNN, query)
    assert values(body, "k") == [expected]
    assert expected <= values(body, "ef_search")[0] <= MAX_K


@pytest.mark.parametrize("k", [0, -1, MAX_K + 1])
def test_k_out_of_range_is_rejected(k: int) -> None:
    with pytest.raises(UsageError, match=f"k is {k}"):
        VectorQuery("v", VECTOR, k)


@pytest.mark.parametrize("candidates", [0, 9, MAX_K + 1])
def test_num_candidates_out_of_range_is_rejected(candidates: int) -> None:
    with pytest.raises(UsageError, match=f"num_candidates is {candidates}"):
        VectorQuery("v", VECTOR, 10, num_candidates=candidates)


@pytest.mark.parametrize("cosine", [-1.1, 1.1, float("nan")])
def test_min_cosine_out_of_range_is_rejected(cosine: float) -> None:
    with pytest.raises(UsageError, match="minimum cosine is"):
        VectorQuery("v", VECTOR, min_cosine=cosine)


@pytest.mark.parametrize("boost", [0.0, -1.0, float("nan"), float("inf")])
def test_boost_must_be_positive(boost: float) -> None:
    with pytest.raises(UsageError, match="boost is"):
        VectorQuery("v", VECTOR, boost=boost)


@pytest.mark.parametrize("vector", [[], [0.0, 0.0], [1.0, float("nan")], [float("inf"), 1.0], [[1.0, 2.0]]])
def test_invalid_query_vectors_are_rejected(vector: Any) -> None:
    with pytest.raises(UsageError, match="no direction"):
        VectorQuery("v", np.array(vector, dtype=np.float32))


def test_parse_filter() -> None:
    assert parse_filter('{"term": {"a": 1}}') == {"term": {"a": 1}}


@pytest.mark.parametrize("text", ["", "{", "term: a", '["a"]', '"a"', "{}", "null", "NaN"])
def test_invalid_filters_are_rejected(text: str) -> None:
    with pytest.raises(UsageError, match="the filter (is not JSON|must be a JSON object)") as caught:
        parse_filter(text)
    assert '{"term"' in caught.value.remedy


@pytest.mark.parametrize("oversample", [0.5, 10.5, float("nan")])
def test_oversample_out_of_range_is_rejected(oversample: float) -> None:
    with pytest.raises(UsageError, match="oversample is"):
        VectorQuery("v", VECTOR, oversample=oversample)
