"""Traversal of compound queries (`bool`, `function_score`, `hybrid`, …) down to the queries inside them.

The `map_…` functions replace parts of a JSON value. They return the identical object if no part changes.
"""

from __future__ import annotations

import base64
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from itertools import count
from typing import Any, Generic, TypeVar, cast

from es_sbert.engines.rest import Json
from es_sbert.gateway.proxy.incoming_request import UnreadableJson, parse_object, require_utf8, to_utf8

T = TypeVar("T")
# Name of a member → function from its value to the new one.
MemberFunctions = Mapping[str, Callable[[Any], Any]]

BOOL_CLAUSES = ("must", "filter", "should", "must_not")
# Query type → the members that hold one query or a list of them.
_INNER_QUERY_MEMBERS: dict[str, tuple[str, ...]] = {
    "bool": BOOL_CLAUSES,
    "constant_score": ("filter",),
    "dis_max": ("queries",),
    "function_score": ("query", "functions"),
    "boosting": ("positive", "negative"),
    "script_score": ("query",),
    "pinned": ("organic",),
    "hybrid": ("queries", "filter"),
}
# A query type and the name of a member that holds queries.
Member = tuple[str, str]
# Members whose queries match without scoring.
UNSCORED_MEMBERS = frozenset({
    ("bool", "filter"), ("bool", "must_not"), ("constant_score", "filter"), ("boosting", "negative"),
    ("function_score", "functions"), ("hybrid", "filter"),
})  # fmt: skip
# Members whose matches are unwanted; none of them scores.
NEGATIVE_MEMBERS = frozenset({("bool", "must_not"), ("boosting", "negative")})
# Members whose query every match must match.
REQUIRED_MEMBERS = frozenset({
    ("bool", "must"), ("bool", "filter"), ("constant_score", "filter"), ("function_score", "query"),
    ("script_score", "query"), ("boosting", "positive"), ("wrapper", "query"),
})  # fmt: skip
# Members that hold objects with a query as their `filter`.
_MEMBERS_WITH_FILTER = frozenset({("function_score", "functions")})

# Queries on documents other than the hits.
JOINING_QUERIES = frozenset({"nested", "has_child", "has_parent"})


def map_members(node: T, functions: MemberFunctions) -> T:
    """Replace some members of an object; missing members are skipped. Any other value is returned unchanged."""
    members: Any = node
    if not isinstance(members, dict):
        return node
    changed: Json = {}
    for name, function in functions.items():
        if name in members and (new := function(members[name])) is not members[name]:
            changed[name] = new
    return cast("T", members | changed) if changed else node


def map_objects(node: Any, function: Callable[[Any], Any]) -> Any:
    """Replace the members of an object that are objects."""
    if not isinstance(node, dict):
        return node
    return map_members(node, {name: function for name, value in node.items() if isinstance(value, dict)})


def map_clauses(value: Any, function: Callable[[Json], Json]) -> Any:
    """Replace one object or each object of a list; any other value is left for the engine to reject."""
    if isinstance(value, dict):
        return function(value)
    if not isinstance(value, list):
        return value
    new = [function(clause) if isinstance(clause, dict) else clause for clause in value]
    return new if any(after is not before for after, before in zip(new, value, strict=True)) else value


def clause_list(value: Any) -> list[Json]:
    """Clauses of a `bool`, which are one object or a list; empty for any other value."""
    if isinstance(value, dict):
        return [value]
    return value if isinstance(value, list) and all(isinstance(clause, dict) for clause in value) else []


def query_type_and_body(node: Any) -> tuple[str, Json] | None:
    """Type and body of a query; None for any other value."""
    if not isinstance(node, dict) or len(node) != 1:
        return None
    [(kind, body)] = node.items()
    return (kind, body) if isinstance(body, dict) else None


def decode_wrapper(node: Json) -> Json:
    """Decode a `wrapper` query, which holds a query as base64 (Spring Data sends it); return others unchanged.

    Raises:
        UnreadableJson: the gateway cannot read it; engines also read YAML, CBOR and SMILE.
    """
    query = query_type_and_body(node)
    if query is None or query[0] != "wrapper" or not isinstance(query[1].get("query"), str):
        return node
    try:
        # Engines skip white space.
        decoded = base64.b64decode("".join(query[1]["query"].split()), validate=True)
    except ValueError as error:
        raise UnreadableJson(f"a wrapper query is not base64: {error}") from None
    text = to_utf8(decoded)
    require_utf8(text)
    return parse_object(text)


