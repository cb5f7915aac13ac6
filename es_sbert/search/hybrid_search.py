"""Hybrid search: a semantic search and a keyword search, fused by rank, with exact matches first.

One `_msearch` asks for the nearest documents, for the best of the keyword search (BM25), and for the documents that
hold the words of the query as they are. The gateway does the same for full-text queries of applications.

A user may look for one document by an order number, a person's name, a quoted sentence or a rare word. Neither the
cosine nor BM25 shows that a document is the right one. So one search finds the documents that match the query in four
ways:

| match | a document holds |
|---|---|
| `phrase` | all words of the query, one after the other |
| `all_words` | all words of the query |
| `literal` | all literal parts of the query: quoted phrases, and words like `ORD-48213`, `0x80070057` or `E_FAIL` |
| `prefix` | all words of the query; the last one may be the beginning of a word |

The documents of a row count as exact matches only if they are few. Many documents hold the words of an ordinary query,
and there the words say little.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import Enum
from typing import Generic, TypeVar

from es_sbert.engines.engine_info import EngineType
from es_sbert.engines.rest import Json
from es_sbert.errors import UsageError
from es_sbert.index.text_template import TextTemplate
from es_sbert.search.search_request import (
    SearchRequest,
    build_vector_query,
    hit_members,
    page_body,
    total_hits,
)
from es_sbert.search.search_result import HybridHit, HybridResult
from es_sbert.search.search_scope import SearchScope
from es_sbert.search.vector_query import SearchMethod, cosine_from_score, search_body
from es_sbert.settings import HybridOptions
from es_sbert.vectors import Vectors

LEXICAL = "lexical"  # name of the ranking by keywords; that of the vectors has the field's name
EXACT = "exact"  # name of the search for exact matches
DEFAULT_DEPTH = 100  # documents of each ranking, or k if that is more

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


def build_keyword_queries(scope: SearchScope, text: str, options: HybridOptions) -> tuple[Json, Json | None]:
    """Build the queries by the words of a text.

    Returns:
        The query that ranks documents by their words, and the one that finds exact matches; None if there can be none.

    Raises:
        UsageError: no field is set and the mapping does not say which ones are embedded.
    """
    fields = options.get("lexical_fields")
    if fields is None:
        templates = [TextTemplate.parse(field.meta.text) for field in scope.fields if field.meta.text is not None]
        if len(templates) < len(scope.fields):
            raise UsageError(
                "the mapping does not say which fields the embedded text is made of",
                "Set the fields: lexical_fields=['body'].",
            ).about("lexical_fields")
        fields = list(dict.fromkeys(name for template in templates for name in template.fields))
    if not fields:
        raise UsageError("a keyword query needs a field", "Set lexical_fields=['body'].").about("lexical_fields")

    def exact(parameters: Json) -> Json:
        return query_in_scope(scope, fields, lambda some: {"multi_match": parameters | {"fields": list(some)}})

    ranked = query_in_scope(scope, fields, lambda some: keyword_query(text, some))
    return ranked, exact_match_query(text, exact)


def read_hybrid(
    answers: Mapping[str, Json],
    engine_type: EngineType,
    method: SearchMethod,
    scope: SearchScope,
    *,
    weights: Mapping[str, float],
    depth: int,
    k: int,
) -> HybridResult:
    """Read the responses to the searches of a hybrid search, and fuse them.

    Args:
        answers: Vector field, `LEXICAL` or `EXACT` → response.
        weights, depth: See `fuse_rankings`.
        k: Number of fused hits to return.
    """
    found = {
        name: {(hit["_index"], hit["_id"]): hit for hit in answer["hits"]["hits"]} for name, answer in answers.items()
    }
    exact = found.get(EXACT, {})
    fused = fuse_rankings(
        {name: list(hits) for name, hits in found.items() if name != EXACT},
        depth=depth,
        weights=weights,
        matches=read_exact_matches([(key, hit["_score"]) for key, hit in exact.items()]),
    )
    hybrid_hits = []
    for document in fused[:k]:
        raw = {name: by_key[document.key] for name, by_key in found.items() if document.key in by_key}
        merged: Json = {}
        for hit in raw.values():  # each may have members that the others lack: inner hits, highlights
            merged |= hit | {"inner_hits": merged.get("inner_hits", {}) | hit.get("inner_hits", {})}
        near = raw.get(scope.name)
        members = hit_members(merged, scope) | {
            "score": document.score,
            "cosine": None if near is None else cosine_from_score(near["_score"], engine_type, method),
            "lexical": raw[LEXICAL]["_score"] if LEXICAL in raw else None,
            "ranks": document.ranks,
            "match": None if document.match is None else document.match.label,
        }
        hybrid_hits.append(HybridHit(**members))
    by_words = total_hits(answers[LEXICAL])
    # The words match also documents beyond the first `depth` hits, which the other searches say by name.
    named = {key for hits in found.values() for key, hit in hits.items() if LEXICAL in hit.get("matched_queries", ())}
    others = {document.key for document in fused} - found[LEXICAL].keys() - named
    total = None if by_words is None else by_words + len(others)
    return HybridResult(tuple(hybrid_hits), max(answer["took"] for answer in answers.values()), method, total)


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
        UsageError: an option is invalid.
    """
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

    def read(answers: Sequence[Json]) -> HybridResult:
        found = dict(zip(bodies, answers, strict=True))
        return read_hybrid(found, engine_type, method, scope, weights=weights, depth=depth, k=k)

    return SearchRequest(scope.all_indices, tuple(bodies.values()), read)


