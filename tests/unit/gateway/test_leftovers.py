"""The virtual field in places where no search by meaning can stand."""

from __future__ import annotations

import base64
from dataclasses import replace

import orjson
import pytest

from es_sbert.engines.engine_info import EngineType
from es_sbert.engines.rest import Json
from es_sbert.gateway.errors import BadRequest
from es_sbert.gateway.incoming_request import UnreadableJson
from es_sbert.gateway.index_lookup import NO_MAPPINGS
from es_sbert.gateway.search.field_resolver import FieldResolver
from es_sbert.gateway.search.query_finder import QueryFinder
from es_sbert.gateway.search.semantic_query import SemanticQueryParser
from es_sbert.gateway.settings import SemanticSettings
from tests.raised import raises_as_recorded
from tests.unit.gateway.rewriting import PLAIN, Rewriting, clauses

TEXT = "how do plants make energy"
SEMANTIC: Json = {"match": {"semantic": TEXT}}
EN: Json = {"term": {"language": "en"}}
LUCENE: Json = {"query_string": {"query": f'semantic:"{TEXT}"'}}
BUILDER: Json = {"text_embedding": {"model_text": TEXT}}


def wrapped(query: Json) -> Json:
    return {"wrapper": {"query": base64.b64encode(orjson.dumps(query)).decode()}}


REFUSED: dict[str, Json] = {
    "excluded": {"query": {"bool": {"must_not": [{"wildcard": {"semantic": "pl*"}}]}}},
    "range": {"query": {"range": {"semantic": {"gte": "a"}}}},
    "span": {"query": {"span_near": {"clauses": [{"span_term": {"semantic": "plants"}}], "slop": 2}}},
    "more_like_this": {"query": {"more_like_this": {"fields": ["title", "semantic"], "like": TEXT}}},
    "vector": {"query": {"knn": {"field": "semantic", "query_vector": [1, 2, 3], "k": 3}}},
    "kql": {"query": {"kql": {"query": "semantic: plants and language: en"}}},
    "filter of a knn": {"knn": {"field": "embedding", "k": 3, "query_vector_builder": BUILDER, "filter": SEMANTIC}},
    "lucene range": {"query": {"query_string": {"query": "language:en AND semantic:[a TO b]"}}},
    "in a query that is not known": {"query": {"rule": {"organic": SEMANTIC}}},
    "sort": {"query": EN, "sort": [{"year": "asc"}, {"semantic": {"order": "desc", "unmapped_type": "keyword"}}]},
    "aggregation": {"aggs": {"a": {"terms": {"field": "semantic"}}}},
    "collapse": {"query": SEMANTIC, "collapse": {"field": "semantic"}},
    "suggestion": {"suggest": {"a": {"text": TEXT, "term": {"field": "semantic"}}}},
    "highlight": {"query": SEMANTIC, "highlight": {"fields": {"semantic": {}}}},
    "highlights in order": {"query": SEMANTIC, "highlight": {"fields": [{"title": {}}, {"semantic": {}}]}},
    "highlighted lucene": {"highlight": {"fields": {"title": {"highlight_query": LUCENE}}}},
    "default field of lucene": {"highlight": {"highlight_query": {"query_string": {
        "query": TEXT, "default_field": "semantic"}}}},
    "highlighted text": {"highlight": {"fields": {"title": {"highlight_query": SEMANTIC}}}},
    "term": {"query": {"term": {"semantic": TEXT}}},
    "exists": {"query": {"bool": {"must_not": [{"exists": {"field": "semantic"}}]}}},
    "exists in lucene": {"query": {"query_string": {"query": "_exists_:(title OR semantic) AND lang:en"}}},
    "exists by a pattern in lucene": {"query": {"query_string": {"query": "_exists_:sem* AND semantic:plants"}}},
    "exists as an asterisk in lucene": {"query": {"query_string": {"query": "semantic:* OR lang:en"}}},
    "simple rrf": {"retriever": {"rrf": {"fields": ["title", "semantic"], "query": TEXT}}},
}  # fmt: skip


@pytest.mark.parametrize("where", list(REFUSED))
def test_rejects_semantic_field_where_engine_would_match_nothing(where: str) -> None:
    with raises_as_recorded(BadRequest):
        Rewriting()(REFUSED[where])
    Rewriting(NO_MAPPINGS)(REFUSED[where])
    mixed = Rewriting(replace(PLAIN, ordinary=True))
    if "exists" in where:  # `semantic: *` of Kibana, where `semantic: plants` is semantic too
        with raises_as_recorded(BadRequest):
            mixed(REFUSED[where])
    elif "lucene" not in where and "semantic" not in str(clauses(REFUSED[where], "match")):
        mixed(REFUSED[where])


KNN: Json = {"field": "embedding", "k": 3, "num_candidates": 9, "query_vector_builder": BUILDER}
NEURAL: Json = {"neural": {"embedding": {"query_text": TEXT}}}
MANY = [*(wrapped({"term": {"a": number}}) for number in range(50)), wrapped(NEURAL)]
# A native query would not be read by the engine as it is meant, also next to an ordinary field `semantic`.
NATIVE: dict[str, Json] = {
    "retriever": {"retriever": {"standard": {"query": {"bool": {"must": [SEMANTIC]}}}}},
    "retriever knn": {"retriever": {"rrf": {"retrievers": [{"standard": {"query": EN}}, {"knn": KNN}]}}},
    "rescore": {"query": EN, "rescore": [{"query": {"rescore_query": {"knn": KNN}}}]},
    "rescored semantic": {"rescore": {"query": {"rescore_query": {"semantic": {"field": "body", "query": TEXT}}}}},
    "wrappers": {"retriever": {"standard": {"query": {"bool": {"should": MANY}}}}},
    "wrapper": {"retriever": {"standard": {"query": wrapped({"bool": {"should": [NEURAL]}})}}},
    "highlight": {"query": SEMANTIC, "highlight": {"fields": {"title": {"highlight_query": NEURAL}}}},
    "filter of a knn": {"knn": KNN | {"filter": [NEURAL]}},
}


