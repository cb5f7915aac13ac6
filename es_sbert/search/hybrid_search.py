"""Hybrid search: a semantic search and a keyword search, fused by rank, with exact matches first.

One `_msearch` asks for the nearest documents, for the best of the keyword search (BM25), and for
the documents that hold the words of the query as they are. `rank_fusion.py` orders them. The gateway does the same for
full-text queries of applications.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from es_sbert.engines.engine_info import EngineType
from es_sbert.engines.rest import Json
from es_sbert.errors import UsageError
from es_sbert.index.text_template import TextTemplate
from es_sbert.search.rank_fusion import (
    EXACT_HITS,
    FusedDocument,
    exact_match_query,
    fuse_rankings,
    read_exact_matches,
)
from es_sbert.search.search_request import (
    SEARCH_DEFAULTS,
    SearchOptions,
    SearchRequest,
    build_vector_query,
    page_body,
)
from es_sbert.search.search_result import HybridHit, HybridResult, ResponseReader, total_hits
from es_sbert.search.search_scope import SearchScope
from es_sbert.search.vector_query import check_query, search_body
from es_sbert.vectors import Vectors

LEXICAL = "lexical"  # name of the ranking by keywords; that of the vectors has the field's name
EXACT = "exact"  # name of the search for exact matches
DEFAULT_DEPTH = 100  # documents of each ranking, or k if that is more

_DocumentKey = tuple[str, str]  # index and id


# The semantic and the keyword weight, of which only the ratio matters. Measured (docs/results.md, Measured once): the
# best mean over three collections, or close to it.
DEFAULT_WEIGHTS = (3.0, 1.0)


def keyword_query(text: str, fields: Sequence[str]) -> Json:
    """Build a keyword query for a text in one field, or in several (the best one counts)."""
    if len(fields) == 1 and "^" not in fields[0]:  # a boost, which only `multi_match` reads
        return {"match": {fields[0]: text}}
    return {"multi_match": {"query": text, "fields": list(fields)}}


def query_in_scope(scope: SearchScope, fields: Sequence[str], query_for: Callable[[Sequence[str]], Json]) -> Json:
    """Build a query on fields, with a `nested` query around those of nested objects: the best object of a document
    counts.

    A field may be in a nested object of one index and in a plain object of another, where OpenSearch refuses `nested`.

    Args:
        fields: At least one.
        query_for: Creates the query on some of the fields.
    """
    indices_by_paths: dict[tuple[str | None, ...], list[str]] = {}
    for index in scope.all_indices:
        paths = tuple(scope.nested_path(index, field.partition("^")[0]) for field in fields)
        indices_by_paths.setdefault(paths, []).append(index)
    queries: list[Json] = []
    for paths, indices in indices_by_paths.items():
        parts: list[Json] = []
        for path in dict.fromkeys(paths):
            query = query_for([field for field, own in zip(fields, paths, strict=True) if own == path])
            parts.append(query if path is None else {"nested": {"path": path, "query": query, "score_mode": "max"}})
        query = parts[0] if len(parts) == 1 else {"dis_max": {"queries": parts}}
        if len(indices_by_paths) > 1:
            query = {"bool": {"must": [query], "filter": [{"terms": {"_index": indices}}]}}
        queries.append(query)
    return queries[0] if len(queries) == 1 else {"dis_max": {"queries": queries}}


class HybridOptions(SearchOptions, total=False):
    """Keyword arguments of a hybrid search, in addition to those of any search; all may be left out.

    Attributes:
        weights: Semantic and keyword weight; the default is measured, see docs/search.md.
        lexical_fields: Fields of the keyword query and of exact matches; by default those of the embedded text.
        lexical: Query in the engine's language instead of the keyword query.
        min_cosine: Minimum cosine of the semantic search; by default the value that `es-sbert index calibrate --save`
            stored. -1 drops nothing.
    """

    weights: Sequence[float] | None
    lexical_fields: Sequence[str] | None
    lexical: Json | None


HYBRID_DEFAULTS: dict[str, object] = dict.fromkeys(HybridOptions.__annotations__) | SEARCH_DEFAULTS


def build_keyword_queries(scope: SearchScope, text: str, options: HybridOptions) -> tuple[Json, Json | None]:
    """Build the queries by the words of a text.

    Returns:
        The query that ranks documents by their words, and the one that finds exact matches; None if there can be none.

    Raises:
        UsageError: options conflict, or no field is set and the mapping does not say which ones are embedded.
    """
    query, fields = options.get("lexical"), options.get("lexical_fields")
    if query is not None and fields is not None:
        raise UsageError("lexical and lexical_fields cannot be combined", "Pass one of the two.")
    if query is not None:
        check_query(query, "the lexical query")
    if fields is None:
        templates = [TextTemplate.parse(field.meta.text) for field in scope.fields if field.meta.text is not None]
        if len(templates) == len(scope.fields):
            fields = list(dict.fromkeys(name for template in templates for name in template.fields))
        elif query is not None:
            return query, None
        else:
            raise UsageError(
                "the mapping does not say which fields the embedded text is made of",
                "Set the fields: lexical_fields=['body'].",
            )
    if not fields:
        raise UsageError("a keyword query needs at least one field", "Set the fields: lexical_fields=['body'].")

    def exact(parameters: Json) -> Json:
        return query_in_scope(scope, fields, lambda some: {"multi_match": parameters | {"fields": list(some)}})

    if query is None:
        query = query_in_scope(scope, fields, lambda some: keyword_query(text, some))
    return query, exact_match_query(text, exact)


class HybridReader(ResponseReader):
    """Reads the responses to the searches of a hybrid search."""

    def read_hybrid(
        self,
        answers: Mapping[str, Json],
        *,
        weights: Mapping[str, float],
        depth: int,
        k: int,
    ) -> HybridResult:
        """Fuse the responses.

        Args:
            answers: Vector field, `LEXICAL` or `EXACT` → response.
            weights, depth: See `fuse_rankings`.
            k: Number of fused hits to return.
        """
        found = {
            name: {(hit["_index"], hit["_id"]): hit for hit in answer["hits"]["hits"]}
            for name, answer in answers.items()
        }
        exact = found.get(EXACT, {})
        fused = fuse_rankings(
            {name: list(hits) for name, hits in found.items() if name != EXACT},
            depth=depth,
            weights=weights,
            matches=read_exact_matches([(key, hit["_score"]) for key, hit in exact.items()]),
        )
        hits = [self._hybrid_hit(document, found) for document in fused[:k]]
        took = max(answer["took"] for answer in answers.values())
        by_words = total_hits(answers[LEXICAL])
        others = [document for document in fused if not _matches_words(document.key, found)]
        total = None if by_words is None else by_words + len(others)
        return HybridResult(tuple(hits), took, self._method, total)

    def _hybrid_hit(
        self, document: FusedDocument[_DocumentKey], found: Mapping[str, Mapping[_DocumentKey, Json]]
    ) -> HybridHit:
        raw = {name: hits[document.key] for name, hits in found.items() if document.key in hits}
        near = raw.get(self._scope.name)
        merged: Json = {}
        for hit in raw.values():  # each may have members that the others lack: inner hits, highlights
            merged |= hit | {"inner_hits": merged.get("inner_hits", {}) | hit.get("inner_hits", {})}
        return HybridHit(
            id=merged["_id"],
            score=document.score,
            cosine=None if near is None else self.cosine(near["_score"]),
            lexical=raw[LEXICAL]["_score"] if LEXICAL in raw else None,
            source=merged.get("_source", {}),
            index=merged["_index"],
            ranks=document.ranks,
            match=None if document.match is None else document.match.label,
            passage=None if near is None else self.passage(merged),
            highlight=merged.get("highlight", {}),
        )


def _matches_words(key: _DocumentKey, found: Mapping[str, Mapping[_DocumentKey, Json]]) -> bool:
    """Whether the keyword query matches a document, also one beyond its first `depth` hits."""
    return key in found[LEXICAL] or any(
        LEXICAL in hits.get(key, {}).get("matched_queries", ()) for hits in found.values()
    )


def hybrid_request(
    engine_type: EngineType,
    scope: SearchScope,
    vector: Vectors,
    k: int,
    options: HybridOptions,
    text: str,
) -> SearchRequest[HybridResult]:
    """Build the request for a hybrid search, whose minimum cosine is the calibrated one if the search sets none.

    Args:
        vector: The query vector, *shape:* ``(dimensions,)``.

    Raises:
        UsageError: an option is invalid, or a hybrid search does not support it.
    """
    if options.get("aggregations") is not None or options.get("sort") is not None:
        raise UsageError(
            "a hybrid search does not support sort or aggregations",
            "Leave them out, search without hybrid, or send the query to `es-sbert serve --hybrid`, which does.",
        )
    depth, (semantic_weight, lexical_weight) = max(DEFAULT_DEPTH, k), _read_weights(options.get("weights"))
    method = scope.method(engine_type, options.get("exact", False))
    query = build_vector_query(scope, vector, depth, options)
    if query.min_cosine is None:
        query = replace(query, min_cosine=scope.min_cosine)
    ranked, exact = build_keyword_queries(scope, text, options)
    shown = page_body(engine_type, scope.name, depth, options, text)
    # A named query that all documents pass says which of them the words match.
    named = {"bool": {"must": [ranked], "_name": LEXICAL}}
    shown_with_name = shown | {"post_filter": {"bool": {"should": [{"match_all": {}}, named]}}}
    bodies = {scope.name: search_body(engine_type, method, query) | shown_with_name}
    filters = {} if query.filter is None else {"filter": [query.filter]}
    bodies[LEXICAL] = {"query": {"bool": {"must": [ranked], **filters}}} | shown
    if exact is not None:
        bodies[EXACT] = {"query": {"bool": {"must": [exact], **filters}}} | shown_with_name
        bodies[EXACT] |= {"size": EXACT_HITS, "track_total_hits": False}
    weights = {scope.name: semantic_weight, LEXICAL: lexical_weight}
    reader = HybridReader(engine_type, method, scope)

    def read(answers: Sequence[Json]) -> HybridResult:
        found = dict(zip(bodies, answers, strict=True))
        return reader.read_hybrid(found, weights=weights, depth=depth, k=k)

    return SearchRequest(scope.all_indices, tuple(bodies.values()), method, read)


def _read_weights(weights: Sequence[float] | None) -> tuple[float, float]:
    """Read the semantic and the keyword weight."""
    if weights is None:
        return DEFAULT_WEIGHTS
    try:
        semantic, lexical = weights
        is_valid = 0.0 < semantic < math.inf and 0.0 < lexical < math.inf
    except (TypeError, ValueError):
        is_valid = False
    if not is_valid:
        raise UsageError(
            f"the weights must be two finite numbers above 0, not {weights!r}",
            "Set the semantic and the keyword weight: (3, 1). To leave one search out, use the other search alone.",
        )
    return semantic, lexical
