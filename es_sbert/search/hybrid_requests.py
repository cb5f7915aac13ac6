"""As `requests`, for searches by words and meaning."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from es_sbert.encoder.types import Vectors
from es_sbert.engines.protocol import Flavour, Json
from es_sbert.errors import UnsupportedEngine, UsageError
from es_sbert.search.answers import LEXICAL, Reader
from es_sbert.search.filters import check_query
from es_sbert.search.fusion import RANK_CONSTANT
from es_sbert.search.hybrid import (
    Fusion,
    Weights,
    hybrid_query,
    lexical_clause,
    lexical_fields,
    normalization_pipeline,
    weighed,
    weighted_query,
    words_query,
)
from es_sbert.search.options import Asked, SearchOptions
from es_sbert.search.queries import search_body
from es_sbert.search.requests import Request, check_sort, vector_queries
from es_sbert.search.results import HybridResult
from es_sbert.search.searched import Searched
from es_sbert.search.vector_query import MAX_K, VectorQuery

DEPTH = 100
# By benchmarks/hybrid.py: the best means over three collections, or near them.
DEFAULT_WEIGHTS = {Fusion.RRF: Weights(3.0, 1.0), Fusion.NORMALIZED: Weights(0.7, 0.3)}
# Elasticsearch multiplies BM25 by 2.2 (k1 + 1), which Lucene and OpenSearch leave out as it changes no order.
DEFAULT_WEIGHTED = {Flavour.ELASTICSEARCH: Weights(400.0, 1.0), Flavour.OPENSEARCH: Weights(200.0, 1.0)}


class HybridOptions(SearchOptions, total=False):
    """Keyword arguments of a hybrid search, beside those of any search; all may be left out.

    Attributes:
        fusion: `rrf` (default), `weighted` or `normalized` (OpenSearch only).
        weights: Of meaning and of words; the defaults are measured, see docs/search.md.
        lexical_fields: Fields whose words count; the default are those of the embedded text.
        lexical: Query in the engine's language in place of the words in these fields.
        depth: Documents that each side brings in; at least k. Default: 100, or k.
        rank_constant: Of reciprocal rank fusion; default 60.
        pipeline: Name of a search pipeline in OpenSearch in place of one made of the weights.
    """

    fusion: str
    weights: tuple[float, float] | None
    lexical_fields: Sequence[str] | None
    lexical: Json | None
    depth: int | None
    rank_constant: int
    pipeline: str | None


_OWN = HybridOptions.__annotations__.keys() - SearchOptions.__annotations__.keys()


@dataclass(frozen=True)
class Blend:
    """The options of a hybrid search that no other search has, see `HybridOptions`."""

    fusion: Fusion
    weights: Weights
    words: Json
    depth: int
    rank_constant: int
    pipeline: str | None


def default_weights(fusion: Fusion, flavour: Flavour) -> Weights:
    """What each side counts where nobody says."""
    return DEFAULT_WEIGHTED[flavour] if fusion is Fusion.WEIGHTED else DEFAULT_WEIGHTS[fusion]


def split_options(options: HybridOptions) -> tuple[HybridOptions, SearchOptions]:
    """The options of a hybrid search alone, and those of any search."""
    own = {name: value for name, value in options.items() if name in _OWN}
    rest = {name: value for name, value in options.items() if name not in _OWN}
    return own, rest  # type: ignore[return-value]


def read_blend(flavour: Flavour, searched: Searched, text: str, k: int, options: HybridOptions) -> Blend:
    """The options as they were given, with their defaults.

    Raises:
        UsageError: an unknown fusion, options that do not go together, or a value out of range.
        UnsupportedEngine: a fusion that the engine lacks.
    """
    try:
        fusion = Fusion(options.get("fusion", Fusion.RRF))
    except ValueError:
        raise UsageError(f"there is no fusion {options.get('fusion')!r}", f"Use one of {', '.join(Fusion)}.") from None
    if fusion is Fusion.NORMALIZED and flavour is not Flavour.OPENSEARCH:
        raise UnsupportedEngine(
            "the fusion normalized is OpenSearch's own",
            "Use rrf or weighted; Elasticsearch's own retrievers need a paid licence.",
        )
    weights, pipeline = options.get("weights"), options.get("pipeline")
    if pipeline is not None and (fusion is not Fusion.NORMALIZED or weights is not None):
        raise UsageError(
            "a search pipeline is named together with weights or with another fusion than normalized",
            "Leave one of the two out: the pipeline has weights of its own.",
        )
    asked = options.get("depth")
    depth = max(DEPTH, k) if asked is None else asked
    if not k <= depth <= MAX_K:
        raise UsageError(f"depth is {depth}", f"Give at least k ({k}) and at most {MAX_K:,}.")
    return Blend(
        fusion=fusion, weights=default_weights(fusion, flavour) if weights is None else _weights(weights),
        words=_words(searched, text, options), depth=depth,
        rank_constant=options.get("rank_constant", RANK_CONSTANT), pipeline=pipeline,
    )  # fmt: skip


def _weights(given: tuple[float, float]) -> Weights:
    try:
        semantic, lexical = given
        return Weights(semantic, lexical)
    except (TypeError, ValueError):
        raise UsageError(f"the weights are {given!r}", "Give two numbers, of meaning and of words: (3, 1).") from None


def _words(searched: Searched, text: str, options: HybridOptions) -> Json:
    query, fields = options.get("lexical"), options.get("lexical_fields")
    if query is not None and fields is not None:
        raise UsageError("both a lexical query and fields for one are given", "Give one of the two.")
    if isinstance(fields, str):
        raise UsageError("lexical_fields is a text", f"Give a list of fields: [{fields!r}].")
    if query is not None:
        check_query(query, "the lexical query")
        return query
    if fields is None:
        fields = list(dict.fromkeys(name for field in searched.fields for name in lexical_fields(field.meta)))
    return words_query(text, fields)


def hybrid_request(flavour: Flavour, searched: Searched, vectors: Mapping[str, Vectors], asked: Asked, blend: Blend,
                   text: str) -> Request[HybridResult]:  # fmt: skip
    """A search by words and meaning.

    Args:
        vectors: As for `search_request`.

    Raises:
        UsageError: see `VectorQuery` and `Page`; what a fusion cannot do.
    """
    method = searched.method(flavour, asked.exact)
    asked = replace(asked, filter=searched.narrowed(asked.filter))
    queries = vector_queries(searched, vectors, asked, blend.depth)
    if blend.fusion is Fusion.RRF:
        return _rrf_request(flavour, searched, queries, asked, blend, text)
    page = asked.page.body(flavour, asked.k, searched.names, text)
    if blend.fusion is Fusion.WEIGHTED:
        check_sort(method, asked)
        queries = [weighed(flavour, method, query, blend.weights.semantic) for query in queries]
        body: Json = {"query": weighted_query(flavour, method, queries, blend.words, blend.weights)} | page
        lexical_weight = blend.weights.lexical
    else:
        if asked.page.sort is not None:
            raise UsageError("normalized scores are an order of their own", "Leave sort out, or use fusion weighted.")
        pipeline = blend.pipeline or normalization_pipeline(blend.weights)
        body = {"query": hybrid_query(method, queries, blend.words, blend.depth), "search_pipeline": pipeline} | page
        lexical_weight = 1.0
    reader = Reader(flavour, method, searched, queries)
    return Request(searched.indices, (body,), method, True, lambda answers: reader.hybrid(answers[0], lexical_weight))


def _rrf_request(flavour: Flavour, searched: Searched, queries: Sequence[VectorQuery], asked: Asked, blend: Blend,
                 text: str) -> Request[HybridResult]:  # fmt: skip
    if not asked.page.plain:
        raise UsageError(
            "reciprocal rank fusion happens in the client, which cannot sort or aggregate what it does not see",
            "Leave aggregations and sort out, or use fusion weighted.",
        )
    method = searched.method(flavour, asked.exact)
    offset, size = asked.page.within(asked.k)
    shown = replace(asked.page, offset=0, size=blend.depth).body(flavour, blend.depth, searched.names, text)
    bodies = {query.field: search_body(flavour, method, query) | shown for query in queries}
    bodies[LEXICAL] = {"query": lexical_clause(blend.words, asked.filter)} | shown
    weights = {query.field: blend.weights.semantic * query.boost for query in queries}
    weights[LEXICAL] = blend.weights.lexical
    reader = Reader(flavour, method, searched, queries)

    def read(answers: Sequence[Json]) -> HybridResult:
        named = dict(zip(bodies, answers, strict=True))
        return reader.fused(named, weights=weights, constant=blend.rank_constant, offset=offset, size=size)

    return Request(searched.indices, tuple(bodies.values()), method, False, read)
