"""Hits of a search put into the order that a cross-encoder gives them."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any

from es_sbert.encoder.reranker import Reranker
from es_sbert.engines.protocol import Json
from es_sbert.errors import UsageError
from es_sbert.index.meta import VectorFieldMeta
from es_sbert.index.text import NoText, TextTemplate
from es_sbert.search.results import Hit, SearchResult

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


def check_window(window: int | None) -> int:
    """The number of hits to rerank; None takes 50.

    Raises:
        UsageError: none at all, or too many.
    """
    if window is not None and not 1 <= window <= MAX_WINDOW:
        raise UsageError(f"the rerank window is {window}", f"Rerank 1 to {MAX_WINDOW:,} hits.")
    return window or DEFAULT_WINDOW


def rerank(text: str, found: SearchResult, reranker: Reranker, meta: VectorFieldMeta, *, k: int,
           window: int | None = None) -> RerankedResult:  # fmt: skip
    """Put the first hits of a search into a cross-encoder's order.

    What it reads of a hit is the nearest passage where the index holds passages, else the text that was embedded.

    Args:
        text: The text that was searched for.
        found: Hits of the search, at least `max(k, window)` of them where there are as many.
        reranker: A cross-encoder with one output.
        meta: What the mapping says about the field that was searched; its template says what a document's text is.
        k: How many hits are wanted.
        window: How many of the first hits are reranked; None takes 50.

    Raises:
        UsageError: a window that is empty or too large, a cross-encoder with several outputs, or an index of which
            nobody knows what its texts are.
    """
    size = min(len(found), check_window(window))
    began = time.perf_counter()
    text_at = {place: read for place, read in enumerate(hit_texts(found.hits[:size], meta)) if read is not None}
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


def hit_texts(hits: Sequence[Hit], meta: VectorFieldMeta) -> list[str | None]:
    """What the cross-encoder reads of each hit; None where its source lacks the fields, or they are blank.

    Raises:
        UsageError: the mapping does not say which text was embedded.
    """
    if meta.text is None:
        raise UsageError(
            "the mapping does not say of which fields the documents' text is made, so there is nothing to rerank",
            "Load the documents by es-sbert ingest with --text-field or --text-template, which notes it.",
        )
    template = TextTemplate.parse(meta.text)
    return [hit.passage.text if hit.passage is not None else _rendered(template, hit) for hit in hits]


def _rendered(template: TextTemplate, hit: Hit) -> str | None:
    try:
        text = template.render(hit.source)
    except NoText:
        return None
    return text if text.strip() else None


def _reranked(hit: Hit, score: float | None) -> RerankedHit:
    return RerankedHit(**_fields(hit), rerank_score=score)


def _fields(value: Hit | SearchResult) -> dict[str, Any]:
    return {field.name: getattr(value, field.name) for field in fields(value)}
