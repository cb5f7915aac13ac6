"""Which queries of a search become hybrid; `tests/gateway/test_hybrid_search.py` sends them to real engines."""

from __future__ import annotations

from typing import Any

import pytest

from es_sbert.engines.rest import Json
from es_sbert.errors import IndexMismatch
from es_sbert.gateway.search.hybrid_queries import ranking_query, ranks_hits
from tests.gateway.hybrid_kinds import HYBRID, RESTRICTIONS, UNCHANGED
from tests.unit.gateway.rewriting import MIXED, Rewriting, clauses

TEXT = "how do plants make energy"


@pytest.mark.parametrize("name", HYBRID)
def test_query_that_matches_by_any_word_becomes_hybrid(name: str) -> None:
    rewriting = Rewriting(hybrid=True)
    rewriting(HYBRID[name]("title", TEXT))
    assert rewriting.texts == [TEXT]


@pytest.mark.parametrize("name", UNCHANGED)
def test_query_that_says_what_a_hit_must_have_is_unchanged(name: str) -> None:
    body = UNCHANGED[name]("title", TEXT)
    assert Rewriting(hybrid=True)(body) is body


@pytest.mark.parametrize(
    ("body", "options", "ranks"),
    [
        ({}, {}, True),
        ({"size": 0}, {}, False),
        ({"size": 0}, {"size": "5"}, True),
        ({}, {"size": "0"}, False),
        ({}, {"sort": "date:desc"}, False),
        ({"sort": ["date"]}, {"sort": "_score,date"}, True),
        ({"sort": [{"_score": "desc"}, "date"]}, {}, True),
        ({"knn": {}}, {}, False),
    ],
)
def test_parameters_of_the_request_override_the_body(body: Json, options: dict[str, str], ranks: bool) -> None:
    assert ranks_hits(body, options) is ranks


def test_words_of_an_unranked_document_score_below_all_ranked_ones() -> None:
    words: Json = {"match": {"title": TEXT}}
    documents = [(("docs", "a"), 4.9), (("docs", "b"), 0.4)]
    queries: list[Any] = ranking_query(words, documents, 10.0)["dis_max"]["queries"]
    assert [query["constant_score"]["boost"] for query in queries[1:]] == [49.0, 4.0]
    assert queries[0] == {"bool": {"must": [words], "boost": pytest.approx(0.3996)}}
    assert ranking_query(words, [], 1.0)["dis_max"]["queries"] == [{"bool": {"must": [words], "boost": 0.999}}]


SEMANTIC: Json = {"match": {"semantic": "light"}}
WORDS: Json = {"match": {"title": TEXT}}
JOINED: dict[str, Json] = {
    "nested": {"nested": {"path": "comments", "query": {"bool": {"must": [WORDS]}}}},
    "has_child": {"has_child": {"type": "answer", "query": WORDS}},
}


def knn_filter(rewritten: Json) -> Json:
    """The filter of the kNN of the semantic query."""
    *_, knn = clauses(rewritten, "knn")
    applied: Json = knn["filter"]
    return applied


@pytest.mark.parametrize("name", RESTRICTIONS)
def test_query_that_never_becomes_hybrid_filters_a_semantic_query(name: str) -> None:
    restriction = RESTRICTIONS[name](WORDS)
    required = WORDS if name == "next to a hybrid query" else restriction
    for body in (
        {"query": {"bool": {"must": [restriction, SEMANTIC]}}},
        {"query": {"bool": {"must": [restriction], "filter": [{"bool": {"must": [SEMANTIC]}}]}}},
        {"query": restriction, "post_filter": SEMANTIC},
        {"query": restriction, "aggs": {"near": {"filter": SEMANTIC}}},
    ):
        rewriting = Rewriting(hybrid=True)
        applied = knn_filter(rewriting(body))
        assert applied == required or "wrapper" in required  # which is decoded
        assert rewriting.texts == ["light"] if required is restriction else len(rewriting.texts) == 2


@pytest.mark.parametrize("name", JOINED)
@pytest.mark.parametrize("outer", ["must", "filter"])
def test_query_on_joined_documents_filters_a_semantic_query(outer: str, name: str) -> None:
    wrapped: Json = {"bool": {outer: [JOINED[name]]}}
    rewriting = Rewriting(hybrid=True)
    assert knn_filter(rewriting.query({"bool": {"must": [wrapped, SEMANTIC]}})) == wrapped
    assert rewriting.texts == ["light"]


@pytest.mark.parametrize("place", ["post_filter", "aggs", "must"])
def test_query_that_becomes_hybrid_does_not_filter_a_semantic_query(place: str) -> None:
    """Its hits need not hold its words."""
    body: Json = {"query": WORDS, "post_filter": SEMANTIC}
    if place == "aggs":
        body = {"query": WORDS, "aggs": {"near": {"filter": SEMANTIC}}}
    if place == "must":
        body = {"query": {"bool": {"must": [{"bool": {"should": [WORDS]}}, SEMANTIC]}}}
    *_, knn = clauses(Rewriting(hybrid=True)(body), "knn")
    assert "filter" not in knn


def test_filter_of_a_hybrid_query_is_applied_once() -> None:
    """A bool inside another one repeats none of the filters that the outer one collected."""
    query, term = SEMANTIC, {"term": {"language": "en"}}
    for _ in range(20):
        query = {"bool": {"must": [query, WORDS], "filter": [term]}}
    for knn in clauses(Rewriting(hybrid=True).query(query), "knn"):
        assert len(clauses(knn["filter"], "term")) == 20


def test_models_may_differ_where_no_query_becomes_hybrid() -> None:
    words: Json = {"match": {"title": TEXT}}
    for body in ({"query": {"bool": {"filter": [words]}}}, {"post_filter": words, "query": {"match_all": {}}}):
        assert Rewriting(MIXED, hybrid=True)(body) is body
    with pytest.raises(IndexMismatch):
        Rewriting(MIXED, hybrid=True).query(words)
