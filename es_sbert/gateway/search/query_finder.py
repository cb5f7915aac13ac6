"""Find the semantic queries of a search body, in every part that holds queries, from `query` to `aggs` and `retriever`.

Each semantic query in a body is replaced by a placeholder. The virtual field is rejected anywhere else: the engine does
not know it and would silently match nothing.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain
from typing import Any

from es_sbert.engines.engine_info import EngineType
from es_sbert.engines.rest import Json
from es_sbert.gateway.errors import BadRequest
from es_sbert.gateway.search.compound_queries import (
    JOINING_QUERIES,
    NEGATIVE_MEMBERS,
    REQUIRED_MEMBERS,
    UNSCORED_MEMBERS,
    Member,
    Place,
    clause_list,
    decode_wrapper,
    inner_hits_names,
    inner_queries,
    objects_at,
    objects_in,
    query_type_and_body,
    strip_inner_hits,
    unique_name,
)
from es_sbert.gateway.search.full_text_queries import BOOSTED_FIELD, may_name_field, split_virtual_fields
from es_sbert.gateway.search.hybrid_queries import ANY_CLAUSE, FullText, HybridDetector
from es_sbert.gateway.search.incoming_search import sorts_by_score
from es_sbert.gateway.search.knn_clauses import (
    Placeholder,
    QueryPlaceholder,
    SectionPlaceholder,
    query_without_vector,
)
from es_sbert.gateway.search.semantic_query import SemanticQuery, SemanticQueryParser, SemanticSyntax
from es_sbert.index.mapping import has_vector_query

# Queries that match everything, or are supported only at the top level; and what is not a query.
_NEVER_FILTERS = frozenset({"match_all", "hybrid", ""})
# Aggregations over documents other than those of the parent.
_AGGREGATIONS_OF_OTHER_DOCUMENTS = frozenset({"global", "nested", "reverse_nested", "children", "parent"})


@dataclass
class FoundQueries:
    """The semantic queries of a search body.

    Attributes:
        places: Where the body holds the placeholder of each, which is to be replaced by a native query.
        is_changed: Whether the body was changed: it has placeholders, or names a vector field for the virtual one.
    """

    places: dict[Placeholder, Place] = field(default_factory=dict)
    is_changed: bool = False

    def add(self, place: Place, placeholder: Placeholder) -> None:
        holder, name = place
        holder[name] = placeholder
        self.places[placeholder] = place
        self.is_changed = True


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
        negative: Whether its matches are unwanted, as in `must_not`.
        is_filtered: Whether `filters` contains what the query itself requires.
    """

    scores: bool = True
    filters: tuple[Json, ...] = ()
    scores_from_filters: bool = False
    only_semantic_scores: bool = False
    with_inner_hits: bool = True
    negative: bool = False
    is_filtered: bool = False


@dataclass(eq=False)
class _Query:
    """A query and the queries inside it.

    Attributes:
        place: Where the search holds it.
        kind, body: Its type and parameters; empty for an object that is not a query.
        inner: The queries directly inside it, each with the member that holds it.
        semantic: The semantic query that it is; None for any other.
        full_text: What it searches for if it is a full-text query on an embedded field; None for any other.
        becomes_hybrid: Whether it becomes hybrid.
    """

    place: Place
    kind: str
    body: Json
    inner: Sequence[tuple[Member, _Query]] = ()
    semantic: SemanticQuery | None = None
    full_text: FullText | None = None
    becomes_hybrid: bool = False

    def __post_init__(self) -> None:
        inner, is_joining = [query for _, query in self.inner], self.kind in JOINING_QUERIES
        is_virtual = self.semantic is not None and self.semantic.syntax is SemanticSyntax.VIRTUAL_FIELD
        # Whether it, or a query inside it, is semantic; is so on the virtual field; has inner hits; becomes hybrid.
        self.contains_semantic: bool = self.semantic is not None or any(query.contains_semantic for query in inner)
        self.on_virtual_field: bool = is_virtual or any(query.on_virtual_field for query in inner)
        self.has_inner_hits: bool = (is_joining and "inner_hits" in self.body) or any(
            each.has_inner_hits for each in inner
        )
        self.contains_hybrid: bool = self.becomes_hybrid or any(query.contains_hybrid for query in inner)

    @property
    def node(self) -> Json:
        holder, name = self.place
        node: Json = holder[name]
        return node

    def as_filter(self) -> Json:
        """The query where it is repeated: inner hits of a request must have different names."""
        node: Json = strip_inner_hits(self.node) if self.has_inner_hits else self.node
        return node


