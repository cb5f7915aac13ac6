"""Choose a minimum cosine, from the shares of relevant and unrelated documents that each value keeps.

The functions here compute a table, a recommendation and a report from cosines; `index_calibration` reads the index.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass

import numpy as np
from numpy.typing import NDArray

from es_sbert.confidence_interval import ConfidenceInterval, mean_confidence_interval
from es_sbert.diagnostics.recall import Doubles, document_cosines
from es_sbert.engines.rest import Json
from es_sbert.messages import escape_unprintable, pluralize
from es_sbert.vectors import Vectors


@dataclass(frozen=True)
class CalibrationReport:
    """The results of a calibration.

    Attributes:
        index, field, model: The index and the field that are searched, and the model of the field.
        documents: Number of documents with a vector.
        sample: Number of documents that serve as unrelated documents.
        queries: Number of queries.
        labelled: Whether the queries are labeled.
        kinds, left_out: See `CalibrationQueries`.
        keep: Share of the relevant documents that the recommended value keeps, unless `max_unrelated` is given.
        max_unrelated: Share of the unrelated documents that may reach the recommended value; None chooses by `keep`.
        calibration: The table and the recommendation.
    """

    index: str
    field: str
    model: str
    documents: int
    sample: int
    queries: int
    labelled: bool
    kinds: Mapping[str, int]
    left_out: Mapping[str, int]
    keep: float
    max_unrelated: float | None
    calibration: Calibration

    @property
    def recommended_value(self) -> float:
        """The recommended minimum cosine."""
        return self.calibration.recommended.row.min_cosine

    def as_json(self) -> Json:
        plain = asdict(self)
        calibration: Json = plain.pop("calibration")
        return plain | calibration


Counts = NDArray[np.int64]

# Candidate thresholds, in steps of 0.01: a finer grid would not be meaningful. *Shape:* (thresholds,).
COSINE_GRID: Doubles = np.arange(-100, 100) / 100
# If more than this share of unrelated documents reach a value, it does not separate them from relevant ones.
MAX_UNRELATED_SHARE = 0.05
# Cosines in memory at a time.
_BLOCK_COSINES = 4_000_000
# Rounding error of a mean of shares.
_ROUNDING = 1e-9
_TABLE_STEPS = (1, 2, 5, 10, 20)
_MAX_TABLE_ROWS = 16


@dataclass(frozen=True)
class CosineSample:
    """Cosines of queries with documents.

    Attributes:
        relevant: For each query, the cosines of its relevant documents, at least one.
        passed: For each query, the number of unrelated documents that reach each value of the grid. *Shape:*
            ``(queries, thresholds)``.
        compared: Number of unrelated documents that each query was compared with. *Shape:* ``(queries,)``.
    """

    relevant: Sequence[Doubles]
    passed: Counts
    compared: Counts


@dataclass(frozen=True)
class ThresholdRow:
    """The effect of one minimum cosine.

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
    """The largest minimum cosine that keeps enough relevant documents, or the smallest that few unrelated ones reach.

    Attributes:
        row: The value and its effect.
        low: Lower end of its 95 % interval: the largest value that surely keeps enough, or the smallest that may be
            reached by few enough. None if there are too few queries to be sure of any.
        high: Upper end: the largest value that may keep enough, or the smallest that is surely reached by few enough.
        overlaps: Whether more than `MAX_UNRELATED_SHARE` of the unrelated documents reach the value.
    """

    row: ThresholdRow
    low: float | None
    high: float
    overlaps: bool


@dataclass(frozen=True)
class Calibration:
    """The table and the recommendation.

    Attributes:
        rows: The values to show, in ascending order.
        recommended: The value to use.
    """

    rows: tuple[ThresholdRow, ...]
    recommended: CosineRecommendation


