"""When a run is measured on dev and saved, and when it ends."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments


def checkpoint_steps(steps_per_epoch: int, per_epoch: int) -> frozenset[int]:
    """Steps within an epoch, from 1, at which it is measured and saved: evenly spread, the last one always."""
    return frozenset(math.ceil(steps_per_epoch * part / per_epoch) for part in range(1, per_epoch + 1))


class Schedule(TrainerCallback):
    """Measure and save at the steps of `checkpoint_steps`, and after the last step of the run (transformers' default).

    Args:
        steps_per_epoch: Optimiser steps of one epoch.
        per_epoch: How often an epoch is saved.
        measured: Whether there is a dev set.
    """

    def __init__(self, steps_per_epoch: int, per_epoch: int, *, measured: bool) -> None:
        self._steps_per_epoch = steps_per_epoch
        self._steps = checkpoint_steps(steps_per_epoch, per_epoch)
        self._measured = measured

    def on_step_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> TrainerControl:
        within = (state.global_step - 1) % self._steps_per_epoch + 1
        if within in self._steps:
            control.should_save = True
            control.should_evaluate = self._measured
        return control


def out_of_patience(dev: Sequence[float], patience: int) -> bool:
    """Whether the last `patience` measurements brought nothing better than the best before them.

    Args:
        dev: Scores in order, without that of step 0: what a run starts from is no checkpoint.
        patience: At least 1.
    """
    return bool(dev) and len(dev) - 1 - dev.index(max(dev)) >= patience


class End(TrainerCallback):
    """End a run that has had its steps, or that has brought nothing better for too long.

    Both are told from what a checkpoint holds, so that a resumed run ends where an uninterrupted one does:
    transformers' own early stopping counts anew, and its loop takes one step more where the last checkpoint is that
    of the last step, in the middle of an epoch.

    Args:
        patience: Measurements without gain, or None for no such end.
    """

    def __init__(self, patience: int | None) -> None:
        self._patience = patience

    def on_train_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> TrainerControl:
        if state.global_step >= state.max_steps:
            control.should_training_stop = True
        return self.on_evaluate(args, state, control)

    def on_evaluate(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> TrainerControl:
        dev = [entry["eval_dev"] for entry in state.log_history if "eval_dev" in entry and entry["step"] > 0]
        if self._patience is not None and out_of_patience(dev, self._patience):
            control.should_training_stop = True
        return control