class QueryFinder:
    """Finds the semantic queries of one search body, and replaces them in it by placeholders.

    Args:
        engine_type: Type of the engine.
        parser: Parses semantic queries.
        hybrid: Makes full-text queries hybrid; None leaves them unchanged.
        knn_matches_candidates: See `EngineInfo`.
    """

    def __init__(
        self,
        engine_type: EngineType,
        parser: SemanticQueryParser,
        hybrid: HybridDetector | None,
        *,
        knn_matches_candidates: bool = False,
    ) -> None:
        self._engine_type = engine_type
        self._parser = parser
        self._hybrid = hybrid
        self._matches_candidates = knn_matches_candidates
        self._found = FoundQueries()
        self._inner_hits_names: set[str] = set()

    def find(self, body: Json) -> FoundQueries:
        """Find the semantic queries of a body, which is changed.

        Raises:
            BadRequest, IndexMismatch: a semantic query is invalid, or the virtual field is named where that is not
                supported.
            UsageError: see `query_without_vector`.
        """
        if self._parser.fields.has_chunks:
            self._inner_hits_names |= set(inner_hits_names(body))
        main = self._tree((body, "query"), may_be_hybrid=self._hybrid is not None)
        # No filters with a section `knn`: its hits need not match the query.
        filters = () if "knn" in body else self._required(main)
        self._replace(main, QueryPosition(scores_from_filters=sorts_by_score(body)))
        for place in objects_at(body, "knn"):
            self._find_section(place)
        self._find_unscored((body, "post_filter"), filters)
        self._find_in_aggregations(body, filters)
        self._find_in_rescore(body, filters)
        self._find_in_retriever(body.get("retriever"), ())
        reject_unresolved(body, list(self._found.places), self._parser)
        return self._found

    def _find_unscored(self, place: Place, filters: tuple[Json, ...]) -> tuple[Json, ...]:
        """Find semantic queries in a query whose score does not count; return what the query requires of a hit."""
        position = QueryPosition(scores=False, filters=filters, with_inner_hits=False)
        query = self._tree(place)
        required = self._required(query)
        self._replace(query, position)
        return required

    def _find_in_aggregations(self, parent: Json, filters: tuple[Json, ...]) -> None:
        for name in ("aggs", "aggregations"):
            for holder, key in objects_in(parent.get(name)):
                aggregation: Json = holder[key]
                is_joined = not _AGGREGATIONS_OF_OTHER_DOCUMENTS.isdisjoint(aggregation)
                outer = () if is_joined else filters
                required = self._find_unscored((aggregation, "filter"), outer)
                named = aggregation.get("filters")
                queries = named.get("filters") if isinstance(named, dict) else None
                for place in objects_in(queries) if isinstance(queries, dict) else objects_at(named, "filters"):
                    self._find_unscored(place, outer)
                self._find_in_aggregations(aggregation, (*outer, *required))

    def _find_in_rescore(self, holder: Json, filters: tuple[Json, ...]) -> None:
        position = QueryPosition(filters=filters, with_inner_hits=False)
        for windows, number in objects_at(holder, "rescore"):
            rescored = windows[number].get("query")
            if isinstance(rescored, dict):
                self._replace(self._tree((rescored, "rescore_query")), position)

    def _find_in_retriever(self, retriever: Any, filters: tuple[Json, ...]) -> None:
        """Find semantic queries in a retriever of Elasticsearch: its type and body; in a list, it may have a weight."""
        for holder, kind in objects_in(retriever):
            body: Json = holder[kind]
            if kind == "retriever":
                self._find_in_retriever(body, filters)
            elif kind == "knn":
                self._find_section((holder, kind))
            else:
                query = self._tree((body, "query"))
                filter_queries = [self._tree(place) for place in objects_at(body, "filter")]
                unscored = QueryPosition(
                    scores=False, filters=(*filters, *self._required(query)), with_inner_hits=False
                )
                inner = (*filters, *(part for each in filter_queries for part in self._required(each)))
                for each in filter_queries:
                    self._replace(each, unscored)
                self._replace(query, QueryPosition(filters=inner, scores_from_filters=sorts_by_score(body)))
                self._find_in_rescore(body, inner)
                self._find_in_retriever(body.get("retriever"), inner)
                for retrievers, number in objects_at(body, "retrievers"):
                    self._find_in_retriever(retrievers[number], inner)

    def _find_section(self, place: Place) -> None:
        """Replace a semantic section `knn` of Elasticsearch, in a search body or as a retriever, with a placeholder."""
        holder, name = place
        section: Json = holder[name]
        semantic = self._parser.parse("knn", section, is_section=True)
        if semantic is None:
            return
        if self._engine_type is EngineType.OPENSEARCH:
            raise BadRequest(
                "OpenSearch has no section or retriever knn",
                'Write it as a query: {"query": {"knn": {"field": …, "query_vector_builder": …}}}.',
            )
        inner_hits = None if "inner_hits" in section else self._inner_hits_name(semantic)
        self._found.add(place, SectionPlaceholder(semantic, section, inner_hits))

    def _inner_hits_name(self, semantic: SemanticQuery) -> str | None:
        """A name for inner hits, unique in the request; None if the field holds no chunks."""
        if semantic.target.meta.passages is None:
            return None
        return unique_name(semantic.target.name, self._inner_hits_names)

    def _tree(self, place: Place, *, is_joined: bool = False, may_be_hybrid: bool = False) -> _Query | None:
        """Read a query and the queries inside it; None if it is not a query.

        Queries on several fields are split, wrapped ones are decoded, and `exists` gets the name of the vector field.

        Args:
            is_joined: Whether it is on documents other than the hits.
            may_be_hybrid: Whether it ranks the hits, so that a full-text query may become hybrid.
        """
        holder, name = place
        node = holder.get(name) if isinstance(holder, dict) else holder[name]
        if not isinstance(node, dict):
            return None
        kind, body = query_type_and_body(node) or ("", {})
        new = decode_wrapper(kind, body)
        if new is None and (new := split_virtual_fields(kind, body, self._parser)) is not None:
            self._found.is_changed = True
        if new is not None:
            holder[name] = new
            return self._tree(place, is_joined=is_joined, may_be_hybrid=may_be_hybrid)
        semantic = self._parser.parse(kind, body)
        if semantic is not None:
            return _Query(place, kind, body, semantic=semantic)
        if kind == "exists" and not is_joined:
            holder[name] = self._exists(node, body)
        is_joined = is_joined or kind in JOINING_QUERIES
        inner: list[tuple[Member, _Query]] = []
        for member, inner_place in inner_queries(kind, body):
            ranks = may_be_hybrid and not is_joined and _keeps_rank(member, body)
            query = self._tree(inner_place, is_joined=is_joined, may_be_hybrid=ranks)
            if query is not None:
                inner.append((member, query))
        if self._hybrid is None or not may_be_hybrid:
            return _Query(place, kind, body, inner)
        full_text = self._hybrid.full_text(kind, body, [(member, query.full_text) for member, query in inner])
        return _Query(place, kind, body, inner, None, full_text, self._hybrid.becomes_hybrid(full_text))

    def _exists(self, node: Json, body: Json) -> Json:
        """Convert an `exists` query on the virtual field, such as KQL's `semantic: *`."""
        field = body.get("field")
        target = self._parser.fields.virtual(field) if isinstance(field, str) else None
        if target is None:
            return node
        self._found.is_changed = True
        [(kind, query)] = has_vector_query(target.name, target.meta).items()
        return {kind: query | {name: value for name, value in body.items() if name != "field"}}

    def _required(self, query: _Query | None) -> tuple[Json, ...]:
        """Return the parts of a query that every hit must match, as filters for semantic queries.

        Semantic queries, and those that become hybrid, are left out.
        """
        if query is None or query.kind in _NEVER_FILTERS:
            return ()
        if not query.contains_semantic and not query.contains_hybrid:
            return (query.as_filter(),)
        parts = [part for member, inner in query.inner if member in REQUIRED_MEMBERS for part in self._required(inner)]
        excluded = [
            inner.as_filter()
            for member, inner in query.inner
            if member == ("bool", "must_not") and not inner.contains_semantic
        ]
        return (*parts, {"bool": {"must_not": excluded}}) if excluded else tuple(parts)

    def _replace(self, query: _Query | None, position: QueryPosition) -> None:
        """Replace the semantic queries in a query, and those that become hybrid, with placeholders."""
        if query is None:
            return
        if query.semantic is not None:
            semantic = query.semantic.without_k() if position.negative else query.semantic
            self._found.add(query.place, self._placeholder(semantic, position))
        elif self._hybrid and query.full_text and query.becomes_hybrid:
            semantic, exact = self._hybrid.query(query.full_text)
            nearest = self._placeholder(semantic, position)
            self._found.add(query.place, replace(nearest, words=query.node, exact=exact, has_cutoff=False))
        elif query.kind in JOINING_QUERIES:
            if query.contains_semantic:
                raise BadRequest(
                    f"a semantic query cannot be used inside `{query.kind}`",
                    f"Put it next to the {query.kind} query, in the same bool. It searches passages without `nested`, "
                    "and returns the nearest one as inner hits.",
                )
        elif query.kind == "bool":
            self._replace_in_bool(query, position)
        else:
            if query.kind == "hybrid":
                # Filter the semantic queries too: OpenSearch applies the filter after kNN has chosen its k documents.
                filters = [self._required(inner) for member, inner in query.inner if member == ("hybrid", "filter")]
                position = replace(position, filters=(*position.filters, *chain.from_iterable(filters)))
            for member, inner in query.inner:
                self._replace(inner, _inner_position(position, member))

    def _placeholder(self, semantic: SemanticQuery, position: QueryPosition) -> QueryPlaceholder:
        inner_hits = self._inner_hits_name(semantic) if position.with_inner_hits else None
        query = query_without_vector(
            self._engine_type, semantic, position.filters, inner_hits, matches_candidates=self._matches_candidates
        )
        return QueryPlaceholder(semantic, position.filters, query, has_cutoff=not position.negative)

    def _replace_in_bool(self, query: _Query, position: QueryPosition) -> None:
        """Replace the queries in a `bool`, which applies its other clauses to them.

        A filter moves to `must` if its semantic query gives the score.
        """
        if not query.contains_semantic and not query.contains_hybrid:
            return
        if not position.is_filtered:
            filters = (*position.filters, *self._required(query))
            position = replace(position, filters=filters, is_filtered=True)
        clauses: dict[str, list[Json]] = {name: [] for (_, name), _ in query.inner}
        for member, inner in query.inner:
            name, inner_position = member[1], _inner_position(position, member)
            is_involved = inner.contains_semantic or inner.contains_hybrid
            scores_from_filter = name == "filter" and position.scores and position.scores_from_filters
            if scores_from_filter and is_involved and inner.on_virtual_field:
                name, inner_position = "must", replace(position, scores=True, only_semantic_scores=True)
            node, moved = inner.node, clauses.setdefault(name, [])
            is_silent = inner_position.scores and position.only_semantic_scores and not is_involved
            moved.append({"bool": {"filter": [node]}} if is_silent else node)
            if is_involved:
                inner.place = moved, len(moved) - 1
                self._replace(inner, inner_position)
        query.body.update(clauses)


