"""The body of a search: every place in it that holds queries."""

from __future__ import annotations

from typing import Any

from es_sbert.engines.protocol import Json
from es_sbert.gateway.rewrite.clauses import knn_section
from es_sbert.gateway.rewrite.compound import as_list
from es_sbert.gateway.rewrite.leftovers import refuse_leftovers
from es_sbert.gateway.rewrite.queries import Place, QueryRewriter

# What every document must match at a place: a search by meaning there finds the k nearest of these.
Within = tuple[Json, ...]
# Aggregations whose documents are others than those around.
_ELSEWHERE = frozenset({"global", "nested", "reverse_nested", "children", "parent"})


def rewritten_body(body: Json, rewriter: QueryRewriter, *, checked: bool = False) -> Json:
    """A search body in the engine's words; the very same object where nothing in it asks by meaning.

    Args:
        checked: Whether this body was rewritten before, so that no virtual field is left where it is not understood.

    Raises:
        BadRequest, IndexMismatch: it asks for something that cannot be.
    """
    changed: Json = {}
    query = body.get("query")
    if isinstance(query, dict):
        _put(changed, "query", query, rewriter.rewrite(query, Place(promotes=sorts_by_score(body))))
    within: Within = ()
    if isinstance(query, dict) and "knn" not in body:  # with a section `knn`, hits need not match the query
        within = rewriter.required(query)
    section = body.get("knn")
    if section is not None:
        _put(changed, "knn", section, _sections(section, rewriter))
    if isinstance(body.get("post_filter"), dict):
        _put(changed, "post_filter", body["post_filter"], rewriter.rewrite(body["post_filter"], _unscored(within)))
    for place in ("aggs", "aggregations"):
        if isinstance(body.get(place), dict):
            _put(changed, place, body[place], _aggregations(body[place], rewriter, within))
    if "rescore" in body:
        _put(changed, "rescore", body["rescore"], _rescore(body["rescore"], rewriter, within))
    if isinstance(body.get("highlight"), dict):
        _put(changed, "highlight", body["highlight"], _highlight(body["highlight"], rewriter))
    if isinstance(body.get("retriever"), dict):
        _put(changed, "retriever", body["retriever"], _retriever(body["retriever"], rewriter))
    rewritten = body | changed if changed else body
    if not checked:
        refuse_leftovers(rewritten, rewriter.reader)
    return rewritten


def defined_fields(body: Json) -> frozenset[str]:
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


def _unscored(within: Within) -> Place:
    return Place(scores=False, filters=within, tells_passages=False)


def _put(changed: Json, place: str, old: Any, new: Any) -> None:
    if new is not old:
        changed[place] = new


def _sections(section: Any, rewriter: QueryRewriter) -> Any:
    """Elasticsearch's `knn` beside the query: one, or a list."""
    sections = as_list(section)
    new = [_section(said, rewriter) for said in sections]
    if all(one is other for one, other in zip(new, sections, strict=True)):
        return section
    return new[0] if isinstance(section, dict) else new


def _section(said: Json, rewriter: QueryRewriter) -> Json:
    semantic = rewriter.read({"knn": said})
    if semantic is None:
        return said
    return knn_section(semantic, said, rewriter.vector(semantic), rewriter.passages_name(semantic.target))


def _aggregations(aggregations: Json, rewriter: QueryRewriter, within: Within) -> Json:
    changed: Json = {}
    for name, said in aggregations.items():
        if isinstance(said, dict):
            _put(changed, name, said, _aggregation(said, rewriter, within))
    return aggregations | changed if changed else aggregations


def _aggregation(said: Json, rewriter: QueryRewriter, within: Within) -> Json:
    changed: Json = {}
    if not _ELSEWHERE.isdisjoint(said):
        within = ()
    inside = within
    if isinstance(said.get("filter"), dict):
        _put(changed, "filter", said["filter"], rewriter.rewrite(said["filter"], _unscored(within)))
        inside = (*within, *rewriter.required(said["filter"]))
    for kind in ("filters", "adjacency_matrix"):
        of_many = said.get(kind)
        if isinstance(of_many, dict) and "filters" in of_many:
            new = _filters(of_many["filters"], rewriter, within)
            if new is not of_many["filters"]:
                changed[kind] = of_many | {"filters": new}
    for kind in ("significant_terms", "significant_text"):
        terms = said.get(kind)
        if isinstance(terms, dict) and isinstance(terms.get("background_filter"), dict):
            background = rewriter.rewrite(terms["background_filter"], _unscored(()))
            if background is not terms["background_filter"]:
                changed[kind] = terms | {"background_filter": background}
    for place in ("aggs", "aggregations"):
        if isinstance(said.get(place), dict):
            _put(changed, place, said[place], _aggregations(said[place], rewriter, inside))
    return said | changed if changed else said


