"""The mean of shares with its 95 % confidence interval."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

_Z95 = 1.959963984540054  # standard normal quantile of 0.975


@dataclass(frozen=True)
class ConfidenceInterval:
    """A mean of shares with its 95 % confidence interval.

    Attributes:
        mean: The mean, between 0 and 1.
        low, high: Ends of the interval.
    """

    mean: float
    low: float
    high: float


def mean_confidence_interval(shares: Sequence[float], size: int) -> ConfidenceInterval:
    """Compute the mean of shares, each from `size` trials, with Wilson's interval.

    Trials within one query are not independent, because the neighbors of one query are often missed together. The
    number of trials is therefore adjusted to the variance between queries (the design effect of cluster samples; Korn
    and Graubard 1998, "Confidence intervals for proportions with small expected number of positive counts"), but never
    below the number of queries or above that of all trials. Unlike the normal interval, Wilson's has a positive width
    even if every share is 1.

    Args:
        shares: Share of each query, between 0 and 1; at least one.
        size: Number of trials of each query (k).
    """
    values = np.asarray(shares, dtype=np.float64)  # (queries,)
    queries, mean = len(values), float(values.mean())
    between = float(values.var(ddof=1)) if queries > 1 else 0.0
    trials = float(queries * size)
    if between > 0:
        trials = min(trials, max(float(queries), mean * (1 - mean) * queries / between))
    spread = _Z95**2 / trials
    center = (mean + spread / 2) / (1 + spread)
    half = _Z95 / (1 + spread) * math.sqrt(mean * (1 - mean) / trials + spread / (4 * trials))
    return ConfidenceInterval(mean, max(0.0, min(mean, center - half)), min(1.0, max(mean, center + half)))
