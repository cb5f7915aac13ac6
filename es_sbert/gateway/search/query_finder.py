"""Find the semantic queries of a search body, in every part that holds queries, from `query` to `aggs` and `retriever`.

Pure functions: they replace each semantic query in a body by a placeholder, and reject the virtual field anywhere else:
the engine does not know it and would silently match nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import chain
from typing import Any

from es_sbert.engines.engine_info import EngineType
from es_sbert.engines.rest import Json
from es_sbert.gateway.errors import BadRequest
from es_sbert.gateway.search.compound_queries import (
    BOOL_CLAUSES,
    JOINING_QUERIES,
    NEGATIVE_MEMBERS,
    REQUIRED_MEMBERS,
    UNSCORED_MEMBERS,
    ContainsCache,
    IdentityCache,
    InnerHitsNames,
    Member,
    MemberFunctions,
    clause_list,
    decode_wrapper,
    inner_queries,
    map_clauses,
    map_inner_queries,
    map_members,
    map_objects,
    must_not_match,
    query_type_and_body,
    strip_inner_hits,
)
from es_sbert.gateway.search.full_text_queries import may_name_field, split_virtual_fields
from es_sbert.gateway.search.hybrid_queries import ANY_CLAUSE, HybridDetector
from es_sbert.gateway.search.incoming_search import sorts_by_score
from es_sbert.gateway.search.knn_clauses import (
    HybridPlaceholder,
    Placeholder,
    QueryPlaceholder,
    SectionPlaceholder,
    highlight_clause,
    query_without_vector,
)
from es_sbert.gateway.search.semantic_query import SemanticQuery, SemanticQueryParser, SemanticSyntax, parse_nested
from es_sbert.index.mapping import has_vector_query
from es_sbert.search.search_scope import SearchScope

# Queries that match everything, or are supported only at the top level.
_NEVER_FILTERS = frozenset({"match_all", "hybrid"})
# Aggregations over documents other than those of the parent.
_AGGREGATIONS_OF_OTHER_DOCUMENTS = frozenset({"global", "nested", "reverse_nested", "children", "parent"})


@dataclass(frozen=True)
class FoundQueries:
    """The semantic queries of a search body.

    Attributes:
        body: The body with a placeholder for each; the identical object if nothing is rewritten.
        placeholders: The queries and their places.
    """

    body: Json
    placeholders: Sequence[Placeholder]


def find_queries(
    body: Json,
    engine_type: EngineType,
    parser: SemanticQueryParser,
    hybrid: HybridDetector | None,
    *,
    knn_matches_candidates: bool = False,
) -> FoundQueries:
    """Find the semantic queries of a search body.

    Args:
        engine_type: Type of the engine.
        parser: Parses semantic queries.
        hybrid: Makes full-text queries hybrid; None leaves them unchanged.
        knn_matches_candidates: See `EngineInfo`.

    Raises:
        BadRequest, IndexMismatch: a semantic query is invalid, or the virtual field is named where that is not
            supported.
        UsageError: see `query_without_vector`.
    """
    finder = _QueryFinder(body, engine_type, parser, hybrid, matches_candidates=knn_matches_candidates)
    found = FoundQueries(_BodyFinder(finder).with_placeholders(body), finder.placeholders)
    reject_unresolved(found.body, found.placeholders, parser)
    return found


@dataclass(frozen=True)
class QueryPosition:
    """The position of a query in a search.

    Attributes:
        scores: Whether its score counts.
        filters: Further queries that every hit must match. A semantic query applies them during the search, so that k
            documents remain.
        scores_from_filters: Whether a query on the virtual field scores even inside a filter. Kibana puts all queries
            into filters, even if the request sorts by score.
        only_semantic_scores: Whether the query was moved from a filter to a scoring position, in which only semantic
            queries may score.
        with_inner_hits: Whether hits may return their nearest chunk.
        words: Whether the query selects words to highlight, so that a semantic query becomes a full-text one.
        negative: Whether its matches are unwanted, as in `must_not`.
        ranks: Whether it is part of the search's main query, which ranks the hits. Only there queries become hybrid.
        is_filtered: Whether `filters` contains what the query itself requires.
    """

    scores: bool = True
    filters: tuple[Json, ...] = ()
    scores_from_filters: bool = False
    only_semantic_scores: bool = False
    with_inner_hits: bool = True
    words: bool = False
    negative: bool = False
    ranks: bool = False
    is_filtered: bool = False


_UNRANKED = QueryPosition()
# Position of a search's main query.
_MAIN_QUERY = QueryPosition(ranks=True)


class _BodyFinder:
    """Finds semantic queries in the parts of a search body.

    Each method returns a part with placeholders, or the identical object if nothing in it changes.
    """

    def __init__(self, queries: _QueryFinder) -> None:
        self._queries = queries

    def with_placeholders(self, body: Json) -> Json:
        query = self._queries.with_placeholders(
            body.get("query"), QueryPosition(scores_from_filters=sorts_by_score(body), ranks=True)
        )
        # No filters with a section `knn`: its hits need not match the query.
        filters = () if "knn" in body else self._queries.required(body.get("query"), _MAIN_QUERY)
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

    def _unscored(self, filters: tuple[Json, ...]) -> Callable[[Any], Any]:
        """Return a function that finds semantic queries in a query whose score does not count."""
        position = QueryPosition(scores=False, filters=filters, with_inner_hits=False)
        return partial(self._queries.with_placeholders, position=position)

    def _aggregations(self, filters: tuple[Json, ...], aggregations: Any) -> Any:
        return map_objects(aggregations, partial(self._aggregation, filters))

    def _aggregation(self, filters: tuple[Json, ...], aggregation: Json) -> Json:
        if not _AGGREGATIONS_OF_OTHER_DOCUMENTS.isdisjoint(aggregation):
            filters = ()
        inner = partial(self._aggregations, (*filters, *self._queries.required(aggregation.get("filter"))))
        query = self._unscored(filters)

        def named_filters(queries: Any) -> Any:
            return map_objects(queries, query) if isinstance(queries, dict) else map_clauses(queries, query)

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

    def _rescore(self, filters: tuple[Json, ...], rescore: Any) -> Any:
        position = QueryPosition(filters=filters, with_inner_hits=False)
        query = partial(self._queries.with_placeholders, position=position)
        functions = {"query": lambda body: map_members(body, {"rescore_query": query})}
        return map_clauses(rescore, lambda window: map_members(window, functions))

    def _highlight(self, highlight: Any) -> Any:
        position = QueryPosition(scores=False, with_inner_hits=False, words=True)
        functions: MemberFunctions = {
            "highlight_query": partial(self._queries.with_placeholders, position=position),
            # An object by field, or a list of objects to keep their order.
            "fields": lambda fields: map_clauses(fields, lambda field: map_objects(field, self._highlight)),
        }
        return map_members(highlight, functions)

    def _retriever(self, filters: tuple[Json, ...], retriever: Any) -> Any:
        """Find semantic queries in a retriever of Elasticsearch: its type and body; in a list, it may have a weight."""
        if not isinstance(retriever, dict):
            return retriever
        return map_members(retriever, {kind: partial(self._retriever_body, filters, kind) for kind in retriever})

    def _retriever_body(self, filters: tuple[Json, ...], kind: str, body: Any) -> Any:
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
            "query": partial(self._queries.with_placeholders, position=position),
            "retriever": retriever,
            "rescore": partial(self._rescore, filters),
            "retrievers": lambda retrievers: map_clauses(retrievers, retriever),
        }
        return map_members(body, functions)


class _QueryFinder:
    """Finds the semantic queries in the queries of one search body.

    Attributes:
        placeholders: One for each semantic query that was found.
    """

    def __init__(
        self,
        body: Json,
        engine_type: EngineType,
        parser: SemanticQueryParser,
        hybrid: HybridDetector | None,
        *,
        matches_candidates: bool,
    ) -> None:
        self.placeholders: list[Placeholder] = []
        self._engine_type = engine_type
        self._parser = parser
        self._hybrid = hybrid
        self._matches_candidates = matches_candidates
        self._inner_hits_names = InnerHitsNames(body)
        # Results are cached, because nested bools check the same queries again at every level.
        self._split_queries: IdentityCache[Json] = IdentityCache()
        self._semantic_cache = ContainsCache()
        self._involved_cache = ContainsCache()
        self._hybrid_cache: IdentityCache[bool] = IdentityCache()
        self._virtual_cache = ContainsCache()

    def with_placeholders(self, node: Any, position: QueryPosition) -> Any:
        """Replace the semantic queries in a query with placeholders; the identical object if there are none.

        Raises:
            BadRequest, IndexMismatch: see `SemanticQueryParser.parse`.
        """
        node = self._split(node)
        semantic = self._parser.parse(node)
        if semantic is not None:
            return highlight_clause(semantic) if position.words else self._placeholder(semantic, position)
        hybrid = self._hybrid.detect(node) if self._hybrid is not None and _may_be_hybrid(position) else None
        if hybrid is not None:
            return self._add(HybridPlaceholder(self._nearest(hybrid.semantic, position), node, hybrid.exact))
        query = query_type_and_body(node)
        if query is None:
            return node
        kind, body = query
        if kind == "bool":
            return self._bool(node, body, position)
        if kind == "exists":
            return self._exists(node, body)
        if kind in JOINING_QUERIES:
            return self._joining(node, kind, body, position)
        if kind == "hybrid" and isinstance(body.get("filter"), dict):
            # Filter the semantic queries too: OpenSearch applies the filter after kNN has chosen its k documents.
            position = replace(position, filters=(*position.filters, *self.required(body["filter"])))
        return map_inner_queries(
            node, lambda inner, member: self.with_placeholders(inner, _inner_position(position, member, body))
        )

    def required(self, node: Any, position: QueryPosition = _UNRANKED) -> tuple[Json, ...]:
        """Return the parts of a query that every hit must match, as filters for semantic queries.

        Semantic queries, and those that become hybrid, are left out.
        """
        node = self._split(decode_wrapper(node))
        query = query_type_and_body(node)
        if query is None or query[0] in _NEVER_FILTERS:
            return ()
        if not self._is_involved(node) and not self._becomes_hybrid(node, position):
            return (self._as_filter(node),)
        return self._required_inside(node, position)

    def _required_inside(self, node: Json, position: QueryPosition) -> tuple[Json, ...]:
        """Return what a query requires of each hit besides the semantic and hybrid queries inside it."""
        [(kind, body)] = node.items()
        parts = (
            self.required(inner, _inner_position(position, member, body))
            for member, inner in inner_queries(node)
            if member in REQUIRED_MEMBERS
        )
        excluded = clause_list(body.get("must_not")) if kind == "bool" else []
        plain = [self._as_filter(clause) for clause in excluded if not self._is_involved(clause)]
        return (*chain.from_iterable(parts), *must_not_match(plain))

    def _as_filter(self, node: Json) -> Json:
        """Convert a query that is not semantic to a filter. It may still ask whether a vector exists."""
        return strip_inner_hits(self.with_placeholders(node, QueryPosition(scores=False)))

    def contains_semantic(self, node: Any) -> bool:
        """Whether a query, or one inside it, is semantic."""
        return self._semantic_cache(node, self._is_semantic)

    def find_in_section(self, section: Json) -> Any:
        """Replace a semantic section `knn` of Elasticsearch, in a search body or as a retriever, with a placeholder.

        Raises:
            BadRequest, IndexMismatch: the section is invalid, or the engine is OpenSearch.
        """
        semantic = self._parser.parse_section(section)
        if semantic is None:
            return section
        if self._engine_type is EngineType.OPENSEARCH:
            raise BadRequest(
                "OpenSearch has no section or retriever knn",
                'Write it as a query: {"query": {"knn": {"field": …, "query_vector_builder": …}}}.',
            )
        inner_hits = None if "inner_hits" in section else self._inner_hits_name(semantic.target)
        return self._add(SectionPlaceholder(semantic, section, inner_hits))

    def _inner_hits_name(self, target: SearchScope) -> str | None:
        """A name for inner hits, unique in the request; None if the field holds no chunks."""
        return None if target.meta.passages is None else self._inner_hits_names.unique(target.name)

    def _split(self, node: Json) -> Json:
        """Call `split_virtual_fields`, with caching: the same node always gives the same object."""
        return self._split_queries.get(node, lambda node: split_virtual_fields(node, self._parser))

    def _is_semantic(self, node: Json) -> bool:
        return self._split(node) is not node or self._parser.parse(node) is not None

    def _is_involved(self, node: Json) -> bool:
        """Whether a query, or one inside it, is semantic or searches chunks."""
        return self._involved_cache(node, self._is_semantic_or_on_chunks)

    def _becomes_hybrid(self, node: Json, position: QueryPosition) -> bool:
        """Whether a query, or one inside it, becomes hybrid."""
        return _may_be_hybrid(position) and self._hybrid_cache.get(node, self._contains_hybrid)

    def _contains_hybrid(self, node: Json) -> bool:
        """Whether a query becomes hybrid as the main query, or one inside it does.

        Every position in which queries may become hybrid gives the same result, so it is cached by query.
        """
        if self._hybrid is None:
            return False
        if self._hybrid.detect(node) is not None:
            return True
        query = query_type_and_body(node)
        body = {} if query is None else query[1]
        return any(
            self._becomes_hybrid(inner, _inner_position(_MAIN_QUERY, member, body))
            for member, inner in inner_queries(node)
        )

    def _is_semantic_or_on_chunks(self, node: Json) -> bool:
        if self._is_semantic(node):
            return True
        query = query_type_and_body(node)
        return query is not None and query[0] == "nested" and self.contains_semantic(query[1].get("query"))

    def _is_on_virtual_field(self, node: Json) -> bool:
        if self._split(node) is not node:
            return True
        semantic = self._parser.parse(node)
        return semantic is not None and semantic.syntax is SemanticSyntax.VIRTUAL_FIELD

    def _placeholder(self, semantic: SemanticQuery, position: QueryPosition) -> Placeholder:
        return self._add(self._nearest(semantic.without_k() if position.negative else semantic, position))

    def _nearest(self, semantic: SemanticQuery, position: QueryPosition) -> QueryPlaceholder:
        # A client's own `nested` query returns the inner hits that it asks for.
        with_inner_hits = position.with_inner_hits and semantic.nested is None
        inner_hits = self._inner_hits_name(semantic.target) if with_inner_hits else None
        query = query_without_vector(
            self._engine_type, semantic, position.filters, inner_hits, matches_candidates=self._matches_candidates
        )
        return QueryPlaceholder(semantic, position.filters, query, has_cutoff=not position.negative)

    def _add(self, placeholder: Placeholder) -> Placeholder:
        self.placeholders.append(placeholder)
        return placeholder

    def _joining(self, node: Json, kind: str, body: Json, position: QueryPosition) -> Any:
        """Convert a query on documents other than the hits. These documents have no vectors, unless they are chunks.

        Raises:
            BadRequest: the query contains a semantic query on such documents, which would silently match nothing.
        """
        inner: Any = body.get("query")
        if not self.contains_semantic(inner):
            return node
        semantic = self._parser.parse(inner)
        passages = semantic is not None and semantic.target.meta.passages is not None
        if semantic is not None and passages and kind == "nested" and body.get("path") == semantic.target.name:
            parameters, boost = parse_nested(body, f"nested on {body['path']}")
            return self._placeholder(replace(semantic, nested=parameters, boost=semantic.boost * boost), position)
        documents = "nested documents" if kind == "nested" else "parent and child documents"
        raise BadRequest(
            f"a semantic query cannot be used inside `{kind}`: vectors of {documents} are not searched",
            f"Put it next to the {kind} query, in the same bool.",
        )

    def _exists(self, node: Json, body: Json) -> Json:
        """Convert an `exists` query on the virtual field, such as KQL's `semantic: *`."""
        field = body.get("field")
        target = self._parser.fields.virtual(field) if isinstance(field, str) else None
        if target is None:
            return node
        [(kind, query)] = has_vector_query(target.name, target.meta).items()
        return {kind: query | {name: value for name, value in body.items() if name != "field"}}

    def _bool(self, node: Json, body: Json, position: QueryPosition) -> Json:
        clauses = {name: clause_list(body.get(name)) for name in BOOL_CLAUSES}
        involved = {
            id(clause)
            for name, parts in clauses.items()
            for clause in parts
            if self._is_involved(clause)
            or self._becomes_hybrid(clause, _inner_position(position, ("bool", name), body))
        }
        if involved and not position.is_filtered:
            filters = (*position.filters, *self._required_inside(node, position))
            position = replace(position, filters=filters, is_filtered=True)
        found: dict[str, list[Json]] = {name: [] for name in BOOL_CLAUSES}
        is_changed = False
        for name, parts in clauses.items():
            for clause in parts:
                new_name, inner = self._clause_position(clause, name, id(clause) in involved, position, body)
                new = self.with_placeholders(clause, inner)
                if inner.scores and position.only_semantic_scores and id(clause) not in involved:
                    new = {"bool": {"filter": [new]}}
                found[new_name].append(new)
                is_changed |= new is not clause
        if not is_changed:
            return node
        return {"bool": body | {name: parts for name, parts in found.items() if parts or name in body}}

    def _clause_position(
        self, clause: Json, name: str, involved: bool, position: QueryPosition, body: Json
    ) -> tuple[str, QueryPosition]:
        """Return the member of the rewritten bool for a clause, and the clause's position.

        A filter moves to `must` if its semantic query gives the score.
        """
        moves = name == "filter" and position.scores and position.scores_from_filters and involved
        if moves and self._virtual_cache(clause, self._is_on_virtual_field):
            return "must", replace(position, scores=True, only_semantic_scores=True)
        return name, _inner_position(position, ("bool", name), body)


def _may_be_hybrid(position: QueryPosition) -> bool:
    return position.ranks and position.scores and not position.only_semantic_scores


def _inner_position(position: QueryPosition, member: Member, body: Json) -> QueryPosition:
    """Position of a query inside another one.

    Args:
        position: Position of the outer query.
        member: The member of the outer query that holds it.
        body: The body of the outer query.
    """
    # A document must match several of the clauses, so a semantic hit must not count as a match.
    is_counted = member == ("bool", "should") and body.get("minimum_should_match", 1) not in ANY_CLAUSE
    return replace(
        position,
        scores=position.scores and member not in UNSCORED_MEMBERS,
        negative=position.negative or member in NEGATIVE_MEMBERS,
        ranks=position.ranks and not is_counted,
        is_filtered=position.is_filtered and member in REQUIRED_MEMBERS,
    )


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