def _read_weights(weights: Sequence[float] | None) -> tuple[float, float]:
    """Read the semantic and the keyword weight."""
    try:
        semantic, lexical = DEFAULT_WEIGHTS if weights is None else weights
        is_valid = 0.0 < semantic < math.inf and 0.0 < lexical < math.inf
    except (TypeError, ValueError):
        is_valid = False
    if not is_valid:
        raise UsageError(
            f"the weights must be two finite numbers above 0, not {weights!r}",
            "Set the semantic and the keyword weight: (3, 1). To leave one search out, use the other search alone.",
        ).about("weights", weights)
    return semantic, lexical


# A row of more documents says nothing about which one is meant. Ten fill a page of results.
MAX_MATCHES = 10
# A longer query is a question or a text, which no document repeats.
MAX_WORDS = 16

RankedKey = TypeVar("RankedKey", bound=Hashable)


class MatchType(Enum):
    """How a document holds the words of a query. The value is the score of the clause, and a bit of the hit's score.

    The better match has the higher score, also if a document matches in several ways.
    """

    PHRASE = 8
    ALL_WORDS = 4
    LITERAL = 2
    PREFIX = 1

    @property
    def label(self) -> str:
        """The name in results: `all_words`."""
        return self.name.lower()

    @property
    def added_score(self) -> int:
        """What it adds to the score of a hybrid search, which is at most 1 without it: 4, 3, 2, 1."""
        return self.value.bit_length()


# Parameters of a `multi_match` by the type of match; literal parts are phrases.
_PARAMETERS: dict[MatchType, Json] = {
    MatchType.PHRASE: {"type": "phrase"},
    MatchType.ALL_WORDS: {"type": "cross_fields", "operator": "and"},
    MatchType.PREFIX: {"type": "bool_prefix", "operator": "and"},
}
_QUOTED = re.compile(r'"([^"]*\w[^"]*)"')
_PUNCTUATION = ".,;:!?()[]{}\"'“”„«»"
_YEAR = re.compile(r"(?:1[89]|20)\d\ds?")
_CODE = re.compile(r"[^\W_][_@][^\W_]|[a-z][A-Z].*[a-z][A-Z]")


def literal_parts(text: str) -> list[str]:
    """Find the parts of a query that users do not paraphrase: quoted phrases, numbers and codes.

    A word is literal if it has at least four letters and digits, and a digit among them (`ORD-48213`, `utf8`); if it is
    a number of three digits; or if it is written like an identifier (`E_FAIL`, `NullPointerException`,
    `someone@example.com`). Years are not.
    """
    words = (word.strip(_PUNCTUATION) for word in _QUOTED.sub(" ", text).split())
    return [*_QUOTED.findall(text), *(word for word in words if _is_literal(word))]


