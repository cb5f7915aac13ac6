"""A calibration report for people."""

from __future__ import annotations

from es_sbert.printable import printable
from es_sbert.tuning.calibrate import OVERLAP, Recommendation, ThresholdRow
from es_sbert.tuning.calibrate_index import CalibrationReport
from es_sbert.tuning.interval import Estimate


def calibration_lines(report: CalibrationReport) -> list[str]:
    """What was measured, a table of values, and the recommendation, line by line; the last one is what to type."""
    recommended = report.calibration.recommended
    head = f"{'min_cosine':>10}{'recall':>9}{'95 % interval':>17}{'unrelated':>12}{'per 100,000':>13}"
    lines = [
        f"{report.index}.{report.field}: {report.documents:,} documents with vectors of {printable(report.model)}",
        f"{report.queries:,} {_described(report)}, compared with a sample of {report.sample:,} documents",
        *(["left out: " + ", ".join(f"{count:,} {reason}" for reason, count in report.left_out.items())]
          if report.left_out else []),
        head + f"{f'hits of {report.k}':>13}" + (f"{'precision':>11}" if report.labelled else ""),
    ]  # fmt: skip
    lines += [_row(row, report.labelled) for row in report.calibration.rows]
    if not report.labelled:
        lines.append(
            "These queries are parts of documents, each compared with the rest of its own, not what users type. The "
            "value may be too high or too low for real queries. Labelled queries (--queries FILE) give a better one."
        )
    lines.append(_recommendation(report, recommended))
    if recommended.overlaps:
        lines.append(
            f"More than {OVERLAP:.0%} of unrelated documents pass: no value tells them from relevant ones here. Rank "
            "by cosine without a minimum, combine it with words (a hybrid search), take a higher value from the table "
            "if losing relevant documents is acceptable, or use a model that was trained on such texts."
        )
    value = f"{recommended.row.min_cosine:.2f}"
    request = f'{{"match": {{"semantic": {{"query": "…", "min_cosine": {value}}}}}}}'
    lines.append(f"Use it for all searches: `es-sbert serve --min-cosine {value}`, or in one request: `{request}`")
    return lines


def _described(report: CalibrationReport) -> str:
    if report.labelled:
        return "labelled queries"
    return "queries made of documents (" + ", ".join(f"{kind}: {n:,}" for kind, n in report.kinds.items()) + ")"


def _row(row: ThresholdRow, labelled: bool) -> str:
    precision = "–" if row.precision is None else f"{row.precision:.3f}"
    return (
        f"{row.min_cosine:>10.2f}{row.recall.mean:>9.3f}{f'{row.recall.low:.3f}–{row.recall.high:.3f}':>17}"
        f"{f'{row.unrelated.mean:.3%}':>12}{100_000 * row.unrelated.mean:>13,.0f}{row.hits:>13.2f}"
        + (f"{precision:>11}" if labelled else "")
    )


def _recommendation(report: CalibrationReport, recommended: Recommendation) -> str:
    row = recommended.row
    interval = (
        f"at most {recommended.high:.2f}; for a lower end, give more queries"
        if recommended.low is None
        else f"{recommended.low:.2f}–{recommended.high:.2f}"
    )
    passing = row.unrelated.mean * report.documents
    return (
        f"Recommended to keep {report.keep:g} of the relevant documents: {row.min_cosine:.2f} "
        f"(95 % interval: {interval}). It keeps {_percent(row.recall)}, and lets {_percent(row.unrelated)} of "
        f"unrelated documents pass: about {passing:,.0f} of {report.documents:,} for each query."
    )


def _percent(share: Estimate) -> str:
    return f"{share.mean:.2%} ({share.low:.2%}–{share.high:.2%})"
