"""Search results: hits and chunks, read from the engine's responses, and reciprocal rank fusion."""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Generic, TypeVar

from es_sbert.engines.protocol import EngineType, Json
from es_sbert.errors import UsageError
from es_sbert.index.mapping import CHUNK_END, CHUNK_START, VectorFieldMeta
from es_sbert.index.text_template import TextFieldError, TextTemplate
from es_sbert.messages import pluralize
from es_sbert.search.search_scope import SearchScope
from es_sbert.search.vector_query import SearchMethod, VectorQuery, cosine_from_score

_COSINE_DIGITS = 6


@dataclass(frozen=True)
class Passage:
    """The part of a document that is nearest to the query.

    On a quantised index type it is chosen by quantised vectors: of two passages that are nearly as near it may be
    the other.

    Attributes:
        start, end: First character in the document's text (see `VectorFieldMeta.text`), and the one behind its last.
        text: The passage itself; None where the hit's source lacks the fields that it is made of.
    """

    start: int
    end: int
    text: str | None


@dataclass(frozen=True)
class Hit:
    """A document that was found.

    Attributes:
        id: The document's id.
        cosine: Cosine of query and document vector, -1 to 1, from float32 vectors; of several fields the largest.
        score: The engine's `_score`.
        source: The document, without its vector.
        index: The concrete index it came from.
        passage: The nearest passage, where the index holds passages.
        highlight: Field → its parts with the words of the query marked, where they were asked for.
        rerank_score: What a cross-encoder gives it beside the query, in the model's own range, where one was asked to.
    """

    id: str
    cosine: float
    score: float
    source: Json
    index: str
    passage: Passage | None = None
    highlight: dict[str, list[str]] = field(default_factory=dict)
    rerank_score: float | None = None

    def as_json(self) -> Json:
        """The hit, its cosine to six digits: float32 tells no more."""
        plain = {"id": self.id, "index": self.index, "cosine": round(self.cosine, _COSINE_DIGITS), "score": self.score}
        return {**plain, "source": self.source, **_optional_fields(self)}


@dataclass(frozen=True)
class HybridHit:
    """A document that was found by its words, its meaning or both.

    Attributes:
        id: The document's id.
        score: What hits are ordered by; its scale is that of the fusion.
        cosine: As in `Hit`; None where the document is not among the nearest that the fusion looked at.
        lexical: Score of the words (BM25), before any weight; None where no word is in it, or, under reciprocal rank
            fusion, where it is not among the first that the fusion looked at.
        ranks: Under reciprocal rank fusion: its ranks, from 1, in the rankings that hold it: `lexical`, and that of
            each vector field by the field's name.
        source, index, passage, highlight, rerank_score: As in `Hit`.
    """

    id: str
    score: float
    cosine: float | None
    lexical: float | None
    source: Json
    index: str
    ranks: dict[str, int] = field(default_factory=dict)
    passage: Passage | None = None
    highlight: dict[str, list[str]] = field(default_factory=dict)
    rerank_score: float | None = None

    def as_json(self) -> Json:
        """The hit, its cosine to six digits: float32 tells no more."""
        cosine = None if self.cosine is None else round(self.cosine, _COSINE_DIGITS)
        scores = {"score": self.score, "cosine": cosine, "lexical": self.lexical}
        plain = {"id": self.id, "index": self.index, **scores}
        return {
            **plain,
            **({"ranks": self.ranks} if self.ranks else {}),
            "source": self.source,
            **_optional_fields(self),
        }


def _optional_fields(hit: Hit | HybridHit) -> Json:
    """What a hit has only where it was asked for."""
    passage = {} if hit.passage is None else {"passage": asdict(hit.passage)}
    rerank = {} if hit.rerank_score is None else {"rerank_score": hit.rerank_score}
    return {**passage, **({"highlight": hit.highlight} if hit.highlight else {}), **rerank}


AnyHit = TypeVar("AnyHit", Hit, HybridHit)


