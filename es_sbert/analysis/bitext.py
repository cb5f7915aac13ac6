"""Translation pairs in two collections, by margin scoring (Artetxe and Schwenk 2019, arXiv 1811.01136).

The margin is the cosine divided by the mean cosine of both texts with their nearest neighbors in the other
collection. It corrects for texts that are close to everything.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from es_sbert.analysis.similarity import (
    DECIMALS,
    Float64Array,
    Int64Array,
    check_cosine,
    check_dimensions,
    round_cosines,
    vector_lengths,
)
from es_sbert.encoder.batching import Vectors
from es_sbert.errors import UsageError

DEFAULT_NEIGHBORS = 4

# Texts of one collection that are compared with all of a block of the other at a time: 32 MiB of float64 cosines.
_BLOCK = 2048


class AlignedPair(NamedTuple):
    """A text of one collection and its counterpart in the other.

    Attributes:
        first, second: Positions in the two collections, from 0.
        margin: Cosine divided by the mean cosine with the nearest neighbors; rounded to `DECIMALS` decimals.
        cosine: Rounded likewise.
    """

    first: int
    second: int
    margin: float
    cosine: float


def margin_pairs(
    first: Vectors,
    second: Vectors,
    k: int | None = None,
    *,
    neighbors: int = DEFAULT_NEIGHBORS,
    min_cosine: float = -1.0,
    min_margin: float = 0.0,
    block: int = _BLOCK,
) -> list[AlignedPair]:
    """Align two collections: each text is in one pair at most, the pair with the greatest margin first.

    The candidates are each text's best neighbor in the other collection, in both directions (the paper's *max*
    retrieval). Of equal margins, the pair with the lower first, then the lower second position wins.

    Args:
        first, second: Embeddings of the two collections. *Shape:* ``(texts, dimensions)``.
        k: Pairs to find; None for all.
        neighbors: Nearest texts of the other collection that a margin is relative to; all where there are fewer.
        min_cosine: Drop pairs whose cosine is below this value, -1 to 1.
        min_margin: Drop pairs whose margin is below this value.
        block: Texts of each collection whose cosines are held at a time.

    Raises:
        UsageError: a number is out of range, a vector is zero or not finite, or the dimensions differ.
    """
    if neighbors < 1 or (k is not None and k < 1) or block < 1:
        raise UsageError("k, the neighbors and the block are numbers of texts", "Give numbers above 0.")
    check_cosine(min_cosine)
    # Twice the work of float32, but a margin is a ratio, and no block size may change which pair is chosen.
    one = first.astype(np.float64) / vector_lengths(first)[:, None]
    two = second.astype(np.float64) / vector_lengths(second)[:, None]
    check_dimensions(first, second)
    if not len(one) or not len(two):
        return []
    forward, forward_cosines = _nearest_neighbors(one, two, neighbors, block)
    backward, backward_cosines = _nearest_neighbors(two, one, neighbors, block)
    one_mean, two_mean = forward_cosines.mean(axis=1), backward_cosines.mean(axis=1)  # (texts,) each
    rows = [
        _best_by_margin(forward, forward_cosines, one_mean, two_mean),
        _best_by_margin(backward, backward_cosines, two_mean, one_mean)[:, [1, 0, 2, 3]],
    ]
    candidates = np.concatenate(rows)  # (pairs, 4): first, second, margin, cosine
    order = np.lexsort((candidates[:, 1], candidates[:, 0], -candidates[:, 2]))
    taken_one, taken_two = np.zeros(len(one), bool), np.zeros(len(two), bool)
    pairs: list[AlignedPair] = []
    for here, there, margin, cosine in candidates[order].tolist():
        if len(pairs) == k or margin < min_margin:
            break
        here, there = int(here), int(there)
        if taken_one[here] or taken_two[there] or cosine < min_cosine:
            continue
        taken_one[here] = taken_two[there] = True
        pairs.append(AlignedPair(here, there, margin, cosine))
    return pairs


def _nearest_neighbors(
    texts: Float64Array, others: Float64Array, count: int, block: int
) -> tuple[Int64Array, Float64Array]:
    """Each text's nearest of the others, in no order: positions and cosines. *Shape:* ``(texts, count)`` each."""
    count = min(count, len(others))
    places = np.empty((len(texts), count), np.int64)
    cosines = np.empty((len(texts), count))
    for start in range(0, len(texts), block):
        rows = slice(start, start + block)
        known = np.empty((len(texts[rows]), 0))
        known_at = np.empty((len(texts[rows]), 0), np.int64)
        for first in range(0, len(others), block):
            found = texts[rows] @ others[first : first + block].T  # (rows, columns)
            at = np.broadcast_to(np.arange(first, first + found.shape[1]), found.shape)
            known, known_at = _top_k_by_row(np.hstack([known, found]), np.hstack([known_at, at]), count)
        places[rows], cosines[rows] = known_at, known
    return places, cosines


def _top_k_by_row(cosines: Float64Array, places: Int64Array, count: int) -> tuple[Float64Array, Int64Array]:
    """The greatest of each row."""
    if cosines.shape[1] <= count:
        return cosines, places
    chosen = np.argpartition(-cosines, count - 1, axis=1)[:, :count]
    return np.take_along_axis(cosines, chosen, axis=1), np.take_along_axis(places, chosen, axis=1)


def _best_by_margin(
    places: Int64Array, cosines: Float64Array, own_mean: Float64Array, other_mean: Float64Array
) -> Float64Array:
    """The neighbor with the greatest margin of each text.

    Returns:
        Position of the text, of its neighbor, margin and cosine. *Shape:* ``(texts, 4)``.
    """
    means = (own_mean[:, None] + other_mean[places]) / 2  # (texts, neighbors)
    # If the mean cosine is not positive, the margin is 0.
    margins = np.where(means > 0, cosines / np.where(means > 0, means, 1), 0.0)
    margins = np.round(margins, DECIMALS)
    # Of equal margins the lower position.
    best = np.lexsort((places, -margins), axis=1)[:, 0]
    rows = np.arange(len(places))
    return np.column_stack([rows, places[rows, best], margins[rows, best], round_cosines(cosines[rows, best])])
