"""The cosine of the k-th nearest document, asked of the engine where a kNN query keeps k documents of each shard."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from urllib.parse import urlencode

from es_sbert.encoder.embeddings import Vectors
from es_sbert.engines.protocol import EngineType, Json
from es_sbert.gateway.callers import credential_headers
from es_sbert.gateway.concurrency import gather_or_cancel
from es_sbert.gateway.errors import BadRequest
from es_sbert.gateway.field_resolver import IndexGroup
from es_sbert.gateway.index_lookup import EXPRESSION_OPTIONS
from es_sbert.gateway.proxy.upstream import CLIENT_ERROR_STATUSES, Upstream
from es_sbert.gateway.search.knn_clauses import CandidateCounts, semantic_clause
from es_sbert.gateway.search.query_rewriter import Filters
from es_sbert.gateway.search.rewrite_context import RewriteContext
from es_sbert.gateway.search.semantic_query import SemanticQuery, SemanticSyntax
from es_sbert.index.document_vectors import QueryVector
from es_sbert.index.mapping import IndexType
from es_sbert.search.search_scope import choose_oversample
from es_sbert.search.vector_query import SearchMethod, cosine_from_score

# Parameters that decide which shards a search looks at.
_SHARD_PARAMETERS = (*EXPRESSION_OPTIONS, "routing", "preference")
# What the k-th document depends on → how near it is; None where there are fewer than k.
CutoffCosines = dict[str, float | None]

# Of one request: others have searches to be made too.
_MAX_CONCURRENT = 8


class TopKCutoff:
    """Asks the engine for k-th documents.

    Args:
        upstream: The engine.
    """

    def __init__(self, upstream: Upstream) -> None:
        self._upstream = upstream

    async def least(
        self,
        asked: Iterable[tuple[SemanticQuery, Filters]],
        vector: Callable[[SemanticQuery], Vectors],
        body: Json,
        scope: RewriteContext,
    ) -> CutoffCosines:
        """How near the k-th document is, for each query by meaning that would match more than k.

        Args:
            asked: The queries of a search, with what must match beside each.
            vector: Of a query's text, *shape:* ``(dimensions,)``.
            body: The search.
            scope: Where it looks.

        Raises:
            BadRequest: the indices do not let the k-th document be looked for.
            EngineUnreachable, RequestFailed: the engine cannot be asked.
        """
        engine_type = self._upstream.engine_type_or_default
        different = {
            cutoff_key(semantic, filters): (semantic, filters)
            for semantic, filters in asked
            if filters is not None and needs_cutoff(engine_type, semantic)
        }
        bodies = [
            kth_hit_body(engine_type, semantic, vector(semantic), filters, body)
            for semantic, filters in different.values()
        ]
        few = asyncio.Semaphore(_MAX_CONCURRENT)

        async def ask(kth: Json) -> Json | None:
            async with few:
                return await self._ask(kth, body, scope)

        answers = await gather_or_cancel(map(ask, bodies))
        with self._upstream.reading("POST _search"):
            return {
                key: kth_hit_cosine(engine_type, told)
                for key, told in zip(different, answers, strict=True)
                if told is not None
            }

    async def _ask(self, kth: Json, body: Json, scope: RewriteContext) -> Json | None:
        """The engine's answer; None where the search itself is refused alike, in the engine's own words."""
        options = {name: value for name, value in scope.options.items() if name in _SHARD_PARAMETERS}
        # A point in time says by itself where to look.
        target = "/_search" if "pit" in body else f"/{scope.expression or '_all'}/_search?{urlencode(options)}"
        answer = await self._upstream.ask("POST", target, credential_headers(scope.headers), kth)
        if answer.status not in CLIENT_ERROR_STATUSES:
            return self._upstream.needed(answer, "POST _search")
        why = str(answer.body)
        if "max_result_window" in why:
            raise BadRequest(
                f"k is {kth['from'] + 1}, more than the index.max_result_window of an index that is searched",
                "Ask for fewer documents, by k in the request or -k of es-sbert serve, or raise the setting.",
            )
        if "too_long_http_line" in why:
            raise BadRequest(
                "the names of the indices are too long for a search of the gateway's own",
                "Name them by a pattern or an alias.",
            )
        return None


def cutoff_key(semantic: SemanticQuery, filters: Sequence[Json]) -> str:
    """What the k-th document depends on."""
    return repr((semantic, list(filters)))


# What decides which documents a search sees and what it may ask of them: a point in time, fields made up for it.
_DOCUMENT_SET_MEMBERS = ("pit", "runtime_mappings", "derived")
# Scores are float32: the k-th document itself must not fall below its own cosine.
_FLOAT32_TOLERANCE = 1e-6


def needs_cutoff(engine_type: EngineType, semantic: SemanticQuery) -> bool:
    """Whether more documents would match than were asked for.

    A query over a `flat` field matches all documents on Elasticsearch 9 and on OpenSearch, and one over a quantised
    field as many on OpenSearch as are compared again. Beyond that engines' own queries (`knn`, `neural`) mean k of each
    shard by themselves, and callers who write them know.
    """
    if any(_matches_more_than_k(engine_type, part) for part in semantic.target.parts):
        return True
    return semantic.target.shards > 1 and semantic.way not in (SemanticSyntax.TEXT_EMBEDDING, SemanticSyntax.NEURAL)


def _matches_more_than_k(engine_type: EngineType, part: IndexGroup) -> bool:
    oversampled = engine_type is EngineType.OPENSEARCH and choose_oversample(part.meta) is not None
    return oversampled or part.meta.index_type == IndexType.FLAT


def kth_hit_body(
    engine_type: EngineType, semantic: SemanticQuery, vector: QueryVector, filters: Sequence[Json], asked: Json
) -> Json:
    """A search for the k-th nearest document alone.

    Args:
        vector: *Shape:* ``(dimensions,)``.
        filters: What every hit must match.
        asked: The search that the query stands in.
    """
    body = {
        "query": semantic_clause(engine_type, replace(semantic, boost=1.0), vector, filters, None, CandidateCounts())
    }
    same = {name: asked[name] for name in _DOCUMENT_SET_MEMBERS if name in asked}
    return body | same | {"from": semantic.k - 1, "size": 1, "_source": False, "track_total_hits": False}


def kth_hit_cosine(engine_type: EngineType, answer: Json) -> float | None:
    """The cosine of the k-th nearest document; None where there are fewer."""
    hits = answer["hits"]["hits"]
    if not hits:
        return None
    # The clauses' scores are alike for all index types.
    return max(-1.0, cosine_from_score(hits[0]["_score"], engine_type, SearchMethod.KNN) - _FLOAT32_TOLERANCE)
