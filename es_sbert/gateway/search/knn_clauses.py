"""Native kNN queries for semantic queries: their placeholders, and the queries that replace them.

Where a query would match more than k documents, `cutoff_cosines` first asks the engine for the cosine of the k-th.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from urllib.parse import unquote, urlencode

import orjson

from es_sbert.engines.engine_info import EngineType
from es_sbert.engines.rest import Json
from es_sbert.gateway.concurrency import gather_or_cancel
from es_sbert.gateway.errors import BadRequest
from es_sbert.gateway.incoming_request import credential_headers
from es_sbert.gateway.index_lookup import EXPRESSION_OPTIONS, MAX_EXPRESSION_LENGTH
from es_sbert.gateway.search.incoming_search import RewriteContext
from es_sbert.gateway.search.semantic_query import NATIVE_SYNTAXES, SemanticQuery
from es_sbert.gateway.upstream import CLIENT_ERROR_STATUSES, Upstream, UpstreamReply
from es_sbert.index.document_vectors import QueryVector, to_float_list
from es_sbert.index.mapping import IndexType, and_query, chunk_inner_hits, vector_path
from es_sbert.search.search_scope import SearchScope
from es_sbert.search.vector_query import (
    MAX_K,
    SearchMethod,
    VectorQuery,
    check_chunk_filter,
    cosine_from_score,
    vector_clause,
)


@dataclass(frozen=True, eq=False)
class QueryPlaceholder:
    """The place of a semantic query in a search body, until the vector of its text is known.

    Attributes:
        semantic: The semantic query.
        filters: Further queries that hits must match.
        query: The search for its nearest vectors, without the vector.
        has_cutoff: Whether only the k nearest documents of all shards may match. In `must_not`, all documents above the
            minimum cosine are excluded; hybrid queries take the first k.
        words: The full-text query that becomes hybrid (`hybrid_queries.py`), as the client wrote it; None for none.
        exact: With `words`: finds exact matches (`es_sbert.search.hybrid_search`); None if there can be none.
    """

    semantic: SemanticQuery
    filters: Sequence[Json]
    query: VectorQuery
    has_cutoff: bool = True
    words: Json | None = None
    exact: Json | None = None

    def native_query(
        self, engine_type: EngineType, vector: QueryVector, cutoff: float | None, counts: CandidateCounts
    ) -> Json:
        """Create the native query, which keeps the k nearest documents and scores them.

        Args:
            vector: *Shape:* ``(dimensions,)``.
            cutoff: Cosine of the k-th nearest document; None if it is not needed, or if there are fewer documents.
            counts: The candidate counts of the request.
        """
        semantic, query = self.semantic, replace(self.query, vector=vector)
        if cutoff is not None and cutoff > (semantic.min_cosine or -1.0):
            query = replace(query, min_cosine=cutoff)
        clause = knn_clause(engine_type, semantic.target, query, counts, calibrated=semantic.calibrated)
        if semantic.name is not None:
            clause["bool"]["_name"] = semantic.name
        return clause


@dataclass(frozen=True, eq=False)
class SectionPlaceholder:
    """The place of a section `knn` of Elasticsearch, or of such a retriever, until the vector of its text is known.

    Attributes:
        semantic: The semantic query.
        section: The section that the client wrote.
        inner_hits: Name for the nearest chunk of each hit; None for none.
    """

    semantic: SemanticQuery
    section: Json
    inner_hits: str | None

    def native_section(self, vector: QueryVector) -> Json:
        """Create the section with the vector instead of the text. The engine itself keeps the k nearest documents.

        Args:
            vector: *Shape:* ``(dimensions,)``.
        """
        semantic, target = self.semantic, self.semantic.target
        section = {name: value for name, value in self.section.items() if name != "query_vector_builder"}
        indices = [index for part in target.groups for index in part.indices]
        section["field"] = vector_path(target.name, target.meta)
        section["query_vector"] = to_float_list(vector)
        section["filter"] = combine_filters(semantic.filter, index_filter(indices))
        oversample = target.groups[0].oversample()
        if oversample is not None:
            section.setdefault("rescore_vector", {"oversample": oversample})
        if self.inner_hits is not None:
            section.setdefault("inner_hits", chunk_inner_hits(target.name, self.inner_hits))
        return section


Placeholder = QueryPlaceholder | SectionPlaceholder


def query_without_vector(
    engine_type: EngineType,
    semantic: SemanticQuery,
    filters: Sequence[Json],
    inner_hits: str | None,
    *,
    matches_candidates: bool,
) -> VectorQuery:
    """Create the search for the nearest vectors of a semantic query, without the vector.

    Args:
        filters: Further queries that hits must match; applied during the search, so that k documents remain.
        inner_hits: Name for the nearest chunk of each hit; None for none.
        matches_candidates: See `EngineInfo.knn_matches_candidates`.

    Raises:
        BadRequest: the engine or the field does not support a parameter.
        UsageError: a value is invalid, or chunks cannot be filtered by one of the filters.
    """
    candidates = semantic.num_candidates
    if matches_candidates and not exceeds_k_by_candidates(semantic):
        candidates = semantic.k
    query = VectorQuery(
        field=semantic.target.name,
        vector=[],  # see `native_query`
        k=semantic.k,
        filter=combine_filters(semantic.filter, combine_filters(*filters)),
        num_candidates=None if candidates is None else max(semantic.k, candidates),
        min_cosine=semantic.min_cosine,
        boost=semantic.boost,
        passages=semantic.target.meta.passages is not None,
        inner_hits=inner_hits,
    )
    if query.passages and engine_type is EngineType.ELASTICSEARCH:
        methods = {part.method(engine_type, exact=False) for part in semantic.target.groups}
        if SearchMethod.KNN in methods:
            check_chunk_filter(query)
    return query


def exceeds_k_by_candidates(semantic: SemanticQuery) -> bool:
    """Whether a query has more than k candidates, on an engine that matches all of them.

    Native queries use k candidates unless the client asks for more.
    """
    return semantic.syntax not in NATIVE_SYNTAXES or semantic.num_candidates is not None


def knn_clause(
    engine_type: EngineType,
    target: SearchScope,
    query: VectorQuery,
    counts: CandidateCounts,
    *,
    calibrated: bool = False,
) -> Json:
    """Create a `bool` that searches a field in all its indices, each by its index type and the filter of its alias.

    Args:
        calibrated: Whether the minimum cosine in the mapping of each index applies as well.
    """
    clauses: list[Json] = []
    for number, part in enumerate(target.groups):
        minima = (query.min_cosine, part.meta.min_cosine if calibrated else None)
        part_query = replace(
            query,
            oversample=part.oversample(),
            filter=combine_filters(query.filter, part.filters.get(part.indices[0])),
            min_cosine=max((value for value in minima if value is not None), default=None),
        )
        if number and query.inner_hits is not None:
            # Engines require a different name for each clause.
            part_query = replace(part_query, inner_hits=f"{query.inner_hits}.{number}")
        if engine_type is EngineType.OPENSEARCH:
            part_query = counts.distinct(part_query)
        clause = vector_clause(engine_type, part.method(engine_type, exact=False), part_query)
        clauses.append({"bool": {"must": [clause], "filter": [index_filter(part.indices)]}})
    return clauses[0] if len(clauses) == 1 else {"bool": {"should": clauses, "minimum_should_match": 1}}


def index_filter(indices: Sequence[str]) -> Json:
    """Create a filter that restricts a clause to indices of one model.

    The target of an alias may change to an index of another model between the lookup and the search; its shards then
    match nothing. Each shard evaluates this by its name, without reading a document.
    """
    return {"terms": {"_index": list(indices)}}


def combine_filters(*filters: Json | None) -> Json | None:
    """Combine filters into one query that matches what all of them match; None if there are no filters."""
    queries = [query for query in filters if query is not None]
    return and_query(*queries) if queries else None


class CandidateCounts:
    """Candidate counts of the kNN queries of one request: different for each k.

    OpenSearch treats two kNN queries of a bool as one if field, vector, filter and `ef_search` are equal, even if
    their k differs (seen on 3.6.0, engine lucene): two in `should` both return the k of the first, and a `must` loses a
    narrower `filter`. Elasticsearch distinguishes them.
    """

    def __init__(self) -> None:
        self._k: dict[int, int] = {}  # candidate count → k

    def distinct(self, query: VectorQuery) -> VectorQuery:
        """Return the query, with more (or fewer) candidates if a query with a different k has the same number."""
        count = max(query.candidates, query.oversampled_k)
        counts = chain(range(count, MAX_K + 1), range(count - 1, query.oversampled_k - 1, -1))
        free = next((number for number in counts if self._k.setdefault(number, query.k) == query.k), count)
        return replace(query, num_candidates=free)


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
    else:  # the names of an `_msearch` may be too long for a URL
        header = {"index": [unquote(name) for name in expression.split(",")], **options}
        plain = await upstream.plain_search(credentials, first)
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


# Scores are float32: the k-th document itself must not fall below its own cosine.
_FLOAT32_TOLERANCE = 1e-6


def exceeding_k(upstream: Upstream, placeholders: Iterable[Placeholder]) -> list[QueryPlaceholder]:
    """Select the queries of a search that would match more than k documents.

    A query on a `flat` field matches all documents on Elasticsearch 9 and on OpenSearch, and one on a quantized
    field matches all rescored documents on OpenSearch. All others match k documents of each shard, by which native
    queries (`knn`, `neural`) are defined; or all their candidates, see `exceeds_k_by_candidates`.
    """
    is_opensearch = upstream.engine_type_or_default is EngineType.OPENSEARCH
    matches_candidates = upstream.knn_matches_candidates

    def exceeds_k(semantic: SemanticQuery) -> bool:
        target = semantic.target
        return (
            any(part.meta.index_type == IndexType.FLAT for part in target.groups)
            or (is_opensearch and any(part.oversample() is not None for part in target.groups))
            or (target.shards > 1 and semantic.syntax not in NATIVE_SYNTAXES)
            or (matches_candidates and exceeds_k_by_candidates(semantic))
        )

    queries = (each for each in placeholders if isinstance(each, QueryPlaceholder))
    return [each for each in queries if each.has_cutoff and exceeds_k(each.semantic)]


async def cutoff_cosines(
    upstream: Upstream,
    queries: Sequence[QueryPlaceholder],
    vector: Callable[[SemanticQuery], QueryVector],
    body: Json,
    context: RewriteContext,
) -> Mapping[QueryPlaceholder, float | None]:
    """Find the cosine of the k-th nearest document for each query; None if there are fewer than k.

    Queries whose search the engine rejects are left out.

    Args:
        upstream: The engine.
        queries: See `exceeding_k`.
        vector: Returns the vector of a query, *shape:* ``(dimensions,)``.
        body: The search.
        context: Parameters of the search, with its `preference`, so that both searches use the same shard copies.
            Copies are refreshed at different times, so another copy may have other documents.

    Raises:
        BadRequest: k is larger than `index.max_result_window` of an index.
        EngineUnreachable, RequestFailed: the search failed.
    """
    engine_type = upstream.engine_type_or_default
    semaphore = asyncio.Semaphore(MAX_CONCURRENT)
    # All that determines the k-th nearest document: the query, its field and its filters.
    keys = {
        query: repr((query.semantic, query.semantic.target.name, query.semantic.target.indices, list(query.filters)))
        for query in queries
    }
    distinct = {key: query for query, key in keys.items()}

    async def search(query: QueryPlaceholder) -> Json | None:
        kth = kth_hit_body(engine_type, query.semantic, vector(query.semantic), query.filters, body)
        async with semaphore:
            return await search_first(upstream, kth, body, context)

    found = dict(zip(distinct, await gather_or_cancel(map(search, distinct.values())), strict=True))
    cosines: dict[QueryPlaceholder, float | None] = {}
    with upstream.parsing("POST _search"):
        for query, key in keys.items():
            if (answer := found[key]) is not None:
                # Any method will do: scores are the same for all index types.
                scores = [hit["_score"] for hit in answer["hits"]["hits"]]
                found_cosines = [cosine_from_score(score, engine_type, SearchMethod.KNN) for score in scores]
                cosines[query] = max(-1.0, found_cosines[0] - _FLOAT32_TOLERANCE) if found_cosines else None
    return cosines


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
