"""Rerank the hits of a search with a cross-encoder."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Any, TypeVar

from es_sbert.arguments import check_range, wrong_argument
from es_sbert.errors import UsageError
from es_sbert.index.mapping import VectorFieldMeta
from es_sbert.index.text_template import TextTemplate
from es_sbert.messages import setting
from es_sbert.search.search_result import Hit, HybridHit, RankedHits, Reranking
from es_sbert.search.search_scope import SearchScope

if TYPE_CHECKING:
    from es_sbert.encoder.reranker import Reranker

Result = TypeVar("Result", bound=RankedHits[Any])
# Returns the text of a hit for the cross-encoder, or None if the hit has none.
HitTextReader = Callable[[Hit | HybridHit], str | None]

# Largest window. A cross-encoder reads every pair of query and hit: this many take seconds on two CPU cores.
MAX_WINDOW = 1000
DEFAULT_WINDOW = 50


def search_depth(reranker: Reranker | None, k: int, window: int | None) -> int:
    """Return the number of hits that a search has to find so that k can be shown: k, or a larger rerank window.

    Raises:
        UsageError: the window is given without a reranker or is out of range.
    """
    if reranker is None:
        if window is not None:
            raise UsageError("a window needs a reranker", "Pass rerank=Reranker(…) too.").about("window", window)
        return k
    if not hasattr(reranker, "score_pairs"):
        raise wrong_argument("rerank", reranker, "a Reranker")
    return max(k, _rerank_window(k, window))


def _rerank_window(k: int, window: int | None) -> int:
    """Return the number of hits to rerank: `window`, else 50, or k if that is more."""
    if window is not None:
        check_range("window", window, {"ge": 1, "le": MAX_WINDOW})
    return window or min(MAX_WINDOW, max(DEFAULT_WINDOW, k))


def rerank(
    text: str, found: Result, reranker: Reranker, text_of: HitTextReader, *, k: int, window: int | None = None
) -> Result:
    """Reorder the first hits of a search by a cross-encoder, and set their `rerank_score`.

    Args:
        text: The text that was searched for.
        found: Hits of the search: `search_depth` of them, or all if the search found fewer.
        reranker: A cross-encoder with one output.
        text_of: Returns the text of a hit for the cross-encoder; see `hit_text_reader`.
        k: Number of hits to return.
        window: Number of first hits to rerank; by default 50, or k if that is more.

    Raises:
        UsageError: the window is empty or too large, or the cross-encoder has several outputs.
    """
    size = min(len(found), _rerank_window(k, window))
    began = time.perf_counter()
    text_at = {place: read for place, hit in enumerate(found.hits[:size]) if (read := text_of(hit)) is not None}
    scored = reranker.score_pairs([text] * len(text_at), list(text_at.values()))
    score_at = dict(zip(text_at, scored.scores.tolist(), strict=True))
    # Hits without a score come last. Ties keep their order.
    order = sorted(range(len(found)), key=lambda place: -score_at.get(place, -math.inf))[:k]
    hits = tuple(replace(found.hits[place], rerank_score=score_at.get(place)) for place in order)
    reranking = Reranking(
        reranker=reranker.name,
        scored=len(text_at),
        truncated=int(scored.truncated.sum()),
        without_text=size - len(text_at),
        took_ms=round(1000 * (time.perf_counter() - began)),
    )
    return replace(found, hits=hits, reranking=reranking)


def hit_text_reader(meta: VectorFieldMeta) -> HitTextReader:
    """Make a function that returns the text of a hit: its nearest passage if the index holds passages, else the
    embedded text.

    The function returns None if the hit's source lacks the fields of that text, or if they are blank.

    Args:
        meta: Metadata of the searched field; its template defines the text of a document.

    Raises:
        UsageError: the mapping does not say which text was embedded.
    """
    if meta.text is None:
        raise UsageError(
            "the mapping does not say which fields the documents' text is made of, so there is nothing to rerank",
            f"Load the documents with `es-sbert ingest` and {setting('text_fields')} or {setting('text_template')}, "
            "which stores the fields.",
        ).about("rerank")
    template = TextTemplate.parse(meta.text)

    def text_of(hit: Hit | HybridHit) -> str | None:
        if hit.passage is not None:
            return hit.passage.text
        text = template.readable_text(hit.source)
        return text if text.strip() else None

    return text_of


def scope_text_reader(scope: SearchScope) -> HitTextReader:
    """Like `hit_text_reader`, for a search of several indices.

    Raises:
        UsageError: as for `hit_text_reader`, for any of the indices.
    """
    by_index = {index: hit_text_reader(scope.meta_in(index)) for index in scope.all_indices}
    return lambda hit: by_index[hit.index](hit)
