"""The results of one task: a text table, Markdown tables, JSON."""

from __future__ import annotations

import platform
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from importlib.metadata import PackageNotFoundError, version

import orjson

from es_sbert.evaluation.task_data import EvaluationTask

# What the figures come from.
_REPORTED_PACKAGES = (
    "es-sbert", "numpy", "scipy", "scikit-learn", "ir-measures", "onnxruntime", "onnxruntime-gpu", "torch",
    "transformers",
)  # fmt: skip


def versions() -> dict[str, str]:
    """Versions of Python and of what is installed of the packages that figures depend on."""
    found = {"python": platform.python_version()}
    for package in _REPORTED_PACKAGES:
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            continue  # not installed, so not used
    return found


@dataclass(frozen=True)
class ReportRow:
    """Figures of one data set, or of a part of it.

    Attributes:
        data: Name of the data set.
        part: What of it, or how it was measured: `all`, a subset, `10 folds`, …
        size: How many `unit` were measured.
        unit: `pairs`, `triplets`, `examples` or `queries`.
        figures: Name → value. Measures are × 100; thresholds are similarities.
    """

    data: str
    part: str
    size: int
    unit: str
    figures: dict[str, float]


@dataclass(frozen=True)
class EvaluationReport:
    """What one task showed about one model.

    Attributes:
        task: Which.
        model: The model's name, with what matters about how it ran.
        rows: In the order of the data.
        settings: How it was measured.
        versions: Package → version.
    """

    task: EvaluationTask
    model: str
    rows: tuple[ReportRow, ...]
    settings: dict[str, str | int | float | None] = field(default_factory=dict)
    versions: dict[str, str] = field(default_factory=versions)

    def figure(self, data: str, name: str, part: str | None = None) -> float:
        """One figure.

        Args:
            data: Name of the data set.
            name: Name of the figure.
            part: Which row of it; the first by default.

        Raises:
            KeyError: there is none.
        """
        for row in self.rows:
            if row.data == data and part in (None, row.part):
                return row.figures[name]
        raise KeyError(f"{self.task}: no figures of {data}, {part or 'any part'}")

    def as_json(self) -> bytes:
        """One line of JSON."""
        return orjson.dumps(asdict(self))


def table_header(report: EvaluationReport) -> list[str]:
    """Headings of the table's columns."""
    return ["data", "part", report.rows[0].unit, *(metric_label(name) for name in report.rows[0].figures)]


def table_cells(row: ReportRow) -> list[str]:
    """A row as texts, measures with two digits as the paper prints them."""
    figures = [f"{value:.4f}" if "threshold" in name else f"{value:.2f}" for name, value in row.figures.items()]
    return [row.data, row.part, f"{row.size:,}", *figures]


def metric_label(name: str) -> str:
    """`ρ cosine` of `spearman_cosine`."""
    return name.replace("spearman", "ρ").replace("pearson", "r").replace("_", " ")


def text_table(report: EvaluationReport) -> str:
    """The report as lines for a terminal, numbers flush right; rows with other figures get a table of their own."""
    lines = [f"{report.task}: {report.model}"]
    for group in _group_by_metrics(report.rows):
        part = EvaluationReport(report.task, report.model, group, versions={})
        grid = [table_header(part), *map(table_cells, group)]
        widths = [max(map(len, column)) for column in zip(*grid, strict=True)]
        lines += [
            "  ".join(
                cell.ljust(width) if place < 2 else cell.rjust(width)
                for place, (cell, width) in enumerate(zip(line, widths, strict=True))
            ).rstrip()
            for line in grid
        ]
    return "\n".join(lines)


def markdown_tables(report: EvaluationReport) -> str:
    """The report's rows as Markdown tables."""
    tables = []
    for group in _group_by_metrics(report.rows):
        part = EvaluationReport(report.task, report.model, group, versions={})
        names = table_header(part)
        lines = [names, ["---", "---", *["---:"] * (len(names) - 2)], *map(table_cells, group)]
        tables.append("\n".join("| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |" for line in lines))
    return "\n\n".join(tables)


def _group_by_metrics(rows: Sequence[ReportRow]) -> list[tuple[ReportRow, ...]]:
    """Rows grouped by the figures they have, in order of first appearance."""
    groups: dict[tuple[str, ...], list[ReportRow]] = {}
    for row in rows:
        groups.setdefault((row.unit, *row.figures), []).append(row)
    return [tuple(group) for group in groups.values()]
