"""`QueryRewriter`: a query with every semantic query in it replaced by a native kNN query."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from es_sbert.engines.protocol import EngineType, Json
from es_sbert.gateway.errors import BadRequest
from es_sbert.gateway.field_resolver import ResolvedField
from es_sbert.gateway.search.compound_queries import (
    BOOL_CLAUSES,
    JOINING_QUERIES,
    ContainsCache,
    InnerRole,
    clause_list,
    decode_wrapper,
    map_inner_queries,
    query_type_and_body,
    strip_inner_hits,
)
from es_sbert.gateway.search.full_text_queries import HybridDetector, split_virtual_fields
from es_sbert.gateway.search.knn_clauses import CandidateCounts, Filters, highlight_clause, semantic_clause
from es_sbert.gateway.search.semantic_query import SemanticQuery, SemanticQueryParser, SemanticSyntax
from es_sbert.index.document_vectors import QueryVector
from es_sbert.index.mapping import has_vector_query
from es_sbert.search.vector_query import MAX_K

# A query by meaning → the vector of its text, *Shape:* ``(dimensions,)``, or the list that will hold it, and the least
# cosine of a hit where that is known better than the query itself says.
VectorLookup = Callable[[SemanticQuery, Filters], tuple[QueryVector, float | None]]

# Queries that narrow nothing down, or may stand nowhere but at the top.
_NEVER_FILTERS = frozenset({"match_all", "hybrid"})


@dataclass(frozen=True)
class QueryPosition:
    """Where a query stands.

    Attributes:
        scores: Whether its score counts.
        filters: What every hit must match beside it; a search by meaning applies them while it searches, so that k
            documents remain.
        promotes: Whether a query by the virtual field gives the score even from a filter: the request sorts by score,
            and Kibana puts everything into filters.
        neutral: Whether it stood among filters that were moved to where they score: only what asks by meaning may.
        tells_passages: Whether hits may tell their nearest passage here.
        words: Whether words are to be marked in hits, so that what is asked by meaning stands for its words.
        negative: Whether what matches is unwanted, as in `must_not`.
    """

    scores: bool = True
    filters: tuple[Json, ...] = ()
    scores_from_filters: bool = False
    only_semantic_scores: bool = False
    with_inner_hits: bool = True
    words: bool = False
    negative: bool = False


class QueryRewriter:
    """Rewrites the queries of one request.

    Args:
        engine_type: Of the engine.
        reader: Recognises what asks by meaning.
        answered: What has been found out for each query by meaning.
        hybrid: Adds meaning to plain full-text queries; None leaves them as they are.
    """

    def __init__(
        self,
        engine_type: EngineType,
        reader: SemanticQueryParser,
        answered: VectorLookup,
        hybrid: HybridDetector | None,
    ) -> None:
        self._engine_type = engine_type
        self.reader = reader
        self._answered = answered
        self._hybrid = hybrid
        self._told = 0
        self._depths = CandidateCounts()
        self._spellings: dict[int, tuple[Json, Json]] = {}  # by identity, the query kept beside
        # Nested bools ask these of the same queries again at every level.
        self._any_semantic = ContainsCache()
        self._any_involved = ContainsCache()
        self._any_virtual = ContainsCache()

    def rewrite(self, node: Json, place: QueryPosition) -> Json:
        """The query in the engine's words; the very same object where nothing in it asks by meaning.

        Raises:
            BadRequest, IndexMismatch: see `Reader.read`.
        """
        node = self._spelled(node)
        semantic = self.reader.read(node)
        if semantic is not None:
            return highlight_clause(semantic) if place.words else self._clause(semantic, place)
        if place.scores and not place.only_semantic_scores and self._hybrid is not None:
            added = self._hybrid.semantic_part(node)
            if added is not None:
                return {"bool": {"should": [node, self._clause(added, place)], "minimum_should_match": 1}}
        found = query_type_and_body(node)
        if found is None:
            return node
        kind, said = found
        if kind == "bool":
            return self._bool(node, said, place)
        if kind == "exists":
            return self._exists(node, said)
        if kind in JOINING_QUERIES:
            return self._elsewhere(node, kind, said, place)
        if kind == "hybrid" and isinstance(said.get("filter"), dict):
            # OpenSearch puts it around each query, where kNN would have chosen its k before.
            place = replace(place, filters=(*place.filters, *self.required(said["filter"])))
        return map_inner_queries(node, lambda inner, role: self.rewrite(inner, _inner_position(place, role)))

    def required(self, node: Json) -> tuple[Json, ...]:
        """What a query asks of every hit without asking by meaning: filters for searches by meaning elsewhere."""
        node = self._spelled(decode_wrapper(node))
        found = query_type_and_body(node)
        if found is None or found[0] in _NEVER_FILTERS:
            return ()
        if not self._involved(node):
            return (strip_inner_hits(node),)
        kind, said = found
        if kind != "bool":
            return ()
        parts = [part for occurrence in ("must", "filter") for part in clause_list(said.get(occurrence))]
        excluded = [part for part in clause_list(said.get("must_not")) if not self._involved(part)]
        return (*(one for part in parts for one in self.required(part)), *_must_not(excluded))

    def _spelled(self, node: Json) -> Json:
        """See `split_virtual_fields`; the same object every time."""
        known = self._spellings.get(id(node))
        if known is None:
            known = self._spellings[id(node)] = node, split_virtual_fields(node, self.reader)
        return known[1]

    def asks(self, node: Any) -> bool:
        """Whether a query, or one inside it, is semantic."""
        return self._any_semantic(node, self._is_semantic)

    def _involved(self, node: Json) -> bool:
        """Whether a query, or one inside it, is semantic, becomes hybrid, or searches passages."""
        return self._any_involved(node, self._is_involved)

    def _holds_virtual(self, node: Json) -> bool:
        return self._any_virtual(node, self._is_virtual)

    def _is_semantic(self, node: Json) -> bool:
        return self._spelled(node) is not node or self.reader.read(node) is not None

    def _is_involved(self, node: Json) -> bool:
        if self._is_semantic(node) or (self._hybrid is not None and self._hybrid.semantic_part(node) is not None):
            return True
        found = query_type_and_body(node)
        return found is not None and found[0] == "nested" and self.asks(found[1].get("query"))  # its passages

    def _is_virtual(self, node: Json) -> bool:
        if self._spelled(node) is not node:
            return True
        semantic = self.reader.read(node)
        return semantic is not None and semantic.virtual

    def read(self, node: Json) -> SemanticQuery | None:
        """See `Reader.read`."""
        return self.reader.read(node)

    def vector(self, semantic: SemanticQuery) -> QueryVector:
        """The vector alone, for a section `knn`. *Shape:* ``(dimensions,)``."""
        return self._answered(semantic, None)[0]

    def inner_hits_name(self, target: ResolvedField) -> str | None:
        """A name for inner hits, of its own for each query of the request; None where the field holds no passages."""
        if target.meta.passages is None:
            return None
        self._told += 1
        return target.name if self._told == 1 else f"{target.name}_{self._told}"

    def _clause(self, semantic: SemanticQuery, place: QueryPosition) -> Json:
        if place.negative:
            semantic = _without_k(semantic)
        told = self.inner_hits_name(semantic.target) if place.with_inner_hits else None
        # Whoever takes away does not keep k: nothing is to be cut off.
        vector, least = self._answered(semantic, None if place.negative else place.filters)
        if least is not None and least > (semantic.min_cosine or -1.0):
            semantic = replace(semantic, min_cosine=least)
        return semantic_clause(self._engine_type, semantic, vector, place.filters, told, self._depths)

    def _elsewhere(self, node: Json, kind: str, said: Json, place: QueryPosition) -> Json:
        """A query on other documents than the hits, where no vector of a hit stands but those of its passages.

        Raises:
            BadRequest: it asks by meaning of something else; the engine would silently find nothing.
        """
        inner = said.get("query")
        if not isinstance(inner, dict) or not self.asks(inner):
            return node
        semantic = self.reader.read(inner)
        passages = semantic is not None and semantic.target.meta.passages is not None
        if semantic is not None and passages and kind == "nested" and said.get("path") == semantic.target.name:
            return self._clause(semantic, place)
        raise BadRequest(
            f"a query by meaning stands inside {kind}, whose documents have no vectors of their own",
            f"Put it beside the {kind} query, in the same bool.",
        )

    def _exists(self, node: Json, said: Json) -> Json:
        """KQL's `semantic: *`."""
        field = said.get("field")
        target = self.reader.names.virtual(field) if isinstance(field, str) else None
        return node if target is None else has_vector_query(target.name, target.meta)

    def _bool(self, node: Json, said: Json, place: QueryPosition) -> Json:
        clauses = {occurrence: clause_list(said.get(occurrence)) for occurrence in BOOL_CLAUSES}
        asking = {id(part) for parts in clauses.values() for part in parts if self._involved(part)}
        if asking:
            beside = [
                strip_inner_hits(part)
                for occurrence in ("must", "filter")
                for part in clauses[occurrence]
                if id(part) not in asking
            ]
            excluded = [part for part in clauses["must_not"] if id(part) not in asking]
            place = replace(place, filters=(*place.filters, *beside, *_must_not(excluded)))
        rewritten: dict[str, list[Json]] = {occurrence: [] for occurrence in BOOL_CLAUSES}
        for occurrence, parts in clauses.items():
            for part in parts:
                where, inside = self._position(part, occurrence, id(part) in asking, place)
                new = self.rewrite(part, inside)
                silent = inside.scores and place.only_semantic_scores and id(part) not in asking
                rewritten[where].append({"bool": {"filter": [new]}} if silent else new)
        before = [part for parts in clauses.values() for part in parts]
        after = [part for parts in rewritten.values() for part in parts]
        if all(one is other for one, other in zip(after, before, strict=True)):
            return node
        return {
            "bool": said | {occurrence: parts for occurrence, parts in rewritten.items() if parts or occurrence in said}
        }

    def _position(self, part: Json, occurrence: str, asks: bool, place: QueryPosition) -> tuple[str, QueryPosition]:
        """Where in a bool a part goes: from the filters to where it scores, if it is to give the score."""
        if occurrence == "filter" and place.scores and place.scores_from_filters and asks and self._holds_virtual(part):
            return "must", replace(place, scores=True, only_semantic_scores=True)
        scoring = place.scores and occurrence in ("must", "should")
        negative = place.negative or occurrence == "must_not"
        if (scoring, negative) == (place.scores, place.negative):
            return occurrence, place
        return occurrence, replace(place, scores=scoring, negative=negative)


def _inner_position(place: QueryPosition, role: InnerRole) -> QueryPosition:
    if role.scores and not role.negative:
        return place
    return replace(place, scores=place.scores and role.scores, negative=place.negative or role.negative)


def _without_k(semantic: SemanticQuery) -> SemanticQuery:
    """A query whose matches are unwanted, as one for all documents that are near enough.

    Raises:
        BadRequest: nothing says how near that is. The k nearest documents are no answer: in a small index they are all.
    """
    if semantic.min_cosine is None:
        raise BadRequest(
            "a semantic query whose matches are to be excluded has no minimum cosine; without one, the k nearest "
            "documents would be excluded, however distant they are",
            'Set one: {"match": {"semantic": {"query": "…", "min_cosine": 0.4}}}, or start the gateway with '
            "--min-cosine. es-sbert index calibrate finds a value.",
        )
    if semantic.way in (SemanticSyntax.TEXT_EMBEDDING, SemanticSyntax.NEURAL):
        return semantic  # the engines' own queries say themselves how many
    return replace(semantic, k=MAX_K, num_candidates=MAX_K)


def _must_not(excluded: Sequence[Json]) -> list[Json]:
    return [{"bool": {"must_not": [strip_inner_hits(part) for part in excluded]}}] if excluded else []
