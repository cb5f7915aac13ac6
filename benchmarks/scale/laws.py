"""Scaling laws: the exponents of time and memory, what they should be, and how long the next cell will take."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

# Fewest documents that a curve is fitted to.
FIT_FROM = 10_000
# Number of documents and what they took.
Point = tuple[int, float]


@dataclass(frozen=True)
class Law:
    """How a part should grow with the number of documents n.

    Attributes:
        title: What is measured.
        formula: On paper.
        exponent: Of the time for large n.
        cell_exponent: Of the time of a whole cell, preparation included.
    """

    title: str
    formula: str
    exponent: float
    cell_exponent: float


LAWS = {
    "encode": Law("embed the texts", "O(n)", 1.0, 1.0),
    "ingest": Law("embed and load into an index of type flat", "O(n)", 1.0, 1.0),
    "coordinator": Law("the coordinator of a load on Ray", "O(n log n)", 1.0, 1.0),
    "pairs": Law("find the 100 most similar pairs", "O(n²)", 2.0, 2.0),
    "duplicates": Law("find pairs from a cosine of 0.9 on", "O(n²)", 2.0, 2.0),
    "cluster": Law("k-means with k = 100", "O(n)", 1.0, 1.0),
    "search-flat": Law("one search, index type flat", "O(n)", 1.0, 1.0),
    "search-hnsw": Law("one search, index type hnsw", "O(log n)", 0.0, 1.15),
}


def neighbor_exponents(points: Sequence[Point]) -> list[float]:
    """The exponent from each point to the next."""
    return [
        float(np.log(after / before) / np.log(larger / smaller))
        for (smaller, before), (larger, after) in pairwise(points)
    ]


def overall_exponent(points: Sequence[Point]) -> float | None:
    """Slope of the least-squares line through the logarithms; None for fewer than two points."""
    if len(points) < 2:
        return None
    counts, values = np.log(np.array(points)).T
    return float(np.polyfit(counts, values, 1)[0])


@dataclass(frozen=True)
class LogCurve:
    """A cost for each document that grows with the logarithm of their number.

    Attributes:
        base: At one document.
        per_log: What a factor of e adds.
        least: The smallest cost that was measured; it is never less.
    """

    base: float
    per_log: float
    least: float = 0.0

    def at(self, count: float) -> float:
        """The cost for each of so many documents."""
        return max(self.least, self.base + self.per_log * float(np.log(max(count, 1.0))))


def fit_log_curve(points: Sequence[Point]) -> LogCurve:
    """The curve through costs for each document that were measured with several numbers of documents.

    Of fewer than `FIT_FROM` documents the costs are mostly those of starting, and are left out if there are two others.
    The curve never falls: costs that fall are taken as constant, and the constant is that of the largest number.

    Raises:
        ValueError: there are no points.
    """
    if not points:
        raise ValueError("no points to fit a curve to")
    ordered = sorted(points)
    large = [point for point in ordered if point[0] >= FIT_FROM]
    if len(large) > 1:
        ordered = large
    if len(ordered) > 1:
        counts, costs = np.array(ordered).T
        per_log, base = (float(value) for value in np.polyfit(np.log(counts), costs, 1))
        if per_log > 0:
            return LogCurve(base, per_log, min(costs))
    return LogCurve(ordered[-1][1], 0.0)


def expected_seconds(part: str, size: int, measured: Sequence[Point]) -> float | None:
    """Seconds of a cell by the law of its part, from the largest cell that was measured; None if there is none.

    Args:
        measured: Sizes and seconds of whole cells.
    """
    if not measured:
        return None
    largest, took = max(measured)
    return took * float(max(1.0, size / largest) ** LAWS[part].cell_exponent)
