"""Format evaluation results as text tables, JSON, and Markdown model cards.

A card's front matter follows https://huggingface.co/docs/hub/model-cards.
"""

from __future__ import annotations

import json
import platform
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import orjson
from pydantic import BaseModel, ValidationError

from es_sbert import __version__
from es_sbert.errors import BundleInvalid, OutputError
from es_sbert.evaluation.ranking_metrics import METRICS, Run, mean_scores, measure_queries
from es_sbert.evaluation.task_data import TASKS, EvaluationTask, RetrievalCollection
from es_sbert.io.text_formats import format_csv_line
from es_sbert.messages import pluralize

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

    Attributes:
        data: Name of the data set.
        part: The measured part of the data set, or the method: `all`, a subset, `10 folds`, …
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

    Attributes:
        task: The task.
        model: The model's name, with details of how it ran if they matter.
        rows: Figures in the order of the data.
        settings: Settings of the measurement.
        versions: Package → version.
    """

    task: EvaluationTask
    model: str
    rows: tuple[ReportRow, ...]
    settings: dict[str, str | int | float | None] = field(default_factory=dict)
    versions: dict[str, str] = field(default_factory=versions)

    def figure(self, data: str, name: str, part: str | None = None) -> float:
        """Look up one figure.

        Args:
            data: Name of the data set.
            name: Name of the figure.
            part: Part of the data set; by default the first one.

        Raises:
            KeyError: the report does not have the figure.
        """
        for row in self.rows:
            if row.data == data and part in (None, row.part):
                return row.figures[name]
        raise KeyError(f"{self.task}: no figures for {data}, {part or 'any part'}")

    def as_json(self) -> bytes:
        """Format as one line of JSON, without the scores of single queries."""
        plain = asdict(self)
        for row in plain["rows"]:
            del row["scores"]
        return orjson.dumps(plain)


def score_lines(systems: Iterable[tuple[str, EvaluationReport]]) -> Iterator[bytes]:
    """Format the figures of each query as lines of CSV; the first column is the name of the system.

    Args:
        systems: Name and retrieval report of each system.
    """
    rows = [
        (system, row.data, query, figures)
        for system, report in systems
        for row in report.rows
        for query, figures in row.scores.items()
    ]
    names = list(rows[0][3]) if rows else []
    yield format_csv_line(["system", "data", "query", *names])
    for system, data, query, figures in rows:
        yield format_csv_line([system, data, query, *(f"{figures[name]:.4f}" for name in names)])


def metric_label(name: str) -> str:
    """Return a metric's name for tables, e.g. `ρ cosine` for `spearman_cosine`."""
    return name.replace("spearman", "ρ").replace("pearson", "r").replace("_", " ")


def _table_cells(rows: Sequence[ReportRow]) -> list[list[str]]:
    """Return headings and cells for rows with the same figures. Measures have two decimals, as in the paper."""
    grid = [["data", "part", rows[0].unit, *map(metric_label, rows[0].figures)]]
    for row in rows:
        figures = [f"{value:.4f}" if "threshold" in name else f"{value:.2f}" for name, value in row.figures.items()]
        grid.append([row.data, row.part, f"{row.size:,}", *figures])
    return grid


def text_table(report: EvaluationReport) -> str:
    """Format the report as text for a terminal. Rows with different figures get separate tables."""
    lines = [f"{report.task}: {report.model}"]
    for group in _group_by_metrics(report.rows):
        grid = _table_cells(group)
        widths = [max(map(len, column)) for column in zip(*grid, strict=True)]
        for cells in grid:
            texts = [cell.ljust(width) for cell, width in zip(cells[:2], widths[:2], strict=True)]
            numbers = [cell.rjust(width) for cell, width in zip(cells[2:], widths[2:], strict=True)]
            lines.append("  ".join([*texts, *numbers]).rstrip())
    return "\n".join(lines)


def markdown_tables(report: EvaluationReport) -> str:
    """Format the report's rows as Markdown tables."""
    tables = []
    for group in _group_by_metrics(report.rows):
        columns, *rows = _table_cells(group)
        tables.append(_markdown_table(columns, rows, ["---", "---", *["---:"] * (len(columns) - 2)]))
    return "\n\n".join(tables)


def _group_by_metrics(rows: Sequence[ReportRow]) -> list[list[ReportRow]]:
    """Group rows by the figures that they have, in order of first appearance."""
    groups: dict[tuple[str, ...], list[ReportRow]] = {}
    for row in rows:
        groups.setdefault((row.unit, *row.figures), []).append(row)
    return list(groups.values())


TRAINING_RECORD = "training.json"


class StageRecord(BaseModel):
    """Result of a training stage, for the card."""

    name: str
    examples: int
    steps: int
    start_dev: float | None = None
    best_dev: float | None = None
    best_step: int | None = None


@dataclass(frozen=True)
class FinalScores:
    """Scores of a run on its test set.

    Attributes:
        name: Name of the metric.
        start: Score of the model that the run started from; None for cross-encoders, whose heads were new.
        trained: Score of the trained model.
    """

    name: str
    start: float | None
    trained: float


class TrainingRecord(BaseModel):
    """`training.json` in the folder of a model that es-sbert trained; the card shows these fields.

    Attributes:
        recipe: The recipe, without default values.
        data: Path → SHA-256 of every file that was read.
        stages: The stages in order.
        test: Scores on the recipe's test set, if it has one.
        versions: Package → version.
    """

    recipe: dict[str, Any]
    data: dict[str, str] = {}
    stages: list[StageRecord] = []
    test: FinalScores | None = None
    versions: dict[str, str] = {}


