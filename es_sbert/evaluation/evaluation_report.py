"""Reports of evaluations, as text tables, JSON, and CSV."""

from __future__ import annotations

import platform
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from importlib.metadata import PackageNotFoundError, version

import orjson

from es_sbert.evaluation.beir_files import RetrievalCollection
from es_sbert.evaluation.ranking import METRICS, Rankings, mean_scores, measure_queries
from es_sbert.evaluation.task_data import EvaluationTask
from es_sbert.messages import pluralize
from es_sbert.version import __version__

AVERAGE = "average"
# Packages that the figures depend on.
_REPORTED_PACKAGES = (
    "numpy", "scipy", "scikit-learn", "onnxruntime", "onnxruntime-gpu", "torch", "transformers",
)  # fmt: skip


def versions() -> dict[str, str]:
    """Look up the versions of Python, es-sbert and the installed packages that figures depend on."""
    found = {"python": platform.python_version(), "es-sbert": __version__}
    for package in _REPORTED_PACKAGES:
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            continue  # not installed, so not used
    return found


@dataclass(frozen=True)
class ReportRow:
    """Figures of one data set, or of a part of it.

    Usage:
        ```python
        for row in evaluate_model("all-MiniLM-L6-v2", "sts", "data").rows:
            print(row.data, row.figures)
        ```

    Attributes:
        data: Name of the data set.
        part: The measured part of the data set, or the method: `all`, `in memory`, `10 folds`, …
        size: Number of measured units.
        unit: `pairs`, `triplets`, `examples` or `queries`.
        figures: Name → value. Measures are × 100; thresholds are similarities.
        scores: Query → figure → value, for retrieval only; not printed.
    """

    data: str
    part: str
    size: int
    unit: str
    figures: dict[str, float]
    scores: dict[str, dict[str, float]] = field(default_factory=dict, repr=False)


@dataclass(frozen=True)
class EvaluationReport:
    """Results of one model on one task.

    Usage:
        ```python
        report = evaluate_model("all-MiniLM-L6-v2", "sts", "data")
        print(report.model, report.versions, report.as_json())
        ```

    Attributes:
        task: The task.
        model: The model's name, with details of how it ran if they matter.
        rows: Figures in the order of the data, the same figures in each row.
        settings: Settings of the measurement.
        versions: Package → version.
    """

    task: EvaluationTask
    model: str
    rows: tuple[ReportRow, ...]
    settings: dict[str, str | int | float | None] = field(default_factory=dict)
    versions: dict[str, str] = field(default_factory=versions)

    def as_json(self) -> bytes:
        """Format as one line of JSON, without the scores of single queries."""
        plain = asdict(self)
        for row in plain["rows"]:
            del row["scores"]
        return orjson.dumps(plain)


def metric_label(name: str) -> str:
    """Return a metric's name for tables, e.g. `ρ cosine` for `spearman_cosine`."""
    return name.replace("spearman", "ρ").replace("pearson", "r").replace("_", " ")


def text_table(report: EvaluationReport) -> str:
    """Format the report as text for a terminal. Measures have two decimals, as in the paper."""
    names = list(report.rows[0].figures)
    grid = [["data", "part", report.rows[0].unit, *map(metric_label, names)]]
    for row in report.rows:
        figures = [f"{row.figures[name]:.{4 if 'threshold' in name else 2}f}" for name in names]
        grid.append([row.data, row.part, f"{row.size:,}", *figures])
    widths = [max(map(len, column)) for column in zip(*grid, strict=True)]
    lines = [f"{report.task}: {report.model}"]
    for cells in grid:
        texts = [cell.ljust(width) for cell, width in zip(cells[:2], widths[:2], strict=True)]
        numbers = [cell.rjust(width) for cell, width in zip(cells[2:], widths[2:], strict=True)]
        lines.append("  ".join([*texts, *numbers]).rstrip())
    return "\n".join(lines)


def retrieval_row(data: RetrievalCollection, rankings: Rankings, part: str) -> ReportRow:
    """Make the row with the metrics of a collection's rankings."""
    scores = measure_queries(rankings, data.judgements)
    return ReportRow(data.name, part, len(data.queries), "queries", mean_scores(scores), scores)


def average_row(rows: Sequence[ReportRow]) -> ReportRow:
    """Average the rows of several collections, each with the same weight, as BEIR and NanoBEIR do."""
    figures = {name: sum(row.figures[name] for row in rows) / len(rows) for name in METRICS}
    return ReportRow(AVERAGE, pluralize(len(rows), "collection"), sum(row.size for row in rows), "queries", figures)