@dataclass(frozen=True)
class Reranking:
    """What a cross-encoder did with the hits of a search.

    Attributes:
        reranker: Model and variant.
        scored: Hits that it has scored.
        truncated: Those of them that were longer, together with the query, than it reads.
        without_text: Hits of the window whose source lacks the text.
        took_ms: Milliseconds that it took.
    """

    reranker: str
    scored: int
    truncated: int
    without_text: int
    took_ms: int

    def __str__(self) -> str:
        line = f"reranked {pluralize(self.scored, 'hit')} in {self.took_ms} ms by {self.reranker}"
        line += f", {self.truncated} of them cut" if self.truncated else ""
        if not self.without_text:
            return line
        follow = "has no text and follows" if self.without_text == 1 else "have no text and follow"
        return f"{line}; {pluralize(self.without_text, 'hit')} {follow}"


@dataclass(frozen=True)
class RankedHits(Generic[AnyHit]):
    """Hits, best first.

    Attributes:
        hits: At most as many as were asked for.
        took_ms: Milliseconds inside the engine.
        method: How the nearest were found.
        total: Documents that the search matched, see `queries`; None where the engine does not count them all.
        aggregations: The engine's answer to the aggregations that were asked for.
        reranking: What a cross-encoder did that put the hits in order. Hits that it did not score follow in the
            order of the search: those of its window that have no text, then those beyond the window.
    """

    hits: tuple[AnyHit, ...]
    took_ms: int
    method: SearchMethod
    total: int | None = None
    aggregations: Json = field(default_factory=dict)
    reranking: Reranking | None = None

    def __iter__(self) -> Iterator[AnyHit]:
        return iter(self.hits)

    def __len__(self) -> int:
        return len(self.hits)


@dataclass(frozen=True)
class SearchResult(RankedHits[Hit]):
    """What a search by meaning finds."""


@dataclass(frozen=True)
class HybridResult(RankedHits[HybridHit]):
    """What a search by words and meaning finds."""


RANK_CONSTANT = 60  # of the paper

RankedKey = TypeVar("RankedKey", bound=Hashable)


