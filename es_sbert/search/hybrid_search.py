"""Hybrid search: semantic and keyword search combined by one of three fusions.

| fusion | where | score | engines |
|---|---|---|---|
| `rrf` | in the client, from the two searches of one `_msearch` | weight / (60 + rank) | both |
| `weighted` | on the server: a bool with two boosted clauses | weight × (1 + cosine) / 2 + weight × BM25 | both |
| `normalized` | on the server: `hybrid` and a search pipeline | weight × score, scaled to 0…1 | OpenSearch |

BM25 has no upper bound and depends on the collection and on the length of the query, and Elasticsearch's is 2.2 times
OpenSearch's. So the weights of `weighted` fit one collection on one engine. `rrf` needs no such tuning. None of them
needs a paid license.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Any, ClassVar, Generic, TypeVar

from es_sbert.engines.engine_info import EngineType
from es_sbert.engines.rest import Json
from es_sbert.errors import UnsupportedEngine, UsageError
from es_sbert.index.text_template import TextTemplate
from es_sbert.search.search_request import (
    SEARCH_DEFAULTS,
    SearchOptions,
    SearchParams,
    SearchRequest,
    build_vector_queries,
    check_query_text,
    check_sort,
    named_vector_clause,
)
from es_sbert.search.search_result import HybridHit, HybridResult, ResponseReader, total_hits
from es_sbert.search.search_scope import SearchScope, SearchTarget
from es_sbert.search.vector_query import MAX_K, VectorQuery, check_query, score_from_cosine, search_body
from es_sbert.vectors import Vectors

LEXICAL = "lexical"  # name of the keyword clause; those of vector fields are `semantic_name`
RANK_CONSTANT = 60  # from the paper on reciprocal rank fusion

RankedKey = TypeVar("RankedKey", bound=Hashable)


@dataclass(frozen=True)
class FusedDocument(Generic[RankedKey]):
    """A document of at least one ranking.

    Attributes:
        key: The document.
        score: Sum of weight / (constant + rank) over the rankings that contain it.
        ranks: Ranking → rank in it, from 1.
    """

    key: RankedKey
    score: float
    ranks: dict[str, int]


def reciprocal_rank_fusion(
    rankings: Mapping[str, Sequence[RankedKey]],
    *,
    weights: Mapping[str, float] | None = None,
    constant: int = RANK_CONSTANT,
) -> list[FusedDocument[RankedKey]]:
    """Fuse rankings into one, best first. On equal scores, the rank in the earlier ranking decides.

    Args:
        rankings: Name → documents, best first, each once.
        weights: Weight of each ranking; 1 by default.
        constant: The larger it is, the less the first ranks count.

    Raises:
        UsageError: the constant is below 1, or a weight is not above 0 or not finite.
    """
    if not constant >= 1:
        raise UsageError(f"the rank constant must be at least 1, not {constant}", f"The default is {RANK_CONSTANT}.")
    by_name = weights or {}
    for name, weight in by_name.items():
        if not 0.0 < weight < float("inf"):
            raise UsageError(f"the weight of {name} must be above 0 and finite, not {weight:g}", "Set another weight.")
    ranks: dict[RankedKey, dict[str, int]] = {}
    for name, ranking in rankings.items():
        for rank, key in enumerate(ranking, start=1):
            ranks.setdefault(key, {})[name] = rank
    fused = [
        FusedDocument(key, sum(by_name.get(name, 1.0) / (constant + rank) for name, rank in places.items()), places)
        for key, places in ranks.items()
    ]
    return sorted(fused, key=lambda document: -document.score)


class Fusion(StrEnum):
    """Method of combining the two rankings."""

    RRF = "rrf"
    WEIGHTED = "weighted"
    NORMALIZED = "normalized"


def supported_fusions(engine_type: EngineType) -> list[Fusion]:
    """Return the fusions that an engine can run."""
    return [each for each in Fusion if each is not Fusion.NORMALIZED or engine_type is EngineType.OPENSEARCH]


@dataclass(frozen=True)
class FusionWeights:
    """The weights of both rankings; only their ratio matters.

    Attributes:
        semantic, lexical: Above 0.

    Raises:
        UsageError: a weight is not above 0, or not finite.
    """

    semantic: float
    lexical: float

    def __post_init__(self) -> None:
        for name in ("semantic", "lexical"):
            if not 0.0 < getattr(self, name) < float("inf"):
                raise UsageError(
                    f"the {name} weight must be above 0 and finite, not {getattr(self, name):g}",
                    "Set the semantic and the keyword weight; to leave one search out, use the other search alone.",
                )


def keyword_query(text: str, fields: Sequence[str]) -> Json:
    """Build a keyword query for a text in one field, or in several (the best one counts).

    Raises:
        UsageError: no field is given.
    """
    if not fields:
        raise UsageError("a keyword query needs at least one field", "Set the fields: lexical_fields=['body'].")
    if len(fields) == 1 and "^" not in fields[0]:  # a boost, which only `multi_match` reads
        return {"match": {fields[0]: text}}
    return {"multi_match": {"query": text, "fields": list(fields)}}


def scope_keyword_query(scope: SearchScope, text: str, fields: Sequence[str]) -> Json:
    """Like `keyword_query`, with a `nested` query around fields of nested objects: the best object of a document
    counts.

    A field may be in a nested object of one index and in a plain object of another, where OpenSearch refuses `nested`.

    Raises:
        UsageError: no field is given.
    """
    indices_by_paths: dict[tuple[str | None, ...], list[str]] = {}
    for index in scope.all_indices:
        paths = tuple(scope.nested_path(index, field.partition("^")[0]) for field in fields)
        indices_by_paths.setdefault(paths, []).append(index)
    queries: list[Json] = []
    for paths, indices in indices_by_paths.items():
        keyword_queries = [_nested_keyword_query(text, fields, paths, path) for path in dict.fromkeys(paths)]
        query = keyword_queries[0] if len(keyword_queries) == 1 else {"dis_max": {"queries": keyword_queries}}
        if len(indices_by_paths) > 1:
            query = {"bool": {"must": [query], "filter": [{"terms": {"_index": indices}}]}}
        queries.append(query)
    return queries[0] if len(queries) == 1 else {"dis_max": {"queries": queries}}


def _nested_keyword_query(text: str, fields: Sequence[str], paths: Sequence[str | None], path: str | None) -> Json:
    """Build the keyword query for the fields that have this path."""
    query = keyword_query(text, [field for field, own in zip(fields, paths, strict=True) if own == path])
    return query if path is None else {"nested": {"path": path, "query": query, "score_mode": "max"}}


def lexical_clause(query: Json, filter: Json | None, weight: float = 1.0) -> Json:
    """Wrap a keyword query in a named clause with the filter of the vector search."""
    clause: Json = {"must": [query], "_name": LEXICAL}
    if filter is not None:
        clause["filter"] = [filter]
    return {"bool": clause if weight == 1.0 else clause | {"boost": weight}}


def normalization_pipeline(
    weights: FusionWeights, *, normalization: str = "min_max", combination: str = "arithmetic_mean"
) -> Json:
    """Build a search pipeline for OpenSearch's `hybrid` query.

    It is the value of `search_pipeline` in a search body, or the body of `PUT /_search/pipeline/NAME`.

    Args:
        weights: The weights of both rankings. They are scaled to a sum of 1, as OpenSearch requires.
        normalization: `min_max`, `l2` or `z_score`.
        combination: `arithmetic_mean`, `geometric_mean` or `harmonic_mean`.
    """
    total = weights.semantic + weights.lexical
    semantic = round(weights.semantic / total, 6)
    shares = [semantic, round(1.0 - semantic, 6)]
    processor = {
        "normalization": {"technique": normalization},
        "combination": {"technique": combination, "parameters": {"weights": shares}},
    }
    return {"phase_results_processors": [{"normalization-processor": processor}]}


DEFAULT_DEPTH = 100
# Measured with benchmarks/hybrid.py: the best mean over three collections, or close to it.
DEFAULT_WEIGHTS = {Fusion.RRF: FusionWeights(3.0, 1.0), Fusion.NORMALIZED: FusionWeights(0.7, 0.3)}
# Elasticsearch multiplies BM25 by 2.2 (k1 + 1). Lucene and OpenSearch leave this factor out: it changes no order.
DEFAULT_BOOSTS = {EngineType.ELASTICSEARCH: FusionWeights(400.0, 1.0), EngineType.OPENSEARCH: FusionWeights(200.0, 1.0)}


class HybridOptions(SearchOptions, total=False):
    """Keyword arguments of a hybrid search, in addition to those of any search; all may be left out.

    Attributes:
        fusion: `rrf` (default), `weighted` or `normalized` (OpenSearch only).
        weights: Semantic and keyword weight; the defaults are measured, see docs/search.md.
        lexical_fields: Fields of the keyword query; by default those of the embedded text.
        lexical: Query in the engine's language instead of the keyword query.
        depth: Number of documents that each ranking contributes, at least k. Default: 100, or k if that is more.
        rank_constant: Constant of reciprocal rank fusion; default 60.
        pipeline: Name of a search pipeline in OpenSearch, instead of one built from the weights.
        min_cosine: Minimum cosine of the semantic search; by default the value that `es-sbert index calibrate --save`
            stored. -1 drops nothing.
    """

    fusion: str
    weights: Sequence[float] | None
    lexical_fields: Sequence[str] | None
    lexical: Json | None
    depth: int | None
    rank_constant: int
    pipeline: str | None


_HYBRID_ONLY = HybridOptions.__annotations__.keys() - SearchOptions.__annotations__.keys()
HYBRID_DEFAULTS: dict[str, object] = {
    **SEARCH_DEFAULTS,
    **dict.fromkeys(_HYBRID_ONLY),
    "fusion": str(Fusion.RRF),
    "rank_constant": RANK_CONSTANT,
}


@dataclass(frozen=True)
class HybridParams:
    """The options of a hybrid search that no other search has, see `HybridOptions`."""

    fusion: Fusion
    weights: FusionWeights
    words: Json
    depth: int
    rank_constant: int
    pipeline: str | None


def read_hybrid_params(engine_type: EngineType, scope: SearchScope, search: HybridSearch) -> HybridParams:
    """Read the options of a search, and fill in the defaults.

    Raises:
        UsageError: the fusion is unknown, options conflict, or a value is out of range.
        UnsupportedEngine: the engine does not support the fusion.
    """
    k, options = search.params.k, search.options
    try:
        fusion = Fusion(options.get("fusion", Fusion.RRF))
    except ValueError:
        raise UsageError(f"unknown fusion {options.get('fusion')!r}", f"Use one of {', '.join(Fusion)}.") from None
    if fusion not in supported_fusions(engine_type):
        raise UnsupportedEngine(
            "the fusion normalized requires OpenSearch",
            "Use rrf or weighted; Elasticsearch's own retrievers need a paid license.",
        )
    weights, pipeline = options.get("weights"), options.get("pipeline")
    if pipeline is not None and (fusion is not Fusion.NORMALIZED or weights is not None):
        raise UsageError(
            "a search pipeline requires the fusion normalized, and cannot be combined with weights",
            "Use the fusion normalized without weights, which the pipeline defines; or leave the pipeline out.",
        )
    depth = options.get("depth")
    depth = max(DEFAULT_DEPTH, k) if depth is None else depth
    if not k <= depth <= MAX_K:
        raise UsageError(f"depth is {depth}", f"Set it to at least k ({k}) and at most {MAX_K:,}.")
    default = DEFAULT_BOOSTS[engine_type] if fusion is Fusion.WEIGHTED else DEFAULT_WEIGHTS[fusion]
    try:
        fusion_weights = default if weights is None else FusionWeights(*weights)
    except UsageError:  # caught first, because it is a ValueError too
        raise
    except (TypeError, ValueError):
        raise UsageError(
            f"the weights must be two numbers, not {weights!r}", "Set the semantic and the keyword weight: (3, 1)."
        ) from None
    words = _lexical_query(scope, search.text, options)
    return HybridParams(fusion, fusion_weights, words, depth, options.get("rank_constant", RANK_CONSTANT), pipeline)


def _lexical_query(scope: SearchScope, text: str, options: HybridOptions) -> Json:
    query, fields = options.get("lexical"), options.get("lexical_fields")
    if query is not None and fields is not None:
        raise UsageError("lexical and lexical_fields cannot be combined", "Pass one of the two.")
    if query is not None:
        check_query(query, "the lexical query")
        return query
    if fields is None:
        templates = [TextTemplate.parse(field.meta.text) for field in scope.fields if field.meta.text is not None]
        if len(templates) < len(scope.fields):
            raise UsageError(
                "the mapping does not say which fields the embedded text is made of",
                "Set the fields: lexical_fields=['body'].",
            )
        fields = list(dict.fromkeys(name for template in templates for name in template.fields))
    if not fields:
        return keyword_query(text, fields)
    return scope_keyword_query(scope, text, fields)


class HybridReader(ResponseReader):
    """Reads the responses of a hybrid search."""

    def read_hybrid(self, answer: Json, lexical_weight: float) -> HybridResult:
        """Read the response to a search with named clauses, one of which is the keyword query."""
        hits = []
        for hit in answer["hits"]["hits"]:
            words = hit.get("matched_queries", {}).get(LEXICAL)
            lexical = None if words is None else words / lexical_weight
            hits.append(self._hybrid_hit(hit, hit["_score"], self.named_cosines(hit), lexical, {}))
        aggregations = answer.get("aggregations", {})
        return HybridResult(tuple(hits), answer["took"], self._method, total_hits(answer), aggregations)

    def read_rrf(
        self, answers: Mapping[str, Json], *, weights: Mapping[str, float], constant: int, offset: int, size: int
    ) -> HybridResult:
        """Fuse the responses to a keyword search and to one search for each vector field, by rank.

        Args:
            answers: Ranking (`LEXICAL` or a vector field) → response.
            weights, constant: See `reciprocal_rank_fusion`.
            offset, size: The page of the fused hits to return.
        """
        by_ranking = {
            name: {(hit["_index"], hit["_id"]): hit for hit in answer["hits"]["hits"]}
            for name, answer in answers.items()
        }
        fused = reciprocal_rank_fusion(
            {name: list(hits) for name, hits in by_ranking.items()}, weights=weights, constant=constant
        )
        hits = []
        for document in fused[offset : offset + size]:
            raw = {name: by_ranking[name][document.key] for name in document.ranks}
            cosines = {name: self.cosine(name, raw[name]["_score"]) for name in raw if name != LEXICAL}
            words = raw[LEXICAL]["_score"] if LEXICAL in raw else None
            merged: Json = {}
            for hit in raw.values():  # each may have members that the others lack: inner hits of its field, highlights
                merged |= hit | {"inner_hits": merged.get("inner_hits", {}) | hit.get("inner_hits", {})}
            hits.append(self._hybrid_hit(merged, document.score, cosines, words, document.ranks))
        return HybridResult(tuple(hits), max(answer["took"] for answer in answers.values()), self._method, len(fused))

    def _hybrid_hit(
        self, hit: Json, score: float, cosines: Mapping[str, float], lexical: float | None, ranks: dict[str, int]
    ) -> HybridHit:
        nearest = max(cosines, key=cosines.__getitem__, default=None)
        return HybridHit(
            id=hit["_id"],
            score=score,
            cosine=None if nearest is None else cosines[nearest],
            lexical=lexical,
            source=hit.get("_source", {}),
            index=hit["_index"],
            ranks=ranks,
            passage=None if nearest is None else self.passage(hit, nearest),
            highlight=hit.get("highlight", {}),
        )


@dataclass(frozen=True)
class HybridSearch:
    """A hybrid search for a text."""

    text: str
    params: SearchParams
    options: HybridOptions
    embeds_text: ClassVar[bool] = True

    @classmethod
    def from_options(cls, text: str, k: int, options: HybridOptions) -> HybridSearch:
        """Create the search. Raises UsageError if the text is not a str, empty or too long, or an option is invalid."""
        check_query_text(text)
        shared: Any = {name: value for name, value in options.items() if name not in _HYBRID_ONLY}
        return cls(text, SearchParams.from_options(k, shared), options)

    def request(self, engine_type: EngineType, target: SearchTarget) -> SearchRequest[HybridResult]:
        # Stored minimum cosines apply only to queries that the documents' own model embeds, not to those of the other
        # model of a pair.
        is_pair = target.loaded_encoder.info.query_fingerprint
        minima = {} if is_pair else target.scope.min_cosines
        return hybrid_request(engine_type, target.scope, target.encode(self.text), self, minima)


def hybrid_request(
    engine_type: EngineType,
    scope: SearchScope,
    vectors: Mapping[str, Vectors],
    search: HybridSearch,
    min_cosines: Mapping[str, float] | None = None,
) -> SearchRequest[HybridResult]:
    """Build the request for a hybrid search.

    Args:
        vectors: As for `search_request`.
        min_cosines: Vector field → minimum cosine of its hits if the search sets none.

    Raises:
        UsageError: an option is invalid (see `VectorQuery`, `SearchParams`, `read_hybrid_params`), or the fusion does
            not support it.
        UnsupportedEngine: the engine does not support the fusion.
    """
    params, hybrid = search.params, read_hybrid_params(engine_type, scope, search)
    method = scope.method(engine_type, params.exact)
    queries = build_vector_queries(scope, vectors, params, hybrid.depth)
    if params.min_cosine is None and min_cosines:
        queries = [replace(query, min_cosine=min_cosines.get(query.field)) for query in queries]
    if hybrid.fusion is Fusion.RRF:
        return _rrf_request(engine_type, scope, queries, search, hybrid)
    page = params.page(engine_type, scope.names, search.text)
    if hybrid.fusion is Fusion.WEIGHTED:
        check_sort(method, params)
        # The boost is scaled so that a cosine of 1 scores exactly the semantic weight.
        scale = score_from_cosine(1.0, engine_type, method)
        queries = [replace(query, boost=query.boost * hybrid.weights.semantic / scale) for query in queries]
        lexical_weight = hybrid.weights.lexical
        lexical = lexical_clause(hybrid.words, queries[0].filter, lexical_weight)
        body: Json = {"query": {"bool": {"should": [named_vector_clause(engine_type, method, queries), lexical]}}}
    else:
        if params.sort is not None:
            raise UsageError("normalized does not support sort", "Leave sort out, or use fusion weighted.")
        lexical_weight = 1.0
        clauses = [
            named_vector_clause(engine_type, method, queries),
            lexical_clause(hybrid.words, queries[0].filter),
        ]
        # `pagination_depth` is the number of hits per shard and clause that are scaled and combined.
        body = {"query": {"hybrid": {"queries": clauses, "pagination_depth": hybrid.depth}}}
        body["search_pipeline"] = hybrid.pipeline or normalization_pipeline(hybrid.weights)
    reader = HybridReader(engine_type, method, scope, queries)
    return SearchRequest(
        scope.all_indices,
        (body | page,),
        method,
        True,
        lambda answers: reader.read_hybrid(answers[0], lexical_weight),
        params.allow_partial,
        scope.routing,
    )


def _rrf_request(
    engine_type: EngineType,
    scope: SearchScope,
    queries: Sequence[VectorQuery],
    search: HybridSearch,
    hybrid: HybridParams,
) -> SearchRequest[HybridResult]:
    params = search.params
    if params.aggregations is not None or params.sort is not None:
        raise UsageError(
            "rrf runs in the client and does not support sort or aggregations",
            "Leave aggregations and sort out, or use fusion weighted.",
        )
    method = scope.method(engine_type, params.exact)
    offset, size = params.bounds()
    shown = replace(params, k=hybrid.depth, offset=0, size=None).page(engine_type, scope.names, search.text)
    bodies = {query.field: search_body(engine_type, method, query) | shown for query in queries}
    bodies[LEXICAL] = {"query": lexical_clause(hybrid.words, queries[0].filter)} | shown
    weights = {query.field: hybrid.weights.semantic * query.boost for query in queries}
    weights[LEXICAL] = hybrid.weights.lexical
    reader = HybridReader(engine_type, method, scope, queries)

    def read(answers: Sequence[Json]) -> HybridResult:
        named = dict(zip(bodies, answers, strict=True))
        return reader.read_rrf(named, weights=weights, constant=hybrid.rank_constant, offset=offset, size=size)

    searches = tuple(bodies.values())
    return SearchRequest(scope.all_indices, searches, method, False, read, params.allow_partial, scope.routing)
