"""Rewriting of a search body: every part of it that holds queries, from `query` to `aggs` and `retriever`.

Pure functions. A body without semantic queries is returned as the identical object. What still names the virtual field
afterwards is rejected: the engine does not know that field and would silently find nothing.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from es_sbert.engines.protocol import Json
from es_sbert.gateway.errors import BadRequest
from es_sbert.gateway.field_resolver import ResolvedField
from es_sbert.gateway.search.compound_queries import clause_list
from es_sbert.gateway.search.full_text_queries import may_name_field
from es_sbert.gateway.search.knn_clauses import knn_section
from es_sbert.gateway.search.query_rewriter import QueryPosition, QueryRewriter
from es_sbert.gateway.search.semantic_query import SemanticQueryParser

# What every document must match at a place: a search by meaning there finds the k nearest of these.
RequiredFilters = tuple[Json, ...]
# Aggregations whose documents are others than those around.
_AGGREGATIONS_OF_OTHER_DOCUMENTS = frozenset({"global", "nested", "reverse_nested", "children", "parent"})


def rewrite_body(body: Json, rewriter: QueryRewriter, *, checked: bool = False) -> Json:
    """A search body in the engine's words; the very same object where nothing in it asks by meaning.

    Args:
        checked: Whether this body was rewritten before, so that no virtual field is left where it is not understood.

    Raises:
        BadRequest, IndexMismatch: it asks for something that cannot be.
    """
    changed: Json = {}
    query = body.get("query")
    if isinstance(query, dict):
        _set_if_changed(
            changed, "query", query, rewriter.rewrite(query, QueryPosition(scores_from_filters=sorts_by_score(body)))
        )
    within: RequiredFilters = ()
    if isinstance(query, dict) and "knn" not in body:  # with a section `knn`, hits need not match the query
        within = rewriter.required(query)
    section = body.get("knn")
    if section is not None:
        _set_if_changed(changed, "knn", section, _rewrite_knn(section, rewriter))
    if isinstance(body.get("post_filter"), dict):
        _set_if_changed(
            changed,
            "post_filter",
            body["post_filter"],
            rewriter.rewrite(body["post_filter"], _unscored_position(within)),
        )
    for place in ("aggs", "aggregations"):
        if isinstance(body.get(place), dict):
            _set_if_changed(changed, place, body[place], _rewrite_aggregations(body[place], rewriter, within))
    if "rescore" in body:
        _set_if_changed(changed, "rescore", body["rescore"], _rewrite_rescore(body["rescore"], rewriter, within))
    if isinstance(body.get("highlight"), dict):
        _set_if_changed(changed, "highlight", body["highlight"], _rewrite_highlight(body["highlight"], rewriter))
    if isinstance(body.get("retriever"), dict):
        _set_if_changed(changed, "retriever", body["retriever"], _rewrite_retriever(body["retriever"], rewriter))
    rewritten = body | changed if changed else body
    if not checked:
        reject_unresolved(rewritten, rewriter.reader)
    return rewritten


def request_defined_fields(body: Json) -> frozenset[str]:
    """Fields that a search makes up for itself, on Elasticsearch and on OpenSearch."""
    said = (body.get("runtime_mappings"), body.get("derived"))
    return frozenset(name for fields in said if isinstance(fields, dict) for name in fields)


def sorts_by_score(body: Json) -> bool:
    """Whether scores count: no sort at all, or `_score` in it, if only among hits that are alike in something else."""
    sort = body.get("sort")
    if sort in (None, [], ""):
        return True
    names = [
        name for by in (sort if isinstance(sort, list) else [sort]) for name in (by if isinstance(by, dict) else [by])
    ]
    return any(isinstance(name, str) and name.startswith("_score") for name in names)


def _unscored_position(within: RequiredFilters) -> QueryPosition:
    return QueryPosition(scores=False, filters=within, with_inner_hits=False)


def _set_if_changed(changed: Json, place: str, old: Any, new: Any) -> None:
    if new is not old:
        changed[place] = new


def _rewrite_knn(section: Any, rewriter: QueryRewriter) -> Any:
    """Elasticsearch's `knn` beside the query: one, or a list."""
    sections = clause_list(section)
    new = [_rewrite_knn_section(said, rewriter) for said in sections]
    if all(one is other for one, other in zip(new, sections, strict=True)):
        return section
    return new[0] if isinstance(section, dict) else new