def inner_queries(node: Any) -> Iterator[tuple[Member, Json]]:
    """Yield the queries directly inside a query, each with the member that holds it."""
    query = query_type_and_body(node)
    if query is None:
        return
    kind, body = query
    if kind == "wrapper" and (inner := decode_wrapper(node)) is not node:
        yield ("wrapper", "query"), inner
    for member in _INNER_QUERY_MEMBERS.get(kind, ()):
        value = body.get(member)
        clauses = [clause for clause in (value if isinstance(value, list) else [value]) if isinstance(clause, dict)]
        if (kind, member) in _MEMBERS_WITH_FILTER:
            clauses = [clause["filter"] for clause in clauses if isinstance(clause.get("filter"), dict)]
        yield from (((kind, member), clause) for clause in clauses)


class IdentityCache(Generic[T]):
    """Caches the results of a function of a query, which is called once for each query object.

    The function is an argument of each call: a method kept here would make a reference cycle, and a large request would
    stay in memory until the next garbage collection.
    """

    def __init__(self) -> None:
        # The query is kept with its result, so that no other object gets its id.
        self._results: dict[int, tuple[Json, T]] = {}

    def get(self, node: Json, function: Callable[[Json], T]) -> T:
        """Return the cached result, computing it if needed; `function` must be the same in each call."""
        cached = self._results.get(id(node))
        if cached is None:
            cached = self._results[id(node)] = node, function(node)
        return cached[1]


class ContainsCache(IdentityCache[bool]):
    """Whether a query, or one inside it, satisfies a predicate; checked once for each query object."""

    def __call__(self, node: Any, predicate: Callable[[Json], bool]) -> bool:
        """Check a query; `predicate` must be the same in each call."""
        return isinstance(node, dict) and self.get(node, partial(self._contains, predicate))

    def _contains(self, predicate: Callable[[Json], bool], node: Json) -> bool:
        return predicate(node) or any(self(inner, predicate) for _, inner in inner_queries(node))


def map_inner_queries(node: Json, change: Callable[[Json, Member], Json]) -> Json:
    """Replace the inner queries of a compound query.

    Args:
        change: Returns the replacement of an inner query, given the query and the member that holds it.
    """
    inner = decode_wrapper(node)
    if inner is not node:
        new_inner = change(inner, ("wrapper", "query"))
        return node if new_inner is inner else new_inner
    query = query_type_and_body(node)
    if query is None:
        return node
    kind, body = query

    def change_clause(member: str, clause: Json) -> Json:
        if (kind, member) not in _MEMBERS_WITH_FILTER:
            return change(clause, (kind, member))
        if not isinstance(clause.get("filter"), dict):
            return clause
        return map_members(clause, {"filter": lambda query: change(query, (kind, member))})

    members = _INNER_QUERY_MEMBERS.get(kind, ())
    new = map_members(body, {name: partial(map_clauses, function=partial(change_clause, name)) for name in members})
    return node if new is body else {kind: new}


def strip_inner_hits(node: Json) -> Json:
    """Remove the inner hits of a query that is repeated in a request, where each name of inner hits must be unique."""
    query = query_type_and_body(node)
    if query is not None and query[0] in JOINING_QUERIES:
        return {query[0]: {name: value for name, value in query[1].items() if name != "inner_hits"}}
    return map_inner_queries(node, lambda inner, _: strip_inner_hits(inner))


class InnerHitsNames:
    """Names for inner hits that are unique in a request.

    Args:
        body: The search, whose own names are taken.
    """

    def __init__(self, body: Json) -> None:
        self._body = body
        self._taken: set[str] | None = None

    def unique(self, name: str) -> str:
        """Return the name, with a number if the name is taken."""
        if self._taken is None:
            self._taken = set(inner_hits_names(self._body))
        names = (name if number == 1 else f"{name}_{number}" for number in count(1))
        free = next(each for each in names if each not in self._taken)
        self._taken.add(free)
        return free


def must_not_match(queries: Sequence[Json]) -> list[Json]:
    """Return the filter that excludes what any of the queries matches, as a list; empty if there are no queries."""
    return [{"bool": {"must_not": [strip_inner_hits(query) for query in queries]}}] if queries else []


def inner_hits_names(value: Any) -> Iterator[str]:
    """Yield the names of all inner hits in a search, which must differ. The default name is the path or type."""
    pending = [value]
    while pending:
        node = pending.pop()
        if isinstance(node, list):
            pending += node
        if not isinstance(node, dict):
            continue
        pending += node.values()
        inner_hits = node.get("inner_hits")
        for hits in inner_hits if isinstance(inner_hits, list) else [inner_hits]:
            if isinstance(hits, dict):
                names = (hits.get("name"), *(node.get(member) for member in ("path", "type", "parent_type")))
                yield from [name for name in names if isinstance(name, str)][:1]
