"""Recommend a minimum cosine, from cosines of queries with relevant and with unrelated documents."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from es_sbert.diagnostics.confidence_interval import ConfidenceInterval, Doubles, bootstrap_means, intervals
from es_sbert.diagnostics.recall import document_cosines
from es_sbert.vectors import Vectors

Counts = NDArray[np.int64]

# Candidate thresholds, in steps of 0.01: a finer grid would not be meaningful. *Shape:* (thresholds,).
COSINE_GRID: Doubles = np.arange(-100, 100) / 100
# Cosines in memory at a time.
_BLOCK_COSINES = 4_000_000
# Rounding error of a mean of shares.
_ROUNDING = 1e-9
# Every so many values of the grid are in the table.
_TABLE_STEP = 5


@dataclass(frozen=True)
class PassCounts:
    """The comparisons of each query with unrelated documents, or of each document with the queries it is unrelated to.

    Attributes:
        passed: Number of comparisons whose cosine reaches each value of the grid. *Shape:* ``(rows, thresholds)``.
        compared: Number of comparisons. *Shape:* ``(rows,)``.
    """

    passed: Counts
    compared: Counts

    def shares(self) -> Doubles:
        """The shares that reach each value; 0 without comparisons. *Shape:* ``(rows, thresholds)``."""
        return self.passed / np.maximum(self.compared, 1)[:, None]


@dataclass(frozen=True)
class CosineSample:
    """Cosines of queries with documents.

    Attributes:
        relevant: For each query, the cosines of its relevant documents, at least one.
        by_query, by_document: The cosines of the queries with the sampled documents that are not relevant to them.
        made_of: For each query, the position of the sampled document that it was made of; None for labeled queries.
    """

    relevant: Sequence[Doubles]
    by_query: PassCounts
    by_document: PassCounts
    made_of: Sequence[int] | None = None


@dataclass(frozen=True)
class ThresholdRow:
    """The effect of one minimum cosine.

    Usage:
        ```python
        for row in calibrate_index("docs", "http://localhost:9200").rows:
            print(row.min_cosine, row.recall.mean, row.unrelated.mean)
        ```

    Attributes:
        min_cosine: The value.
        recall: Share of the relevant documents that reach it, averaged over queries.
        unrelated: Share of the unrelated documents that reach it, averaged over queries.
    """

    min_cosine: float
    recall: ConfidenceInterval
    unrelated: ConfidenceInterval


@dataclass(frozen=True)
class CosineRecommendation:
    """The largest minimum cosine that keeps enough relevant documents.

    Usage:
        ```python
        recommended = calibrate_index("docs", "http://localhost:9200").recommended
        print(recommended.row.min_cosine, recommended.low, recommended.high)
        ```

    Attributes:
        row: The value and its effect.
        low: Lower end of its 95 % interval: the largest value that surely keeps enough. None if there are too few
            queries to be sure of any.
        high: Upper end: the largest value that may keep enough.
        overlaps: Whether too many unrelated documents reach the value.
        separating: The lowest value that not too many unrelated documents reach.
    """

    row: ThresholdRow
    low: float | None
    high: float
    overlaps: bool
    separating: ThresholdRow


def recommend_cosine(
    sample: CosineSample, keep: float, max_unrelated: float
) -> tuple[list[ThresholdRow], CosineRecommendation]:
    """Find the largest value that keeps a share of the relevant documents.

    Args:
        sample: The cosines.
        keep: Share of the relevant documents to keep, between 0 and 1.
        max_unrelated: Largest share of the unrelated documents that a useful value lets pass.

    Returns:
        The values to show, in ascending order, and the one to use.
    """
    rows, least = _threshold_rows(sample), keep - _ROUNDING
    best = max(place for place, row in enumerate(rows) if row.recall.mean >= least)
    surely = [row.min_cosine for row in rows[: best + 1] if row.recall.low >= least]
    end = len(rows)
    high = next((place for place in range(best + 1, end) if rows[place].recall.high < least), end) - 1
    # The last value of the grid if too many reach even that.
    separating = next((place for place, row in enumerate(rows) if row.unrelated.mean <= max_unrelated), end - 1)
    recommended = CosineRecommendation(
        rows[best],
        low=surely[-1] if surely else None,
        high=rows[high].min_cosine,
        overlaps=rows[best].unrelated.mean > max_unrelated,
        separating=rows[separating],
    )
    return [rows[place] for place in _shown_places(rows, {best, separating})], recommended


def _threshold_rows(sample: CosineSample) -> list[ThresholdRow]:
    """Measure the effect of each value of the grid."""
    random = np.random.default_rng(0)
    kept = np.stack([_count_reaching(cosines) / len(cosines) for cosines in sample.relevant])  # (queries, thresholds)
    recall = intervals(kept.mean(axis=0), bootstrap_means(kept, random))
    shares = zip(COSINE_GRID.tolist(), recall, _unrelated_intervals(sample, random), strict=True)
    return [ThresholdRow(*each) for each in shares]


def _unrelated_intervals(sample: CosineSample, random: np.random.Generator) -> list[ConfidenceInterval]:
    """Compute the share of unrelated documents that reach each value of the grid.

    All queries are compared with the same documents, so queries and documents both vary from sample to sample: both are
    weighted at random, and their deviations from the mean are added. A document and the query that was made of it are
    chosen together, and get the same weight.
    """
    some = np.flatnonzero(sample.by_query.compared)
    by_query, by_document = sample.by_query.shares()[some], sample.by_document.shares()  # (rows, thresholds) each
    means = by_query.mean(axis=0)
    if sample.made_of is None:
        draws = bootstrap_means(by_query, random) + bootstrap_means(by_document, random) - by_document.mean(axis=0)
        return intervals(means, draws)
    scale = len(by_document) / len(by_query)
    both = by_document.copy()
    both[np.asarray(sample.made_of)[some]] += scale * by_query
    draws = bootstrap_means(both, random, highest=1 + scale)
    return intervals(means, draws - both.mean(axis=0) + means)


def _shown_places(rows: Sequence[ThresholdRow], included: set[int]) -> list[int]:
    """Choose the rows to show, the included ones among them; return their positions.

    The rows range from the last value that half of the unrelated documents reach to the last one that any relevant
    document reaches.
    """
    first = min(*included, max((place for place, row in enumerate(rows) if row.unrelated.mean >= 0.5), default=0))
    last = max(place for place, row in enumerate(rows) if row.recall.mean > 0)
    # The cosines are multiples of the step because the grid starts at -1.
    return sorted({*range(first - first % _TABLE_STEP, last + 1, _TABLE_STEP), *included})


def _count_reaching(cosines: Doubles) -> Counts:
    """Count the cosines that reach each value of the grid. *Shape:* ``(thresholds,)``."""
    below: Counts = np.searchsorted(np.sort(cosines), COSINE_GRID, side="left").astype(np.int64)
    return len(cosines) - below


def count_unrelated(
    queries: Vectors, vectors: Vectors, starts: Counts, relevant: Sequence[Sequence[int]]
) -> tuple[PassCounts, PassCounts]:
    """Compare queries with documents that are not relevant to them, in blocks of bounded size.

    Args:
        queries, vectors, starts: See `document_cosines`.
        relevant: For each query, positions of the documents to leave out because they are relevant to it.

    Returns:
        The counts of each query, and of each document.
    """
    size = len(COSINE_GRID)
    by_query, by_document = (np.zeros((rows, size + 1), dtype=np.int64) for rows in (len(queries), len(starts)))
    block = max(1, _BLOCK_COSINES // max(1, len(vectors)))
    for begin in range(0, len(queries), block):
        cosines = document_cosines(queries[begin : begin + block], vectors, starts)  # (block, documents)
        for number, own in enumerate(cosines, start=begin):
            reached = np.searchsorted(COSINE_GRID, own, side="right")  # (documents,): values of the grid
            documents = np.delete(np.arange(len(starts)), relevant[number])
            by_query[number] = np.bincount(reached[documents], minlength=size + 1)
            by_document[documents, reached[documents]] += 1
    first, second = (
        PassCounts(counts[:, :0:-1].cumsum(axis=1)[:, ::-1], counts.sum(axis=1)) for counts in (by_query, by_document)
    )
    return first, second
