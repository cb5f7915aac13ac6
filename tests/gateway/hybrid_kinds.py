"""Searches by kind of query: those that a gateway in hybrid mode turns into hybrid searches, and those that stay.

Each is a function from a field and a text to the body of a search.
"""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Callable
from functools import partial
from typing import Any

import orjson

from es_sbert.engines.rest import Json

Search = Callable[[str, str], Json]


def _search(query: Callable[[str, str], Json], **body: Any) -> Search:
    return lambda field, text: {"query": query(field, text), **body}


def _match(field: str, text: str, **options: Any) -> Json:
    return {"match": {field: {"query": text, **options}}}


def _single(kind: str, field: str, text: str) -> Json:
    return {kind: {field: text}}


def _multi(field: str, text: str, **options: Any) -> Json:
    return {"multi_match": {"query": text, "fields": [f"{field}^2", "other"], **options}}


def _box(field: str, text: str) -> Json:
    """What applications send for one search box."""
    kinds = ("best_fields", "phrase", "bool_prefix")
    return {"bool": {"should": [_multi(field, text, type=kind) for kind in kinds]}}


def _must(query: Callable[[str, str], Json]) -> Callable[[str, str], Json]:
    return lambda field, text: {"bool": {"must": [query(field, text)], "filter": [{"exists": {"field": field}}]}}


HYBRID: dict[str, Search] = {
    "match": _search(partial(_single, "match")),
    "match, fuzziness": _search(partial(_match, fuzziness="AUTO")),
    "multi_match": _search(_multi),
    "multi_match, most_fields": _search(partial(_multi, type="most_fields")),
    "search box": _search(_box),
    "dis_max": _search(lambda field, text: {"dis_max": {"queries": [_match(field, text), _multi(field, text)]}}),
    "must with a filter": _search(_must(_match)),
    "function_score": _search(lambda field, text: {"function_score": {"query": _match(field, text), "weight": 2}}),
    "sorted by score": _search(_match, sort=["_score", {"rank": "asc"}]),
    "with aggregations": _search(_match, aggs={"ranks": {"max": {"field": "rank"}}}),
    "second page": _search(_match, **{"from": 3, "size": 4}),
}

UNCHANGED: dict[str, Search] = {
    "match, operator and": _search(partial(_match, operator="and")),
    "match, minimum_should_match": _search(partial(_match, minimum_should_match="75%")),
    "match_phrase": _search(partial(_single, "match_phrase")),
    "match_phrase_prefix": _search(partial(_single, "match_phrase_prefix")),
    "multi_match, operator and": _search(partial(_multi, operator="and")),
    "multi_match, phrase": _search(partial(_multi, type="phrase")),
    "multi_match, bool_prefix": _search(partial(_multi, type="bool_prefix")),
    "simple_query_string": _search(
        lambda field, text: {"simple_query_string": {"query": f'"{text}"', "fields": [field]}}
    ),
    "query_string": _search(lambda field, text: {"query_string": {"query": f"{field}:({text})"}}),
    "two of a search box": _search(
        lambda field, text: {"bool": _box(field, text)["bool"] | {"minimum_should_match": 2}}
    ),
    "match of an object": _search(lambda field, text: {"match": {field: {"query": {"text": text}}}}),
    "filter": _search(lambda field, text: {"bool": {"filter": [_match(field, text)]}}),
    "constant_score": _search(lambda field, text: {"constant_score": {"filter": _match(field, text)}}),
    "min_score": _search(_match, min_score=0.01),
    "size 0": _search(_match, size=0),
    "sorted by a field": _search(_match, sort=[{"rank": "desc"}]),
    "filter aggregation": lambda field, text: {
        "aggs": {"matching": {"filter": _match(field, text), "aggs": {"ranks": {"max": {"field": "rank"}}}}}
    },
    "post_filter": lambda field, text: {"post_filter": _match(field, text)},
    "rescore": lambda field, text: {
        "query": {"match_all": {}},
        "rescore": {"window_size": 50, "query": {"rescore_query": _match(field, text)}},
    },
}

# Queries that every hit must match and that never become hybrid, from a `match`. Next to a semantic query, each of them
# is a filter of its kNN.
RESTRICTIONS: dict[str, Callable[[Json], Json]] = {
    "bool in filter": lambda match: {"bool": {"filter": [{"bool": {"must": [match]}}]}},
    "filter of a bool": lambda match: {"bool": {"filter": [match]}},
    "constant_score": lambda match: {"constant_score": {"filter": match}},
    "wrapper": lambda match: {"wrapper": {"query": b64encode(orjson.dumps({"bool": {"filter": [match]}})).decode()}},
    "should with a minimum": lambda match: {"bool": {"should": [match, match], "minimum_should_match": 2}},
    "function_score": lambda match: {
        "function_score": {"query": {"bool": {"filter": [match]}}, "functions": [{"filter": match, "weight": 2}]}
    },
    "boosting": lambda match: {
        "boosting": {"positive": {"bool": {"filter": [match]}}, "negative": match, "negative_boost": 0.5}
    },
    "next to a hybrid query": lambda match: {
        "bool": {"must": [{"match": dict.fromkeys(match["match"], "the man plays")}], "filter": [match]}
    },
}
