"""Compare two retrieval reports of the same queries: which system is better, and whether that is more than chance."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass

from es_sbert.engines.rest import Json
from es_sbert.errors import UsageError
from es_sbert.evaluation.evaluation_report import EvaluationReport, ReportRow, metric_label
from es_sbert.evaluation.ranking_metrics import MAIN_METRIC, METRICS
from es_sbert.evaluation.retrieval import AVERAGE
from es_sbert.evaluation.significance import PairedDifference, difference_line, paired_difference, shown_difference


@dataclass(frozen=True)
class Comparison:
    """Two systems on the same data.

    Attributes:
        first, second: Names of the systems.
        differences: Data set → metric → difference. Of several sets, `average` comes last: each set counts the same.
    """

    first: str
    second: str
    differences: dict[str, dict[str, PairedDifference]]

    def as_json(self) -> Json:
        differences = {
            data: {metric: asdict(found) | {"verdict": found.verdict} for metric, found in own.items()}
            for data, own in self.differences.items()
        }
        return {"first": self.first, "second": self.second, "differences": differences}


def compare_reports(first: EvaluationReport, second: EvaluationReport, names: tuple[str, str]) -> Comparison:
    """Compare two reports of the task retrieval, of the same data.

    Args:
        names: Names of the systems.

    Raises:
        UsageError: the reports are of other data or queries, or have no scores of queries.
    """
    ours, theirs = ([row for row in report.rows if row.scores] for report in (first, second))
    if not ours or [_queries(row) for row in ours] != [_queries(row) for row in theirs]:
        raise UsageError("the two reports are not of the same queries", "Evaluate both systems on the same data.")
    pairs = list(zip(ours, theirs, strict=True))
    differences = {own.data: _compare(((own, other),)) for own, other in pairs}
    if len(pairs) > 1:
        differences[AVERAGE] = _compare(pairs)
    return Comparison(*names, differences)


def _queries(row: ReportRow) -> tuple[str, list[str]]:
    return row.data, list(row.scores)


def _compare(pairs: Sequence[tuple[ReportRow, ReportRow]]) -> dict[str, PairedDifference]:
    """Differences of each metric over rows of both systems, each of which counts the same."""
    groups = [number for number, (row, _) in enumerate(pairs) for _ in row.scores]
    return {
        metric: paired_difference(
            [scores[metric] for row, _ in pairs for scores in row.scores.values()],
            [scores[metric] for _, row in pairs for scores in row.scores.values()],
            groups=groups,
        )
        for metric in METRICS
    }


def comparison_lines(comparison: Comparison) -> Iterator[str]:
    """The verdict by nDCG@10 for each data set, and all metrics of the last one, which is the average of several."""
    first, second = comparison.first, comparison.second
    label = metric_label(MAIN_METRIC)
    for data, own in comparison.differences.items():
        yield f"{data}: {difference_line(own[MAIN_METRIC], first, second, label)}"
    data, figures = list(comparison.differences.items())[-1]
    yield f"{data}:" if len(comparison.differences) > 1 else "all metrics:"
    interval = "95 % interval"
    yield f"{'metric':<14}{'first':>8}{'second':>8}{'difference':>12}{interval:>20}{'p':>8}"
    for metric, found in figures.items():
        difference = shown_difference(found.first, found.second)
        bounds = f"{found.low:+.2f} to {found.high:+.2f}"
        yield (
            f"{metric_label(metric):<14}{found.first:>8.2f}{found.second:>8.2f}{difference:>+12.2f}"
            f"{bounds:>20}{found.p_value:>8.3f}"
        )
