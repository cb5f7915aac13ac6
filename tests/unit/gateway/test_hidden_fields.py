"""Which searches get `_source.excludes`, and how these are merged with the caller's filter."""

from __future__ import annotations

from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from es_sbert.engines.rest import Json
from es_sbert.gateway.incoming_request import parse_object
from es_sbert.gateway.search.hidden_fields import hide_by_parameter, hide_in_bodies, hide_in_search

FIELDS = ("embedding", "embedding_meta")
EXCLUDED: Json = {"_source": {"excludes": list(FIELDS)}}


def source(*excludes: str, **more: Any) -> Json:
    return {"_source": {"excludes": [*excludes, *FIELDS], **more}}


@pytest.mark.parametrize(
    ("body", "params", "expected"),
    [
        ({}, {}, EXCLUDED),
        ({"_source": {}}, {}, EXCLUDED),
        ({"_source": []}, {}, EXCLUDED),
        ({"_source": {"exclude": ["a"]}}, {}, {"_source": {"exclude": ["a", *FIELDS]}}),
        ({"_source": {"excludes": "a"}}, {}, source("a")),
        ({"_source": {"includes": [], "excludes": ["a*"]}}, {}, source("a*", includes=[])),
        ({"stored_fields": ["_source", "a"]}, {}, {"stored_fields": ["_source", "a"]} | EXCLUDED),
        # The parameter replaces what the body says.
        ({"_source": ["a"]}, {"_source_excludes": "b,c"}, source("b", "c")),
        ({"collapse": {"field": "a", "inner_hits": [{"name": "b"}]}, "_source": False}, {},
         {"collapse": {"field": "a", "inner_hits": [{"name": "b"} | EXCLUDED]}, "_source": False}),
        ({"query": {"bool": {"must": [{"has_child": {"type": "a", "inner_hits": {}}}]}}, "size": 0}, {},
         {"query": {"bool": {"must": [{"has_child": {"type": "a", "inner_hits": EXCLUDED}}]}}, "size": 0}),
        ({"size": 0, "aggs": {"top_hits": {"filter": {}, "aggs": {"a": {"top_hits": {"size": 1}}}}}}, {},
         {"size": 0, "aggs": {"top_hits": {"filter": {}, "aggs": {"a": {"top_hits": {"size": 1} | EXCLUDED}}}}}),
    ],
)  # fmt: skip
def test_fields_are_added_to_what_the_caller_excludes(body: Json, params: dict[str, str], expected: Json) -> None:
    assert hide_in_search(body, list(params.items()), FIELDS) == []
    assert body == expected


@pytest.mark.parametrize(
    ("body", "params"),
    [
        ({"_source": True}, {}),
        ({"_source": False}, {}),
        ({"_source": ["embedding"]}, {}),
        ({"_source": {"includes": ["a"], "excludes": ["b"]}}, {}),
        ({"_source": {"excludes": ["embedding.vector"]}}, {}),
        ({"_source": {"exclude_vectors": False}}, {}),
        ({"stored_fields": ["*"]}, {}),
        ({"script_fields": {"a": {}}}, {}),
        ({"size": 0}, {}),
        ({"pit": {"id": "x"}}, {}),
        ({}, {"size": "0"}),
        ({}, {"_source_includes": "a"}),
        ({}, {"_source_excludes": "embedding"}),
        ({}, {"_source_exclude_vectors": "false"}),
        ({}, {"stored_fields": "a"}),
        ({"_source": False, "aggs": {"a": {"top_hits": {"_source": ["embedding"]}}}}, {}),
        # Of one document, not documents.
        ({"_source": False, "query": {"nested": {"path": "a", "query": {}, "inner_hits": {}}}}, {}),
    ],
)
def test_search_that_says_what_it_returns_is_unchanged(body: Json, params: dict[str, str]) -> None:
    before = str(body)
    assert hide_in_search(body, list(params.items()), FIELDS) is None
    assert str(body) == before


def test_body_that_need_not_be_parsed_keeps_its_bytes() -> None:
    plain, empty, filtered, broken = b'{ "query": {"match": {"a": 1.0}} }', b"{}", b'{"_source":["a"]}', b'{"size"'
    new = hide_in_bodies([plain, empty, filtered, broken], FIELDS, 1000)
    assert new[0].startswith(plain[:-1])
    assert orjson.loads(new[0]) == orjson.loads(plain) | EXCLUDED
    assert orjson.loads(new[1]) == EXCLUDED
    assert new[2:] == [filtered, broken]
    for body, limit in ((b'{"size":0 }', 1000), (b'{"_source":{}}', 5), (b'{"_source":', 1000)):
        assert hide_in_bodies([body], FIELDS, limit) == [body]


FILTERS = st.sampled_from([True, [], ["a"], {"excludes": "a"}, {"includes": ["a"]}, {"excludes": ["embedding"]}])
HITS = st.fixed_dictionaries({}, optional={"_source": FILTERS, "size": st.integers(0, 2), "stored_fields": st.just([])})
INNER = st.one_of(
    HITS.map(lambda hits: {"aggs": {"a": {"terms": {}, "aggs": {"b": {"top_hits": hits}}}}}),
    HITS.map(lambda hits: {"collapse": {"field": "a", "inner_hits": hits}}),
    st.just({"query": {"match": {"_id": 1.0}}}),
)


@given(st.builds(lambda hits, inner: hits | inner, HITS, INNER), st.booleans())
def test_body_is_unchanged_but_for_the_fields_that_are_hidden(body: Json, escaped: bool) -> None:
    sent = orjson.dumps(body).replace(b'"_', b'"\\u005f' if escaped else b'"_')
    [hidden] = hide_in_bodies([sent], FIELDS, 1000)
    if hide_in_search(body, [], FIELDS) is None:
        assert hidden is sent
    else:
        assert parse_object(hidden) == body


def test_parameter_is_added_up_to_what_engines_accept() -> None:
    assert hide_by_parameter(b"/a/_search?q=b", ("c", "d e")) == b"/a/_search?q=b&_source_excludes=c%2Cd%20e"
    assert hide_by_parameter(b"/a/_search", ("c",)) == b"/a/_search?_source_excludes=c"
    assert hide_by_parameter(b"/" + b"a" * 4000, ("c",)) is None