@pytest.mark.parametrize("where", list(NATIVE))
def test_rejects_a_semantic_query_where_it_is_not_rewritten(where: str) -> None:
    for searched in (PLAIN, replace(PLAIN, ordinary=True)):
        with raises_as_recorded(BadRequest):
            Rewriting(searched)(NATIVE[where])
    assert Rewriting(NO_MAPPINGS)(NATIVE[where]) is NATIVE[where]


@pytest.mark.parametrize(
    "body",
    [
        {"aggs": {"semantic": {"terms": {"field": "topic"}}}},
        {"aggs": {"semantic": {"avg": {"field": "year"}}, "a": {"bucket_sort": {"sort": [{"semantic": "desc"}]}}}},
        {"query": EN, "_source": ["semantic"], "fields": ["semantic", {"field": "semantic"}],
         "docvalue_fields": [{"field": "semantic"}], "stored_fields": ["semantic"]},
        {"query": {"script_score": {"query": EN, "script": {"source": "1", "params": {"field": "semantic"}}}}},
        {"query": {"percolate": {"field": "query", "document": {"term": {"semantic": "a"}}}}},
        {"query": {"term": {"title": {"value": "semantic", "_name": "semantic"}}}},
        {"query": {"terms": {"topic": ["semantic", "web"]}}, "sort": ["_score", {"year": "asc"}]},
        {"query": {"kql": {"query": "title: semantic"}}},
        {"highlight": {"highlight_query": {"query_string": {"query": "title:semantic"}}}},
        {"query": {"term": {"semantic": "a"}}, "runtime_mappings": {"semantic": {"type": "keyword"}}},
        {"query": SEMANTIC, "sort": ["semantic"], "derived": {"semantic": {"type": "keyword", "script": "emit('a')"}}},
        {"query": {"query_string": {"query": "_exists_:* AND topic:semantic"}}},
        {"query": {"match": {"wrapper": {"query": "plants"}}}},
        {"query": {"more_like_this": {"like": [{"doc": {"a": {"wrapper": {"query": "plants"}}}}]}}},
        {"query": {"wrapper": {"query": base64.b64encode(orjson.dumps(EN)).decode()}}},
    ],
)  # fmt: skip
def test_non_semantic_bodies_are_never_rejected(body: Json) -> None:
    assert Rewriting()(body) is body


def test_semantic_query_is_found_at_any_depth() -> None:
    """Deeper than Python could recurse."""
    body: Json = {"source": [{"filter": [SEMANTIC, "text"]}]}
    for _ in range(900):
        body = {"inner": body}
    parser = SemanticQueryParser(FieldResolver(PLAIN, "semantic"), SemanticSettings(), 1000)
    with raises_as_recorded(BadRequest):
        QueryFinder(EngineType.ELASTICSEARCH, parser, None).find(body)


def test_wrapper_query_that_cannot_be_read_is_rejected() -> None:
    Rewriting().query({"wrapper": {"query": base64.encodebytes(b"/* all of it */" + orjson.dumps(EN)).decode()}})
    texts = (b"match_all: {}", b"{} x", orjson.dumps(EN).decode().encode("utf-16-le"))
    for query in ("no base64: semantic", *(base64.b64encode(text).decode() for text in texts)):
        with raises_as_recorded(UnreadableJson):
            Rewriting().query({"wrapper": {"query": query}})


def test_exists_of_every_field_stays_a_part_of_a_query_string() -> None:
    rewritten = Rewriting().query({"query_string": {"query": "semantic:plants AND _exists_:*"}})
    assert clauses(rewritten, "query_string")[-1] == {"query": "_exists_:*"}


def test_subfields_of_an_ordinary_semantic_field_pass_through() -> None:
    body: Json = {"query": {"match": {"semantic.title": "plants"}}, "sort": ["semantic.year"]}
    assert Rewriting(replace(PLAIN, ordinary=True))(body) is body


def test_wrapper_query_is_rewritten_like_its_content() -> None:
    plain: Json = {"bool": {"filter": [{"bool": {"must": [SEMANTIC, EN]}}]}}
    hidden: Json = {"bool": {"filter": [wrapped({"bool": {"must": [SEMANTIC, EN]}})]}}
    assert Rewriting().query(wrapped(hidden)) == Rewriting().query(plain)
    aggregated = Rewriting()({"query": wrapped(plain), "aggs": {"near": {"filter": SEMANTIC}}})
    assert [knn["filter"] for knn in clauses(aggregated, "knn")] == [EN, EN]
    words: Json = {"match": {"title": TEXT}}
    hybrid = Rewriting(hybrid=True)
    assert words in clauses(hybrid.query(wrapped(words)), "queries")[0]
    assert hybrid.texts == [TEXT]
