"""Find the semantic queries of a search body, in every part that holds queries, from `query` to `aggs` and `retriever`.

Each semantic query in a body is replaced by a placeholder. The virtual field is rejected anywhere else: the engine does
not know it and would silently match nothing.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
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
from es_sbert.gateway.search.hybrid_queries import ANY_CLAUSE, FullText, HybridDetector
from es_sbert.gateway.search.incoming_search import sorts_by_score
from es_sbert.gateway.search.knn_clauses import Placeholder, QueryPlaceholder, SectionPlaceholder, query_without_vector
from es_sbert.gateway.search.semantic_query import (
    BOOST_SUFFIX,
    SemanticQuery,
    SemanticQueryParser,
    SemanticSyntax,
    may_name_field,
    query_string_as_bool,
)

# Queries that match everything, or are supported only at the top level; and what is not a query.
_NEVER_FILTERS = frozenset({"match_all", "hybrid", ""})
# Aggregations over documents other than those of the parent.
_AGGREGATIONS_OF_OTHER_DOCUMENTS = frozenset({"global", "nested", "reverse_nested", "children", "parent"})


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
        self._places: dict[Placeholder, Place] = {}
        self._inner_hits_names: set[str] = set()

    def find(self, body: Json) -> dict[Placeholder, Place]:
        """Find the semantic queries of a body, and replace each by a placeholder.

        Returns:
            Where the body holds each placeholder, which is to be replaced by a native query. Without any, the body is
            unchanged.

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
        reject_unresolved(body, list(self._places), self._parser)
        return self._places

    def _add(self, place: Place, placeholder: Placeholder) -> None:
        holder, name = place
        holder[name] = placeholder
        self._places[placeholder] = place

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

    def _find_section(self, place: Place) -> None:
        """Replace a semantic section `knn` of Elasticsearch, with a placeholder."""
        holder, name = place
        section: Json = holder[name]
        semantic = self._parser.parse("knn", section, is_section=True)
        if semantic is None:
            return
        # OpenSearch itself refuses a section.
        inner_hits = None if "inner_hits" in section else self._inner_hits_name(semantic)
        self._add(place, SectionPlaceholder(semantic, section, inner_hits))

    def _inner_hits_name(self, semantic: SemanticQuery) -> str | None:
        """A name for inner hits, unique in the request; None if the field holds no chunks."""
        if semantic.target.meta.passages is None:
            return None
        return unique_name(semantic.target.name, self._inner_hits_names)

    def _tree(self, place: Place, *, may_be_hybrid: bool = False) -> _Query | None:
        """Read a query and the queries inside it; None if it is not a query.

        Wrapped queries are decoded, and a `query_string` with semantic parts is split.

        Args:
            may_be_hybrid: Whether it ranks the hits, so that a full-text query may become hybrid.
        """
        holder, name = place
        node = holder.get(name) if isinstance(holder, dict) else holder[name]
        if not isinstance(node, dict):
            return None
        kind, body = query_type_and_body(node) or ("", {})
        new = decode_wrapper(kind, body) or query_string_as_bool(kind, body, self._parser)
        if new is not None:
            holder[name] = new
            return self._tree(place, may_be_hybrid=may_be_hybrid)
        semantic = self._parser.parse(kind, body)
        if semantic is not None:
            return _Query(place, kind, body, semantic=semantic)
        inner: list[tuple[Member, _Query]] = []
        for member, inner_place in inner_queries(kind, body):
            # A document must match several of the clauses, so a semantic hit must not count as a match.
            is_counted = member == ("bool", "should") and body.get("minimum_should_match", 1) not in ANY_CLAUSE
            ranks = may_be_hybrid and kind not in JOINING_QUERIES and member not in UNSCORED_MEMBERS and not is_counted
            query = self._tree(inner_place, may_be_hybrid=ranks)
            if query is not None:
                inner.append((member, query))
        if self._hybrid is None or not may_be_hybrid:
            return _Query(place, kind, body, inner)
        full_text = self._hybrid.full_text(kind, body, [(member, query.full_text) for member, query in inner])
        return _Query(place, kind, body, inner, None, full_text, self._hybrid.becomes_hybrid(full_text))

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
            self._add(query.place, self._placeholder(semantic, position))
        elif self._hybrid and query.full_text and query.becomes_hybrid:
            semantic, exact = self._hybrid.query(query.full_text)
            nearest = self._placeholder(semantic, replace(position, with_inner_hits=False))
            self._add(query.place, replace(nearest, words=query.node, exact=exact, has_cutoff=False))
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
    """Reject a search with a semantic query, or with the virtual field, in a place where it is not rewritten.

    Args:
        body: The search with placeholders.
        placeholders: The placeholders in the search.

    Raises:
        BadRequest: the search has such a query, or names the field in a query or part that does not support it.
        IndexMismatch: the search names a vector field that does not exist.
    """
    off = "X-Es-Sbert: off passes the request through unchanged."
    for part, node in _objects(body, placeholders):
        is_semantic = parser.parse(part, node, is_section=True) is not None
        if is_semantic or query_string_as_bool(part, node, parser) is not None:
            raise BadRequest(
                f"a semantic query ({part}) is not supported here, as in retrievers, rescore and highlights",
                f"Write it in `query`, `post_filter`, a filter aggregation or Elasticsearch's section `knn`. {off}",
            )
        for location, name in _named_fields(part, node, parser):
            # Kibana writes `semantic: *` as `exists`; all other queries of the query bar are semantic in mixed indices.
            target = parser.fields.virtual_only(name, mixed=part == "exists")
            if target is not None:
                raise BadRequest(
                    f"{location} on {name} is not supported: {name} is a semantic field",
                    f'Search it as {{"match": {{"{name}": "…"}}}} and sort by _score; elsewhere name a field that '
                    f"documents have, such as {target.name}. {off}",
                )