def _rewrite_knn_section(said: Json, rewriter: QueryRewriter) -> Json:
    semantic = rewriter.read({"knn": said})
    if semantic is None:
        return said
    return knn_section(semantic, said, rewriter.vector(semantic), rewriter.inner_hits_name(semantic.target))


def _rewrite_aggregations(aggregations: Json, rewriter: QueryRewriter, within: RequiredFilters) -> Json:
    changed: Json = {}
    for name, said in aggregations.items():
        if isinstance(said, dict):
            _set_if_changed(changed, name, said, _rewrite_aggregation(said, rewriter, within))
    return aggregations | changed if changed else aggregations


def _rewrite_aggregation(said: Json, rewriter: QueryRewriter, within: RequiredFilters) -> Json:
    changed: Json = {}
    if not _AGGREGATIONS_OF_OTHER_DOCUMENTS.isdisjoint(said):
        within = ()
    inside = within
    if isinstance(said.get("filter"), dict):
        _set_if_changed(changed, "filter", said["filter"], rewriter.rewrite(said["filter"], _unscored_position(within)))
        inside = (*within, *rewriter.required(said["filter"]))
    for kind in ("filters", "adjacency_matrix"):
        of_many = said.get(kind)
        if isinstance(of_many, dict) and "filters" in of_many:
            new = _rewrite_named_filters(of_many["filters"], rewriter, within)
            if new is not of_many["filters"]:
                changed[kind] = of_many | {"filters": new}
    for kind in ("significant_terms", "significant_text"):
        terms = said.get(kind)
        if isinstance(terms, dict) and isinstance(terms.get("background_filter"), dict):
            background = rewriter.rewrite(terms["background_filter"], _unscored_position(()))
            if background is not terms["background_filter"]:
                changed[kind] = terms | {"background_filter": background}
    for place in ("aggs", "aggregations"):
        if isinstance(said.get(place), dict):
            _set_if_changed(changed, place, said[place], _rewrite_aggregations(said[place], rewriter, inside))
    return said | changed if changed else said


def _rewrite_named_filters(filters: Any, rewriter: QueryRewriter, within: RequiredFilters) -> Any:
    if isinstance(filters, dict):
        changed: Json = {}
        for name, query in filters.items():
            if isinstance(query, dict):
                _set_if_changed(changed, name, query, rewriter.rewrite(query, _unscored_position(within)))
        return filters | changed if changed else filters
    return _rewrite_filters(filters, rewriter, within)


def _rewrite_filters(filters: Any, rewriter: QueryRewriter, within: RequiredFilters) -> Any:
    """Filters that are one query or a list."""
    if isinstance(filters, dict):
        return rewriter.rewrite(filters, _unscored_position(within))
    new = [rewriter.rewrite(query, _unscored_position(within)) for query in clause_list(filters)]
    return new if any(one is not other for one, other in zip(new, clause_list(filters), strict=True)) else filters


def _rewrite_rescore(rescore: Any, rewriter: QueryRewriter, within: RequiredFilters) -> Any:
    if isinstance(rescore, list):
        several = [_rewrite_rescore(one, rewriter, within) for one in rescore]
        return several if any(one is not other for one, other in zip(several, rescore, strict=True)) else rescore
    inner = rescore.get("query") if isinstance(rescore, dict) else None
    if not isinstance(inner, dict) or not isinstance(inner.get("rescore_query"), dict):
        return rescore
    again = inner["rescore_query"]
    new = rewriter.rewrite(again, QueryPosition(filters=within, with_inner_hits=False))
    return rescore if new is again else rescore | {"query": inner | {"rescore_query": new}}