def calibrate(sample: CosineSample, keep: float, max_unrelated: float | None = None) -> Calibration:
    """Find the largest value that keeps a share of the relevant documents, or the smallest that few others reach.

    Args:
        sample: The cosines.
        keep: Share of the relevant documents to keep, between 0 and 1.
        max_unrelated: Share of the unrelated documents that may reach the value. If given, `keep` is ignored.
    """
    rows = _threshold_rows(sample)
    if max_unrelated is not None:
        most = max_unrelated + _ROUNDING
        best = _first_place(rows, lambda row: row.unrelated.mean <= most)
        low: int | None = _first_place(rows, lambda row: row.unrelated.low <= most)
        high = _first_place(rows, lambda row: row.unrelated.high <= most)
    else:
        least = keep - _ROUNDING
        best = max(place for place, row in enumerate(rows) if row.recall.mean >= least)
        low = max((place for place in range(best + 1) if rows[place].recall.low >= least), default=None)
        end = len(rows)
        high = next((place for place in range(best + 1, end) if rows[place].recall.high < least), end) - 1
    recommended = CosineRecommendation(
        rows[best],
        low=None if low is None else rows[low].min_cosine,
        high=rows[high].min_cosine,
        overlaps=rows[best].unrelated.mean > MAX_UNRELATED_SHARE,
    )
    return Calibration(tuple(rows[place] for place in _shown_places(rows, best)), recommended)


def _first_place(rows: Sequence[ThresholdRow], suits: Callable[[ThresholdRow], bool]) -> int:
    """Find the position of the first row that meets the condition; the last position if none does."""
    return next((place for place, row in enumerate(rows) if suits(row)), len(rows) - 1)


