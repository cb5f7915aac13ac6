"""Rank the hits of hybrid queries as the library does, and write queries that score them so.

The fusion of two rankings is not a query that engines run without a paid license. So the gateway asks for the first
documents of each ranking, and the client's search gets their ids with scores. Everything else that it asks for (totals,
aggregations, pages, highlights) is the engine's answer to that query.
"""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from es_sbert.engines.rest import Json
from es_sbert.gateway.concurrency import gather_or_cancel
from es_sbert.gateway.errors import ThrottledLog
from es_sbert.gateway.proxy.upstream import CLIENT_ERROR_STATUSES, Upstream
from es_sbert.gateway.search.compound_queries import strip_inner_hits
from es_sbert.gateway.search.first_searches import MAX_CONCURRENT, first_body, search_first
from es_sbert.gateway.search.incoming_search import RewriteContext
from es_sbert.gateway.search.knn_clauses import CandidateCounts, HybridPlaceholder, QueryPlaceholder
from es_sbert.gateway.search.semantic_query import SemanticQuery
from es_sbert.index.document_vectors import QueryVector
from es_sbert.search.exact_matches import EXACT_HITS, read_exact_matches
from es_sbert.search.hybrid_search import DEFAULT_DEPTH, DEFAULT_WEIGHTS, LEXICAL
from es_sbert.search.rank_fusion import fuse_rankings

logger = logging.getLogger(__name__)

# Each ranked document becomes a clause, and engines accept 1,024 in a search: the hybrid queries of a search share this
# number of documents.
_MAX_DOCUMENTS = 500
_SEMANTIC = "semantic"
# Scores are float32: a document that is not ranked must stay below the last one that is.
_BELOW = 0.999
_TINY = 1e-6

_Hits = list[tuple[tuple[str, str], float]]  # index and id, and score


class HybridRanker:
    """Ranks the hits of hybrid queries.

    Args:
        upstream: The engine.
        semantic_weight: Weight of the semantic ranking against the keyword ranking; None for the default.
    """

    def __init__(self, upstream: Upstream, semantic_weight: float | None) -> None:
        self._upstream = upstream
        self._weights = {
            _SEMANTIC: semantic_weight or DEFAULT_WEIGHTS.semantic / DEFAULT_WEIGHTS.lexical,
            LEXICAL: 1.0,
        }
        self._log = ThrottledLog(logger, interval=math.inf)

    async def queries(
        self,
        placeholders: Sequence[HybridPlaceholder],
        vector: Callable[[SemanticQuery], QueryVector],
        body: Json,
        context: RewriteContext,
    ) -> Mapping[HybridPlaceholder, Json]:
        """Rank the hits of each query, and write the query that scores them.

        Args:
            vector: Returns the vector of a query, *shape:* ``(dimensions,)``.
            body: The search of the client.
            context: Parameters of the search, with its `preference`, so that all searches use the same shard copies.

        Raises:
            EngineUnreachable, RequestFailed: a search failed.
        """
        semaphore, most = asyncio.Semaphore(MAX_CONCURRENT), _MAX_DOCUMENTS // max(1, len(placeholders))

        async def search(query: Json | None, size: int) -> _Hits | None:
            if query is None:
                return []
            async with semaphore:
                return await self._search(first_body(query, body) | {"size": size}, body, context)

        async def rank(placeholder: HybridPlaceholder) -> Json:
            semantic, filters = placeholder.semantic, placeholder.nearest.filters
            depth, with_chunks = max(semantic.k, DEFAULT_DEPTH), placeholder.nearest
            without_chunks = replace(with_chunks, query=replace(with_chunks.query, inner_hits=None))
            nearest, words, exact = await gather_or_cancel(
                [
                    search(self._native_query(without_chunks, vector(semantic)), semantic.k),
                    search(_filtered(placeholder.words, filters), depth),
                    search(_filtered(placeholder.exact, filters), EXACT_HITS),
                ]
            )
            if nearest is None or words is None:
                return placeholder.words  # the engine rejects the client's search too
            if exact is None:
                self._log.warning("exact matches are not looked for: the engine rejects the query for them")
            rankings = {_SEMANTIC: [key for key, _ in nearest], LEXICAL: [key for key, _ in words]}
            matches = read_exact_matches(exact or [])
            fused = fuse_rankings(rankings, depth=depth, weights=self._weights, matches=matches)
            documents = [(document.key, document.score) for document in fused[:most]]
            ranked = ranking_query(placeholder.words, documents, max((score for _, score in words), default=1.0))
            if with_chunks.query.inner_hits is not None and nearest:
                ids: Json = {"ids": {"values": [id for (_, id), _ in nearest]}}
                chunks = self._native_query(with_chunks, vector(semantic))
                # It changes no score, because that is the highest of all clauses.
                ranked["dis_max"]["queries"].append({"bool": {"must": [chunks], "filter": [ids], "boost": _TINY}})
            return ranked

        ranked = await gather_or_cancel(rank(placeholder) for placeholder in placeholders)
        return dict(zip(placeholders, ranked, strict=True))

    def _native_query(self, nearest: QueryPlaceholder, vector: QueryVector) -> Json:
        return nearest.native_query(self._upstream.engine_type_or_default, vector, None, CandidateCounts())

    async def _search(self, first: Json, body: Json, context: RewriteContext) -> _Hits | None:
        """Send a search; None if the engine rejects it."""
        answer = await search_first(self._upstream, first, body, context)
        if answer.status in CLIENT_ERROR_STATUSES:
            return None
        # Accept a partial result: the client's search itself reports missing shards.
        found = self._upstream.require_object(answer, "POST _search", partial_ok=True)
        with self._upstream.parsing("POST _search"):
            return [((hit["_index"], hit["_id"]), float(hit["_score"])) for hit in found["hits"]["hits"]]


def _filtered(query: Json | None, filters: Sequence[Json]) -> Json | None:
    if query is None:
        return None
    return {"bool": {"must": [strip_inner_hits(query)], "filter": list(filters)}}


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
        {"constant_score": {"filter": _is_document(index, id), "boost": score * best_score}}
        for (index, id), score in documents
    ]
    lowest = min(1.0, documents[-1][1]) if documents else 1.0
    return {"dis_max": {"queries": [{"bool": {"must": [words], "boost": lowest * _BELOW}}, *ranked]}}


def _is_document(index: str, id: str) -> Json:
    return {"bool": {"filter": [{"term": {"_index": index}}, {"ids": {"values": [id]}}]}}