@dataclass(frozen=True)
class FusedDocument(Generic[RankedKey]):
    """A document of at least one ranking.

    Attributes:
        key: The document.
        score: Sum over the rankings that hold it of weight / (constant + rank).
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
    """Rankings as one, best first; of equal scores, the one that an earlier ranking holds higher.

    Args:
        rankings: Name → documents, best first, each once.
        weights: By ranking; 1 where not given.
        constant: The larger, the less the first ranks stand out.

    Raises:
        UsageError: a constant below 1, or a weight that is not above 0.
    """
    if not constant >= 1:
        raise UsageError(f"the rank constant is {constant}", f"Give at least 1; {RANK_CONSTANT} is usual.")
    given = weights or {}
    for name, weight in given.items():
        if not 0.0 < weight < float("inf"):
            raise UsageError(f"the weight of {name} is {weight:g}", "Give a number above 0.")
    ranks: dict[RankedKey, dict[str, int]] = {}
    for name, ranking in rankings.items():
        for rank, key in enumerate(ranking, start=1):
            ranks.setdefault(key, {})[name] = rank
    fused = [
        FusedDocument(key, sum(given.get(name, 1.0) / (constant + rank) for name, rank in own.items()), own)
        for key, own in ranks.items()
    ]
    return sorted(fused, key=lambda document: -document.score)


LEXICAL = "lexical"  # name of the clause of words; those of vector fields are `semantic_name`


def semantic_name(field: str) -> str:
    """What the clause of a vector field is called in a request."""
    return f"semantic.{field}"


class ResponseReader:
    """Reads the hits of one request.

    Args:
        engine_type, method: Of the engine and the search, which decide what a score means.
        searched: What was searched.
        queries: By vector field.
    """

    def __init__(
        self, engine_type: EngineType, method: SearchMethod, searched: SearchScope, queries: Sequence[VectorQuery]
    ) -> None:
        self._engine_type = engine_type
        self._method = method
        self._searched = searched
        self._queries = {query.field: query for query in queries}

    def found(self, answer: Json, *, named: bool) -> SearchResult:
        """The answer to a vector search.

        Args:
            named: Whether clauses bear names; a body of one clause has its score for that of the hit.
        """
        hits = []
        for hit in answer["hits"]["hits"]:
            cosines = self._named(hit) if named else {name: self._cosine(name, hit["_score"]) for name in self._queries}
            nearest = max(cosines, key=lambda name: cosines[name])
            hits.append(
                Hit(
                    hit["_id"],
                    cosines[nearest],
                    hit["_score"],
                    hit.get("_source", {}),
                    hit["_index"],
                    self._passage(hit, nearest),
                    hit.get("highlight", {}),
                )
            )
        return SearchResult(
            tuple(hits), answer["took"], self._method, _total_hits(answer), answer.get("aggregations", {})
        )

    def hybrid(self, answer: Json, lexical_weight: float) -> HybridResult:
        """The answer to a search whose clauses bear names, the words among them."""
        hits = []
        for hit in answer["hits"]["hits"]:
            cosines = self._named(hit)
            words = hit.get("matched_queries", {}).get(LEXICAL)
            hits.append(
                self._hybrid_hit(hit, hit["_score"], cosines, None if words is None else words / lexical_weight)
            )
        return HybridResult(
            tuple(hits), answer["took"], self._method, _total_hits(answer), answer.get("aggregations", {})
        )

    def fused(
        self, answers: Mapping[str, Json], *, weights: Mapping[str, float], constant: int, offset: int, size: int
    ) -> HybridResult:
        """Answers to one search by words and one for each vector field, fused by their ranks.

        Args:
            answers: By `LEXICAL` and by vector field.
            weights, constant: See `reciprocal_rank_fusion`.
            offset, size: Which of the fused hits are wanted.
        """
        found = {
            name: {(hit["_index"], hit["_id"]): hit for hit in answer["hits"]["hits"]}
            for name, answer in answers.items()
        }
        fused = reciprocal_rank_fusion(
            {name: list(hits) for name, hits in found.items()}, weights=weights, constant=constant
        )
        hits = []
        for document in fused[offset : offset + size]:
            raw = {name: found[name][document.key] for name in document.ranks}
            cosines = {name: self._cosine(name, raw[name]["_score"]) for name in raw if name != LEXICAL}
            words = raw[LEXICAL]["_score"] if LEXICAL in raw else None
            merged: Json = {}
            for hit in raw.values():  # each may have what the others lack: inner hits of its own field, highlights
                merged |= hit | {"inner_hits": merged.get("inner_hits", {}) | hit.get("inner_hits", {})}
            hits.append(self._hybrid_hit(merged, document.score, cosines, words, document.ranks))
        return HybridResult(tuple(hits), max(answer["took"] for answer in answers.values()), self._method, len(fused))

    def _hybrid_hit(
        self,
        hit: Json,
        score: float,
        cosines: Mapping[str, float],
        lexical: float | None,
        ranks: dict[str, int] | None = None,
    ) -> HybridHit:
        nearest = max(cosines, key=lambda name: cosines[name]) if cosines else None
        return HybridHit(
            id=hit["_id"],
            score=score,
            cosine=None if nearest is None else cosines[nearest],
            lexical=lexical,
            source=hit.get("_source", {}),
            index=hit["_index"],
            ranks=ranks or {},
            passage=None if nearest is None else self._passage(hit, nearest),
            highlight=hit.get("highlight", {}),
        )

    def _named(self, hit: Json) -> dict[str, float]:
        """Cosines by vector field, of the fields by which a hit was found."""
        scores = hit.get("matched_queries", {})
        return {
            name: self._cosine(name, scores[semantic_name(name)])
            for name in self._queries
            if semantic_name(name) in scores
        }

    def _cosine(self, name: str, score: float) -> float:
        return cosine_from_score(score / self._queries[name].boost, self._engine_type, self._method)

    def _passage(self, hit: Json, name: str) -> Passage | None:
        meta = self._searched.meta(name, hit["_index"])
        return None if meta.passages is None else _read_chunk(hit, name, meta)


def _read_chunk(hit: Json, name: str, meta: VectorFieldMeta) -> Passage:
    [best] = hit["inner_hits"][name]["hits"]["hits"]
    place = best["_source"]
    if name in place:
        place = place[name]  # engines differ in whether the nested object's own name stands around it
    start, end = int(place[CHUNK_START]), int(place[CHUNK_END])
    try:
        text = None if meta.text is None else TextTemplate.parse(meta.text).render(hit.get("_source", {}))
    except TextFieldError:
        text = None  # a `_source` that leaves its fields out
    return Passage(start, end, None if text is None else text[start:end])


def _total_hits(answer: Json) -> int | None:
    total = answer["hits"].get("total")
    # Elasticsearch and OpenSearch stop counting at 10,000 unless asked to go on.
    return int(total["value"]) if isinstance(total, dict) and total["relation"] == "eq" else None
