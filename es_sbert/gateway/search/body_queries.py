"""The semantic queries of a search body, in every part that holds queries, from `query` to `aggs` and `retriever`.

Pure functions. If the virtual field is named elsewhere, the request is rejected: the engine does not know that field
and would silently match nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from es_sbert.engines.rest import Json
from es_sbert.gateway.errors import BadRequest
from es_sbert.gateway.search.compound_queries import (
    BOOL_CLAUSES,
    MemberFunctions,
    clause_list,
    map_clauses,
    map_members,
    query_type_and_body,
)
from es_sbert.gateway.search.full_text_queries import may_name_field
from es_sbert.gateway.search.knn_clauses import Placeholder
from es_sbert.gateway.search.query_finder import QueryFinder, QueryPosition
from es_sbert.gateway.search.semantic_query import SemanticQueryParser

# What every document at a position must match: a semantic query there finds the k nearest of these documents.
RequiredFilters = tuple[Json, ...]
# Aggregations over other documents than those of the parent.
_AGGREGATIONS_OF_OTHER_DOCUMENTS = frozenset({"global", "nested", "reverse_nested", "children", "parent"})


@dataclass(frozen=True)
class FoundQueries:
    """The semantic queries of a search body.

    Attributes:
        body: The body with a placeholder in place of each; the identical object if nothing in it is rewritten.
        placeholders: The queries and their places.
    """

    body: Json
    placeholders: Sequence[Placeholder] = ()


def find_queries(body: Json, finder: QueryFinder) -> FoundQueries:
    """Find the semantic queries of a search body.

    Raises:
        BadRequest, IndexMismatch: a semantic query is invalid, or the virtual field is named where that is not
            supported.
        UsageError: see `query_without_vector`.
    """
    finder.begin(body)
    found = FoundQueries(_BodyFinder(finder).body(body), finder.placeholders)
    reject_unresolved(found, finder.parser)
    return found


def request_defined_fields(body: Json) -> frozenset[str]:
    """Fields that a search defines itself, on Elasticsearch and on OpenSearch."""
    definitions = (body.get("runtime_mappings"), body.get("derived"))
    return frozenset(name for fields in definitions if isinstance(fields, dict) for name in fields)


def sorts_by_score(body: Json) -> bool:
    """Whether scores count: there is no sort, or `_score` is one of its keys."""
    sort = body.get("sort")
    if sort in (None, [], ""):
        return True
    keys = sort if isinstance(sort, list) else [sort]
    names = [name for key in keys for name in (key if isinstance(key, dict) else [key])]
    return any(isinstance(name, str) and name.startswith("_score") for name in names)


def is_from_query_bar(body: Json) -> bool:
    """Whether the query of a search comes from the query bar of Kibana or OpenSearch Dashboards, with its filters.

    Both build a `bool` with all four lists, empty or not (`buildEsQuery`, `buildOpenSearchQuery`). A dashboard sends
    the query to the indices of all its panels, and a panel does not know which of them have vectors.
    """
    query = query_type_and_body(body.get("query"))
    if query is None or query[0] != "bool":
        return False
    return query[1].keys() == set(BOOL_CLAUSES) and all(isinstance(clauses, list) for clauses in query[1].values())


class _BodyFinder:
    """Finds semantic queries in the parts of a search body.

    Each method returns a part with placeholders, or the identical object if nothing in it changes.
    """

    def __init__(self, queries: QueryFinder) -> None:
        self._queries = queries

    def body(self, body: Json) -> Json:
        query = self._queries.find(body.get("query"), QueryPosition(scores_from_filters=sorts_by_score(body)))
        # With a section `knn`, hits need not match the query.
        filters = () if "knn" in body else self._queries.required(body.get("query"))
        aggregations = partial(self._aggregations, filters)
        functions: MemberFunctions = {
            "query": lambda _: query,
            "knn": lambda sections: map_clauses(sections, self._queries.find_in_section),
            "post_filter": self._unscored(filters),
            "aggs": aggregations,
            "aggregations": aggregations,
            "rescore": partial(self._rescore, filters),
            "highlight": self._highlight,
            "retriever": partial(self._retriever, ()),
        }
        return map_members(body, functions)

    def _unscored(self, filters: RequiredFilters) -> Callable[[Any], Any]:
        """A function that finds semantic queries in a query whose score does not count."""
        position = QueryPosition(scores=False, filters=filters, with_inner_hits=False)
        return partial(self._queries.find, position=position)

    def _aggregations(self, filters: RequiredFilters, aggregations: Any) -> Any:
        return _map_objects(aggregations, partial(self._aggregation, filters))

    def _aggregation(self, filters: RequiredFilters, aggregation: Json) -> Json:
        if not _AGGREGATIONS_OF_OTHER_DOCUMENTS.isdisjoint(aggregation):
            filters = ()
        inner = partial(self._aggregations, (*filters, *self._queries.required(aggregation.get("filter"))))
        query = self._unscored(filters)

        def named_filters(queries: Any) -> Any:
            return _map_objects(queries, query) if isinstance(queries, dict) else map_clauses(queries, query)

        filtered = partial(map_members, functions={"filters": named_filters})
        compared = partial(map_members, functions={"background_filter": self._unscored(())})
        functions: MemberFunctions = {
            "filter": query,
            "filters": filtered,
            "adjacency_matrix": filtered,
            "significant_terms": compared,
            "significant_text": compared,
            "aggs": inner,
            "aggregations": inner,
        }
        return map_members(aggregation, functions)

    def _rescore(self, filters: RequiredFilters, rescore: Any) -> Any:
        position = QueryPosition(filters=filters, with_inner_hits=False)
        query = partial(self._queries.find, position=position)
        functions = {"query": lambda body: map_members(body, {"rescore_query": query})}
        return map_clauses(rescore, lambda window: map_members(window, functions))

    def _highlight(self, highlight: Any) -> Any:
        position = QueryPosition(scores=False, with_inner_hits=False, words=True)
        functions: MemberFunctions = {
            "highlight_query": partial(self._queries.find, position=position),
            # By field, or as a list to keep their order.
            "fields": lambda fields: map_clauses(fields, lambda field: _map_objects(field, self._highlight)),
        }
        return map_members(highlight, functions)

    def _retriever(self, filters: RequiredFilters, retriever: Any) -> Any:
        """A retriever of Elasticsearch: its type and body, and in lists of retrievers perhaps its weight."""
        if not isinstance(retriever, dict):
            return retriever
        return map_members(retriever, {kind: partial(self._retriever_body, filters, kind) for kind in retriever})

    def _retriever_body(self, filters: RequiredFilters, kind: str, body: Any) -> Any:
        if not isinstance(body, dict):
            return body
        if kind == "retriever":
            return self._retriever(filters, body)
        if kind == "knn":
            return self._queries.find_in_section(body)
        unscored = self._unscored((*filters, *self._queries.required(body.get("query"))))
        required = [part for query in clause_list(body.get("filter")) for part in self._queries.required(query)]
        filters = (*filters, *required)
        position = QueryPosition(filters=filters, scores_from_filters=sorts_by_score(body))
        retriever = partial(self._retriever, filters)
        functions: MemberFunctions = {
            "filter": lambda queries: map_clauses(queries, unscored),
            "query": partial(self._queries.find, position=position),
            "retriever": retriever,
            "rescore": partial(self._rescore, filters),
            "retrievers": lambda retrievers: map_clauses(retrievers, retriever),
        }
        return map_members(body, functions)


def _map_objects(node: Any, function: Callable[[Any], Any]) -> Any:
    """An object with all its members that are objects replaced."""
    if not isinstance(node, dict):
        return node
    return map_members(node, {name: function for name, value in node.items() if isinstance(value, dict)})


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


def reject_unresolved(found: FoundQueries, parser: SemanticQueryParser) -> None:
    """Reject a search that names the virtual field elsewhere than in its semantic queries.

    Raises:
        BadRequest: it names the field in a query or part that does not support it.
        IndexMismatch: it names a vector field that does not exist.
    """
    for part, node in _objects(found):
        for where, name in _named_fields(part, node, parser):
            target = parser.names.virtual_only(name)
            if target is not None:
                raise BadRequest(
                    f"{where} on {name} is not supported: {name} is a semantic field",
                    f'Search it as {{"match": {{"{name}": "…"}}}} and sort by _score; elsewhere name a field that '
                    f"documents have, such as {target.name}. X-Es-Sbert: off passes the request through unchanged.",
                )


def _objects(found: FoundQueries) -> Iterator[tuple[str, Json]]:
    """Every object of a search and of its semantic queries, with the name of its member; each pair once."""
    pending = [part for placeholder in found.placeholders for part in placeholder.inner_parts]
    pending.append(("", found.body))
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
    """The fields by which an object searches, sorts or highlights, each with the name of the query for messages."""
    if part in _QUERIES_BY_FIELD_NAME:
        yield from ((f"a {part} query", name) for name in node)
    if part == "kql" and may_name_field(str(node.get("query")), parser.settings.virtual_field):
        yield "a kql query", parser.settings.virtual_field
    if isinstance(node.get("field"), str):
        yield part or "a field", node["field"]
    if isinstance(node.get("fields"), list) and (isinstance(node.get("query"), str) or "like" in node):
        yield from ((part, name) for name in node["fields"] if isinstance(name, str))
    order = node.get("sort") if part != "bucket_sort" else None  # which sorts by names of aggregations
    for key in order if isinstance(order, list) else [order]:
        names = [key] if isinstance(key, str) else key if isinstance(key, dict) else ()
        yield from (("sort", name) for name in names)
    if part == "highlight":
        yield from (("highlight", name) for field in clause_list(node.get("fields")) for name in field)


# Options of a query on the virtual field that the engine's `match` does not have.
_GATEWAY_OPTIONS = frozenset({"k", "min_cosine"})


def strip_extensions(value: Any, virtual_field: str) -> Any:
    """A search without the gateway's options, for indices that do not exist or that the caller may not search.

    Returns:
        The identical object if there are none.
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
