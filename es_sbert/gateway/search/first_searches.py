"""Searches that the gateway sends before a client's search, over the same documents.

`TopKCutoff` finds the cosine below which hits are not among the k nearest documents, for searches that would match more
than k.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from urllib.parse import unquote, urlencode

import orjson

from es_sbert.engines.engine_info import EngineType, without_search_pipeline
from es_sbert.engines.rest import Json
from es_sbert.gateway.concurrency import gather_or_cancel
from es_sbert.gateway.errors import BadRequest
from es_sbert.gateway.incoming_request import credential_headers
from es_sbert.gateway.index_lookup import EXPRESSION_OPTIONS, MAX_EXPRESSION_LENGTH
from es_sbert.gateway.search.incoming_search import RewriteContext
from es_sbert.gateway.search.knn_clauses import (
    CandidateCounts,
    Placeholder,
    QueryPlaceholder,
    exceeds_k_by_candidates,
    query_without_vector,
)
from es_sbert.gateway.search.semantic_query import NATIVE_SYNTAXES, SemanticQuery
from es_sbert.gateway.upstream import CLIENT_ERROR_STATUSES, Upstream, UpstreamReply
from es_sbert.index.document_vectors import QueryVector
from es_sbert.index.mapping import IndexType
from es_sbert.search.search_scope import SearchScope
from es_sbert.search.vector_query import SearchMethod, cosine_from_score

# Maximum concurrent searches of one request, so that it does not occupy all connections.
MAX_CONCURRENT = 8
# Parameters that decide which shards a search looks at.
_SHARD_PARAMETERS = (*EXPRESSION_OPTIONS, "routing", "preference")
# Members of a search that determine its documents and fields: a point in time, runtime fields.
_DOCUMENT_SET_MEMBERS = ("pit", "runtime_mappings", "derived")


def first_body(query: Json, search: Json) -> Json:
    """Create a search that returns ids and scores.

    Args:
        search: The search of the client.
    """
    same = {name: search[name] for name in _DOCUMENT_SET_MEMBERS if name in search}
    return {"query": query, **same, "_source": False, "track_total_hits": False}


async def search_first(upstream: Upstream, first: Json, search: Json, context: RewriteContext) -> Json | None:
    """Send a search with the caller's credentials; None if the engine rejects it, since it rejects the client's too.

    Args:
        first: The search to send, see `first_body`.
        search: The search of the client.
        context: Its parameters, with a `preference`, so that both searches use the same shard copies.

    Raises:
        BadRequest: it asks for a document beyond `index.max_result_window` of an index.
        EngineUnreachable, RequestFailed: the search failed.
    """
    options = {name: value for name, value in context.options.items() if name in _SHARD_PARAMETERS}
    credentials, expression = credential_headers(context.headers), context.expression or "_all"
    if "pit" in search:  # a point in time determines the indices
        reply = await upstream.search("/_search", credentials, first)
    elif len(expression) <= MAX_EXPRESSION_LENGTH:
        reply = await upstream.search(f"/{expression}/_search?{urlencode(options)}", credentials, first)
    else:
        # Names that do not fit into a URL go into the body of an `_msearch`.
        header = {"index": [unquote(name) for name in expression.split(",")], **options}
        plain = without_search_pipeline(upstream.engine_type_or_default, first)
        lines = orjson.dumps(header) + b"\n" + orjson.dumps(plain) + b"\n"
        reply = await upstream.request("POST", "/_msearch", credentials, lines, "application/x-ndjson")
        if reply.status == 200:
            with upstream.parsing("POST /_msearch"):
                [answer] = reply.body["responses"]
                reply = UpstreamReply(int(answer.get("status", 200)), answer)
    if reply.status not in CLIENT_ERROR_STATUSES:
        # Accept a partial result: a lower cosine, or none, only lets more documents through, and the client's search
        # itself reports missing shards.
        return upstream.require_object(reply, "POST _search", partial_ok=True)
    if "from" in first and "max_result_window" in str(reply.body):
        raise BadRequest(
            f"k is {first['from'] + 1}, more than the index.max_result_window of a searched index",
            "Ask for fewer documents, with k in the request or -k of es-sbert serve, or raise the setting.",
        )
    return None


class TopKCutoff:
    """Finds the cosine of the k-th nearest document by a search of the engine.

    Args:
        upstream: The engine.
    """

    def __init__(self, upstream: Upstream) -> None:
        self._upstream = upstream

    def select(self, placeholders: Iterable[Placeholder]) -> list[QueryPlaceholder]:
        """Select the queries of a search that would match more than k documents."""
        engine_type, matches_candidates = self._upstream.engine_type_or_default, self._upstream.knn_matches_candidates
        return [
            each
            for each in placeholders
            if isinstance(each, QueryPlaceholder)
            and each.has_cutoff
            and (
                needs_cutoff(engine_type, each.semantic)
                or (matches_candidates and exceeds_k_by_candidates(each.semantic))
            )
        ]

    async def cosines(
        self,
        queries: Sequence[QueryPlaceholder],
        vector: Callable[[SemanticQuery], QueryVector],
        body: Json,
        context: RewriteContext,
    ) -> Mapping[QueryPlaceholder, float | None]:
        """Find the cosine of the k-th nearest document for each query; None if there are fewer than k.

        Queries whose search the engine rejects are left out.

        Args:
            queries: See `select`.
            vector: Returns the vector of a query, *shape:* ``(dimensions,)``.
            body: The search.
            context: Parameters of the search, with its `preference`, so that both searches use the same shard copies.
                Copies are refreshed at different times, so another copy may have other documents.

        Raises:
            BadRequest: k is larger than `index.max_result_window` of an index.
            EngineUnreachable, RequestFailed: the search failed.
        """
        engine_type = self._upstream.engine_type_or_default
        semaphore = asyncio.Semaphore(MAX_CONCURRENT)
        keys = {query: _cutoff_key(query) for query in queries}
        distinct = {key: query for query, key in keys.items()}

        async def search(query: QueryPlaceholder) -> Json | None:
            kth = kth_hit_body(engine_type, query.semantic, vector(query.semantic), query.filters, body)
            async with semaphore:
                return await search_first(self._upstream, kth, body, context)

        found = dict(zip(distinct, await gather_or_cancel(map(search, distinct.values())), strict=True))
        with self._upstream.parsing("POST _search"):
            answers = ((query, found[key]) for query, key in keys.items())
            return {query: kth_hit_cosine(engine_type, answer) for query, answer in answers if answer is not None}


def _cutoff_key(query: QueryPlaceholder) -> str:
    """Return a key of everything that determines the k-th nearest document: the query, its field and its filters."""
    target = query.semantic.target
    return repr((query.semantic, target.name, target.indices, list(query.filters)))


# Scores are float32: the k-th document itself must not fall below its own cosine.
_FLOAT32_TOLERANCE = 1e-6


def needs_cutoff(engine_type: EngineType, semantic: SemanticQuery) -> bool:
    """Whether a query would match more than k documents, on an engine whose kNN query matches k of each shard.

    A query on a `flat` field matches all documents on Elasticsearch 9 and on OpenSearch, and one on a quantized field
    matches all rescored documents on OpenSearch. Apart from that, native queries (`knn`, `neural`) keep k documents of
    each shard by definition.
    """
    if any(_matches_more_than_k(engine_type, part) for part in semantic.target.groups):
        return True
    return semantic.target.shards > 1 and semantic.syntax not in NATIVE_SYNTAXES


def _matches_more_than_k(engine_type: EngineType, part: SearchScope) -> bool:
    oversampled = engine_type is EngineType.OPENSEARCH and part.oversample(part.name) is not None
    return oversampled or part.meta.index_type == IndexType.FLAT


def kth_hit_body(
    engine_type: EngineType, semantic: SemanticQuery, vector: QueryVector, filters: Sequence[Json], search: Json
) -> Json:
    """Create a search for only the k-th nearest document.

    Args:
        vector: *Shape:* ``(dimensions,)``.
        filters: Queries that every hit must match.
        search: The search that contains the query.
    """
    plain = replace(semantic, boost=1.0)
    found = query_without_vector(engine_type, plain, filters, None, matches_candidates=False)
    query = QueryPlaceholder(plain, filters, found).native_query(engine_type, vector, None, CandidateCounts())
    return first_body(query, search) | {"from": semantic.k - 1, "size": 1}


def kth_hit_cosine(engine_type: EngineType, answer: Json) -> float | None:
    """Read the cosine of the k-th nearest document from a response; None if there are fewer documents."""
    hits = answer["hits"]["hits"]
    if not hits:
        return None
    # Any method will do: scores are the same for all index types.
    return max(-1.0, cosine_from_score(hits[0]["_score"], engine_type, SearchMethod.KNN) - _FLOAT32_TOLERANCE)