def _rewrite_highlight(said: Json, rewriter: QueryRewriter) -> Json:
    """What is marked in hits, as a whole or field by field."""
    changed: Json = {}
    if isinstance(said.get("highlight_query"), dict):
        words = rewriter.rewrite(
            said["highlight_query"], QueryPosition(scores=False, with_inner_hits=False, words=True)
        )
        _set_if_changed(changed, "highlight_query", said["highlight_query"], words)
    fields = said.get("fields")
    if isinstance(fields, dict):
        _set_if_changed(changed, "fields", fields, _rewrite_highlight_fields(fields, rewriter))
    elif isinstance(fields, list) and clause_list(fields):
        new = [_rewrite_highlight_fields(field, rewriter) for field in fields]
        if any(one is not other for one, other in zip(new, fields, strict=True)):
            changed["fields"] = new
    return said | changed if changed else said


def _rewrite_highlight_fields(fields: Json, rewriter: QueryRewriter) -> Json:
    changed: Json = {}
    for name, said in fields.items():
        if isinstance(said, dict):
            _set_if_changed(changed, name, said, _rewrite_highlight(said, rewriter))
    return fields | changed if changed else fields


def _rewrite_retriever(retriever: Json, rewriter: QueryRewriter, within: RequiredFilters = ()) -> Json:
    """Elasticsearch's retrievers, each a name and what it says; in lists of them perhaps with a weight beside."""
    changed: Json = {}
    for kind, said in retriever.items():
        if not isinstance(said, dict):
            continue
        if kind == "retriever":
            _set_if_changed(changed, kind, said, _rewrite_retriever(said, rewriter, within))
        elif kind == "knn":
            _set_if_changed(changed, kind, said, _rewrite_knn_section(said, rewriter))
        else:
            _set_if_changed(changed, kind, said, _rewrite_retriever_body(said, rewriter, within))
    return retriever | changed if changed else retriever


def _rewrite_retriever_body(said: Json, rewriter: QueryRewriter, within: RequiredFilters) -> Json:
    changed: Json = {}
    query, filters = said.get("query"), clause_list(said.get("filter"))
    if filters:
        beside = rewriter.required(query) if isinstance(query, dict) else ()
        _set_if_changed(
            changed, "filter", said["filter"], _rewrite_filters(said["filter"], rewriter, (*within, *beside))
        )
        within = (*within, *(one for part in filters for one in rewriter.required(part)))
    if isinstance(query, dict):
        _set_if_changed(
            changed,
            "query",
            query,
            rewriter.rewrite(query, QueryPosition(filters=within, scores_from_filters=sorts_by_score(said))),
        )
    if isinstance(said.get("retriever"), dict):
        _set_if_changed(
            changed, "retriever", said["retriever"], _rewrite_retriever(said["retriever"], rewriter, within)
        )
    if "rescore" in said:
        _set_if_changed(changed, "rescore", said["rescore"], _rewrite_rescore(said["rescore"], rewriter, within))
    if isinstance(said.get("retrievers"), list):
        several = [
            _rewrite_retriever(one, rewriter, within) if isinstance(one, dict) else one for one in said["retrievers"]
        ]
        if any(one is not other for one, other in zip(several, said["retrievers"], strict=True)):
            changed["retrievers"] = several
    return said | changed if changed else said


# Queries that hold what they look for under the field's name.
_QUERIES_BY_FIELD_NAME = frozenset({
    "common", "fuzzy", "geo_bounding_box", "geo_distance", "geo_grid", "geo_polygon", "geo_shape", "intervals", "knn",
    "match", "match_bool_prefix", "match_phrase", "match_phrase_prefix", "neural", "neural_sparse", "prefix", "range",
    "regexp", "shape", "span_term", "sparse_vector", "term", "terms", "terms_set", "text_expansion", "weighted_tokens",
    "wildcard", "xy_shape",
})  # fmt: skip
# Parts of a search in which a name is no field that is searched: what hits show, and the application's own objects.
_NOT_SEARCHED = frozenset({
    "_source", "docvalue_fields", "document", "documents", "ext", "fields", "meta", "params", "query_vector", "script",
    "script_fields", "stored_fields", "vector",
})  # fmt: skip
_PASS_THROUGH_HINT = "X-Es-Sbert: off passes the request as it is."


