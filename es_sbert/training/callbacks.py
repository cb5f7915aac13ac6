"""Trainer callbacks: schedule of checkpoints and early stopping, CSV log, progress bar."""

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


class MetricsLogCallback(TrainerCallback):
    """Writes the log next to the checkpoints; after a resume, it continues the checkpoint's log.

    Args:
        path: The CSV file.
    """

    def __init__(self, path: Path) -> None:
        self._path = path

    def on_log(self, args: Any, state: TrainerState, control: Any, **kwargs: Any) -> None:
        if state.is_world_process_zero:
            with translate_disk_errors(self._path.parent):
                self._path.write_text(metrics_csv(metrics_history(state.log_history)), encoding="utf-8")


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