def read_training_record(folder: Path) -> TrainingRecord | None:
    """Read the training record of a model; None if es-sbert did not train it.

    Raises:
        BundleInvalid: the record cannot be read.
    """
    path = folder / TRAINING_RECORD
    if not path.exists():
        return None
    try:
        return TrainingRecord.model_validate(json.loads(path.read_text(encoding="utf-8")))
    except (OSError, ValueError) as error:  # pydantic's ValidationError is a ValueError
        reason = f"{error.error_count()} fields are wrong" if isinstance(error, ValidationError) else str(error)
        raise BundleInvalid(
            f"{path} cannot be read: {reason}", "Remove it, or copy it again from the trained model."
        ) from error


def model_card(name: str, reports: Sequence[EvaluationReport], training: TrainingRecord | None = None) -> str:
    """Format a model card as Markdown.

    Args:
        name: The model's name.
        reports: Reports of tasks, each of which gets a section.
        training: The training record, if es-sbert trained the model.
    """
    described = (training.recipe.get("description") or "") if training else ""
    sections = [
        f"---\n{_dump_yaml(_front_matter(name, reports))}---",
        f"# {name}",
        *([str(described)] if described else []),
        *(["## Results\nMeasures are × 100, thresholds are similarities."] if reports else []),
        *(_results_section(report) for report in reports),
        *(_training_sections(training) if training else []),
        *([f"Measured with {_format_versions(reports[0].versions)}."] if reports else []),
    ]
    return "\n\n".join(sections) + "\n"


def write_card(path: Path, card: str) -> None:
    """Write a card.

    Raises:
        OutputError: the file cannot be written.
    """
    try:
        path.write_text(card, encoding="utf-8")
    except OSError as error:
        raise OutputError(f"{path} cannot be written: {error.strerror}", "Use another `card`.") from error


def _dump_yaml(value: dict[str, Any]) -> str:
    import yaml  # from the extra `train`, which only cards need

    return yaml.safe_dump(value, sort_keys=False, allow_unicode=True)


def _front_matter(name: str, reports: Sequence[EvaluationReport]) -> dict[str, Any]:
    results = [
        {
            "task": {"type": TASKS[report.task].hub_task, "name": TASKS[report.task].title},
            "dataset": {"name": row.data if row.part == "all" else f"{row.data} ({row.part})", "type": row.data},
            "metrics": [
                {"type": figure, "name": metric_label(figure), "value": round(value, 4)}
                for figure, value in row.figures.items()
            ],
        }
        for report in reports
        for row in report.rows
    ]
    about = {
        "library_name": "sentence-transformers",
        "pipeline_tag": "sentence-similarity",
        "tags": ["sentence-transformers", "sentence-similarity", "feature-extraction"],
    }
    return about | ({"model-index": [{"name": name, "results": results}]} if results else {})


def _results_section(report: EvaluationReport) -> str:
    settings = ", ".join(f"{key} {value}" for key, value in report.settings.items() if value is not None)
    measured = f"Measured: {report.model}{f' ({settings})' if settings else ''}."
    return f"### {TASKS[report.task].title}\n{measured}\n\n{markdown_tables(report)}"


def _training_sections(record: TrainingRecord) -> list[str]:
    recipe = _dump_yaml(record.recipe)
    sections = [f"## Training\nTrained by `es-sbert train` with this recipe:\n\n```yaml\n{recipe}```"]
    if record.stages:
        columns = ["stage", "examples", "steps", "dev score at the start", "best dev score", "at step"]
        sections.append(_markdown_table(columns, [_stage_cells(stage) for stage in record.stages], ["---"] * 6))
    if record.test:
        start = "" if record.test.start is None else f"{record.test.start:.2f} before the training, "
        sections.append(f"{record.test.name}: {start}{record.test.trained:.2f} after it.")
    if record.data:
        rows = [[file, f"`{sha256}`"] for file, sha256 in record.data.items()]
        sections.append("### Training data\n" + _markdown_table(["file", "SHA-256"], rows, ["---"] * 2))
    if record.versions:
        sections.append(f"Trained with {_format_versions(record.versions)}.")
    return sections


def _format_versions(versions: Mapping[str, str]) -> str:
    return ", ".join(f"{package} {number}" for package, number in versions.items())


def _stage_cells(stage: StageRecord) -> list[str]:
    start, best = ("–" if score is None else f"{score:.2f}" for score in (stage.start_dev, stage.best_dev))
    step = "–" if stage.best_step is None else f"{stage.best_step:,}"
    return [stage.name, f"{stage.examples:,}", f"{stage.steps:,}", start, best, step]


def _markdown_table(columns: list[str], rows: list[list[str]], rules: list[str]) -> str:
    lines = [columns, rules, *rows]
    return "\n".join("| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |" for line in lines)


def retrieval_row(data: RetrievalCollection, run: Run, part: str) -> ReportRow:
    """Make the row with the metrics of a collection's rankings."""
    scores = measure_queries(run, data.judgements)
    return ReportRow(data.name, part, len(data.queries), "queries", mean_scores(scores), scores)


def average_row(rows: Sequence[ReportRow]) -> ReportRow:
    """Average the rows of several collections, each with the same weight, as BEIR and NanoBEIR do."""
    figures = {name: sum(row.figures[name] for row in rows) / len(rows) for name in METRICS}
    return ReportRow(AVERAGE, pluralize(len(rows), "collection"), sum(row.size for row in rows), "queries", figures)
