"""Native kNN clauses of semantic queries, and the cosine below which hits are not among the k nearest."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from itertools import chain
from urllib.parse import unquote, urlencode

import orjson

from es_sbert.engines.engine_info import EngineType
from es_sbert.engines.rest import Json, is_remote_name
from es_sbert.gateway.concurrency import gather_or_cancel
from es_sbert.gateway.errors import BadRequest
from es_sbert.gateway.index_lookup import EXPRESSION_OPTIONS, MAX_EXPRESSION_LENGTH
from es_sbert.gateway.proxy.incoming_request import credential_headers
from es_sbert.gateway.proxy.upstream import CLIENT_ERROR_STATUSES, Upstream, UpstreamReply
from es_sbert.gateway.search.incoming_search import RewriteContext
from es_sbert.gateway.search.semantic_query import SemanticQuery, SemanticSyntax
from es_sbert.index.document_vectors import QueryVector
from es_sbert.index.mapping import IndexType, and_query, chunk_inner_hits, vector_path
from es_sbert.index.text_template import TextTemplate
from es_sbert.search.search_scope import SearchScope
from es_sbert.search.vector_query import (
    MAX_K,
    SearchMethod,
    VectorQuery,
    cosine_from_score,
    query_numbers,
    vector_clause,
)

# What hits must match; None where the engine itself keeps the k nearest documents of all shards.
Filters = Sequence[Json] | None


# The engines' own queries, which find k documents of each shard.
_NATIVE_SYNTAXES = (SemanticSyntax.TEXT_EMBEDDING, SemanticSyntax.NEURAL)


def semantic_clause(
    engine_type: EngineType,
    semantic: SemanticQuery,
    vector: QueryVector,
    filters: Sequence[Json],
    inner_hits: str | None,
    counts: CandidateCounts,
) -> Json:
    """A query that keeps the k nearest documents and scores them.

    Args:
        vector: *Shape:* ``(dimensions,)``.
        filters: What hits must match as well; applied during the search, so that k documents remain.
        inner_hits: Name for the nearest passage of each hit; None for none.
        counts: The candidate counts of the request.
    """
    meta = semantic.target.meta
    # In a client's `nested` query, a name of the query inside it is one of passages.
    candidates = semantic.num_candidates
    if counts.are_matched and not _exceeds_k_by_candidates(semantic):
        candidates = semantic.k
    nested, name, passage_name = semantic.nested or {}, semantic.name, None
    if semantic.nested is not None:
        name, passage_name = nested.get("_name"), name
    query = VectorQuery(
        field=semantic.target.name,
        vector=vector,
        k=semantic.k,
        filter=combine_filters(semantic.filter, combine_filters(*filters)),
        num_candidates=None if candidates is None else max(semantic.k, candidates),
        min_cosine=semantic.min_cosine,
        boost=semantic.boost,
        passages=meta.passages is not None,
        inner_hits=inner_hits,
        knn_parameters=_native_parameters(engine_type, semantic),
        nested_parameters={member: value for member, value in nested.items() if member != "_name"},
        passage_query_name=passage_name,
        element_type=semantic.element_type,
    )
    clause = knn_clause(
        engine_type, semantic.target, query, counts, semantic.oversample, calibrated=semantic.calibrated
    )
    if name is not None:
        clause["bool"]["_name"] = name
    return clause


# Parameters of a query in one engine's syntax that only that engine has. On OpenSearch a search may or may not return
# all passages of a hit as inner hits; Elasticsearch always does.
_NATIVE_PARAMETERS = {
    EngineType.ELASTICSEARCH: frozenset({"visit_percentage"}),
    EngineType.OPENSEARCH: frozenset({"expand_nested_docs"}),
}
_IMPLIED_PARAMETERS = {EngineType.ELASTICSEARCH: frozenset({"expand_nested_docs"}), EngineType.OPENSEARCH: frozenset()}


def _native_parameters(engine_type: EngineType, semantic: SemanticQuery) -> Json:
    """The parameters that the engine's own kNN query gets.

    Raises:
        BadRequest: the engine or the field lacks one.
    """
    if "expand_nested_docs" in semantic.native and semantic.target.meta.passages is None:
        raise BadRequest(
            f"expand_nested_docs is for fields of passages, and {semantic.target.name} has one vector per document",
            "Remove expand_nested_docs.",
        )
    for name in semantic.native:
        if name not in _NATIVE_PARAMETERS[engine_type] | _IMPLIED_PARAMETERS[engine_type]:
            raise BadRequest(
                f"{name} of a query on {semantic.target.name} has no equivalent in this engine", f"Remove {name}."
            )
    return {name: value for name, value in semantic.native.items() if name in _NATIVE_PARAMETERS[engine_type]}


def highlight_clause(semantic: SemanticQuery) -> Json:
    """A full-text query for the words of a query text in the embedded fields, to highlight them there.

    Raises:
        BadRequest: the mapping does not say which fields are embedded.
    """
    text = semantic.target.meta.text
    if text is None:
        raise BadRequest(
            f"cannot highlight words: the mapping does not say which fields {semantic.target.name} is made of",
            'Add a highlight_query, e.g. {"match": {"FIELD": "…"}}.',
        )
    # Lenient, since a number may be part of the embedded text.
    fields = list(TextTemplate.parse(text).fields)
    return {"multi_match": {"query": semantic.text, "fields": fields, "lenient": True}}


def knn_clause(
    engine_type: EngineType,
    target: SearchScope,
    query: VectorQuery,
    counts: CandidateCounts,
    oversample: float | None = None,
    *,
    calibrated: bool = False,
) -> Json:
    """A `bool` that searches a field in all its indices, in each by its index type and with the filter of its alias.

    Args:
        oversample: Replaces that of quantized indices; 0 for no rescoring.
        calibrated: Whether the minimum cosine in the mapping of each index applies as well.
    """
    clauses: list[Json] = []
    for number, part in enumerate(target.groups):
        usual = part.oversample(target.name)
        part_query = replace(
            query,
            # Vectors that are not quantized need no rescoring.
            oversample=usual if usual is None or oversample is None else oversample or None,
            element_type=part.element_type(target.name),
            filter=combine_filters(query.filter, part.filters.get(part.indices[0])),
            min_cosine=_larger(query.min_cosine, part.meta.min_cosine if calibrated else None),
        )
        if usual is not None and oversample == 0 and engine_type is EngineType.ELASTICSEARCH:
            part_query = replace(part_query, knn_parameters=query.knn_parameters | {"rescore_vector": _NO_RESCORING})
        if number:
            part_query = _with_numbered_inner_hits(part_query, number)
        if engine_type is EngineType.OPENSEARCH:
            part_query = counts.distinct(part_query)
        clause = vector_clause(engine_type, part.method(engine_type, exact=False), part_query)
        clauses.append({"bool": {"must": [clause], "filter": [index_filter(part.indices)]}})
    return clauses[0] if len(clauses) == 1 else {"bool": {"should": clauses, "minimum_should_match": 1}}


# Without it, bbq types are rescored by default.
_NO_RESCORING = {"oversample": 0}


def _with_numbered_inner_hits(query: VectorQuery, number: int) -> VectorQuery:
    """The query with another name of its inner hits: engines require a different one for each clause."""
    inner_hits = query.nested_parameters.get("inner_hits")
    if inner_hits is not None:
        inner_hits = inner_hits | {"name": f"{inner_hits.get('name', query.field)}.{number}"}
        return replace(query, nested_parameters=query.nested_parameters | {"inner_hits": inner_hits})
    return query if query.inner_hits is None else replace(query, inner_hits=f"{query.inner_hits}.{number}")


def _larger(one: float | None, other: float | None) -> float | None:
    return max((value for value in (one, other) if value is not None), default=None)


def index_filter(indices: Sequence[str]) -> Json:
    """Restricts a clause to indices of one model.

    The target of an alias may change to an index of another model between the lookup and the search; its shards then
    match nothing. Each shard evaluates this by its name, without reading a document.
    """
    return {"terms": {"_index": list(indices)}}


def knn_section(semantic: SemanticQuery, section: Json, vector: QueryVector, inner_hits: str | None) -> Json:
    """Elasticsearch's `knn` section of a search with the vector in place of the text.

    Args:
        vector: *Shape:* ``(dimensions,)``.
    """
    target, meta = semantic.target, semantic.target.meta
    section = {name: value for name, value in section.items() if name != "query_vector_builder"}
    indices = [index for part in target.groups for index in part.indices]
    section |= {"field": vector_path(target.name, meta), "query_vector": query_numbers(vector, semantic.element_type)}
    section["filter"] = combine_filters(semantic.filter, index_filter(indices))
    oversample = target.groups[0].oversample(target.name)
    if oversample is not None:
        section.setdefault("rescore_vector", {"oversample": oversample})
    if inner_hits is not None and meta.passages is not None:
        section.setdefault("inner_hits", chunk_inner_hits(target.name, inner_hits))
    return section


def combine_filters(*filters: Json | None) -> Json | None:
    """One query that matches what all filters match; None if there are none."""
    given = [query for query in filters if query is not None]
    return and_query(*given) if given else None


class CandidateCounts:
    """Candidate counts of the kNN queries of one request: different for each k.

    OpenSearch treats two kNN queries of a bool as one if field, vector, filter and `ef_search` are equal, even if
    their k differs (seen on 3.6.0, engine lucene): two in `should` both return the k of the first, and a `must` loses a
    narrower `filter`. Elasticsearch distinguishes them.

    Args:
        are_matched: See `EngineInfo.knn_matches_candidates`.
    """

    def __init__(self, *, are_matched: bool = False) -> None:
        self.are_matched = are_matched
        self._k: dict[int, int] = {}  # candidate count → k

    def distinct(self, query: VectorQuery) -> VectorQuery:
        """The query, with more candidates if a query with another k has as many."""
        count = max(query.candidates, query.oversampled_k)
        counts = chain(range(count, MAX_K + 1), range(count - 1, query.oversampled_k - 1, -1))
        free = next((number for number in counts if self._k.setdefault(number, query.k) == query.k), count)
        return replace(query, num_candidates=free)


# Parameters that decide which shards a search looks at.
_SHARD_PARAMETERS = (*EXPRESSION_OPTIONS, "routing", "preference")
# Key of a query (`cutoff_key`) → cosine of the k-th nearest document; None if there are fewer than k.
CutoffCosines = dict[str, float | None]
# Key → the query and its filters.
CutoffQueries = dict[str, tuple[SemanticQuery, Sequence[Json]]]

# Per request, so that one request does not occupy all connections.
_MAX_CONCURRENT = 8


class TopKCutoff:
    """Finds the cosine of the k-th nearest document by a search of the engine.

    Args:
        upstream: The engine.
    """

    def __init__(self, upstream: Upstream) -> None:
        self._upstream = upstream

    def select(self, queries: Iterable[tuple[SemanticQuery, Filters]]) -> CutoffQueries:
        """The queries of a search that would match more than k documents.

        Args:
            queries: The semantic queries of a search, each with the filters that apply to it.
        """
        engine_type = self._upstream.engine_type_or_default
        are_matched = self._upstream.knn_matches_candidates
        return {
            cutoff_key(semantic, filters): (semantic, filters)
            for semantic, filters in queries
            if filters is not None
            and (needs_cutoff(engine_type, semantic) or (are_matched and _exceeds_k_by_candidates(semantic)))
        }

    async def cosines(
        self,
        queries: CutoffQueries,
        vector: Callable[[SemanticQuery], QueryVector],
        body: Json,
        context: RewriteContext,
    ) -> CutoffCosines:
        """The cosine of the k-th nearest document for each query.

        Args:
            queries: See `select`.
            vector: Returns the vector of a query, *shape:* ``(dimensions,)``.
            body: The search.
            context: Its parameters, with the `preference` of the search, so that both ask the same copies of the
                shards. Copies are refreshed at different times, and a document that only the other one has would count.

        Raises:
            BadRequest: a setting of the indices does not allow the search.
            EngineUnreachable, RequestFailed: the search failed.
        """
        engine_type = self._upstream.engine_type_or_default
        semaphore = asyncio.Semaphore(_MAX_CONCURRENT)

        async def search(semantic: SemanticQuery, filters: Sequence[Json]) -> Json | None:
            kth = kth_hit_body(engine_type, semantic, vector(semantic), filters, body)
            async with semaphore:
                return await self._search(kth, body, context)

        answers = await gather_or_cancel(search(semantic, filters) for semantic, filters in queries.values())
        with self._upstream.parsing("POST _search"):
            return {
                key: kth_hit_cosine(engine_type, answer)
                for key, answer in zip(queries, answers, strict=True)
                if answer is not None
            }

    async def _search(self, kth: Json, body: Json, context: RewriteContext) -> Json | None:
        """The engine's response; None if it rejects the search, as it will reject the client's."""
        answer = await self._send(kth, body, context)
        if answer.status not in CLIENT_ERROR_STATUSES:
            # A lower cosine, or none, only lets more documents through: the search itself says what it lacks.
            return self._upstream.require_object(answer, "POST _search", partial_ok=True)
        reason = str(answer.body)
        if "max_result_window" in reason:
            raise BadRequest(
                f"k is {kth['from'] + 1}, more than the index.max_result_window of an index that is searched",
                "Ask for fewer documents, by k in the request or -k of es-sbert serve, or raise the setting.",
            )
        return None

    async def _send(self, kth: Json, body: Json, context: RewriteContext) -> UpstreamReply:
        options = {name: value for name, value in context.options.items() if name in _SHARD_PARAMETERS}
        credentials, expression = credential_headers(context.headers), context.expression or "_all"
        if "pit" in body:  # a point in time determines the indices
            return await self._upstream.request("POST", "/_search", credentials, kth)
        if len(expression) <= MAX_EXPRESSION_LENGTH:
            target = f"/{expression}/_search?{urlencode(options)}"
            return await self._upstream.request("POST", target, credentials, kth)
        # Names of an `_msearch` go into its body.
        header = {"index": [unquote(name) for name in expression.split(",")], **options}
        lines = orjson.dumps(header) + b"\n" + orjson.dumps(kth) + b"\n"
        reply = await self._upstream.request("POST", "/_msearch", credentials, lines, "application/x-ndjson")
        if reply.status != 200:
            return reply
        with self._upstream.parsing("POST /_msearch"):
            [answer] = reply.body["responses"]
            return UpstreamReply(int(answer.get("status", 200)), answer)


def cutoff_key(semantic: SemanticQuery, filters: Sequence[Json]) -> str:
    """Key of a query and its filters, on which the k-th nearest document depends."""
    return repr((semantic, semantic.target.name, semantic.target.indices, list(filters)))


# Members of a search that determine its documents and fields: a point in time, runtime fields.
_DOCUMENT_SET_MEMBERS = ("pit", "runtime_mappings", "derived")
# Scores are float32: the k-th document itself must not fall below its own cosine.
_FLOAT32_TOLERANCE = 1e-6


def needs_cutoff(engine_type: EngineType, semantic: SemanticQuery) -> bool:
    """Whether a query would match more than k documents, where a kNN query matches k of each shard.

    A query on a `flat` field matches all documents on Elasticsearch 9 and on OpenSearch, and one on a quantized field
    matches all rescored documents on OpenSearch. Apart from that, native queries (`knn`, `neural`) keep k documents of
    each shard by definition.
    """
    if any(_matches_more_than_k(engine_type, semantic, part) for part in semantic.target.groups):
        return True
    return semantic.target.shards > 1 and semantic.syntax not in _NATIVE_SYNTAXES


def _exceeds_k_by_candidates(semantic: SemanticQuery) -> bool:
    """Whether a query has more than k candidates, on an engine that matches all of them.

    The engine's own queries have k, unless they name more. They also have k if a minimum cosine would change more than
    their number: it drops passages of a document, and compares with the cosines of float32 vectors.
    """
    if semantic.syntax not in _NATIVE_SYNTAXES:
        return True
    is_altered_by_minimum = "expand_nested_docs" in semantic.native or semantic.oversample == 0
    return semantic.num_candidates is not None and not is_altered_by_minimum


def _matches_more_than_k(engine_type: EngineType, semantic: SemanticQuery, part: SearchScope) -> bool:
    is_rescored = part.oversample(part.name) is not None and semantic.oversample != 0
    oversampled = engine_type is EngineType.OPENSEARCH and is_rescored
    # The type in a remote cluster is unknown.
    return oversampled or part.meta.index_type == IndexType.FLAT or any(map(is_remote_name, part.indices))


def kth_hit_body(
    engine_type: EngineType, semantic: SemanticQuery, vector: QueryVector, filters: Sequence[Json], search: Json
) -> Json:
    """A search for only the k-th nearest document.

    Args:
        vector: *Shape:* ``(dimensions,)``.
        filters: What every hit must match.
        search: The search that contains the query.
    """
    # The score must be that of the nearest passage, even if the client's `nested` query scores in another way.
    plain = replace(semantic, boost=1.0, nested=None)
    query = semantic_clause(engine_type, plain, vector, filters, None, CandidateCounts())
    same = {name: search[name] for name in _DOCUMENT_SET_MEMBERS if name in search}
    only_kth = {"from": semantic.k - 1, "size": 1, "_source": False, "track_total_hits": False}
    return {"query": query, **same, **only_kth}


def kth_hit_cosine(engine_type: EngineType, answer: Json) -> float | None:
    """The cosine of the k-th nearest document; None if there are fewer."""
    hits = answer["hits"]["hits"]
    if not hits:
        return None
    # Scores are the same for all index types.
    return max(-1.0, cosine_from_score(hits[0]["_score"], engine_type, SearchMethod.KNN) - _FLOAT32_TOLERANCE)
