"""Which queries of a search become hybrid; `tests/gateway/test_hybrid_search.py` sends them to real engines."""

from __future__ import annotations

from typing import Any

import pytest

from es_sbert.engines.rest import Json
from es_sbert.gateway.search.hybrid_queries import ranks_hits
from es_sbert.gateway.search.hybrid_ranking import ranking_query
from tests.gateway.hybrid_kinds import HYBRID, UNCHANGED
from tests.unit.gateway.rewriting import Rewriting

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
