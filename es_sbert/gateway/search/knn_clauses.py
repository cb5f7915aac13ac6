"""Native kNN clauses of semantic queries, and the cosine below which hits are not among the k nearest."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from itertools import chain
from urllib.parse import urlencode

from es_sbert.encoder.batching import Vectors
from es_sbert.engines.protocol import EngineType, Json
from es_sbert.gateway.concurrency import gather_or_cancel
from es_sbert.gateway.errors import BadRequest
from es_sbert.gateway.field_resolver import IndexGroup, ResolvedField
from es_sbert.gateway.index_lookup import EXPRESSION_OPTIONS
from es_sbert.gateway.proxy.incoming_request import credential_headers
from es_sbert.gateway.proxy.upstream import CLIENT_ERROR_STATUSES, Upstream
from es_sbert.gateway.search.incoming_search import RewriteContext
from es_sbert.gateway.search.semantic_query import SemanticQuery, SemanticSyntax
from es_sbert.index.document_vectors import QueryVector, to_float_list
from es_sbert.index.mapping import IndexType, chunk_inner_hits, vector_path
from es_sbert.index.text_template import TextTemplate
from es_sbert.search.search_scope import choose_method, choose_oversample
from es_sbert.search.vector_query import MAX_K, SearchMethod, VectorQuery, cosine_from_score, vector_clause

# What hits must match beside a query by meaning; None where the engine keeps k of all shards by itself.
Filters = Sequence[Json] | None


def semantic_clause(
    engine_type: EngineType,
    semantic: SemanticQuery,
    vector: QueryVector,
    filters: Sequence[Json],
    inner_hits: str | None,
    depths: CandidateCounts,
) -> Json:
    """A query that keeps the k nearest documents and scores them.

    Args:
        vector: *Shape:* ``(dimensions,)``.
        filters: What the request asks of hits beside; applied during the search, so that k documents remain.
        inner_hits: Name for the nearest passage of each hit; None asks for none.
        depths: Of the request that it stands in.
    """
    found = knn_clause(
        engine_type, semantic.target, vector_query(semantic, vector, combine_filters(filters), inner_hits), depths
    )
    if semantic.name is not None:
        found["bool"]["_name"] = semantic.name
    return found


def highlight_clause(semantic: SemanticQuery) -> Json:
    """A query for the words of a text in the fields that were embedded, to mark them there.

    Raises:
        BadRequest: nothing says which fields were embedded.
    """
    text = semantic.target.meta.text
    if text is None:
        raise BadRequest(
            f"no words can be marked: the mapping does not say what {semantic.target.name} is made of",
            'Write a highlight_query of your own, e.g. {"match": {"FIELD": "…"}}.',
        )
    # Lenient, since a number may be part of what is embedded.
    fields = list(TextTemplate.parse(text).fields)
    return {"multi_match": {"query": semantic.text, "fields": fields, "lenient": True}}


def knn_clause(engine_type: EngineType, target: ResolvedField, query: VectorQuery, depths: CandidateCounts) -> Json:
    """A search in all indices of a field, in each as its index type and its alias ask for; a bool."""
    found = [_knn_clause_of_part(engine_type, part, query, number, depths) for number, part in enumerate(target.parts)]
    return found[0] if len(found) == 1 else {"bool": {"should": found, "minimum_should_match": 1}}


def _knn_clause_of_part(
    engine_type: EngineType, part: IndexGroup, query: VectorQuery, number: int, depths: CandidateCounts
) -> Json:
    # Engines want a name of its own for each clause's inner hits.
    told = f"{query.inner_hits}.{number}" if query.inner_hits and number else query.inner_hits
    filters = [one for one in (query.filter, part.filter) if one is not None]
    own = replace(query, oversample=choose_oversample(part.meta), filter=combine_filters(filters), inner_hits=told)
    own = depths.apart(own) if engine_type is EngineType.OPENSEARCH else own
    found = vector_clause(engine_type, choose_method(engine_type, part.meta, exact=False), own)
    return {"bool": {"must": [found], "filter": [index_filter(part.indices)]}}


def vector_query(
    semantic: SemanticQuery, vector: QueryVector, filter: Json | None, inner_hits: str | None
) -> VectorQuery:
    """The search of the query helper that a query by meaning stands for.

    Args:
        vector: *Shape:* ``(dimensions,)``.
        filter: Beside the query's own.
    """
    meta = semantic.target.meta
    return VectorQuery(
        field=semantic.target.name,
        vector=vector,
        k=semantic.k,
        filter=combine_filters([one for one in (semantic.filter, filter) if one is not None]),
        num_candidates=None if semantic.num_candidates is None else max(semantic.k, semantic.num_candidates),
        min_cosine=semantic.min_cosine,
        boost=semantic.boost,
        passages=meta.passages is not None,
        inner_hits=inner_hits,
    )


def index_filter(indices: Sequence[str]) -> Json:
    """Keeps vectors of one model from being compared with another's.

    An alias may go over to an index of another model between our look at it and the search; shards of such an index
    then match nothing. Each shard answers this from its own name, without looking at a document.
    """
    return {"terms": {"_index": list(indices)}}


def knn_section(semantic: SemanticQuery, said: Json, vector: QueryVector, inner_hits: str | None) -> Json:
    """Elasticsearch's `knn` section of a search as the caller wrote it, with the vector in place of the text.

    Args:
        vector: *Shape:* ``(dimensions,)``.
    """
    meta = semantic.target.meta
    section = {name: value for name, value in said.items() if name != "query_vector_builder"}
    indices = [index for part in semantic.target.parts for index in part.indices]
    section |= {"field": vector_path(semantic.target.name, meta), "query_vector": to_float_list(vector)}
    section["filter"] = combine_filters(
        [*([] if semantic.filter is None else [semantic.filter]), index_filter(indices)]
    )
    oversample = choose_oversample(meta)
    if oversample is not None:
        section.setdefault("rescore_vector", {"oversample": oversample})
    if inner_hits is not None and meta.passages is not None:
        section.setdefault("inner_hits", chunk_inner_hits(semantic.target.name, inner_hits))
    return section


def combine_filters(filters: Sequence[Json]) -> Json | None:
    """One query that matches what all of them match; None for none."""
    if not filters:
        return None
    return filters[0] if len(filters) == 1 else {"bool": {"filter": list(filters)}}


class CandidateCounts:
    """How many vectors each search of a request looks at; searches for different k never as many.

    To OpenSearch two kNN queries of a bool are one where field, vector, filter and `ef_search` are the same, whatever
    their k (seen on 3.6.0, engine lucene): of two in `should` both give the k of the first, and a `must` loses a
    `filter` that is narrower. Elasticsearch tells them apart.
    """

    def __init__(self) -> None:
        self._k: dict[int, int] = {}  # of the searches that look at so many

    def apart(self, query: VectorQuery) -> VectorQuery:
        """The same search, which looks at a few vectors more where those for another k look at as many."""
        depth = max(query.candidates, query.oversampled_k)
        depths = chain(range(depth, MAX_K + 1), range(depth - 1, query.oversampled_k - 1, -1))
        free = next((one for one in depths if self._k.setdefault(one, query.k) == query.k), depth)
        return replace(query, num_candidates=free)


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
        with self._upstream.parsing("POST _search"):
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
        answer = await self._upstream.request("POST", target, credential_headers(scope.headers), kth)
        if answer.status not in CLIENT_ERROR_STATUSES:
            return self._upstream.require_object(answer, "POST _search")
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
