"""A minimum cosine for searches: how many relevant and how many unrelated documents each value lets pass.

Pure functions from vectors and cosines to a table and a recommendation. `calibrate_index.py` reads the index.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from es_sbert.encoder.types import Vectors
from es_sbert.tuning.interval import Estimate, mean_of_shares

Doubles = NDArray[np.float64]
Counts = NDArray[np.int64]

# Every value that is considered, in steps of 0.01: a cosine is not known better than that. *Shape:* (thresholds,).
GRID: Doubles = np.arange(-100, 100) / 100
# A value that lets more unrelated documents pass than this does not tell them from relevant ones.
OVERLAP = 0.05
# Cosines that are held at a time.
_BLOCK = 4_000_000
# What a mean of shares may lose by rounding.
_ROUNDING = 1e-9
_STEPS = (1, 2, 5, 10, 20)
_MOST_ROWS = 16


@dataclass(frozen=True)
class NearestHits:
    """What a search for the k nearest documents gives for one query.

    Attributes:
        cosines: Of each hit. *Shape:* ``(hits,)``.
        relevant: Whether it is relevant to the query. *Shape:* ``(hits,)`` bool.
    """

    cosines: Doubles
    relevant: NDArray[np.bool_]


@dataclass(frozen=True)
class CosineSample:
    """Cosines of queries with documents.

    Attributes:
        relevant: Of each query, its cosines with the documents that are relevant to it, at least one.
        passed: How many of the unrelated documents that each query was compared with reach each value of the grid.
            *Shape:* ``(queries, thresholds)``.
        compared: With how many unrelated documents each query was compared. *Shape:* ``(queries,)``.
        nearest: Of each query, the hits of a search.
    """

    relevant: Sequence[Doubles]
    passed: Counts
    compared: Counts
    nearest: Sequence[NearestHits]

    def of(self, queries: Sequence[int]) -> CosineSample:
        """The cosines of some of the queries, by their places."""
        return CosineSample(
            [self.relevant[place] for place in queries],
            self.passed[list(queries)],
            self.compared[list(queries)],
            [self.nearest[place] for place in queries],
        )


@dataclass(frozen=True)
class ThresholdRow:
    """What one minimum cosine does.

    Attributes:
        min_cosine: The value.
        recall: Share of the relevant documents that reach it, averaged over queries.
        unrelated: Share of the unrelated documents that reach it, averaged over queries.
        hits: How many of the k nearest documents reach it, averaged over queries.
        precision: Share of those hits that are relevant; None without hits.
    """

    min_cosine: float
    recall: Estimate
    unrelated: Estimate
    hits: float
    precision: float | None


@dataclass(frozen=True)
class Recommendation:
    """The largest minimum cosine that keeps enough of the relevant documents.

    Attributes:
        row: The value, and what it does.
        low: Lower end of its 95 % interval: the largest value that surely keeps enough. None where there are too few
            queries to be sure of any.
        high: Upper end: the largest value that may keep enough.
        overlaps: Whether more unrelated documents pass than `OVERLAP`.
    """

    row: ThresholdRow
    low: float | None
    high: float
    overlaps: bool


@dataclass(frozen=True)
class Calibration:
    """The table and the recommendation.

    Attributes:
        rows: Rising values, those that are worth showing.
        recommended: The value to use.
    """

    rows: tuple[ThresholdRow, ...]
    recommended: Recommendation


def calibrate(sample: CosineSample, keep: float) -> Calibration:
    """Find the largest value that keeps a share of the relevant documents.

    Args:
        keep: Share of the relevant documents to keep, between 0 and 1.
    """
    table = _Table(sample)
    least = keep - _ROUNDING
    best = int(np.flatnonzero(table.recalls >= least)[-1])
    low = next((place for place in range(best, -1, -1) if table.recall(place).low >= least), None)
    beyond = next((place for place in range(best + 1, len(GRID)) if table.recall(place).high < least), len(GRID))
    row = table.row(best)
    recommended = Recommendation(
        row,
        None if low is None else float(GRID[low]),
        float(GRID[beyond - 1]),
        row.unrelated.mean > OVERLAP,
    )
    return Calibration(tuple(table.row(place) for place in table.shown(best)), recommended)


def row_at(sample: CosineSample, min_cosine: float) -> ThresholdRow:
    """What one value of the grid does."""
    return _Table(sample).row(round(100 * min_cosine) + 100)


class _Table:
    """Rows of a sample, one for each value of the grid."""

    def __init__(self, sample: CosineSample) -> None:
        self._sample = sample
        kept = [_reaching(cosines) / len(cosines) for cosines in sample.relevant]
        self._kept = np.stack(kept)  # (queries, thresholds)
        self.recalls: Doubles = self._kept.mean(axis=0)  # (thresholds,)
        some = sample.compared > 0
        self._unrelated = sample.passed[some] / sample.compared[some, None]  # (queries, thresholds)
        self._relevant_size = max(1, sum(map(len, sample.relevant)) // len(sample.relevant))
        self._unrelated_size = int(sample.compared[some].mean())
        self._hits = np.sum([_reaching(hits.cosines) for hits in sample.nearest], axis=0)  # (thresholds,)
        self._relevant_hits = np.sum(
            [_reaching(hits.cosines[hits.relevant]) for hits in sample.nearest], axis=0
        )  # (thresholds,)

    def recall(self, place: int) -> Estimate:
        return mean_of_shares(self._kept[:, place].tolist(), self._relevant_size)

    def row(self, place: int) -> ThresholdRow:
        hits = int(self._hits[place])
        return ThresholdRow(
            float(GRID[place]),
            self.recall(place),
            mean_of_shares(self._unrelated[:, place].tolist(), self._unrelated_size),
            hits / len(self._kept),
            int(self._relevant_hits[place]) / hits if hits else None,
        )

    def shown(self, best: int) -> list[int]:
        """Places from where half of the unrelated documents pass to where no relevant one does, `best` among them."""
        half = np.flatnonzero(self._unrelated.mean(axis=0) >= 0.5)
        first = min(int(half[-1]) if len(half) else 0, best)
        last = max(int(np.flatnonzero(self._kept.any(axis=0))[-1]), best)
        step = next((step for step in _STEPS if (last - first) // step < _MOST_ROWS), _STEPS[-1])
        # Multiples of the step as cosines: the grid begins at -1, a multiple of every step.
        rows = range(first - first % step, last + 1, step)
        return sorted({*rows, best})


def _reaching(cosines: Doubles) -> Counts:
    """How many of the cosines are at each value of the grid or above. *Shape:* ``(thresholds,)``."""
    below: Counts = np.searchsorted(np.sort(cosines), GRID, side="left").astype(np.int64)
    return len(cosines) - below


def document_cosines(queries: Vectors, vectors: Vectors, starts: Counts) -> Doubles:
    """Cosine of each query with each document: that of the nearest vector, where a document has several.

    Args:
        queries: *Shape:* ``(queries, dimensions)``.
        vectors: Of all documents. *Shape:* ``(vectors, dimensions)``.
        starts: Row of each document's first vector. *Shape:* ``(documents,)``.

    Returns:
        *Shape:* ``(queries, documents)``, within [-1, 1].
    """
    cosines = np.maximum.reduceat(_unit(queries) @ _unit(vectors).T, starts, axis=1)
    clipped: Doubles = np.clip(cosines, -1.0, 1.0)
    return clipped


def count_unrelated(queries: Vectors, vectors: Vectors, starts: Counts,
                    relevant: Sequence[Sequence[int]]) -> tuple[Counts, Counts]:  # fmt: skip
    """Compare queries with documents that are not relevant to them, in blocks of bounded size.

    Args:
        queries, vectors, starts: See `document_cosines`.
        relevant: Of each query, places of the documents that are left out since they are relevant to it.

    Returns:
        `passed` and `compared` of `CosineSample`.
    """
    passed = np.zeros((len(queries), len(GRID)), dtype=np.int64)
    compared = np.zeros(len(queries), dtype=np.int64)
    block = max(1, _BLOCK // max(1, len(vectors)))
    for begin in range(0, len(queries), block):
        cosines = document_cosines(queries[begin : begin + block], vectors, starts)  # (block, documents)
        for number, own in enumerate(cosines, start=begin):
            unrelated = np.delete(own, relevant[number])
            passed[number], compared[number] = _reaching(unrelated), len(unrelated)
    return passed, compared


def _unit(vectors: Vectors) -> Doubles:
    """Vectors of length 1 in float64. *Shape:* as given."""
    wide = np.asarray(vectors, dtype=np.float64)
    unit: Doubles = wide / np.linalg.norm(wide, axis=1, keepdims=True)
    return unit
