"""The course of a run: a CSV log and a plot of loss and dev score."""

from __future__ import annotations

import csv
import io
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments

from es_sbert.training.failures import disk_errors_explained

_COLUMNS = ("step", "epoch", "loss", "learning_rate", "grad_norm", "dev")

Row = Mapping[str, float]


def course(log_history: Sequence[Mapping[str, Any]]) -> list[dict[str, float]]:
    """transformers' log as rows of `_COLUMNS`, one a step; a row lacks what was not measured at its step."""
    rows: dict[int, dict[str, float]] = {}
    for entry in log_history:
        if "loss" not in entry and "eval_dev" not in entry:
            continue  # the summary at the end of a run
        row = rows.setdefault(int(entry["step"]), {"step": int(entry["step"]), "epoch": round(entry["epoch"], 4)})
        for name in _COLUMNS[2:-1]:
            if name in entry:
                row[name] = float(entry[name])
        if "eval_dev" in entry:
            row["dev"] = float(entry["eval_dev"])
    return [rows[step] for step in sorted(rows)]


def as_csv(rows: Sequence[Row]) -> str:
    """Rows with a header; an empty field where nothing was measured."""
    text = io.StringIO()
    writer = csv.DictWriter(text, _COLUMNS, restval="", lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return text.getvalue()


def plot(rows: Sequence[Row], path: Path, *, title: str, dev_name: str | None) -> None:
    """Draw loss and dev score over the steps.

    Args:
        rows: As `course` gives them.
        path: PNG file to write.
        title: Above the axes.
        dev_name: What the dev score is, or None without one.
    """
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(8, 4.5), layout="constrained")
    FigureCanvasAgg(figure)  # a canvas of its own: no window, and no global state of pyplot
    axes = figure.add_subplot(title=title, xlabel="step", ylabel="loss")
    losses = [(row["step"], row["loss"]) for row in rows if "loss" in row]
    axes.plot([step for step, _ in losses], [loss for _, loss in losses], color="tab:blue", label="loss")
    measured = [(row["step"], row["dev"]) for row in rows if "dev" in row]
    if dev_name and measured:
        right = axes.twinx()
        right.set_ylabel(dev_name)
        right.plot([step for step, _ in measured], [dev for _, dev in measured], color="tab:orange", marker="o",
                   label=dev_name)  # fmt: skip
    figure.legend(loc="outside lower center", ncols=2)
    figure.savefig(path, dpi=120)


class History(TrainerCallback):
    """Keeps log and plot beside the checkpoints up to date; on resuming they go on from the checkpoint's own log.

    Args:
        stem: Path without suffix: `<stem>.csv` and `<stem>.png` are written.
        title: Of the plot.
        dev_name: What the dev score is, or None.
    """

    def __init__(self, stem: Path, *, title: str, dev_name: str | None) -> None:
        self._stem = stem
        self._title = title
        self._dev_name = dev_name

    def on_log(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        if state.is_world_process_zero:
            rows = course(state.log_history)
            with disk_errors_explained(self._stem.parent):
                self._stem.with_name(f"{self._stem.name}.csv").write_text(as_csv(rows), encoding="utf-8")

    def on_train_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        if state.is_world_process_zero:
            path = self._stem.with_name(f"{self._stem.name}.png")
            with disk_errors_explained(self._stem.parent):
                plot(course(state.log_history), path, title=self._title, dev_name=self._dev_name)