def _filters(filters: Any, rewriter: QueryRewriter, within: Within) -> Any:
    if isinstance(filters, dict):
        changed: Json = {}
        for name, query in filters.items():
            if isinstance(query, dict):
                _put(changed, name, query, rewriter.rewrite(query, _unscored(within)))
        return filters | changed if changed else filters
    return _every(filters, rewriter, within)


def _every(filters: Any, rewriter: QueryRewriter, within: Within) -> Any:
    """Filters that are one query or a list."""
    if isinstance(filters, dict):
        return rewriter.rewrite(filters, _unscored(within))
    new = [rewriter.rewrite(query, _unscored(within)) for query in as_list(filters)]
    return new if any(one is not other for one, other in zip(new, as_list(filters), strict=True)) else filters


def _rescore(rescore: Any, rewriter: QueryRewriter, within: Within) -> Any:
    if isinstance(rescore, list):
        several = [_rescore(one, rewriter, within) for one in rescore]
        return several if any(one is not other for one, other in zip(several, rescore, strict=True)) else rescore
    inner = rescore.get("query") if isinstance(rescore, dict) else None
    if not isinstance(inner, dict) or not isinstance(inner.get("rescore_query"), dict):
        return rescore
    again = inner["rescore_query"]
    new = rewriter.rewrite(again, Place(filters=within, tells_passages=False))
    return rescore if new is again else rescore | {"query": inner | {"rescore_query": new}}


def _highlight(said: Json, rewriter: QueryRewriter) -> Json:
    """What is marked in hits, as a whole or field by field."""
    changed: Json = {}
    if isinstance(said.get("highlight_query"), dict):
        words = rewriter.rewrite(said["highlight_query"], Place(scores=False, tells_passages=False, words=True))
        _put(changed, "highlight_query", said["highlight_query"], words)
    fields = said.get("fields")
    if isinstance(fields, dict):
        _put(changed, "fields", fields, _highlights(fields, rewriter))
    elif isinstance(fields, list) and as_list(fields):
        new = [_highlights(field, rewriter) for field in fields]
        if any(one is not other for one, other in zip(new, fields, strict=True)):
            changed["fields"] = new
    return said | changed if changed else said


def _highlights(fields: Json, rewriter: QueryRewriter) -> Json:
    changed: Json = {}
    for name, said in fields.items():
        if isinstance(said, dict):
            _put(changed, name, said, _highlight(said, rewriter))
    return fields | changed if changed else fields


def _retriever(retriever: Json, rewriter: QueryRewriter, within: Within = ()) -> Json:
    """Elasticsearch's retrievers, each a name and what it says; in lists of them perhaps with a weight beside."""
    changed: Json = {}
    for kind, said in retriever.items():
        if not isinstance(said, dict):
            continue
        if kind == "retriever":
            _put(changed, kind, said, _retriever(said, rewriter, within))
        elif kind == "knn":
            _put(changed, kind, said, _section(said, rewriter))
        else:
            _put(changed, kind, said, _other_retriever(said, rewriter, within))
    return retriever | changed if changed else retriever


def _other_retriever(said: Json, rewriter: QueryRewriter, within: Within) -> Json:
    changed: Json = {}
    query, filters = said.get("query"), as_list(said.get("filter"))
    if filters:
        beside = rewriter.required(query) if isinstance(query, dict) else ()
        _put(changed, "filter", said["filter"], _every(said["filter"], rewriter, (*within, *beside)))
        within = (*within, *(one for part in filters for one in rewriter.required(part)))
    if isinstance(query, dict):
        _put(changed, "query", query, rewriter.rewrite(query, Place(filters=within, promotes=sorts_by_score(said))))
    if isinstance(said.get("retriever"), dict):
        _put(changed, "retriever", said["retriever"], _retriever(said["retriever"], rewriter, within))
    if "rescore" in said:
        _put(changed, "rescore", said["rescore"], _rescore(said["rescore"], rewriter, within))
    if isinstance(said.get("retrievers"), list):
        several = [_retriever(one, rewriter, within) if isinstance(one, dict) else one for one in said["retrievers"]]
        if any(one is not other for one, other in zip(several, said["retrievers"], strict=True)):
            changed["retrievers"] = several
    return said | changed if changed else said
