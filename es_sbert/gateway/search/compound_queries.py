"""Which queries hold others (`bool`, `function_score`, `hybrid`, …), and in which members."""

from __future__ import annotations

import base64
from collections.abc import Iterator
from itertools import count
from typing import Any

from es_sbert.engines.rest import Json
from es_sbert.gateway.incoming_request import UnreadableJson, parse_object, require_utf8

# An object or a list, and the name or number of its member: queries are replaced there.
Place = tuple[Any, Any]
# A query type and the name of a member that holds queries.
Member = tuple[str, str]

BOOL_CLAUSES = ("must", "filter", "should", "must_not")
# Queries on documents other than the hits.
JOINING_QUERIES = frozenset({"nested", "has_child", "has_parent"})
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
    **dict.fromkeys(JOINING_QUERIES, ("query",)),
}
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
    ("script_score", "query"), ("boosting", "positive"),
})  # fmt: skip


def objects_at(holder: Any, name: Any) -> Iterator[Place]:
    """Yield the places of one object, or of each object of a list; other values are left for the engine to reject."""
    value = holder.get(name) if isinstance(holder, dict) else None
    if isinstance(value, dict):
        yield holder, name
    elif isinstance(value, list):
        yield from ((value, number) for number, each in enumerate(value) if isinstance(each, dict))


def objects_in(value: Any) -> Iterator[Place]:
    """Yield the places of the members of an object that are objects."""
    if isinstance(value, dict):
        yield from ((value, name) for name, member in value.items() if isinstance(member, dict))


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


def inner_queries(kind: str, body: Json) -> Iterator[tuple[Member, Place]]:
    """Yield the places of the queries directly inside a query, each with the member that holds it."""
    for name in _INNER_QUERY_MEMBERS.get(kind, ()):
        if kind == "bool" and not clause_list(body.get(name)):
            continue
        for holder, key in objects_at(body, name):
            # A function has its query as `filter`, next to its weight.
            places = objects_at(holder[key], "filter") if name == "functions" else [(holder, key)]
            yield from (((kind, name), place) for place in places)


def decode_wrapper(kind: str, body: Json) -> Json | None:
    """Decode a `wrapper` query, which holds a query as base64 (Spring Data sends it); None for any other.

    Raises:
        UnreadableJson: the gateway cannot read it; engines also read YAML, CBOR and SMILE.
    """
    if kind != "wrapper" or not isinstance(body.get("query"), str):
        return None
    try:
        # Engines skip white space.
        decoded = base64.b64decode("".join(body["query"].split()), validate=True)
    except ValueError as error:
        raise UnreadableJson(f"a wrapper query is not base64: {error}") from None
    require_utf8(decoded)
    return parse_object(decoded)


def strip_inner_hits(value: Any) -> Any:
    """Remove the inner hits of a query that is repeated in a request, where each name of inner hits must be unique."""
    if isinstance(value, list):
        return [strip_inner_hits(each) for each in value]
    if not isinstance(value, dict):
        return value
    stripped = {name: strip_inner_hits(inner) for name, inner in value.items()}
    for kind in JOINING_QUERIES & stripped.keys():
        if isinstance(stripped[kind], dict):
            stripped[kind].pop("inner_hits", None)
    return stripped


def unique_name(name: str, taken: set[str]) -> str:
    """Return the name, with a number if the name is taken; it is taken then."""
    names = (name if number == 1 else f"{name}_{number}" for number in count(1))
    free = next(each for each in names if each not in taken)
    taken.add(free)
    return free


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
        for hits in clause_list(node.get("inner_hits")):
            names = (hits.get("name"), *(node.get(member) for member in ("path", "type", "parent_type")))
            yield from [name for name in names if isinstance(name, str)][:1]
