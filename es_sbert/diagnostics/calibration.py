"""Choose a minimum cosine: how many relevant and unrelated documents each value keeps.

Pure functions from cosines to a table, a recommendation and a report. `index_calibration` reads the index.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass

import numpy as np
from numpy.typing import NDArray

from es_sbert.confidence_interval import ConfidenceInterval, mean_confidence_interval
from es_sbert.diagnostics.recall import Doubles, document_cosines
from es_sbert.engines.rest import Json
from es_sbert.index.earlier_segments import IndexTypeShare
from es_sbert.messages import escape_unprintable, pluralize
from es_sbert.vectors import Vectors


@dataclass(frozen=True)
class CalibrationReport:
    """What was measured.

    Attributes:
        index, field, model: What is searched, and by which model.
        documents: Documents with a vector.
        sample: Documents that are used as unrelated ones.
        queries: Number of queries.
        labelled, kinds, left_out: See `CalibrationQueries`.
        k: Hits of a search.
        keep: Share of the relevant documents that the recommended value keeps, unless `max_unrelated` is given.
        max_unrelated: Share of the unrelated documents that may reach the recommended value; None chooses by `keep`.
        calibration: The table and the recommendation.
        stored: How much of the index is stored in its index type. Hits are those of the index as it is.
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
    k: int
    keep: float
    max_unrelated: float | None
    calibration: Calibration
    stored: IndexTypeShare

    @property
    def recommended_value(self) -> float:
        """The recommended minimum cosine."""
        return self.calibration.recommended.row.min_cosine

    def as_json(self) -> Json:
        plain = asdict(self)
        calibration: Json = plain.pop("calibration")
        del plain["stored"]
        return plain | calibration | {"index_type_share": self.stored.share}


Counts = NDArray[np.int64]

# Every value that is considered, in steps of 0.01: a cosine is not known better than that. *Shape:* (thresholds,).
COSINE_GRID: Doubles = np.arange(-100, 100) / 100
# A value that lets more unrelated documents pass than this does not tell them from relevant ones.
MAX_UNRELATED_SHARE = 0.05
# Cosines that are held at a time.
_BLOCK_COSINES = 4_000_000
# What a mean of shares may lose by rounding.
_ROUNDING = 1e-9
_TABLE_STEPS = (1, 2, 5, 10, 20)
_MAX_TABLE_ROWS = 16


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
    recall: ConfidenceInterval
    unrelated: ConfidenceInterval
    hits: float
    precision: float | None


@dataclass(frozen=True)
class CosineRecommendation:
    """The largest minimum cosine that keeps enough of the relevant documents, or the smallest that few others reach.

    Attributes:
        row: The value, and what it does.
        low: Lower end of its 95 % interval: the largest value that surely keeps enough, or the smallest that may be
            reached by few enough. None where there are too few queries to be sure of any.
        high: Upper end: the largest value that may keep enough, or the smallest that is surely reached by few enough.
        overlaps: Whether more unrelated documents pass than `MAX_UNRELATED_SHARE`.
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
    recommended: CosineRecommendation


def calibrate(sample: CosineSample, keep: float, max_unrelated: float | None = None) -> Calibration:
    """Find the largest value that keeps a share of the relevant documents, or the smallest that few others reach.

    Args:
        keep: Share of the relevant documents to keep, between 0 and 1.
        max_unrelated: Share of the unrelated documents that may reach the value; chooses by it and not by `keep`.
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
    """The place of the first row that suits; the last place if none does."""
    return next((place for place, row in enumerate(rows) if suits(row)), len(rows) - 1)


def row_at(sample: CosineSample, min_cosine: float) -> ThresholdRow:
    """What one value of the grid does."""
    return _threshold_rows(sample)[round(100 * min_cosine) + 100]


