"""`QueryFinder`: finds the semantic queries in a query, and puts a placeholder in place of each."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import count
from typing import Any

from es_sbert.engines.engine_info import EngineType
from es_sbert.engines.rest import Json
from es_sbert.gateway.errors import BadRequest
from es_sbert.gateway.search.compound_queries import (
    BOOL_CLAUSES,
    JOINING_QUERIES,
    NEGATIVE_MEMBERS,
    UNSCORED_MEMBERS,
    ContainsCache,
    IdentityCache,
    Member,
    clause_list,
    decode_wrapper,
    inner_hits_names,
    map_inner_queries,
    query_type_and_body,
    strip_inner_hits,
)
from es_sbert.gateway.search.full_text_queries import HybridDetector, split_virtual_fields
from es_sbert.gateway.search.knn_clauses import (
    Placeholder,
    QueryPlaceholder,
    SectionPlaceholder,
    highlight_clause,
    query_without_vector,
)
from es_sbert.gateway.search.query_parameters import parse_nested
from es_sbert.gateway.search.semantic_query import SemanticQuery, SemanticQueryParser, SemanticSyntax
from es_sbert.index.mapping import has_vector_query
from es_sbert.search.search_scope import SearchScope
from es_sbert.search.vector_query import MAX_K

# Queries that match everything, or are supported only at the top level.
_NEVER_FILTERS = frozenset({"match_all", "hybrid"})


@dataclass(frozen=True)
class QueryPosition:
    """The position of a query in a search.

    Attributes:
        scores: Whether its score counts.
        filters: What every hit must match as well. A semantic query applies them during the search, so that k documents
            remain.
        scores_from_filters: Whether a query on the virtual field scores even inside a filter: the request sorts by
            score, and Kibana puts all queries into filters.
        only_semantic_scores: Whether the query was moved from a filter to a scoring position, in which only semantic
            queries may score.
        with_inner_hits: Whether hits may return their nearest passage.
        words: Whether the query selects words to highlight, so that a semantic query becomes a full-text one.
        negative: Whether its matches are unwanted, as in `must_not`.
    """

    scores: bool = True
    filters: tuple[Json, ...] = ()
    scores_from_filters: bool = False
    only_semantic_scores: bool = False
    with_inner_hits: bool = True
    words: bool = False
    negative: bool = False


class QueryFinder:
    """Finds the semantic queries of one search.

    Args:
        engine_type: Type of the engine.
        parser: Parses semantic queries.
        hybrid: Makes full-text queries hybrid; None leaves them unchanged.
        knn_matches_candidates: See `EngineInfo`.

    Attributes:
        placeholders: One for each semantic query that was found.
    """

    def __init__(
        self,
        engine_type: EngineType,
        parser: SemanticQueryParser,
        hybrid: HybridDetector | None,
        *,
        knn_matches_candidates: bool = False,
    ) -> None:
        self.placeholders: list[Placeholder] = []
        self.parser = parser
        self._engine_type = engine_type
        self._hybrid = hybrid
        self._matches_candidates = knn_matches_candidates
        self._inner_hits_names: set[str] = set()
        self._body: Json = {}
        # Nested bools check the same queries again at every level.
        self._split_queries: IdentityCache[Json] = IdentityCache()
        self._semantic_cache = ContainsCache()
        self._involved_cache = ContainsCache()
        self._virtual_cache = ContainsCache()

    def begin(self, body: Json) -> None:
        """Set the search whose queries are found: the names of its inner hits are taken."""
        self._body = body

    def find(self, node: Any, position: QueryPosition) -> Any:
        """A query with placeholders; the identical object if it contains no semantic query, or is not a query.

        Raises:
            BadRequest, IndexMismatch: see `SemanticQueryParser.parse`.
        """
        node = self._split(node)
        semantic = self.parser.parse(node)
        if semantic is not None:
            return highlight_clause(semantic) if position.words else self._placeholder(semantic, position)
        if position.scores and not position.only_semantic_scores and self._hybrid is not None:
            added = self._hybrid.semantic_part(node)
            if added is not None:
                return {"bool": {"should": [node, self._placeholder(added, position)], "minimum_should_match": 1}}
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
            # OpenSearch applies it to each query, after kNN has chosen its k documents.
            position = replace(position, filters=(*position.filters, *self.required(body["filter"])))
        return map_inner_queries(node, lambda inner, member: self.find(inner, _inner_position(position, member)))

    def required(self, node: Any) -> tuple[Json, ...]:
        """The parts of a query that every hit must match and that are not semantic: filters for semantic queries."""
        node = self._split(decode_wrapper(node))
        query = query_type_and_body(node)
        if query is None or query[0] in _NEVER_FILTERS:
            return ()
        if not self._is_involved(node):
            return (strip_inner_hits(node),)
        kind, body = query
        if kind != "bool":
            return ()
        clauses = [clause for name in ("must", "filter") for clause in clause_list(body.get(name))]
        excluded = [clause for clause in clause_list(body.get("must_not")) if not self._is_involved(clause)]
        return (*(part for clause in clauses for part in self.required(clause)), *_must_not(excluded))

    def contains_semantic(self, node: Any) -> bool:
        """Whether a query, or one inside it, is semantic."""
        return self._semantic_cache(node, self._is_semantic)

    def find_in_section(self, section: Json) -> Any:
        """A section `knn` of Elasticsearch, in a search body or as a retriever, or a placeholder if it is semantic.

        Raises:
            BadRequest, IndexMismatch: it is invalid, or the engine is OpenSearch.
        """
        semantic = self.parser.parse_section(section)
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
        """A name for inner hits, unique in the request; None if the field holds no passages."""
        if target.meta.passages is None:
            return None
        if not self._inner_hits_names:
            self._inner_hits_names = set(inner_hits_names(self._body))
        names = (target.name if number == 1 else f"{target.name}_{number}" for number in count(1))
        name = next(name for name in names if name not in self._inner_hits_names)
        self._inner_hits_names.add(name)
        return name

    def _split(self, node: Json) -> Json:
        """See `split_virtual_fields`; the same object every time."""
        return self._split_queries.get(node, lambda node: split_virtual_fields(node, self.parser))

    def _is_semantic(self, node: Json) -> bool:
        return self._split(node) is not node or self.parser.parse(node) is not None

    def _is_involved(self, node: Json) -> bool:
        """Whether a query, or one inside it, is semantic, becomes hybrid, or searches passages."""
        return self._involved_cache(node, self._is_semantic_or_hybrid)

    def _is_semantic_or_hybrid(self, node: Json) -> bool:
        if self._is_semantic(node) or (self._hybrid is not None and self._hybrid.semantic_part(node) is not None):
            return True
        query = query_type_and_body(node)
        return query is not None and query[0] == "nested" and self.contains_semantic(query[1].get("query"))

    def _is_on_virtual_field(self, node: Json) -> bool:
        if self._split(node) is not node:
            return True
        semantic = self.parser.parse(node)
        return semantic is not None and semantic.syntax is SemanticSyntax.VIRTUAL_FIELD

    def _placeholder(self, semantic: SemanticQuery, position: QueryPosition) -> Placeholder:
        if position.negative:
            semantic = _without_k(semantic)
        # A client's own `nested` query returns the inner hits that it asks for.
        with_inner_hits = position.with_inner_hits and semantic.nested is None
        inner_hits = self._inner_hits_name(semantic.target) if with_inner_hits else None
        query = query_without_vector(
            self._engine_type, semantic, position.filters, inner_hits, matches_candidates=self._matches_candidates
        )
        return self._add(QueryPlaceholder(semantic, position.filters, query, has_cutoff=not position.negative))

    def _add(self, placeholder: Placeholder) -> Placeholder:
        self.placeholders.append(placeholder)
        return placeholder

    def _joining(self, node: Json, kind: str, body: Json, position: QueryPosition) -> Any:
        """A query on other documents than the hits, which have no vectors except those of passages.

        Raises:
            BadRequest: it contains a semantic query on other documents, which would silently match nothing.
        """
        inner: Any = body.get("query")
        if not self.contains_semantic(inner):
            return node
        semantic = self.parser.parse(inner)
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
        """An `exists` query, such as KQL's `semantic: *`."""
        field = body.get("field")
        target = self.parser.names.virtual(field) if isinstance(field, str) else None
        if target is None:
            return node
        [(kind, query)] = has_vector_query(target.name, target.meta).items()
        return {kind: query | {name: value for name, value in body.items() if name != "field"}}

    def _bool(self, node: Json, body: Json, position: QueryPosition) -> Json:
        clauses = {name: clause_list(body.get(name)) for name in BOOL_CLAUSES}
        involved = {id(clause) for parts in clauses.values() for clause in parts if self._is_involved(clause)}
        if involved:
            plain = {name: [part for part in parts if id(part) not in involved] for name, parts in clauses.items()}
            filters = map(strip_inner_hits, plain["must"] + plain["filter"])
            excluded = plain["must_not"]
            position = replace(position, filters=(*position.filters, *filters, *_must_not(excluded)))
        found: dict[str, list[Json]] = {name: [] for name in BOOL_CLAUSES}
        is_changed = False
        for name, parts in clauses.items():
            for clause in parts:
                new_name, inner = self._clause_position(clause, name, id(clause) in involved, position)
                new = self.find(clause, inner)
                if inner.scores and position.only_semantic_scores and id(clause) not in involved:
                    new = {"bool": {"filter": [new]}}
                found[new_name].append(new)
                is_changed |= new is not clause
        if not is_changed:
            return node
        return {"bool": body | {name: parts for name, parts in found.items() if parts or name in body}}

    def _clause_position(
        self, clause: Json, name: str, involved: bool, position: QueryPosition
    ) -> tuple[str, QueryPosition]:
        """Member of the rewritten bool for a clause: a filter moves to `must` if its semantic query gives the score."""
        moves = name == "filter" and position.scores and position.scores_from_filters and involved
        if moves and self._virtual_cache(clause, self._is_on_virtual_field):
            return "must", replace(position, scores=True, only_semantic_scores=True)
        return name, _inner_position(position, ("bool", name))


