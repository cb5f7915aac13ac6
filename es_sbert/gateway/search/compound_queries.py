"""Traversal of compound queries (`bool`, `function_score`, `hybrid`, …) down to the queries inside them."""

from __future__ import annotations

import base64
import binascii
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

from es_sbert.engines.protocol import Json
from es_sbert.gateway.proxy.json_bodies import UnsupportedJson, parse_object

# Query → the places in it that hold one query or a list of them. `bool` is looked at by itself.
_INNER_QUERY_MEMBERS: dict[str, tuple[str, ...]] = {
    "constant_score": ("filter",),
    "dis_max": ("queries",),
    "function_score": ("query", "functions"),
    "boosting": ("positive", "negative"),
    "script_score": ("query",),
    "pinned": ("organic",),
    "hybrid": ("queries", "filter"),
}
# Places whose queries match without scoring.
UNSCORED_MEMBERS = frozenset({("constant_score", "filter"), ("boosting", "negative"), ("hybrid", "filter")})
# Places whose matches are unwanted.
_NEGATIVE_MEMBERS = frozenset({("boosting", "negative")})
# Places that hold objects with a query as their `filter`.
_MEMBERS_WITH_FILTER = frozenset({("function_score", "functions")})

# Queries that look at other documents than the hits.
JOINING_QUERIES = frozenset({"nested", "has_child", "has_parent"})

BOOL_CLAUSES = ("must", "filter", "should", "must_not")


def clause_list(value: Any) -> list[Json]:
    """Clauses of a bool, which engines take as one object or as a list; what is neither is left to the engine."""
    if isinstance(value, dict):
        return [value]
    return value if isinstance(value, list) and all(isinstance(part, dict) for part in value) else []


def query_type_and_body(node: Any) -> tuple[str, Json] | None:
    """Name and content of a query; None for what is none."""
    if not isinstance(node, dict) or len(node) != 1:
        return None
    [(kind, said)] = node.items()
    return (kind, said) if isinstance(said, dict) else None


def decode_wrapper(node: Json) -> Json:
    """The query that a `wrapper` holds as base64, as Spring Data sends queries; the very same object for any other."""
    found = query_type_and_body(node)
    if found is None or found[0] != "wrapper" or not isinstance(found[1].get("query"), str):
        return node
    try:
        return parse_object(base64.b64decode(found[1]["query"], validate=True))
    except (binascii.Error, ValueError, UnsupportedJson):
        return node  # for the engine, which says what is wrong with it or knows other formats


def inner_queries(node: Any) -> Iterator[Json]:
    """The queries directly inside a query."""
    found = query_type_and_body(node)
    if found is None:
        return
    kind, said = found
    if kind == "wrapper" and (inner := decode_wrapper(node)) is not node:
        yield inner
    for place in BOOL_CLAUSES if kind == "bool" else _INNER_QUERY_MEMBERS.get(kind, ()):
        parts = clause_list(said.get(place))
        yield from (part.get("filter", {}) for part in parts) if (kind, place) in _MEMBERS_WITH_FILTER else parts


class ContainsCache:
    """Whether a query, or one inside it, is of some kind; each query is looked at once however often it is asked.

    The kind is an argument of each call: kept here, a method of the object that asks would make a reference cycle, and
    a large request would stay in memory until the next garbage collection.
    """

    def __init__(self) -> None:
        # By identity. The query is kept beside its answer, so that no other one can take its place in memory.
        self._known: dict[int, tuple[Json, bool]] = {}

    def __call__(self, node: Any, wanted: Callable[[Json], bool]) -> bool:
        """The answer.

        Args:
            wanted: Whether a single query is of that kind; the same in each call.
        """
        if not isinstance(node, dict):
            return False
        known = self._known.get(id(node))
        if known is None:
            known = node, wanted(node) or any(self(inner, wanted) for inner in inner_queries(node))
            self._known[id(node)] = known
        return known[1]


class InnerRole(NamedTuple):
    """What a query inside another is for.

    Attributes:
        scores: Whether its score counts.
        negative: Whether its matches are unwanted.
    """

    scores: bool
    negative: bool = False


def map_inner_queries(node: Json, change: Callable[[Json, InnerRole], Json]) -> Json:
    """A compound query other than `bool` with its inner queries changed; the very same object where nothing was.

    Args:
        change: From an inner query, and what it is for, to its successor.
    """
    inner = decode_wrapper(node)
    if inner is not node:
        new_inner = change(inner, InnerRole(scores=True))
        return node if new_inner is inner else new_inner
    found = query_type_and_body(node)
    if found is None or found[0] not in _INNER_QUERY_MEMBERS:
        return node
    kind, said = found
    changed: Json = {}
    for place in _INNER_QUERY_MEMBERS[kind]:
        value = said.get(place)
        role = InnerRole((kind, place) not in UNSCORED_MEMBERS, (kind, place) in _NEGATIVE_MEMBERS)
        if isinstance(value, dict):
            new: Any = change(value, role)
        elif isinstance(value, list) and clause_list(value):
            filtered = (kind, place) in _MEMBERS_WITH_FILTER
            new = [_map_filter(part, change) if filtered else change(part, role) for part in value]
            if all(one is other for one, other in zip(new, value, strict=True)):
                new = value
        else:
            continue
        if new is not value:
            changed[place] = new
    return {kind: said | changed} if changed else node


def _map_filter(part: Json, change: Callable[[Json, InnerRole], Json]) -> Json:
    if not isinstance(part.get("filter"), dict):
        return part
    new = change(part["filter"], InnerRole(scores=False))
    return part if new is part["filter"] else part | {"filter": new}


def strip_inner_hits(node: Json) -> Json:
    """A query to stand in a second place of a request, where the names of its inner hits may stand once."""
    found = query_type_and_body(node)
    if found is None:
        return node
    kind, said = found
    if kind in JOINING_QUERIES:
        return {kind: {name: value for name, value in said.items() if name != "inner_hits"}}
    if kind != "bool":
        return map_inner_queries(node, lambda inner, _: strip_inner_hits(inner))
    changed: Json = {}
    for occurrence in BOOL_CLAUSES:
        value = said.get(occurrence)
        if isinstance(value, dict):
            changed[occurrence] = strip_inner_hits(value)
        elif clause_list(value):
            changed[occurrence] = [strip_inner_hits(part) for part in clause_list(value)]
    return {kind: said | changed}
