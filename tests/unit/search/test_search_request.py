"""Whole searches as they are sent, for each engine."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from es_sbert.engines.engine_info import EngineType
from es_sbert.engines.rest import Json
from es_sbert.errors import UsageError
from es_sbert.index.mapping import ChunkRules, IndexType, VectorFieldMeta
from es_sbert.index.vector_field import FieldOutcome, VectorField
from es_sbert.search.hybrid_search import hybrid_request, keyword_query, query_in_scope
from es_sbert.search.reranking import search_depth
from es_sbert.search.search_request import SearchRequest, check_search, exclude_document, search_request
from es_sbert.search.search_result import HybridResult
from es_sbert.search.search_scope import SearchScope, read_search_scope
from es_sbert.search.semantic_index import SemanticIndex
from es_sbert.search.vector_query import SearchMethod
from es_sbert.settings import HybridOptions, SearchOptions
from tests.raised import raises
from tests.unit.golden import assert_golden

VECTOR = np.array([0.1, -0.5, 0.25], dtype=np.float32)
FILTER: Json = {"term": {"language": "en"}}
TEXT = "storm damage"


def field(name: str = "embedding", index: str = "docs", **meta: Any) -> VectorField:
    given = {"fingerprint": "f", "model": "m", "dimensions": 3, "index_type": "hnsw", "text": "{title}. {body}"}
    return VectorField(index, name, VectorFieldMeta(**given | meta), FieldOutcome.PRESENT)


ONE = SearchScope((field(),))
CHUNKED = SearchScope((field("body", index_type="int8_hnsw", passages=ChunkRules(tokens=64, overlap=8)),))
PAGED: SearchOptions = {
    "filter": FILTER, "source": ["title"], "highlight": ["title"], "min_cosine": 0.3,
}  # fmt: skip
SEARCHES: dict[str, tuple[SearchScope, SearchOptions]] = {
    "page": (ONE, PAGED),
    "chunks": (CHUNKED, {"filter": FILTER, "source": False}),
}
HYBRIDS: dict[str, tuple[SearchScope, HybridOptions]] = {
    "page": (ONE, {"filter": FILTER, "highlight": ["title"]}),
    "fields": (ONE, {"weights": (2.0, 1.0), "lexical_fields": ["title"]}),
    "chunks": (CHUNKED, {"exact": True}),
}


def request_of(
    searched: SearchScope, options: HybridOptions, engine_type: EngineType = EngineType.ELASTICSEARCH
) -> SearchRequest[HybridResult]:
    return hybrid_request(engine_type, searched, VECTOR, 20, options, TEXT)


@pytest.mark.parametrize("engine_type", list(EngineType))
@pytest.mark.parametrize("name", list(SEARCHES))
def test_search_requests_match_golden_files(engine_type: EngineType, name: str) -> None:
    searched, options = SEARCHES[name]
    [body] = search_request(engine_type, searched, VECTOR, 20, options, TEXT).bodies
    assert_golden(engine_type, f"search-{name}", body)


@pytest.mark.parametrize("engine_type", list(EngineType))
@pytest.mark.parametrize("name", list(HYBRIDS))
def test_hybrid_requests_match_golden_files(engine_type: EngineType, name: str) -> None:
    searched, options = HYBRIDS[name]
    bodies = list(request_of(searched, options, engine_type).bodies)
    assert_golden(engine_type, f"hybrid-{name}", {"bodies": bodies})


def test_highlight_of_the_engine_is_sent_as_given() -> None:
    own: Json = {"fields": {"text": {}}, "pre_tags": ["["], "post_tags": ["]"]}
    [body] = search_request(EngineType.ELASTICSEARCH, ONE, VECTOR, 20, {"highlight": own}, TEXT).bodies
    assert body["highlight"] == own


SPANISH: Json = {"term": {"language": "es"}}


@pytest.mark.parametrize(
    ("filters", "filter", "expected"),
    [
        ({}, None, None),
        ({}, FILTER, FILTER),
        ({"docs": FILTER, "news": FILTER}, None, FILTER),
        ({"docs": FILTER, "news": FILTER}, SPANISH, {"bool": {"filter": [FILTER, SPANISH]}}),
        ({"news": FILTER}, None, {"bool": {"should": [
            {"term": {"_index": "docs"}}, {"bool": {"filter": [{"term": {"_index": "news"}}, FILTER]}},
        ], "minimum_should_match": 1}}),
    ],
)  # fmt: skip
def test_alias_filters_are_combined_with_the_search_filter(
    filters: dict[str, Json], filter: Json | None, expected: Json
) -> None:
    searched = SearchScope((field(), field(index="news")), filters)
    assert searched.combine_filter(filter) == expected


@pytest.mark.parametrize("k", [5.0, "5", True, np.int64(5), None])
def test_k_must_be_an_int(k: Any) -> None:
    with raises(UsageError, "k", k):
        check_search(k, {})


def test_exclude_document() -> None:
    itself = {"bool": {"filter": [{"ids": {"values": ["7"]}}, {"term": {"_index": "docs"}}]}}
    assert exclude_document(None, "docs", "7") == {"bool": {"must_not": [itself]}}
    assert exclude_document(FILTER, "docs", "7") == {"bool": {"must_not": [itself], "filter": [FILTER]}}


def test_flat_index_makes_the_whole_opensearch_search_exact() -> None:
    mixed = SearchScope((field(), field(index="news", index_type="flat"), field(index="old", index_type="int8_hnsw")))
    assert mixed.method(EngineType.OPENSEARCH, exact=False) is SearchMethod.EXACT
    assert mixed.method(EngineType.ELASTICSEARCH, exact=False) is SearchMethod.KNN
    assert mixed.indices == ("docs", "news", "old")
    assert mixed.oversample() == 1.5
    assert mixed.oversample(3.0) == 3.0
    assert ONE.oversample() is None
    assert IndexType(mixed.meta_in("news").index_type) is IndexType.FLAT


def test_nested_fields_are_searched_by_nested_queries() -> None:
    def query(fields: list[str], **paths: list[str]) -> Json:
        scope = SearchScope(
            (field(), field(index="news")), nested_paths={index: frozenset(own) for index, own in paths.items()}
        )
        return query_in_scope(scope, fields, lambda some: keyword_query(TEXT, some))

    def nested(path: str, inner: Json) -> Json:
        return {"nested": {"path": path, "query": inner, "score_mode": "max"}}

    both = {"docs": ["a", "a.b"], "news": ["a", "a.b"]}
    assert query(["title", "body"], **both) == keyword_query(TEXT, ["title", "body"])
    assert query(["ab.text"], **both) == {"match": {"ab.text": TEXT}}
    assert query(["a.text"], **both) == nested("a", {"match": {"a.text": TEXT}})
    assert query(["a.b.text"], **both) == nested("a.b", {"match": {"a.b.text": TEXT}})
    assert query(["title^2", "a.text", "a.body^2"], **both) == {
        "dis_max": {
            "queries": [
                {"multi_match": {"query": TEXT, "fields": ["title^2"]}},
                nested("a", {"multi_match": {"query": TEXT, "fields": ["a.text", "a.body^2"]}}),
            ]
        }
    }
    assert query(["a.text"], docs=["a"]) == {
        "dis_max": {
            "queries": [
                {"bool": {"must": [clause], "filter": [{"terms": {"_index": [index]}}]}}
                for index, clause in (
                    ("docs", nested("a", {"match": {"a.text": TEXT}})),
                    ("news", {"match": {"a.text": TEXT}}),
                )
            ]
        }
    }


def of_vector(*vector: Any) -> Any:
    return search_request(EngineType.OPENSEARCH, ONE, vector, 10, {})  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("search", "setting"),
    [
        (lambda: request_of(SearchScope((field(text=None),)), {}), "lexical_fields"),
        (lambda: request_of(ONE, {"lexical_fields": []}), "lexical_fields"),
        (lambda: request_of(ONE, {"oversample": 2.0}), "oversample"),
        (lambda: check_search(10, {}, " "), "text"),
        (lambda: check_search(10, {}, "x" * 100_001), "text"),
        *((partial(of_vector, *[length] * 3), "vector") for length in (1e-30, 1e30, 1e300)),
        (lambda: of_vector(1.0, 2.0), "vector"),
        (lambda: of_vector([1.0], [1.0, 2.0]), "vector"),
        (lambda: search_depth(None, 10, 20), "window"),
        (lambda: search_depth(SimpleNamespace(score_pairs=None), 10, 1001), "window"),  # type: ignore[arg-type]
        (lambda: read_search_scope(None, [], "v"), "index"),  # type: ignore[arg-type]
        (lambda: SemanticIndex.delete(SemanticIndex.__new__(SemanticIndex), ["1", ""]), "ids"),
    ],
)
def test_searches_and_deletions_of_nothing_are_refused(search: Callable[[], object], setting: str) -> None:
    with raises(UsageError, setting):
        search()
    check_search(10, {}, "x" * 100_000)
