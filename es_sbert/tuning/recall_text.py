"""A recall report for people."""

from __future__ import annotations

from es_sbert.engines.protocol import Flavour
from es_sbert.tuning.recall import RecallReport


def recall_lines(report: RecallReport, flavour: Flavour) -> list[str]:
    """A table of all settings and the recommendation, line by line."""
    quantised = report.rows[0].setting.oversample is not None
    name = "ef_search" if flavour is Flavour.OPENSEARCH else "num_candidates"
    head = f"{name:>14}" + (f"{'oversample':>12}" if quantised else "")
    shown = [
        f"{report.index}.{report.field}: {report.index_type}, {report.documents:,} documents, "
        f"{report.queries:,} queries",
        f"{head}{f'recall@{report.k}':>12}{'95 % interval':>18}{'median ms':>11}{'p95 ms':>9}",
    ]
    for row in report.rows:
        oversample = f"{row.setting.oversample:>12g}" if quantised else ""
        interval = f"{row.recall.low:.4f}–{row.recall.high:.4f}"
        shown.append(
            f"{row.setting.num_candidates:>14}{oversample}{row.recall.mean:>12.4f}{interval:>18}"
            f"{row.median_ms:>11.1f}{row.p95_ms:>9.1f}"
        )
    if report.recommended is None:
        best = max(report.rows, key=lambda row: row.recall.mean)
        shown.append(
            f"No setting reaches {report.target:g} for certain; the best is {best.recall.mean:.4f}. Give more "
            "--sample for narrower intervals, higher values, or a finer index type."
        )
    else:
        with_oversample = f" and oversample {report.recommended.oversample:g}" if quantised else ""
        shown.append(
            f"Recommended for {report.target:g}: num_candidates {report.recommended.num_candidates}{with_oversample}"
        )
    return shown
