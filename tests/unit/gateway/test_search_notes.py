"""What the search log takes from answers as they pass."""

from __future__ import annotations

import gzip
from typing import Any

import pytest

from es_sbert.gateway.search.semantic_query import SemanticQuery, SemanticSyntax
from es_sbert.gateway.search_log import (
    SearchRecorder,
    SearchTrace,
    TotalHitsParser,
    is_internal_search,
    read_trace,
)
from es_sbert.index.vector_field import VectorField
from es_sbert.search.search_scope import SearchScope
from tests.unit.gateway.rewriting import vector_field

ANSWER = b'{"took":1,"timed_out":false,"_shards":{"total":1},"hits":{"total":{"value":17,"relation":"eq"},"hits":[]}}'


@pytest.mark.parametrize(
    ("answer", "totals"),
    [
        (ANSWER, [17]),
        (b'{"hits":{"total":3,"max_score":null,"hits":[]}}', [3]),
        (b'{"hits":{"max_score":1.5,"hits":[]}}', []),
        (gzip.compress(ANSWER), [17]),
        (gzip.compress(ANSWER)[:-8], [17]),
        (b"\x1f\x8b\x08\x00 damaged on its way", []),
        (b"", []),
    ],
    ids=["object", "number", "none", "gzip", "cut off", "damaged", "empty"],
)
def test_total_hits_are_parsed_from_partial_responses(answer: bytes, totals: list[int]) -> None:
    glance = TotalHitsParser(1000)
    for start in range(0, len(answer), 7):
        glance.part(answer[start : start + 7])
    assert glance.totals() == totals


@pytest.mark.parametrize(
    ("expression", "is_internal"),
    [
        (".kibana", True),
        (".kibana_8.19.8,.kibana_task_manager", True),
        (".kibana*,-.kibana_old", True),
        ("es-sbert-searches-*", True),
        ("es-sbert-searches-2026.01", True),
        ("docs", False),
        ("docs,.kibana", False),
        ("es-sbert-searches", False),  # no month of the log
        ("docs,*_by_embedding_meta.embedded_at", False),
        ("", False),
        ("*", False),
    ],
)
def test_searches_of_dashboards_themselves_are_recognized(expression: str, is_internal: bool) -> None:
    assert is_internal_search(expression) is is_internal


@pytest.mark.parametrize(
    ("body", "query", "expected"),
    [
        (b"", b"", True),
        (b'{"size":500,"query":{}}', b"", True),
        (b'{"aggs":{"2":{"terms":{"field":"tag"}}},"size": 0 ,"query":{}}', b"", False),
        # Not that of the search itself.
        (b'{"query":{},"aggs":{"2":{"top_hits":{"size":0}}}}', b"", True),
        (b'{"size":0', b"", True),
        (b'{"size":0}', b"size=10", True),
        (b"", b"q=title:a&size=0", False),
    ],
)
def test_searches_for_figures_are_told_from_searches_for_documents(body: bytes, query: bytes, expected: bool) -> None:
    assert read_trace(body, query).returns_hits is expected


# The query of Discover before anything is typed, of a data view with a time field.
_TIME_RANGE = b'{"range":{"at":{"gte":"2026-11-26"}}}'
_OPENED = b'{"bool":{"must":[],"filter":[{"match_all":{}},%b],"should":[],"must_not":[]}}' % _TIME_RANGE


@pytest.mark.parametrize(
    ("query", "expected"),
    [
        (_OPENED, True),
        (b'{"match_all":{}}', True),
        (b'{"bool":{"filter":{"match_all":{}}}}', True),
        (b'{"bool":{}}', True),
        (_OPENED.replace(b'{"match_all":{}}', b'{"match_phrase":{"tag":"music"}}'), False),
        (_OPENED.replace(b'"must_not":[]', b'"must_not":[{"match_phrase":{"tag":"music"}}]'), False),
        (b'{"bool":{"should":[{"range":{"year":{"gt":2000}}}],"minimum_should_match":1}}', False),
        (b'{"query_string":{"query":"piano"}}', False),
        (b'{"bool":[]}', False),
        (b"null", False),
    ],
)
def test_search_without_typed_query_is_recognized(query: bytes, expected: bool) -> None:
    trace = read_trace(b'{"size":500,"query":%b}' % query)
    assert (trace.kind, trace.returns_hits) == ("browse" if expected else "lexical", True)


@pytest.mark.parametrize(
    ("body", "parameters"),
    [
        (b"", b"q=piano"),
        (b'{"query":{"match_all":{}}}', b"q=piano"),
        (b'{"query":{"match_all":{}},"knn":{"field":"v"}}', b""),
        (b'{"query":{"match_all":{}}', b""),
        (b'{"id":"template"}', b""),
        (b"", b""),
    ],
)
def test_search_that_may_have_a_query_elsewhere_counts_as_one(body: bytes, parameters: bytes) -> None:
    assert read_trace(body, parameters).kind == "lexical"


def test_search_for_figures_is_not_a_browse() -> None:
    counted = read_trace(b'{"size":0,"query":%b}' % _OPENED)
    assert (counted.kind, counted.returns_hits) == ("lexical", False)


def semantic_query(**changed: Any) -> SemanticQuery:
    scope = SearchScope((VectorField("docs", "embedding", vector_field()),))
    return SemanticQuery(scope, "plants", **({"k": 10, "syntax": SemanticSyntax.VIRTUAL_FIELD} | changed))


def test_records_say_what_each_search_of_a_request_was() -> None:
    recorder = SearchRecorder("docs,old", "msearch", status=200)
    recorder.searches += [
        SearchTrace(),
        SearchTrace("articles", queries=(semantic_query(), semantic_query(k=7)), seconds=0.5),
        SearchTrace(is_semantic=True, status=400),  # refused before its texts were known
        # Its model could not be loaded.
        SearchTrace(queries=(semantic_query(syntax=SemanticSyntax.HYBRID),), status=503, returns_hits=False),
    ]
    records = recorder.records()
    members = ("index", "api", "kind", "k", "status", "texts", "returns_hits")
    assert [tuple(record[member] for member in members) for record in records] == [
        ("docs,old", "_msearch", "lexical", None, 200, [], True),
        ("articles", "_msearch", "semantic", 10, 200, ["plants"], True),
        ("docs,old", "_msearch", "semantic", None, 400, [], True),
        ("docs,old", "_msearch", "hybrid", 10, 503, ["plants"], False),
    ]
    assert [record["milliseconds"].get("embedding") for record in records] == [None, 500.0, None, None]
    # Of a request that was refused before anything of it was read.
    [unread] = SearchRecorder("docs", "search", status=413).records()
    assert (unread["kind"], unread["status"]) == ("lexical", 413)
