"""Relative position buckets of MPNet (after T5, arXiv 1910.10683): near distances exact, far ones logarithmic."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from es_sbert.exporters.transformer import Floats

# MPNet's code passes these on whatever config.json says of relative_attention_num_buckets.
BUCKETS = 32
_MAX_DISTANCE = 128


def buckets(offsets: NDArray[np.int64]) -> NDArray[np.int64]:
    """The bucket of each offset (key position − query position).

    Half of the buckets are for keys before the query, half for those after it; of each half, half are for one
    distance each and the rest grow logarithmically up to the largest distance told apart.

    Args:
        offsets: Any shape.

    Returns:
        The same shape, values in [0, BUCKETS).
    """
    side = BUCKETS // 2
    exact = side // 2
    distance = np.abs(offsets)
    # In float32, as the reference computes it: a bucket's border may fall on a whole number.
    ratio = np.log(np.maximum(distance, 1).astype(np.float32) / np.float32(exact)) / np.float32(
        math.log(_MAX_DISTANCE / exact)
    )
    far = np.minimum(exact + (ratio * np.float32(side - exact)).astype(np.int64), side - 1)
    return np.where(offsets > 0, side, 0) + np.where(distance < exact, distance, far)


def relative_bias_by_distance(table: Floats, max_tokens: int) -> Floats:
    """The bias of every offset that can occur.

    Args:
        table: *Shape:* ``(BUCKETS, heads)``.
        max_tokens: Longest input.

    Returns:
        *Shape:* ``(2 max_tokens - 1, heads)``; row `offset + max_tokens - 1`.
    """
    return table[buckets(np.arange(1 - max_tokens, max_tokens))]
