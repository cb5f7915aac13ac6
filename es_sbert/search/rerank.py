"""Hits of a search put into the order that a cross-encoder gives them."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from typing import Any

from es_sbert.encoder.reranker import Reranker
from es_sbert.engines.protocol import Json
from es_sbert.errors import UsageError
from es_sbert.index.meta import VectorFieldMeta
from es_sbert.index.text import NoText, TextTemplate
from es_sbert.search.results import Hit, SearchResult

# What the cross-encoder reads of a hit; None where there is nothing to read.
TextOf = Callable[[Hit], str | None]

# A cross-encoder reads each pair anew: so many take a CPU of two cores seconds already.
MAX_WINDOW = 1000
DEFAULT_WINDOW = 50


@dataclass(frozen=True, kw_only=True)
class RerankedHit(Hit):
    """A hit with the score of its text beside the query.

    Attributes:
        rerank_score: What the cross-encoder gives, in its own range; None where the hit lies outside the window or has
            no text.
    """

    rerank_score: float | None

    def as_json(self) -> Json:
        return super().as_json() | {"rerank_score": self.rerank_score}


@dataclass(frozen=True, kw_only=True)
class RerankedResult(SearchResult):
    """Hits in the cross-encoder's order, best first.

    Those that it did not score follow in the order of the search: hits of the window without a text, then hits beyond
    the window.

    Attributes:
        hits: At most k.
        reranker: Model and variant.
        scored: Hits that the cross-encoder has scored.
        truncated: Those of them that were longer, together with the query, than it reads.
        without_text: Hits of the window whose source lacks the text.
        rerank_ms: Milliseconds that it took.
    """

    hits: tuple[RerankedHit, ...]
    reranker: str
    scored: int
    truncated: int
    without_text: int
    rerank_ms: int

    def describe(self) -> str:
        """The counts in one line, for people."""
        line = f"reranked {self.scored} hits in {self.rerank_ms} ms by {self.reranker}"
        line += f", {self.truncated} of them cut" if self.truncated else ""
        return line + (f"; {self.without_text} hits have no text and follow" if self.without_text else "")


def window_of(k: int, window: int | None) -> int:
    """How many hits are reranked so that k are shown: as asked for, else 50, or k if that is more.

    Raises:
        UsageError: none at all, or too many.
    """
    if window is not None and not 1 <= window <= MAX_WINDOW:
        raise UsageError(f"the rerank window is {window}", f"Rerank 1 to {MAX_WINDOW:,} hits.")
    return window or min(MAX_WINDOW, max(DEFAULT_WINDOW, k))


def rerank(text: str, found: SearchResult, reranker: Reranker, text_of: TextOf, *, k: int,
           window: int | None = None) -> RerankedResult:  # fmt: skip
    """Put the first hits of a search into a cross-encoder's order.

    Usage:
        found = index.search(question, k=50)
        best = rerank(question, found, reranker, embedded_text(index.field.meta), k=10)

    Args:
        text: The text that was searched for.
        found: Hits of the search, at least `max(k, window_of(k, window))` of them where there are as many.
        reranker: A cross-encoder with one output.
        text_of: What the cross-encoder reads of a hit; see `embedded_text`.
        k: How many hits are wanted.
        window: How many of the first hits are reranked; by default 50, or k if that is more.

    Raises:
        UsageError: a window that is empty or too large, or a cross-encoder with several outputs.
    """
    size = min(len(found), window_of(k, window))
    began = time.perf_counter()
    text_at = {place: read for place, hit in enumerate(found.hits[:size]) if (read := text_of(hit)) is not None}
    scored = reranker.score_pairs([text] * len(text_at), list(text_at.values()))
    score_at = dict(zip(text_at, scored.scores.tolist(), strict=True))
    order = rerank_order(len(found), score_at)[:k]
    return RerankedResult(
        **_fields(found) | {"hits": tuple(_reranked(found.hits[place], score_at.get(place)) for place in order)},
        reranker=reranker.name,
        scored=len(text_at),
        truncated=int(scored.truncated.sum()),
        without_text=size - len(text_at),
        rerank_ms=round(1000 * (time.perf_counter() - began)),
    )


def rerank_order(hits: int, score_at: Mapping[int, float]) -> list[int]:
    """Places of hits, best first: those with a score by it, equal ones as they stood, then the others as they stood.

    Args:
        hits: How many there are.
        score_at: Place to score.
    """
    scored = sorted(sorted(score_at), key=lambda place: -score_at[place])
    return scored + [place for place in range(hits) if place not in score_at]


def embedded_text(meta: VectorFieldMeta) -> TextOf:
    """What takes the text of a hit: its nearest passage where the index holds passages, else all that was embedded.

    It gives None where the hit's source lacks the fields of that text, or they are blank.

    Args:
        meta: What the mapping says about the field that was searched; its template says what a document's text is.

    Raises:
        UsageError: the mapping does not say which text was embedded.
    """
    if meta.text is None:
        raise UsageError(
            "the mapping does not say of which fields the documents' text is made, so there is nothing to rerank",
            "Load the documents by es-sbert ingest with --text-field or --text-template, which notes it.",
        )
    template = TextTemplate.parse(meta.text)

    def text_of(hit: Hit) -> str | None:
        if hit.passage is not None:
            return hit.passage.text
        try:
            text = template.render(hit.source)
        except NoText:
            return None
        return text if text.strip() else None

    return text_of


def _reranked(hit: Hit, score: float | None) -> RerankedHit:
    return RerankedHit(**_fields(hit), rerank_score=score)


def _fields(value: Hit | SearchResult) -> dict[str, Any]:
    return {field.name: getattr(value, field.name) for field in fields(value)}
