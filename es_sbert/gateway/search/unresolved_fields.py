"""Reject the virtual field outside semantic queries: the engine does not know it and would silently match nothing."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

from es_sbert.engines.rest import Json
from es_sbert.gateway.errors import BadRequest
from es_sbert.gateway.search.compound_queries import clause_list, map_clauses, map_members
from es_sbert.gateway.search.full_text_queries import may_name_field
from es_sbert.gateway.search.knn_clauses import Placeholder
from es_sbert.gateway.search.semantic_query import SemanticQueryParser

# Queries whose parameters are under the name of a field.
_QUERIES_BY_FIELD_NAME = frozenset({
    "common", "fuzzy", "geo_bounding_box", "geo_distance", "geo_grid", "geo_polygon", "geo_shape", "intervals", "knn",
    "match", "match_bool_prefix", "match_phrase", "match_phrase_prefix", "neural", "neural_sparse", "prefix", "range",
    "regexp", "shape", "span_term", "sparse_vector", "term", "terms", "terms_set", "text_expansion", "weighted_tokens",
    "wildcard", "xy_shape",
})  # fmt: skip
# Parts of a search whose names are not searched fields: what hits return, and objects of the application.
_NOT_SEARCHED = frozenset({
    "_source", "docvalue_fields", "document", "documents", "ext", "fields", "meta", "params", "query_vector", "script",
    "script_fields", "stored_fields", "vector",
})  # fmt: skip


def reject_unresolved(body: Json, placeholders: Sequence[Placeholder], parser: SemanticQueryParser) -> None:
    """Reject a search that names the virtual field outside its semantic queries.

    Args:
        body: The search with placeholders.
        placeholders: The placeholders in the search.

    Raises:
        BadRequest: the search names the field in a query or part that does not support it.
        IndexMismatch: the search names a vector field that does not exist.
    """
    for part, node in _objects(body, placeholders):
        for location, name in _named_fields(part, node, parser):
            target = parser.fields.virtual_only(name)
            if target is not None:
                raise BadRequest(
                    f"{location} on {name} is not supported: {name} is a semantic field",
                    f'Search it as {{"match": {{"{name}": "…"}}}} and sort by _score; elsewhere name a field that '
                    f"documents have, such as {target.name}. X-Es-Sbert: off passes the request through unchanged.",
                )


def _objects(body: Json, placeholders: Sequence[Placeholder]) -> Iterator[tuple[str, Json]]:
    """Yield every object of a search and of its semantic queries, with the name of its member; each pair once."""
    pending = [part for placeholder in placeholders for part in placeholder.inner_parts]
    pending.append(("", body))
    seen: set[tuple[str, int]] = set()
    while pending:
        part, value = pending.pop()
        if (part, id(value)) in seen:
            continue
        seen.add((part, id(value)))
        if isinstance(value, dict):
            yield part, value
            # `fields` of a search are returned; those of its highlights may hold queries.
            pending += [
                (name, inner)
                for name, inner in value.items()
                if isinstance(inner, (dict, list))
                and (name not in _NOT_SEARCHED or (name == "fields" and part == "highlight"))
            ]
        else:
            pending += [(part, inner) for inner in value if isinstance(inner, (dict, list))]


def _named_fields(part: str, node: Json, parser: SemanticQueryParser) -> Iterator[tuple[str, str]]:
    """Yield the fields by which an object searches, sorts or highlights, each with a name of the query for messages."""
    if part in _QUERIES_BY_FIELD_NAME:
        yield from ((f"a {part} query", name) for name in node)
    if part == "kql" and may_name_field(str(node.get("query")), parser.settings.virtual_field):
        yield "a kql query", parser.settings.virtual_field
    if isinstance(node.get("field"), str):
        yield part or "a field", node["field"]
    if isinstance(node.get("fields"), list) and (isinstance(node.get("query"), str) or "like" in node):
        yield from ((part, name) for name in node["fields"] if isinstance(name, str))
    order = node.get("sort") if part != "bucket_sort" else None  # bucket_sort sorts by names of aggregations
    for key in order if isinstance(order, list) else [order]:
        names = [key] if isinstance(key, str) else key if isinstance(key, dict) else ()
        yield from (("sort", name) for name in names)
    if part == "highlight":
        yield from (("highlight", name) for field in clause_list(node.get("fields")) for name in field)


# Options of a query on the virtual field that the engine's `match` does not have.
_GATEWAY_OPTIONS = frozenset({"k", "min_cosine"})


def strip_extensions(value: Any, virtual_field: str) -> Any:
    """Remove the gateway's options from a search on indices that do not exist or that the caller may not search.

    Returns:
        The search; the identical object if it has no such options.
    """
    strip = partial(strip_extensions, virtual_field=virtual_field)
    if not isinstance(value, dict):
        return map_clauses(value, strip)
    functions: dict[str, Callable[[Any], Any]] = dict.fromkeys(value, strip)
    for name, inner in value.items():
        if isinstance(inner, dict) and (name == virtual_field or name.startswith(f"{virtual_field}.")):
            functions[name] = _strip_options
    return map_members(value, functions)


def _strip_options(query: Json) -> Json:
    if _GATEWAY_OPTIONS.isdisjoint(query):
        return query
    return {name: value for name, value in query.items() if name not in _GATEWAY_OPTIONS}
