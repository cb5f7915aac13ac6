"""The queries inside requests that are not searches."""

from __future__ import annotations

import pytest

from es_sbert.engines.rest import Json
from es_sbert.gateway.search.unsupported_apis import queries_in


@pytest.mark.parametrize(
    ("text", "inside"),
    [
        ('FROM docs | WHERE KQL("semantic: \\"how do\\" and lang: en") | LIMIT 3', ['semantic: "how do" and lang: en']),
        ('FROM docs | WHERE qstr ( """semantic:"how do" OR a:b""" )', ['semantic:"how do" OR a:b']),
        ("SELECT title FROM docs WHERE QUERY('semantic:plants') AND QUERY('year:1')", ["semantic:plants", "year:1"]),
        ("FROM docs METADATA _id | WHERE semantic == \"a\" AND MATCH(title, 'KQL')", []),
    ],
)
def test_finds_query_dsl_in_other_query_languages(text: str, inside: list[str]) -> None:
    said = {"term": {"topic": "a"}}
    queries = [{"query_string": {"query": one}} for one in inside]
    assert list(queries_in({"query": text, "filter": said})) == [said, *queries]
    assert list(queries_in({"query": 1, "filter": None})) == []


def test_queries_are_found_at_any_depth() -> None:
    """Deeper than Python could recurse."""
    query = {"match": {"semantic": "a cat"}}
    body: Json = {"query": query, "source": [{"filter": [query, "text"]}]}
    for _ in range(900):
        body = {"inner": body}
    assert list(queries_in(body)) == [query, query]
