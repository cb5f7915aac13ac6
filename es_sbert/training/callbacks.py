"""Trainer callbacks: schedule of checkpoints and early stopping, CSV log and plot, progress bar."""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from transformers import TrainerCallback, TrainerControl, TrainerState

from es_sbert.progress_bar import SingleLineProgress
from es_sbert.training.recipe import StageSpec
from es_sbert.training.training_errors import translate_disk_errors


def checkpoint_steps(steps_per_epoch: int, per_epoch: int) -> frozenset[int]:
    """Steps of an epoch, from 1, after which the model is evaluated and saved: evenly spread, including the last."""
    return frozenset(math.ceil(steps_per_epoch * part / per_epoch) for part in range(1, per_epoch + 1))


def is_out_of_patience(dev: Sequence[float], patience: int) -> bool:
    """Whether the last `patience` evaluations are no better than the best before them.

    Args:
        dev: Scores in order, without that of step 0: the start model is not a checkpoint.
        patience: At least 1.
    """
    return bool(dev) and len(dev) - 1 - dev.index(max(dev)) >= patience


class StageSchedule(TrainerCallback):
    """Decides when a stage is evaluated and saved, and when it ends.

    The stage is evaluated and saved at the steps of `checkpoint_steps`, and after the last step (transformers'
    default). It ends after its last step, or after `patience` evaluations without a better dev score.

    The end depends only on what a checkpoint holds, so a resumed run ends at the same step as an uninterrupted one.
    transformers' early stopping starts counting again on resume, and its loop takes one step more if the last
    checkpoint is that of the last step, in the middle of an epoch.

    Args:
        stage: The stage.
        steps_per_epoch: Optimizer steps of one epoch.
    """

    def __init__(self, stage: StageSpec, steps_per_epoch: int) -> None:
        self._stage = stage
        self._steps_per_epoch = steps_per_epoch
        self._steps = checkpoint_steps(steps_per_epoch, stage.checkpoints_per_epoch)

    def on_train_begin(self, args: Any, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        if state.global_step >= state.max_steps:
            control.should_training_stop = True
        self.on_evaluate(args, state, control)

    def on_step_end(self, args: Any, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        step_in_epoch = (state.global_step - 1) % self._steps_per_epoch + 1
        if step_in_epoch in self._steps:
            control.should_save = True
            control.should_evaluate = self._stage.dev is not None

    def on_evaluate(self, args: Any, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        dev = [entry["eval_dev"] for entry in state.log_history if "eval_dev" in entry and entry["step"] > 0]
        if self._stage.patience is not None and is_out_of_patience(dev, self._stage.patience):
            control.should_training_stop = True


# Column of the log → name in transformers' log, of the values that a step may have.
_VALUES = {"loss": "loss", "learning_rate": "learning_rate", "grad_norm": "grad_norm", "dev": "eval_dev"}
_COLUMNS = ("step", "epoch", *_VALUES)

MetricsRow = Mapping[str, float]


def metrics_history(log_history: Sequence[Mapping[str, Any]]) -> list[dict[str, float]]:
    """Convert transformers' log to rows of `_COLUMNS`, one for each step; a row has only the values of its step."""
    rows: dict[int, dict[str, float]] = {}
    for entry in log_history:
        if "loss" not in entry and "eval_dev" not in entry:
            continue  # the summary at the end of a run
        row = rows.setdefault(int(entry["step"]), {"step": int(entry["step"]), "epoch": round(entry["epoch"], 4)})
        row |= {column: float(entry[name]) for column, name in _VALUES.items() if name in entry}
    return [rows[step] for step in sorted(rows)]


def metrics_csv(rows: Sequence[MetricsRow]) -> str:
    """Format rows as CSV with a header; missing values are empty."""
    text = io.StringIO()
    writer = csv.DictWriter(text, _COLUMNS, restval="", lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return text.getvalue()


def plot_metrics(rows: Sequence[MetricsRow], path: Path, *, title: str, dev_name: str | None) -> None:
    """Draw loss and dev score over the steps.

    Args:
        rows: As `metrics_history` returns them.
        path: PNG file to write.
        title: Title of the plot.
        dev_name: Name of the dev metric; None without a dev set.
    """
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(8, 4.5), layout="constrained")
    FigureCanvasAgg(figure)  # no window, and no global state of pyplot
    axes = figure.add_subplot(title=title, xlabel="step", ylabel="loss")
    losses = [(row["step"], row["loss"]) for row in rows if "loss" in row]
    axes.plot([step for step, _ in losses], [loss for _, loss in losses], color="tab:blue", label="loss")
    measured = [(row["step"], row["dev"]) for row in rows if "dev" in row]
    if dev_name and measured:
        steps, scores = zip(*measured, strict=True)
        right = axes.twinx()
        right.set_ylabel(dev_name)
        right.plot(steps, scores, color="tab:orange", marker="o", label=dev_name)
    figure.legend(loc="outside lower center", ncols=2)
    figure.savefig(path, dpi=120)


class MetricsLogCallback(TrainerCallback):
    """Writes log and plot next to the checkpoints; after a resume, they continue the checkpoint's log.

    Args:
        stem: Path without suffix: `<stem>.csv` and `<stem>.png` are written.
        title: Title of the plot.
        dev_name: Name of the dev metric; None without a dev set.
    """

    def __init__(self, stem: Path, *, title: str, dev_name: str | None) -> None:
        self._stem = stem
        self._title = title
        self._dev_name = dev_name

    def on_log(self, args: Any, state: TrainerState, control: Any, **kwargs: Any) -> None:
        if state.is_world_process_zero:
            rows = metrics_history(state.log_history)
            with translate_disk_errors(self._stem.parent):
                self._stem.with_name(f"{self._stem.name}.csv").write_text(metrics_csv(rows), encoding="utf-8")

    def on_train_end(self, args: Any, state: TrainerState, control: Any, **kwargs: Any) -> None:
        if state.is_world_process_zero:
            path = self._stem.with_name(f"{self._stem.name}.png")
            with translate_disk_errors(self._stem.parent):
                plot_metrics(metrics_history(state.log_history), path, title=self._title, dev_name=self._dev_name)


class ProgressBarCallback(TrainerCallback):
    """Shows a progress bar if stderr is a terminal; otherwise reports a line for every evaluation.

    Args:
        stage: Name of the stage.
        dev_name: Name of the dev metric; None without a dev set.
        report: Called with a line for every evaluation.
        console: Console for the bar; stderr by default.
    """

    def __init__(
        self, stage: str, dev_name: str | None, report: Callable[[str], None], console: Console | None = None
    ) -> None:
        self._stage = stage
        self._dev_name = dev_name
        self._report = report
        self._console = console or Console(stderr=True)
        self._bar: SingleLineProgress | None = None

    def on_train_begin(self, args: Any, state: TrainerState, control: Any, **kwargs: Any) -> None:
        if not state.is_world_process_zero or not self._console.is_terminal:
            return
        self._bar = SingleLineProgress(
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TextColumn("loss {task.fields[loss]}"),
            TimeElapsedColumn(),
            TextColumn("left"),
            TimeRemainingColumn(),
            console=self._console,
        )
        self._bar.add_task(self._stage, total=state.max_steps, completed=state.global_step, loss="–")
        self._bar.start()

    def on_step_end(self, args: Any, state: TrainerState, control: Any, **kwargs: Any) -> None:
        if self._bar:
            self._bar.update(self._bar.task_ids[0], completed=state.global_step)

    def on_log(
        self, args: Any, state: TrainerState, control: Any, logs: dict[str, float] | None = None, **kwargs: Any
    ) -> None:
        logs = logs or {}
        if not state.is_world_process_zero:
            return
        if self._bar and "loss" in logs:
            self._bar.update(self._bar.task_ids[0], loss=f"{logs['loss']:.4f}")
        if "eval_dev" in logs:
            losses = [entry["loss"] for entry in state.log_history if "loss" in entry]
            loss = f", loss {losses[-1]:.4f}" if losses else ""
            self._report(
                f"{self._stage}: step {state.global_step} of {state.max_steps}{loss}, "
                f"{self._dev_name} {logs['eval_dev']:.2f}"
            )

    def stop(self) -> None:
        """Restore the terminal."""
        if self._bar:
            self._bar.stop()
            self._bar = None
