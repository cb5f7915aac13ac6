"""Detect the full-text queries of a search that become hybrid, and rank their hits as the library does.

Only queries that match a document by any of their words become hybrid: a semantic search only adds to their hits. A
phrase, a prefix, `operator: and` or `minimum_should_match` say what a hit must have, so these stay as they are.

The fusion of two rankings is not a query that engines run without a paid license. So the gateway asks for the first
documents of each ranking, and the client's search gets their ids with scores. Everything else that it asks for (totals,
aggregations, pages, highlights) is the engine's answer to that query.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from typing import Any

from es_sbert.engines.rest import Json
from es_sbert.gateway.concurrency import gather_or_cancel
from es_sbert.gateway.search.compound_queries import Member, clause_list
from es_sbert.gateway.search.incoming_search import RewriteContext, sorts_by_score
from es_sbert.gateway.search.knn_clauses import (
    MAX_CONCURRENT,
    CandidateCounts,
    QueryPlaceholder,
    first_body,
    search_first,
)
from es_sbert.gateway.search.semantic_query import (
    BOOST_SUFFIX,
    SINGLE_FIELD_QUERIES,
    SemanticQuery,
    SemanticQueryParser,
    SemanticSyntax,
    scalar_as_text,
)
from es_sbert.gateway.upstream import Upstream
from es_sbert.index.document_vectors import QueryVector
from es_sbert.search.hybrid_search import (
    DEFAULT_DEPTH,
    DEFAULT_WEIGHTS,
    EXACT_HITS,
    LEXICAL,
    exact_match_query,
    fuse_rankings,
    read_exact_matches,
)
from es_sbert.search.search_scope import SearchScope

_ANY_WORD_TYPES = frozenset({"best_fields", "most_fields", "cross_fields"})
# Values of `minimum_should_match` by which a document needs no second clause.
ANY_CLAUSE = (0, 1, "0", "1")
_BOOL_MEMBERS = frozenset({"must", "should", "minimum_should_match", "boost"})
# Documents of each ranking.
MAX_DEPTH = 200
# Members of a body that search or select on their own.
_OTHER_MEMBERS = ("knn", "retriever", "min_score")


def ranks_hits(body: Json, options: Mapping[str, str]) -> bool:
    """Whether a search returns hits in the order of the scores of its query, so that a hybrid query can rank them.

    Args:
        options: Parameters of the request, which override the body.
    """
    if any(name in body for name in _OTHER_MEMBERS) or str(options.get("size", body.get("size", 10))) == "0":
        return False
    return sorts_by_score({"sort": options["sort"].split(",")} if "sort" in options else body)


@dataclass(frozen=True)
class FullText:
    """What a full-text query, or a combination of some, searches for.

    Attributes:
        text: The text.
        target: Vector field of the embedded fields among those that are searched.
        fields: The fields that are searched for any of the words, as in a `multi_match`; empty if the query requires
            more than that.
    """

    text: str
    target: SearchScope
    fields: tuple[str, ...]


class HybridDetector:
    """Detects full-text queries on embedded text fields, which become hybrid.

    An application writes the text of one search box into several queries (exact words, prefixes, phrases) under one
    bool; the semantic query is added once, around all of them.

    Args:
        parser: Parses the semantic queries of the request; its settings are those of the hybrid queries too.
    """

    def __init__(self, parser: SemanticQueryParser) -> None:
        self._parser = parser

    def full_text(self, kind: str, body: Json, inner: Sequence[tuple[Member, FullText | None]]) -> FullText | None:
        """Find out what a query searches for; None if it is not a full-text query on an embedded field.

        Args:
            inner: The queries directly inside it.
        """
        if kind in SINGLE_FIELD_QUERIES and len(body) == 1:
            [(field, value)] = body.items()
            options = value if isinstance(value, dict) else {"query": value}
            return self._on_fields([field], options, any_word=kind == "match" and _matches_any_word(options))
        if kind == "multi_match":
            fields = body.get("fields", ["*"])
            any_word = str(body.get("type", "best_fields")) in _ANY_WORD_TYPES and _matches_any_word(body)
            return self._on_fields(fields if isinstance(fields, list) else [fields], body, any_word=any_word)
        if kind == "dis_max":
            return _combined(inner, clause_list(body.get("queries")))
        if kind == "bool" and body.keys() <= _BOOL_MEMBERS and body.get("minimum_should_match", 1) in ANY_CLAUSE:
            return _combined(inner, clause_list(body.get("must")) + clause_list(body.get("should")))
        return None

    def becomes_hybrid(self, found: FullText | None) -> bool:
        """Whether a query becomes hybrid. A text that cannot be embedded (blank, too long) is left as it is."""
        if found is None or not found.fields:
            return False
        return bool(found.text.strip()) and len(found.text) <= self._parser.max_text_characters

    def query(self, found: FullText) -> tuple[SemanticQuery, Json | None]:
        """Create the semantic query for a text, and the query that finds exact matches; None if there can be none.

        Raises:
            IndexMismatch: the indices have vectors of different models, or a searched index is remote.
        """
        self._parser.fields.check_local(found.fields[0], "on")
        settings, fields = self._parser.settings, list(found.fields)
        semantic = SemanticQuery(
            found.target,
            found.text,
            min(settings.k, MAX_DEPTH),
            min_cosine=settings.min_cosine,
            num_candidates=settings.num_candidates,
            syntax=SemanticSyntax.HYBRID,
            calibrated=settings.min_cosine is None,
        )
        return semantic, exact_match_query(
            found.text, lambda parameters: {"multi_match": parameters | {"fields": fields}}
        )

    def _on_fields(self, fields: Sequence[Any], options: Json, *, any_word: bool) -> FullText | None:
        text = scalar_as_text(options.get("query"))
        if not isinstance(text, str):
            return None
        names = [field for field in fields if isinstance(field, str)]
        targets = (self._target(BOOST_SUFFIX.sub("", name)) for name in names)
        target = next((target for target in targets if target is not None), None)
        return None if target is None else FullText(text, target, tuple(names) if any_word else ())

    def _target(self, pattern: str) -> SearchScope | None:
        """Find the vector field of a text field as queries write it: `title`, `title.ngram` (a multi-field), `ti*`."""
        names = self._parser.fields
        if "*" in pattern:
            field = next((field for field in names.texts() if fnmatchcase(field, pattern)), None)
            return None if field is None else names.for_text(field)
        return names.for_text(pattern)


def _combined(inner: Sequence[tuple[Member, FullText | None]], clauses: Sequence[Json]) -> FullText | None:
    """Combine queries for the same text. All that are required, and one at least, must match by any word."""
    known = [(member, found) for member, found in inner if found is not None]
    if not known or len(known) < len(clauses):
        return None
    first = known[0][1]
    if any((found.text, found.target) != (first.text, first.target) for _, found in known):
        return None
    if not all(found.fields for member, found in known if member == ("bool", "must")):
        return replace(first, fields=())
    return replace(first, fields=tuple(dict.fromkeys(field for _, found in known for field in found.fields)))


def _matches_any_word(options: Json) -> bool:
    return str(options.get("operator", "or")).lower() == "or" and "minimum_should_match" not in options


# Each ranked document becomes a clause, and engines accept 1,024 in a search: the hybrid queries of a search share this
# number of documents.
_MAX_DOCUMENTS = 500
_SEMANTIC = "semantic"
# Scores are float32: a document that is not ranked must stay below the last one that is.
_BELOW = 0.999

_Hits = list[tuple[tuple[str, str], float]]  # index and id, and score


async def hybrid_queries(
    upstream: Upstream,
    semantic_weight: float | None,
    placeholders: Sequence[QueryPlaceholder],
    vector: Callable[[SemanticQuery], QueryVector],
    body: Json,
    context: RewriteContext,
) -> Mapping[QueryPlaceholder, Json]:
    """Rank the hits of each query, and write the query that scores them.

    Args:
        upstream: The engine.
        semantic_weight: Weight of the semantic ranking against the keyword ranking; None for the default.
        placeholders: Those with `words`.
        vector: Returns the vector of a query, *shape:* ``(dimensions,)``.
        body: The search of the client.
        context: Parameters of the search, with its `preference`, so that all searches use the same shard copies.

    Raises:
        EngineUnreachable, RequestFailed: a search failed.
    """
    semaphore, most = asyncio.Semaphore(MAX_CONCURRENT), _MAX_DOCUMENTS // max(1, len(placeholders))
    engine_type = upstream.engine_type_or_default
    weights = {_SEMANTIC: semantic_weight or DEFAULT_WEIGHTS[0] / DEFAULT_WEIGHTS[1], LEXICAL: 1.0}

    async def search(query: Json | None, filters: Sequence[Json], size: int) -> _Hits | None:
        if query is None:
            return []
        if filters:
            query = {"bool": {"must": [query], "filter": list(filters)}}
        async with semaphore:
            answer = await search_first(upstream, first_body(query, body) | {"size": size}, body, context)
        if answer is None:
            return None
        with upstream.parsing("POST _search"):
            return [((hit["_index"], hit["_id"]), float(hit["_score"])) for hit in answer["hits"]["hits"]]

    async def rank(nearest: QueryPlaceholder) -> Json:
        words, k, filters = nearest.words or {}, nearest.semantic.k, nearest.filters
        depth = max(k, DEFAULT_DEPTH)
        documents = nearest.native_query(engine_type, vector(nearest.semantic), None, CandidateCounts())
        near, found, exact = await gather_or_cancel(
            [search(documents, (), k), search(words, filters, depth), search(nearest.exact, filters, EXACT_HITS)]
        )
        if near is None or found is None:
            return words  # the engine rejects the client's search too
        rankings = {_SEMANTIC: [key for key, _ in near], LEXICAL: [key for key, _ in found]}
        matches = read_exact_matches(exact or [])  # None if the engine rejects this query
        fused = fuse_rankings(rankings, depth=depth, weights=weights, matches=matches)
        scores = [(document.key, document.score) for document in fused[:most]]
        return ranking_query(words, scores, max((score for _, score in found), default=1.0))

    ranked = await gather_or_cancel(rank(placeholder) for placeholder in placeholders)
    return dict(zip(placeholders, ranked, strict=True))


def ranking_query(words: Json, documents: _Hits, best_score: float) -> Json:
    """Write the query that ranks documents by given scores, before all others that the words match.

    Args:
        words: The full-text query of the client. It is part of the query for the documents beyond the ranking, and for
            highlights.
        documents: The ranked documents, best first, with scores above 0.
        best_score: The best score of `words`. All scores are multiples of it, so that they keep their proportion to
            other clauses of the search.
    """
    ranked = [
        {
            "constant_score": {
                "filter": {"bool": {"filter": [{"term": {"_index": index}}, {"ids": {"values": [id]}}]}},
                "boost": score * best_score,
            }
        }
        for (index, id), score in documents
    ]
    lowest = min(1.0, documents[-1][1]) if documents else 1.0
    return {"dis_max": {"queries": [{"bool": {"must": [words], "boost": lowest * _BELOW}}, *ranked]}}