def _keeps_rank(member: Member, body: Json) -> bool:
    """Whether a query inside another one ranks the hits as the outer one does."""
    # A document must match several of the clauses, so a semantic hit must not count as a match.
    is_counted = member == ("bool", "should") and body.get("minimum_should_match", 1) not in ANY_CLAUSE
    return member not in UNSCORED_MEMBERS and not is_counted


def _inner_position(position: QueryPosition, member: Member) -> QueryPosition:
    """Position of a query in a member of another one."""
    return replace(
        position,
        scores=position.scores and member not in UNSCORED_MEMBERS,
        negative=position.negative or member in NEGATIVE_MEMBERS,
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
    pending: list[tuple[str, Any]] = [("", body)]
    for placeholder in placeholders:
        semantic = placeholder.semantic
        words = placeholder.words if isinstance(placeholder, QueryPlaceholder) else None
        parts = (("filter", semantic.filter), ("query", words))
        pending += [(name, part) for name, part in parts if part is not None]
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
        for name in node["fields"]:
            if isinstance(name, str):
                boosted = BOOSTED_FIELD.match(name)
                yield part, boosted["field"] if boosted else name
    order = node.get("sort") if part != "bucket_sort" else None  # bucket_sort sorts by names of aggregations
    for key in order if isinstance(order, list) else [order]:
        names = [key] if isinstance(key, str) else key if isinstance(key, dict) else ()
        yield from (("sort", name) for name in names)
    if part == "highlight":
        yield from (("highlight", name) for field in clause_list(node.get("fields")) for name in field)
    # All others were split into a query for each field.
    if part == "query_string" and split_virtual_fields(part, node, parser) is not None:
        yield "query_string", parser.settings.virtual_field


# Options of a query on the virtual field that the engine's `match` does not have.
_GATEWAY_OPTIONS = frozenset({"k", "min_cosine"})


def strip_extensions(value: Any, virtual_field: str) -> Any:
    """Return a search without the gateway's options, for indices that the caller may not search or that are missing."""
    if isinstance(value, list):
        return [strip_extensions(each, virtual_field) for each in value]
    if not isinstance(value, dict):
        return value
    stripped = {}
    for name, inner in value.items():
        inner = strip_extensions(inner, virtual_field)
        if isinstance(inner, dict) and (name == virtual_field or name.startswith(f"{virtual_field}.")):
            inner = {option: each for option, each in inner.items() if option not in _GATEWAY_OPTIONS}
        stripped[name] = inner
    return stripped
