"""What searches give: hits and passages."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from typing import Generic, TypeVar

from es_sbert.engines.protocol import Json
from es_sbert.printable import counted
from es_sbert.search.scores import Method

_DIGITS = 6


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
        plain = {"id": self.id, "index": self.index, "cosine": round(self.cosine, _DIGITS), "score": self.score}
        return {**plain, "source": self.source, **_extras(self)}


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
        cosine = None if self.cosine is None else round(self.cosine, _DIGITS)
        scores = {"score": self.score, "cosine": cosine, "lexical": self.lexical}
        plain = {"id": self.id, "index": self.index, **scores}
        return {**plain, **({"ranks": self.ranks} if self.ranks else {}), "source": self.source, **_extras(self)}


def _extras(hit: Hit | HybridHit) -> Json:
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
        line = f"reranked {counted(self.scored, 'hit')} in {self.took_ms} ms by {self.reranker}"
        line += f", {self.truncated} of them cut" if self.truncated else ""
        if not self.without_text:
            return line
        follow = "has no text and follows" if self.without_text == 1 else "have no text and follow"
        return f"{line}; {counted(self.without_text, 'hit')} {follow}"


@dataclass(frozen=True)
class Found(Generic[AnyHit]):
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
    method: Method
    total: int | None = None
    aggregations: Json = field(default_factory=dict)
    reranking: Reranking | None = None

    def __iter__(self) -> Iterator[AnyHit]:
        return iter(self.hits)

    def __len__(self) -> int:
        return len(self.hits)


@dataclass(frozen=True)
class SearchResult(Found[Hit]):
    """What a search by meaning finds."""


@dataclass(frozen=True)
class HybridResult(Found[HybridHit]):
    """What a search by words and meaning finds."""
