"""95 % confidence intervals for means of shares, such as recall: the Bayesian bootstrap over queries.

The bootstrap gives every query a random weight (Rubin 1981, "The Bayesian Bootstrap"). Where all queries found
everything, weights change nothing, although other queries may still fail. Half an observation of 0 and half of 1 are
therefore added to the queries. If every share is 0 or 1, the interval is then that of Jeffreys' prior (Brown, Cai and
DasGupta 2001, "Interval Estimation for a Binomial Proportion").
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Doubles = NDArray[np.float64]

_DRAWS = 4_000
# Weights in memory at a time: 8 MB.
_BLOCK_VALUES = 1 << 20


@dataclass(frozen=True)
class ConfidenceInterval:
    """A mean with its 95 % confidence interval.

    Usage:
        ```python
        recall = calibrate_index("docs", "http://localhost:9200").recommended.row.recall
        print(recall.low, recall.mean, recall.high)
        ```

    Attributes:
        mean: The mean, between 0 and 1.
        low, high: Ends of the interval.
    """

    mean: float
    low: float
    high: float


def mean_confidence_interval(shares: Sequence[float]) -> ConfidenceInterval:
    """Compute the mean of shares, one for each query, with its interval.

    Args:
        shares: Numbers between 0 and 1, at least one.
    """
    values = np.asarray(shares, dtype=np.float64)[:, None]  # (queries, 1)
    [interval] = intervals(values.mean(axis=0), bootstrap_means(values, np.random.default_rng(0)))
    return interval


def bootstrap_means(values: Doubles, random: np.random.Generator, *, highest: float = 1.0) -> Doubles:
    """Draw means of values whose rows are weighted at random; all columns have the same weights.

    Args:
        values: Numbers between 0 and `highest`. *Shape:* ``(rows, columns)``.
        random: Source of the weights.
        highest: Highest possible value.

    Returns:
        *Shape:* ``(draws, columns)``.
    """
    means = np.empty((_DRAWS, values.shape[1]))
    size = max(1, _BLOCK_VALUES // len(values))
    for begin in range(0, _DRAWS, size):
        count = min(size, _DRAWS - begin)
        weights = random.standard_exponential((count, len(values)))
        lowest_weight, highest_weight = random.gamma(0.5, size=(2, count, 1))
        total = weights.sum(axis=1, keepdims=True) + lowest_weight + highest_weight
        means[begin : begin + count] = (weights @ values + highest * highest_weight) / total
    return means


def intervals(means: Doubles, draws: Doubles) -> list[ConfidenceInterval]:
    """Take the intervals from draws of means; each contains its mean.

    Args:
        means: *Shape:* ``(columns,)``.
        draws: *Shape:* ``(draws, columns)``.
    """
    low, high = np.quantile(draws, [0.025, 0.975], axis=0)
    return [
        ConfidenceInterval(mean, max(0.0, min(mean, lower)), min(1.0, max(mean, upper)))
        for mean, lower, upper in zip(means.tolist(), low.tolist(), high.tolist(), strict=True)
    ]
