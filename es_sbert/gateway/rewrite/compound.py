"""Queries that hold other queries: where in them each stands, and what it means there."""

from __future__ import annotations

import base64
import binascii
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

from es_sbert.engines.protocol import Json
from es_sbert.gateway.wire.json_bodies import NotPlainJson, parse_object

# Query → the places in it that hold one query or a list of them. `bool` is looked at by itself.
_INNER: dict[str, tuple[str, ...]] = {
    "constant_score": ("filter",),
    "dis_max": ("queries",),
    "function_score": ("query", "functions"),
    "boosting": ("positive", "negative"),
    "script_score": ("query",),
    "pinned": ("organic",),
    "hybrid": ("queries", "filter"),
}
# Places whose queries match without scoring.
UNSCORED = frozenset({("constant_score", "filter"), ("boosting", "negative"), ("hybrid", "filter")})
# Places whose matches are unwanted.
_NEGATIVE = frozenset({("boosting", "negative")})
# Places that hold objects with a query as their `filter`.
_FILTERED = frozenset({("function_score", "functions")})

# Queries that look at other documents than the hits.
ELSEWHERE = frozenset({"nested", "has_child", "has_parent"})

OCCURRENCES = ("must", "filter", "should", "must_not")


def as_list(value: Any) -> list[Json]:
    """Clauses of a bool, which engines take as one object or as a list; what is neither is left to the engine."""
    if isinstance(value, dict):
        return [value]
    return value if isinstance(value, list) and all(isinstance(part, dict) for part in value) else []


def kind_of(node: Any) -> tuple[str, Json] | None:
    """Name and content of a query; None for what is none."""
    if not isinstance(node, dict) or len(node) != 1:
        return None
    [(kind, said)] = node.items()
    return (kind, said) if isinstance(said, dict) else None


def opened(node: Json) -> Json:
    """The query that a `wrapper` holds as base64, as Spring Data sends queries; the very same object for any other."""
    found = kind_of(node)
    if found is None or found[0] != "wrapper" or not isinstance(found[1].get("query"), str):
        return node
    try:
        return parse_object(base64.b64decode(found[1]["query"], validate=True))
    except (binascii.Error, ValueError, NotPlainJson):
        return node  # for the engine, which says what is wrong with it or knows other formats


def inner_queries(node: Any) -> Iterator[Json]:
    """The queries directly inside a query."""
    found = kind_of(node)
    if found is None:
        return
    kind, said = found
    if kind == "wrapper" and (inner := opened(node)) is not node:
        yield inner
    for place in OCCURRENCES if kind == "bool" else _INNER.get(kind, ()):
        parts = as_list(said.get(place))
        yield from (part.get("filter", {}) for part in parts) if (kind, place) in _FILTERED else parts


class AnyWithin:
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


class Role(NamedTuple):
    """What a query inside another is for.

    Attributes:
        scores: Whether its score counts.
        negative: Whether its matches are unwanted.
    """

    scores: bool
    negative: bool = False


def with_inner(node: Json, change: Callable[[Json, Role], Json]) -> Json:
    """A compound query other than `bool` with its inner queries changed; the very same object where nothing was.

    Args:
        change: From an inner query, and what it is for, to its successor.
    """
    inner = opened(node)
    if inner is not node:
        new_inner = change(inner, Role(scores=True))
        return node if new_inner is inner else new_inner
    found = kind_of(node)
    if found is None or found[0] not in _INNER:
        return node
    kind, said = found
    changed: Json = {}
    for place in _INNER[kind]:
        value = said.get(place)
        role = Role((kind, place) not in UNSCORED, (kind, place) in _NEGATIVE)
        if isinstance(value, dict):
            new: Any = change(value, role)
        elif isinstance(value, list) and as_list(value):
            filtered = (kind, place) in _FILTERED
            new = [_with_filter(part, change) if filtered else change(part, role) for part in value]
            if all(one is other for one, other in zip(new, value, strict=True)):
                new = value
        else:
            continue
        if new is not value:
            changed[place] = new
    return {kind: said | changed} if changed else node


def _with_filter(part: Json, change: Callable[[Json, Role], Json]) -> Json:
    if not isinstance(part.get("filter"), dict):
        return part
    new = change(part["filter"], Role(scores=False))
    return part if new is part["filter"] else part | {"filter": new}


def without_inner_hits(node: Json) -> Json:
    """A query to stand in a second place of a request, where the names of its inner hits may stand once."""
    found = kind_of(node)
    if found is None:
        return node
    kind, said = found
    if kind in ELSEWHERE:
        return {kind: {name: value for name, value in said.items() if name != "inner_hits"}}
    if kind != "bool":
        return with_inner(node, lambda inner, _: without_inner_hits(inner))
    changed: Json = {}
    for occurrence in OCCURRENCES:
        value = said.get(occurrence)
        if isinstance(value, dict):
            changed[occurrence] = without_inner_hits(value)
        elif as_list(value):
            changed[occurrence] = [without_inner_hits(part) for part in as_list(value)]
    return {kind: said | changed}
