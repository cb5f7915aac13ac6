"""The queries inside requests that are not searches."""

from __future__ import annotations

import pytest

from es_sbert.gateway.search.unsupported_apis import embedded_queries


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
    queries = [{"query": {"query_string": {"query": one}}} for one in inside]
    assert list(embedded_queries({"query": text})) == queries
    assert list(embedded_queries({"query": {"match_all": {}}})) == []
