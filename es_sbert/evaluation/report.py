"""The figures of one task: a table for people, JSON for programs."""

from __future__ import annotations

import platform
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from importlib.metadata import PackageNotFoundError, version

import orjson

from es_sbert.evaluation.data import Task

# What the figures come from.
_PACKAGES = (
    "es-sbert", "numpy", "scipy", "scikit-learn", "ir-measures", "onnxruntime", "onnxruntime-gpu", "torch",
    "transformers",
)  # fmt: skip


def versions() -> dict[str, str]:
    """Versions of Python and of what is installed of the packages that figures depend on."""
    found = {"python": platform.python_version()}
    for package in _PACKAGES:
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            continue  # not installed, so not used
    return found


@dataclass(frozen=True)
class Row:
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
class Report:
    """What one task showed about one model.

    Attributes:
        task: Which.
        model: The model's name, with what matters about how it ran.
        rows: In the order of the data.
        settings: How it was measured.
        versions: Package → version.
    """

    task: Task
    model: str
    rows: tuple[Row, ...]
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


def header(report: Report) -> list[str]:
    """Headings of the table's columns."""
    return ["data", "part", report.rows[0].unit, *(heading(name) for name in report.rows[0].figures)]


def cells(row: Row) -> list[str]:
    """A row as texts, measures with two digits as the paper prints them."""
    figures = [f"{value:.4f}" if "threshold" in name else f"{value:.2f}" for name, value in row.figures.items()]
    return [row.data, row.part, f"{row.size:,}", *figures]


def heading(name: str) -> str:
    """`ρ cosine` of `spearman_cosine`."""
    return name.replace("spearman", "ρ").replace("pearson", "r").replace("_", " ")


def text_table(report: Report) -> str:
    """The report as lines for a terminal, numbers flush right; rows with other figures get a table of their own."""
    lines = [f"{report.task}: {report.model}"]
    for group in _alike(report.rows):
        part = Report(report.task, report.model, group, versions={})
        grid = [header(part), *map(cells, group)]
        widths = [max(map(len, column)) for column in zip(*grid, strict=True)]
        lines += [
            "  ".join(cell.ljust(width) if place < 2 else cell.rjust(width)
                      for place, (cell, width) in enumerate(zip(line, widths, strict=True))).rstrip()
            for line in grid
        ]  # fmt: skip
    return "\n".join(lines)


def markdown_tables(report: Report) -> str:
    """The report's rows as Markdown tables."""
    tables = []
    for group in _alike(report.rows):
        part = Report(report.task, report.model, group, versions={})
        names = header(part)
        lines = [names, ["---", "---", *["---:"] * (len(names) - 2)], *map(cells, group)]
        tables.append("\n".join("| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |" for line in lines))
    return "\n\n".join(tables)


def _alike(rows: Sequence[Row]) -> list[tuple[Row, ...]]:
    """Rows grouped by the figures they have, in order of first appearance."""
    groups: dict[tuple[str, ...], list[Row]] = {}
    for row in rows:
        groups.setdefault((row.unit, *row.figures), []).append(row)
    return [tuple(group) for group in groups.values()]
