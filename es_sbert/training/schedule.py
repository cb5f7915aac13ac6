"""When a run is measured on dev and saved."""

from __future__ import annotations

import math
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