def _threshold_rows(sample: CosineSample) -> list[ThresholdRow]:
    """Measure the effect of each value of the grid."""
    kept = np.stack([_count_reaching(cosines) / len(cosines) for cosines in sample.relevant])  # (queries, thresholds)
    relevant_size = max(1, sum(map(len, sample.relevant)) // len(sample.relevant))
    some = sample.compared > 0
    unrelated = sample.passed[some] / sample.compared[some, None]  # (queries, thresholds)
    unrelated_size = int(sample.compared[some].mean())
    return [
        ThresholdRow(
            float(value),
            mean_confidence_interval(kept[:, place].tolist(), relevant_size),
            mean_confidence_interval(unrelated[:, place].tolist(), unrelated_size),
        )
        for place, value in enumerate(COSINE_GRID)
    ]


def _shown_places(rows: Sequence[ThresholdRow], best: int) -> list[int]:
    """Choose the rows to show, `best` included; return their positions.

    The rows range from the last value that half of the unrelated documents reach to the last one that any relevant
    document reaches.
    """
    first = min(best, max((place for place, row in enumerate(rows) if row.unrelated.mean >= 0.5), default=0))
    last = max(place for place, row in enumerate(rows) if row.recall.mean > 0)
    step = next((step for step in _TABLE_STEPS if (last - first) // step < _MAX_TABLE_ROWS), _TABLE_STEPS[-1])
    # The cosines are multiples of the step because the grid starts at -1, a multiple of every step.
    return sorted({*range(first - first % step, last + 1, step), best})


def _count_reaching(cosines: Doubles) -> Counts:
    """Count the cosines that reach each value of the grid. *Shape:* ``(thresholds,)``."""
    below: Counts = np.searchsorted(np.sort(cosines), COSINE_GRID, side="left").astype(np.int64)
    return len(cosines) - below


def count_unrelated(
    queries: Vectors, vectors: Vectors, starts: Counts, relevant: Sequence[Sequence[int]]
) -> tuple[Counts, Counts]:
    """Compare queries with documents that are not relevant to them, in blocks of bounded size.

    Args:
        queries, vectors, starts: See `document_cosines`.
        relevant: For each query, positions of the documents to leave out because they are relevant to it.

    Returns:
        `passed` and `compared` of `CosineSample`.
    """
    passed = np.zeros((len(queries), len(COSINE_GRID)), dtype=np.int64)
    compared = np.zeros(len(queries), dtype=np.int64)
    block = max(1, _BLOCK_COSINES // max(1, len(vectors)))
    for begin in range(0, len(queries), block):
        cosines = document_cosines(queries[begin : begin + block], vectors, starts)  # (block, documents)
        for number, own in enumerate(cosines, start=begin):
            unrelated = np.delete(own, relevant[number])
            passed[number], compared[number] = _count_reaching(unrelated), len(unrelated)
    return passed, compared


def calibration_lines(report: CalibrationReport) -> list[str]:
    """Format the report as lines: the measured data, a table of values, the recommendation, commands that apply it."""
    recommended = report.calibration.recommended
    lines = [
        f"{report.index}.{report.field}: {pluralize(report.documents, 'document')} with vectors of "
        f"{escape_unprintable(report.model)}",
        f"{report.queries:,} {_describe_queries(report)}, compared with a sample of "
        f"{pluralize(report.sample, 'document')}",
    ]
    if report.left_out:
        lines.append("left out: " + ", ".join(f"{count:,} {reason}" for reason, count in report.left_out.items()))
    lines.append(f"{'min_cosine':>10}{'recall':>9}{'95 % interval':>17}{'unrelated':>12}{'per 100,000':>13}")
    lines += map(_format_row, report.calibration.rows)
    if not report.labelled:
        lines.append(
            "These queries are parts of documents, each compared with the rest of its document, not real queries. The "
            "value may be too high or too low for real queries. Labeled queries (`queries=FILE`) give a better one."
        )
    lines.append(_recommendation_line(report))
    if recommended.overlaps:
        lines.append(
            f"More than {MAX_UNRELATED_SHARE:.0%} of unrelated documents pass: a minimum cosine does not separate them "
            "from relevant ones. Rank by cosine without a minimum, use a hybrid search, choose a higher value from the "
            "table if losing relevant documents is acceptable, or use a model that was trained on such texts."
        )
    value = f"{report.recommended_value:.2f}"
    request = f'{{"match": {{"semantic": {{"query": "…", "min_cosine": {value}}}}}}}'
    lines.append(f"Use it for all searches: `es-sbert serve --min-cosine {value}`, or in one request: `{request}`")
    return lines


def _describe_queries(report: CalibrationReport) -> str:
    if report.labelled:
        return "labeled queries"
    return "queries made of documents (" + ", ".join(f"{kind}: {n:,}" for kind, n in report.kinds.items()) + ")"


def _format_row(row: ThresholdRow) -> str:
    return (
        f"{row.min_cosine:>10.2f}{row.recall.mean:>9.3f}{f'{row.recall.low:.3f}–{row.recall.high:.3f}':>17}"
        f"{f'{row.unrelated.mean:.3%}':>12}{100_000 * row.unrelated.mean:>13,.0f}"
    )


def _recommendation_line(report: CalibrationReport) -> str:
    recommended, row = report.calibration.recommended, report.calibration.recommended.row
    interval = (
        f"at most {recommended.high:.2f}; for a lower end, use more queries"
        if recommended.low is None
        else f"{recommended.low:.2f}–{recommended.high:.2f}"
    )
    passing = row.unrelated.mean * report.documents
    target = f"keep {report.keep:g} of the relevant documents"
    if report.max_unrelated is not None:
        target = f"let at most {report.max_unrelated:.3g} of the unrelated documents pass"
    return (
        f"Recommended to {target}: {row.min_cosine:.2f} "
        f"(95 % interval: {interval}). It keeps {_format_percent(row.recall)}, and lets "
        f"{_format_percent(row.unrelated)} of unrelated documents pass: about {passing:,.0f} of {report.documents:,} "
        "for each query."
    )


def _format_percent(share: ConfidenceInterval) -> str:
    return f"{share.mean:.2%} ({share.low:.2%}–{share.high:.2%})"