def _inner_position(position: QueryPosition, member: Member) -> QueryPosition:
    if member not in UNSCORED_MEMBERS:
        return position
    return replace(position, scores=False, negative=position.negative or member in NEGATIVE_MEMBERS)


def _without_k(semantic: SemanticQuery) -> SemanticQuery:
    """A query whose matches are unwanted, as a query for all documents above the minimum cosine.

    Raises:
        BadRequest: there is no minimum cosine. The k nearest documents may be all documents of a small index.
    """
    if not semantic.has_minimum:
        raise BadRequest(
            "a semantic query whose matches are to be excluded has no minimum cosine; without one, the k nearest "
            "documents would be excluded, however distant they are",
            "Measure one for the index: es-sbert index calibrate INDEX --save; or set one in the request: "
            '{"match": {"semantic": {"query": "…", "min_cosine": 0.4}}}, or by --min-cosine of es-sbert serve.',
        )
    if semantic.syntax in (SemanticSyntax.TEXT_EMBEDDING, SemanticSyntax.NEURAL):
        return semantic  # the engines' native queries define k and the candidates themselves
    return replace(semantic, k=MAX_K, num_candidates=MAX_K)


def _must_not(excluded: Sequence[Json]) -> list[Json]:
    return [{"bool": {"must_not": [strip_inner_hits(part) for part in excluded]}}] if excluded else []
