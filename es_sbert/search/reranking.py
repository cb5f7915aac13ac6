"""Rerank the hits of a search with a cross-encoder."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any, TypeVar

from es_sbert.errors import UsageError
from es_sbert.index.mapping import VectorFieldMeta
from es_sbert.index.text_template import TextFieldError, TextTemplate
from es_sbert.search.search_result import Hit, HybridHit, RankedHits, Reranking
from es_sbert.search.search_scope import SearchScope

if TYPE_CHECKING:
    from es_sbert.encoder.reranker import Reranker

Result = TypeVar("Result", bound=RankedHits[Any])
# The text of a hit for the cross-encoder; None if it has none.
HitTextReader = Callable[[Hit | HybridHit], str | None]

# A cross-encoder reads each pair: this many take seconds on a CPU of two cores.
MAX_WINDOW = 1000
DEFAULT_WINDOW = 50


def search_depth(reranker: Reranker | None, k: int, window: int | None, options: Mapping[str, Any]) -> int:
    """How many hits a search has to find so that k of them are shown: more than k with a reranker.

    Args:
        options: Options of the search.

    Raises:
        UsageError: a window without a reranker or out of range, or a page or an order of the engine's with one.
    """
    if reranker is None:
        if window is not None:
            raise UsageError("a rerank window is given without a reranker", "Give rerank=Reranker(…) as well.")
        return k
    unpaged = {"offset": 0, "size": None, "sort": None}
    clash = sorted(name for name, default in unpaged.items() if options.get(name, default) != default)
    if clash:
        raise UsageError(
            f"{' and '.join(clash)} would cut or order the hits before the cross-encoder reads them",
            "Leave it out, and select from the hits of the result.",
        )
    return max(k, _rerank_window(k, window))


def _rerank_window(k: int, window: int | None) -> int:
    """How many hits are reranked so that k are shown: `window`, else 50, or k if that is more."""
    if window is not None and not 1 <= window <= MAX_WINDOW:
        raise UsageError(f"the rerank window is {window}", f"Rerank 1 to {MAX_WINDOW:,} hits.")
    return window or min(MAX_WINDOW, max(DEFAULT_WINDOW, k))


def rerank(
    text: str, found: Result, reranker: Reranker, text_of: HitTextReader, *, k: int, window: int | None = None
) -> Result:
    """Put the first hits of a search into a cross-encoder's order; each then has its `rerank_score`.

    Args:
        text: The text that was searched for.
        found: Hits of the search, at least `search_depth` of them where there are as many.
        reranker: A cross-encoder with one output.
        text_of: Returns the text of a hit for the cross-encoder; see `hit_text_reader`.
        k: How many hits are wanted.
        window: How many of the first hits are reranked; by default 50, or k if that is more.

    Raises:
        UsageError: a window that is empty or too large, or a cross-encoder with several outputs.
    """
    size = min(len(found), _rerank_window(k, window))
    began = time.perf_counter()
    text_at = {place: read for place, hit in enumerate(found.hits[:size]) if (read := text_of(hit)) is not None}
    scored = reranker.score_pairs([text] * len(text_at), list(text_at.values()))
    score_at = dict(zip(text_at, scored.scores.tolist(), strict=True))
    order = rerank_order(len(found), score_at)[:k]
    hits = tuple(replace(found.hits[place], rerank_score=score_at.get(place)) for place in order)
    reranking = Reranking(
        reranker=reranker.name,
        scored=len(text_at),
        truncated=int(scored.truncated.sum()),
        without_text=size - len(text_at),
        took_ms=round(1000 * (time.perf_counter() - began)),
    )
    return replace(found, hits=hits, reranking=reranking)


def rerank_order(hits: int, score_at: Mapping[int, float]) -> list[int]:
    """Positions of hits, best first. Ties and hits without a score keep their order.

    Args:
        hits: How many there are.
        score_at: Place to score.
    """
    scored = sorted(sorted(score_at), key=lambda place: -score_at[place])
    return scored + [place for place in range(hits) if place not in score_at]


def hit_text_reader(meta: VectorFieldMeta) -> HitTextReader:
    """A function that returns the text of a hit: its nearest passage if the index holds passages, else the embedded
    text.

    It returns None if the hit's source lacks the fields of that text, or if they are blank.

    Args:
        meta: Metadata of the searched field; its template defines the text of a document.

    Raises:
        UsageError: the mapping does not say which text was embedded.
    """
    if meta.text is None:
        raise UsageError(
            "the mapping does not say which fields the documents' text is made of, so there is nothing to rerank",
            "Load the documents by `es-sbert ingest` with `text_fields` or `text_template`, which stores it.",
        )
    template = TextTemplate.parse(meta.text)

    def text_of(hit: Hit | HybridHit) -> str | None:
        if hit.passage is not None:
            return hit.passage.text
        try:
            text = template.render(hit.source)
        except TextFieldError:
            return None
        return text if text.strip() else None

    return text_of


def scope_text_reader(scope: SearchScope) -> HitTextReader:
    """Like `hit_text_reader`, for a search of several fields or indices. With several fields, it reads the text of the
    first.

    Raises:
        UsageError: as for `hit_text_reader`, for any of the indices.
    """
    name = scope.names[0]
    by_index = {index: hit_text_reader(scope.field_meta(name, index)) for index in scope.all_indices}
    return lambda hit: by_index[hit.index](hit)