def _threshold_rows(sample: CosineSample) -> list[ThresholdRow]:
    """What each value of the grid does."""
    kept = np.stack([_count_reaching(cosines) / len(cosines) for cosines in sample.relevant])  # (queries, thresholds)
    relevant_size = max(1, sum(map(len, sample.relevant)) // len(sample.relevant))
    some = sample.compared > 0
    unrelated = sample.passed[some] / sample.compared[some, None]  # (queries, thresholds)
    unrelated_size = int(sample.compared[some].mean())
    hits = np.sum([_count_reaching(found.cosines) for found in sample.nearest], axis=0).tolist()
    reaching = [_count_reaching(found.cosines[found.relevant]) for found in sample.nearest]
    relevant_hits = np.sum(reaching, axis=0).tolist()
    return [
        ThresholdRow(
            float(value),
            mean_confidence_interval(kept[:, place].tolist(), relevant_size),
            mean_confidence_interval(unrelated[:, place].tolist(), unrelated_size),
            hits[place] / len(kept),
            relevant_hits[place] / hits[place] if hits[place] else None,
        )
        for place, value in enumerate(COSINE_GRID)
    ]


def _shown_places(rows: Sequence[ThresholdRow], best: int) -> list[int]:
    """Places from where half of the unrelated documents pass to where no relevant one does, `best` among them."""
    first = min(best, max((place for place, row in enumerate(rows) if row.unrelated.mean >= 0.5), default=0))
    last = max(place for place, row in enumerate(rows) if row.recall.mean > 0)
    step = next((step for step in _TABLE_STEPS if (last - first) // step < _MAX_TABLE_ROWS), _TABLE_STEPS[-1])
    # Multiples of the step as cosines: the grid begins at -1, a multiple of every step.
    return sorted({*range(first - first % step, last + 1, step), best})


def _count_reaching(cosines: Doubles) -> Counts:
    """How many of the cosines are at each value of the grid or above. *Shape:* ``(thresholds,)``."""
    below: Counts = np.searchsorted(np.sort(cosines), COSINE_GRID, side="left").astype(np.int64)
    return len(cosines) - below


def count_unrelated(
    queries: Vectors, vectors: Vectors, starts: Counts, relevant: Sequence[Sequence[int]]
) -> tuple[Counts, Counts]:
    """Compare queries with documents that are not relevant to them, in blocks of bounded size.

    Args:
        queries, vectors, starts: See `document_cosines`.
        relevant: Of each query, places of the documents that are left out because they are relevant to it.

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
    """What was measured, a table of values, and the recommendation, line by line; the last one is what to type."""
    recommended = report.calibration.recommended
    lines = [
        f"{report.index}.{report.field}: {pluralize(report.documents, 'document')} with vectors of "
        f"{escape_unprintable(report.model)}",
        f"{report.queries:,} {_describe_queries(report)}, compared with a sample of "
        f"{pluralize(report.sample, 'document')}",
    ]
    if report.left_out:
        lines.append("left out: " + ", ".join(f"{count:,} {reason}" for reason, count in report.left_out.items()))
    head = f"{'min_cosine':>10}{'recall':>9}{'95 % interval':>17}{'unrelated':>12}{'per 100,000':>13}"
    lines.append(head + f"{f'hits of {report.k}':>13}" + (f"{'precision':>11}" if report.labelled else ""))
    lines += [_format_row(row, report.labelled) for row in report.calibration.rows]
    if not report.labelled:
        lines.append(
            "These queries are parts of documents, each compared with the rest of its document, not real queries. The "
            "value may be too high or too low for real queries. Labelled queries (`queries=FILE`) give a better one."
        )
    if not report.stored.is_whole:
        lines.append(
            f"{report.stored.describe()}. Cosines are exact in every index type, but hits of {report.k} and precision "
            f"are those of the index as it is now. {report.stored.remedy}"
        )
    lines.append(_recommendation_line(report))
    if recommended.overlaps:
        lines.append(
            f"More than {MAX_UNRELATED_SHARE:.0%} of unrelated documents pass: no value tells them from relevant ones "
            "here. Rank by cosine without a minimum, combine it with words (a hybrid search), take a higher value from "
            "the table if losing relevant documents is acceptable, or use a model that was trained on such texts."
        )
    value = f"{report.recommended_value:.2f}"
    request = f'{{"match": {{"semantic": {{"query": "…", "min_cosine": {value}}}}}}}'
    lines.append(f"Use it for all searches: `es-sbert serve --min-cosine {value}`, or in one request: `{request}`")
    return lines


def _describe_queries(report: CalibrationReport) -> str:
    if report.labelled:
        return "labelled queries"
    return "queries made of documents (" + ", ".join(f"{kind}: {n:,}" for kind, n in report.kinds.items()) + ")"


def _format_row(row: ThresholdRow, labelled: bool) -> str:
    precision = "–" if row.precision is None else f"{row.precision:.3f}"
    return (
        f"{row.min_cosine:>10.2f}{row.recall.mean:>9.3f}{f'{row.recall.low:.3f}–{row.recall.high:.3f}':>17}"
        f"{f'{row.unrelated.mean:.3%}':>12}{100_000 * row.unrelated.mean:>13,.0f}{row.hits:>13.2f}"
        + (f"{precision:>11}" if labelled else "")
    )


def _recommendation_line(report: CalibrationReport) -> str:
    recommended, row = report.calibration.recommended, report.calibration.recommended.row
    interval = (
        f"at most {recommended.high:.2f}; for a lower end, give more queries"
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