def _is_literal(word: str) -> bool:
    if any(map(str.isdigit, word)):
        length = sum(map(str.isalnum, word))
        return not _YEAR.fullmatch(word) and (length > 3 or (length == 3 and word.isdigit()))
    return _CODE.search(word) is not None


def exact_match_query(text: str, query_for: Callable[[Json], Json]) -> Json | None:
    """Build the query for exact matches of a text; None if the text is too long to be one.

    Args:
        text: The query text.
        query_for: Creates the query on the fields to search from the other parameters of a `multi_match`.

    Returns:
        A `bool` that gives each document the sum of the values of `MatchType` by which it matches.
    """
    if len(text.split()) > MAX_WORDS:
        return None

    def query(part: str, kind: MatchType) -> Json:
        return query_for({"query": part, "lenient": True, **_PARAMETERS[kind]})  # a field may hold numbers

    queries = {kind: query(text, kind) for kind in _PARAMETERS}
    if literal := literal_parts(text):
        phrases = [query(part, MatchType.PHRASE) for part in literal]
        queries[MatchType.LITERAL] = {"bool": {"must": phrases}}
    clauses = [{"constant_score": {"filter": each, "boost": kind.value}} for kind, each in queries.items()]
    return {"bool": {"should": clauses, "minimum_should_match": 1}}


# Hits to read: one more than count shows that there are more.
EXACT_HITS = MAX_MATCHES + 1


def read_exact_matches(hits: Sequence[tuple[RankedKey, float]]) -> dict[RankedKey, MatchType]:
    """Find the exact matches among the first hits of the query.

    Args:
        hits: Documents with their scores, best first: `EXACT_HITS`, or fewer if no more match.

    Returns:
        Document → its best match, for each type that at most `MAX_MATCHES` documents have.
    """
    scores = {key: round(score) for key, score in hits}
    lowest = min(scores.values()) if len(scores) == EXACT_HITS else 0
    matches: dict[RankedKey, MatchType] = {}
    for kind in MatchType:
        found = [key for key, score in scores.items() if score & kind.value]
        # Documents that were not read have at most the lowest score.
        if len(found) <= MAX_MATCHES and lowest < kind.value:
            matches |= {key: kind for key in found if key not in matches}
    return matches


_RANK_CONSTANT = 60  # from the paper on reciprocal rank fusion


@dataclass(frozen=True)
class FusedDocument(Generic[RankedKey]):
    """A document of at least one ranking, or an exact match.

    Attributes:
        key: The document.
        score: See `fuse_rankings`.
        ranks: Ranking → rank in it, from 1; only those that contain it.
        match: How it matches the query exactly; None if it does not.
    """

    key: RankedKey
    score: float
    ranks: dict[str, int]
    match: MatchType | None = None


def fuse_rankings(
    rankings: Mapping[str, Sequence[RankedKey]],
    *,
    depth: int,
    weights: Mapping[str, float],
    matches: Mapping[RankedKey, MatchType],
) -> list[FusedDocument[RankedKey]]:
    """Fuse rankings into one, best first. On equal scores, the rank in the earlier ranking decides.

    The score is the sum of weight / (60 + rank) over the rankings, divided by its highest possible value. A document
    that a ranking lacks has the rank depth + 1 there. Exact matches are first: a phrase adds 4 to the score, all words
    3, literal parts 2, a prefix 1.

    Args:
        rankings: Name → documents, best first, each once.
        depth: Number of documents that each ranking may have.
        weights: Ranking → weight, above 0.
        matches: The exact matches, which may be in no ranking.
    """
    ranks: dict[RankedKey, dict[str, int]] = {}
    for name, ranking in rankings.items():
        for rank, key in enumerate(ranking, start=1):
            ranks.setdefault(key, {})[name] = rank
    for key in matches:
        ranks.setdefault(key, {})
    highest = sum(weights[name] for name in rankings) / (_RANK_CONSTANT + 1)

    def score(key: RankedKey) -> float:
        places = ranks[key]
        sums = sum(weights[name] / (_RANK_CONSTANT + places.get(name, depth + 1)) for name in rankings)
        return sums / highest + (matches[key].added_score if key in matches else 0.0)

    fused = [FusedDocument(key, score(key), places, matches.get(key)) for key, places in ranks.items()]
    return sorted(fused, key=lambda document: -document.score)
