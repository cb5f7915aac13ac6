"""Test whether two systems differ, by their scores for the same queries, and compare two retrieval reports.

The confidence interval is that of the paired t test, the p-value that of a paired randomization test (Smucker, Allan
and Carterette 2007, "A Comparison of Statistical Significance Tests for Information Retrieval Evaluation", compares
both). A percentile bootstrap would be too narrow with few queries.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from enum import StrEnum

import numpy as np
from numpy.typing import ArrayLike, NDArray

from es_sbert.engines.rest import Json
from es_sbert.errors import UsageError
from es_sbert.evaluation.evaluation_report import AVERAGE, EvaluationReport, ReportRow, metric_label
from es_sbert.evaluation.ranking import MAIN_METRIC, METRICS

Doubles = NDArray[np.float64]

_CONFIDENCE = 0.95
# With fewer queries, the interval relies on differences that are about normally distributed.
FEW_QUERIES = 50
# Draws of the t distributions that the interval is taken from.
_T_DRAWS = 50_000
# Numbers drawn at a time: 8 MB of doubles.
_BLOCK_VALUES = 1 << 20
# With at most this many queries that differ, all 2^n assignments of signs are counted: fewer than the resamples.
_MAX_EXACT = 13
# Tolerance for comparing statistics, which depend a little on the order of a sum.
_ROUNDING = 1e-12


class Verdict(StrEnum):
    """The result of the test for the first system.

    Usage:
        ```python
        result = adapt_model("docs", "docs-tuned", "http://localhost:9200")
        print(result.comparison.verdict is Verdict.BETTER)
        ```
    """

    BETTER = "better"
    WORSE = "worse"
    NOT_DISTINGUISHABLE = "not distinguishable"


@dataclass(frozen=True)
class PairedDifference:
    """The comparison of two systems on the same queries.

    Usage:
        ```python
        ndcg = adapt_model("docs", "docs-tuned", "http://localhost:9200").comparison.ndcg
        print(ndcg.difference, ndcg.low, ndcg.high)
        ```

    Attributes:
        queries: Number of queries.
        first, second: Mean score of each system; with groups, the mean over the groups' means.
        difference: `first` − `second`.
        low, high: Ends of the interval of the difference; infinite if a group has only one query.
        p_value: Two-sided p-value of the hypothesis that the two systems are exchangeable.
        confidence: Confidence of the interval; 1 − confidence is the level of the test.
    """

    queries: int
    first: float
    second: float
    difference: float
    low: float
    high: float
    p_value: float
    confidence: float = _CONFIDENCE

    @property
    def verdict(self) -> Verdict:
        """Better or worse only if the test rejects and the interval excludes 0."""
        if self.p_value > 1 - self.confidence or self.low <= 0 <= self.high:
            return Verdict.NOT_DISTINGUISHABLE
        return Verdict.BETTER if self.difference > 0 else Verdict.WORSE


def paired_difference(
    first: ArrayLike,
    second: ArrayLike,
    *,
    seed: int = 0,
    groups: Sequence[int] | None = None,
    resamples: int = 10_000,
) -> PairedDifference:
    """Compare the scores of two systems for the same queries.

    Args:
        first, second: Score of each query. *Shape:* ``(queries,)`` each, in the same order.
        seed: Seed of the resampling; the same seed gives the same result.
        groups: Group of each query, for example its collection. Every group then counts the same, however many
            queries it has.
        resamples: Number of random assignments of the test.

    Returns:
        The difference of the means with its interval and a p-value. With up to 13 queries that differ, the
        p-value is exact; otherwise it is (1 + assignments at least as extreme) / (1 + resamples), so never 0.

    Raises:
        UsageError: there are no queries, the scores have different lengths, or a score is not a finite number.
    """
    ours, theirs = (np.asarray(values, dtype=np.float64) for values in (first, second))  # (queries,) each
    if ours.ndim != 1 or ours.shape != theirs.shape or not len(ours):
        raise UsageError(
            f"scores of shapes {ours.shape} and {theirs.shape} cannot be compared by query",
            "Pass one score of each system for every query, and at least one query.",
        )
    if not (np.isfinite(ours).all() and np.isfinite(theirs).all()):
        raise UsageError("a score is not a finite number", "Leave out queries that have no score.")
    places = _group_places(groups, len(ours))
    weights = np.empty(len(ours))  # (queries,): weight of each query in the mean
    for own in places:
        weights[own] = 1 / (len(places) * len(own))
    differences = ours - theirs
    random = np.random.default_rng(seed)
    difference, half = float(differences @ weights), _half_width(differences, places, random)
    return PairedDifference(
        queries=len(ours),
        first=float(ours @ weights),
        second=float(theirs @ weights),
        difference=difference,
        low=difference - half,
        high=difference + half,
        p_value=_randomization_p_value(differences * weights, resamples, random),
    )


def _group_places(groups: Sequence[int] | None, count: int) -> list[NDArray[np.int64]]:
    """Return the positions of the queries of each group."""
    if groups is None:
        return [np.arange(count)]
    numbers = np.unique(np.array(groups), return_inverse=True)[1]  # (queries,)
    return [np.flatnonzero(numbers == number) for number in range(numbers.max() + 1)]


def _half_width(differences: Doubles, places: Sequence[NDArray[np.int64]], random: np.random.Generator) -> float:
    """Compute half of the width of the interval of the mean over the groups' means.

    With one group, this is the interval of the t test. With several, the errors of their means are added, each with its
    own t distribution (the Behrens-Fisher distribution).
    """
    error = np.zeros(_T_DRAWS)
    for own in places:
        if len(own) == 1:
            return math.inf
        standard_error = differences[own].std(ddof=1) / math.sqrt(len(own))
        error += standard_error / len(places) * random.standard_t(len(own) - 1, _T_DRAWS)
    return float(np.quantile(np.abs(error), _CONFIDENCE))


def _randomization_p_value(terms: Doubles, resamples: int, random: np.random.Generator) -> float:
    """Compute the share of sign assignments whose sum is at least as far from 0 as that of `terms`.

    Args:
        terms: Contribution of each query to the difference of the means. *Shape:* ``(queries,)``.
    """
    changed = terms[terms != 0]  # the sign of 0 changes nothing
    if not len(changed):
        return 1.0
    bound = abs(float(terms.sum())) - _ROUNDING
    if len(changed) <= _MAX_EXACT:
        bits = np.arange(1 << len(changed))[:, None] >> np.arange(len(changed)) & 1  # (assignments, queries)
        return float(np.mean(np.abs((2.0 * bits - 1) @ changed) >= bound))
    extreme = 0
    for samples in _blocks(resamples, len(changed)):
        signs = 2.0 * random.integers(0, 2, size=(samples, len(changed))) - 1  # (samples, queries)
        extreme += int(np.count_nonzero(np.abs(signs @ changed) >= bound))
    return (1 + extreme) / (1 + resamples)


def _blocks(resamples: int, width: int) -> Iterable[int]:
    """Divide samples into blocks; return the sizes of the blocks."""
    size = max(1, _BLOCK_VALUES // width)
    return (min(size, resamples - begin) for begin in range(0, resamples, size))


def shown_difference(first: float, second: float, digits: int = 2) -> float:
    """Return the difference between two scores as displayed: 61.34 and 61.00 differ by 0.34, never by 0.33."""
    return round(round(first, digits) - round(second, digits), digits) + 0.0  # -0.0 would be shown with a minus


def difference_line(found: PairedDifference, first: str, second: str, metric: str) -> str:
    """Format the result as one line: `A is better than B: nDCG@10 +1.20 (95 % interval +0.30 to +2.10, p = 0.008, …)`.

    Args:
        found: The difference, with scores × 100.
        first, second: Names of the systems.
        metric: Name of the score.
    """
    verdict = {
        Verdict.BETTER: f"{first} is better than {second}",
        Verdict.WORSE: f"{first} is worse than {second}",
        Verdict.NOT_DISTINGUISHABLE: f"{first} and {second} are not distinguishable",
    }[found.verdict]
    queries = "1 query" if found.queries == 1 else f"{found.queries:,} queries"
    p_value = "p < 0.001" if found.p_value < 0.001 else f"p = {found.p_value:.3f}"
    interval = f"{100 * found.confidence:g} % interval {found.low:+.2f} to {found.high:+.2f}"
    difference = shown_difference(found.first, found.second)
    return f"{verdict}: {metric} {difference:+.2f} ({interval}, {p_value}, {queries})"


def few_queries_warning(queries: int) -> str | None:
    """Return a warning if the verdict depends on few queries; None for enough."""
    if queries >= FEW_QUERIES:
        return None
    return f"Fewer than {FEW_QUERIES} queries: other queries may well give another verdict. Judge more queries."


Differences = dict[str, dict[str, PairedDifference]]  # data set → metric → difference


def compare_reports(first: EvaluationReport, second: EvaluationReport) -> Differences:
    """Compare two retrieval reports on the same data.

    Returns:
        The differences. With several data sets, the last is `average`, to which all contribute equally.

    Raises:
        UsageError: the reports have different data or queries, or no scores of single queries.
    """
    ours, theirs = ([row for row in report.rows if row.scores] for report in (first, second))
    queries = [[(row.data, list(row.scores)) for row in rows] for rows in (ours, theirs)]
    if not ours or queries[0] != queries[1]:
        raise UsageError("the two reports do not have the same queries", "Evaluate both systems on the same data.")
    pairs = list(zip(ours, theirs, strict=True))
    differences = {own.data: _compare(((own, other),)) for own, other in pairs}
    return differences if len(pairs) == 1 else differences | {AVERAGE: _compare(pairs)}


def comparison_json(differences: Differences, names: tuple[str, str]) -> Json:
    """Convert differences to JSON, with their verdicts and the names of the systems."""
    plain = {
        data: {metric: asdict(found) | {"verdict": found.verdict} for metric, found in own.items()}
        for data, own in differences.items()
    }
    return {"first": names[0], "second": names[1], "differences": plain}


def _compare(pairs: Sequence[tuple[ReportRow, ReportRow]]) -> dict[str, PairedDifference]:
    """Compare two systems by each metric over their paired rows. Every row has the same weight."""
    groups = [number for number, (row, _) in enumerate(pairs) for _ in row.scores]
    return {
        metric: paired_difference(
            [scores[metric] for row, _ in pairs for scores in row.scores.values()],
            [scores[metric] for _, row in pairs for scores in row.scores.values()],
            groups=groups,
        )
        for metric in METRICS
    }


def comparison_lines(differences: Differences, names: tuple[str, str]) -> Iterator[str]:
    """Format the verdict by nDCG@10 for each data set, then all metrics of the last data set or of the average."""
    for data, own in differences.items():
        yield f"{data}: {difference_line(own[MAIN_METRIC], *names, metric_label(MAIN_METRIC))}"
    if warning := few_queries_warning(min(own[MAIN_METRIC].queries for own in differences.values())):
        yield warning
    data, figures = list(differences.items())[-1]
    yield f"{data}:" if len(differences) > 1 else "all metrics:"
    interval = "95 % interval"
    yield f"{'metric':<14}{'first':>8}{'second':>8}{'difference':>12}{interval:>20}{'p':>8}"
    for metric, found in figures.items():
        difference = shown_difference(found.first, found.second)
        bounds = f"{found.low:+.2f} to {found.high:+.2f}"
        yield (
            f"{metric_label(metric):<14}{found.first:>8.2f}{found.second:>8.2f}{difference:>+12.2f}"
            f"{bounds:>20}{found.p_value:>8.3f}"
        )