def _objects(body: Json, placeholders: Sequence[Placeholder]) -> Iterator[tuple[str, Json]]:
    """Yield every object of a search and of its semantic queries, with the name of its member; each pair once."""
    pending: list[tuple[str, Any]] = [("", body)]
    for placeholder in placeholders:
        semantic = placeholder.semantic
        words = placeholder.words if isinstance(placeholder, QueryPlaceholder) else None
        parts = (("filter", semantic.filter), ("query", words))
        pending += [(name, part) for name, part in parts if part is not None]
    # With the objects: the identity of one that was decoded and freed would be given to the next.
    seen: dict[tuple[str, int], Any] = {}
    while pending:
        part, value = pending.pop()
        if (part, id(value)) in seen:
            continue
        seen[part, id(value)] = value
        if isinstance(value, dict):
            yield part, value
            if (decoded := decode_wrapper(part, value)) is not None:
                pending.append(("query", decoded))
            # `fields` of a search are returned; those of its highlights may hold queries.
            # A field may be called `wrapper`.
            pending += [
                ("" if name == "wrapper" and part in _QUERIES_BY_FIELD_NAME else name, inner)
                for name, inner in value.items()
                if isinstance(inner, (dict, list))
                and (name not in _NOT_SEARCHED or (name == "fields" and part == "highlight"))
                and (name != "doc" or part not in ("like", "unlike"))
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
                yield part, BOOST_SUFFIX.sub("", name)
    order = node.get("sort") if part != "bucket_sort" else None  # bucket_sort sorts by names of aggregations
    for key in order if isinstance(order, list) else [order]:
        names = [key] if isinstance(key, str) else key if isinstance(key, dict) else ()
        yield from (("sort", name) for name in names)
    if part == "highlight":
        yield from (("highlight", name) for field in clause_list(node.get("fields")) for name in field)


# Options of a query on the virtual field that the engine's `match` does not have.
_GATEWAY_OPTIONS = frozenset({"k", "min_cosine"})


def strip_extensions(body: Json, virtual_field: str) -> bool:
    """Remove the gateway's options from a search of indices that the caller may not search or that are missing.

    Returns:
        Whether there were any.
    """
    found = [
        (node, option)
        for part, node in _objects(body, ())
        if part == virtual_field or part.startswith(f"{virtual_field}.")
        for option in _GATEWAY_OPTIONS & node.keys()
    ]
    for node, option in found:
        node.pop(option, None)
    return bool(found)
