"""Progress of a run on the terminal: a bar with loss, dev score and time left."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments

from es_sbert.progress_line import SingleLineProgress


class ProgressBar(TrainerCallback):
    """A bar where stderr is a terminal; else a line for every measurement.

    Args:
        stage: Name of the stage.
        dev_name: What the dev score is, or None.
        report: Told a line for every measurement.
        console: Where the bar is drawn; stderr by default.
    """

    def __init__(
        self, stage: str, dev_name: str | None, report: Callable[[str], None], console: Console | None = None
    ) -> None:
        self._stage = stage
        self._dev_name = dev_name
        self._report = report
        self._console = console or Console(stderr=True)
        self._bar: SingleLineProgress | None = None

    def on_train_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
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

    def on_step_end(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        if self._bar:
            self._bar.update(self._bar.task_ids[0], completed=state.global_step)

    def on_log(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        logs: dict[str, float] | None = None,
        **kwargs: Any,
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
        """Leave the terminal as it was, however the run ended."""
        if self._bar:
            self._bar.stop()
            self._bar = None