def reject_unresolved(body: Json, reader: SemanticQueryParser) -> None:
    """Look through a search in the engine's words for the virtual field.

    Args:
        body: As it would be sent.
        reader: Knows what the virtual field is called, and where it is no ordinary one.

    Raises:
        BadRequest: it stands where nothing can be found by it.
        IndexMismatch: it is followed by the name of a vector field that there is not.
    """
    for part, said in _objects(body):
        for where, name in (*_searched_fields(part, said, reader), *_displayed_fields(part, said)):
            target = reader.names.virtual_only(name)
            if target is not None:
                raise BadRequest(f"{where} on {name} finds nothing: the name means vectors", _remedy(name, target))


def _objects(body: Json) -> Iterator[tuple[str, Json]]:
    """Every object of a search, with the name that it stands under; one that stands in many places there once."""
    found: list[tuple[str, Any]] = [("", body)]
    seen: set[tuple[str, int]] = set()
    while found:
        part, value = found.pop()
        if (part, id(value)) in seen:
            continue
        seen.add((part, id(value)))
        if isinstance(value, dict):
            yield part, value
            # `fields` of a search are shown, those of its highlights are objects that may hold queries.
            found += (
                (name, inner)
                for name, inner in value.items()
                if name not in _NOT_SEARCHED or (name == "fields" and part == "highlight")
            )
        elif isinstance(value, list):
            found += ((part, inner) for inner in value if isinstance(inner, dict | list))


def _searched_fields(part: str, said: Json, reader: SemanticQueryParser) -> Iterator[tuple[str, str]]:
    """The fields that an object looks into, each with what it is to do there."""
    if part in _QUERIES_BY_FIELD_NAME:
        yield from ((f"a {part} query", name) for name in said)
    if part == "kql" and may_name_field(str(said.get("query")), reader.meaning.virtual_field):
        yield "a kql query, which the engine reads by itself,", reader.meaning.virtual_field
    if isinstance(said.get("field"), str):
        yield part or "a field", said["field"]
    if isinstance(said.get("fields"), list) and (isinstance(said.get("query"), str) or "like" in said):
        yield from ((part, name) for name in said["fields"] if isinstance(name, str))


def _displayed_fields(part: str, said: Json) -> Iterator[tuple[str, str]]:
    """The fields that hits are sorted by, and those whose words are marked in them."""
    order = said.get("sort") if part != "bucket_sort" else None  # which sorts by names of aggregations
    for by in order if isinstance(order, list) else [order]:
        yield from (("sort", name) for name in ([by] if isinstance(by, str) else by if isinstance(by, dict) else ()))
    if part == "highlight":
        fields = said.get("fields")
        yield from (("highlight", name) for field in clause_list(fields) for name in field)


def _remedy(name: str, target: ResolvedField) -> str:
    words = f'Search it by words, as {{"match": {{"{name}": "…"}}}}, and sort by _score;'
    return f"{words} elsewhere name a field that documents have, such as {target.name}. {_PASS_THROUGH_HINT}"


# Of a query on the virtual field; the engine's own `match` knows none of them.
_GATEWAY_OPTIONS = frozenset({"k", "min_cosine"})


def strip_extensions(body: Json, virtual_field: str) -> Json:
    """A search for an index that does not exist, or that the caller may not search, as the engine can read it.

    Returns:
        The very same object where nothing is left out.
    """
    changed = _strip(body, virtual_field)
    return changed if isinstance(changed, dict) else body


def _strip(value: Any, virtual_field: str) -> Any:
    if isinstance(value, list):
        new = [_strip(inner, virtual_field) for inner in value]
        return new if any(one is not other for one, other in zip(new, value, strict=True)) else value
    if not isinstance(value, dict):
        return value
    changed: Json = {}
    for name, inner in value.items():
        kept = inner
        if isinstance(inner, dict) and (name == virtual_field or name.startswith(f"{virtual_field}.")):
            if not _GATEWAY_OPTIONS.isdisjoint(inner):
                kept = {option: said for option, said in inner.items() if option not in _GATEWAY_OPTIONS}
        else:
            kept = _strip(inner, virtual_field)
        if kept is not inner:
            changed[name] = kept
    return value | changed if changed else value
