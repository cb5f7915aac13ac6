"""transformers' Trainer around a training task: mixed data sets, exact resuming, errors with a remedy."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader
from transformers import PrinterCallback, Trainer, TrainerCallback, TrainerControl, TrainingArguments
from transformers.trainer_utils import PREFIX_CHECKPOINT_DIR, rotate_checkpoints

from es_sbert.networks.siamese import evaluating
from es_sbert.training.checkpoints import mark_complete
from es_sbert.training.compiled import compiler_errors_explained, uncompiled
from es_sbert.training.data.examples import Examples
from es_sbert.training.data.sampler import Item, MixedBatchSampler, MixedDataset, part_sizes
from es_sbert.training.failures import check_still_finite, disk_errors_explained, out_of_memory_explained
from es_sbert.training.loss_check import LossCheck
from es_sbert.training.recipe import Stage
from es_sbert.training.task import TrainingTask

# Examples that a model is tried on before it is measured or saved.
_TRIED = 8

# The last checkpoint and, where a dev set tells, the best one.
_KEPT = 2


class TaskTrainer(Trainer):
    """Trains a task on mixed data sets.

    Args:
        task: The network with its objectives.
        data: The data sets.
        sampler: Their batches; this process's part of each joint batch.
        stage: For messages.
        arguments: Of the run.
        measure: Gives the dev score of the network as it is, or None without a dev set.
        callbacks: Of the run.
        compiled: Whether the task's transformer is compiled.
    """

    control: TrainerControl

    def __init__(
        self,
        task: TrainingTask,
        data: Sequence[Examples],
        sampler: MixedBatchSampler,
        stage: Stage,
        arguments: TrainingArguments,
        measure: Callable[[], float] | None,
        callbacks: Sequence[TrainerCallback],
        *,
        compiled: bool = False,
    ) -> None:
        self._task = task
        self._data = data
        self._sampler = sampler
        self._stage = stage
        self._measure = measure
        self._compiled = compiled
        super().__init__(
            model=task,
            args=arguments,
            train_dataset=MixedDataset([len(examples) for examples in data]),
            eval_dataset=None if measure is None else MixedDataset([0]),  # `evaluate` does not read it
            data_collator=self._collate,
            callbacks=list(callbacks),
        )
        # A batch's loss is its mean: accumulated gradients are averaged, not summed.
        self.loss_is_scaled_for_ga = False
        self._losses = LossCheck(self.args.device)
        self.remove_callback(PrinterCallback)

    def _collate(self, items: list[Item]) -> dict[str, Any]:
        number, rows = items[0].dataset, [item.row for item in items]
        batch = self._task.collate(self._data[number], rows)
        sizes = part_sizes(items[0].joint, self._sampler.processes)
        # An array of rows is one value to what moves batches to the device, a list would be as many as it has rows.
        return {"number": number, "rows": np.array(rows), "batch": {**batch, "sizes": sizes}}

    def get_train_dataloader(self) -> DataLoader[Any]:
        # Not prepared by accelerate: the sampler itself gives each process its part, and knows of unequal batches.
        return _EpochLoader(
            self.train_dataset,
            batch_sampler=self._sampler,
            collate_fn=self.data_collator,
            pin_memory=self.args.dataloader_pin_memory,
        )

    def _prepare_input(self, data: Any) -> Any:
        """Batches as they are, on the device; the loader has page-locked them, so that the host need not wait."""
        if isinstance(data, Tensor):
            return data.to(self.args.device, non_blocking=self.args.dataloader_pin_memory)
        return super()._prepare_input(data)

    def compute_loss(
        self, model: nn.Module, inputs: dict[str, Any], return_outputs: bool = False, num_items_in_batch: Any = None
    ) -> Tensor:
        examples = self._data[inputs["number"]]
        loss: Tensor = model(examples.name, inputs["batch"])
        self._losses.add(loss, self.state.global_step + 1, examples, inputs["rows"])
        return loss

    def training_step(self, model: nn.Module, inputs: dict[str, Any], num_items_in_batch: Any = None) -> Tensor:
        with (
            compiler_errors_explained(compiled=self._compiled),
            out_of_memory_explained(self._stage.batch, self._stage.mini_batch),
        ):
            loss: Tensor = super().training_step(model, inputs, num_items_in_batch)
            return loss

    def train(self, *args: Any, **kwargs: Any) -> Any:
        output = super().train(*args, **kwargs)
        self._losses.finish()
        return output

    def _maybe_log_save_evaluate(self, *args: Any, **kwargs: Any) -> None:
        if self.control.should_log or self.control.should_evaluate or self.control.should_save:
            self._losses.finish()
        super()._maybe_log_save_evaluate(*args, **kwargs)

    def _run_epoch(self, *args: Any, **kwargs: Any) -> None:
        if not self.control.should_training_stop:  # as `End` finds when a run goes on from its very end
            super()._run_epoch(*args, **kwargs)

    def evaluate(self, *args: Any, **kwargs: Any) -> dict[str, float]:
        """The dev score, as `eval_dev`; every process computes it and finds the same."""
        if self._measure is None:
            return {}
        self._check_still_finite()
        with uncompiled(compiled=self._compiled):
            metrics = {"eval_dev": self._measure()}
        self.log(metrics)
        self.control = self.callback_handler.on_evaluate(self.args, self.state, self.control, metrics)
        return metrics

    def _check_still_finite(self) -> None:
        examples = self._data[0]
        with evaluating(self._task), uncompiled(compiled=self._compiled):
            tried = min(_TRIED, len(examples))
            batch = self._prepare_inputs(self._task.collate(examples, range(tried)))
            # Every process tries the same ones.
            loss = self._task(examples.name, {**batch, "sizes": (tried,) * self._sampler.processes})
        check_still_finite(loss, self.state.global_step)

    def _save_checkpoint(self, model: nn.Module, trial: Any) -> None:
        self._check_still_finite()
        folder = Path(self.args.output_dir)
        with disk_errors_explained(folder):
            super()._save_checkpoint(model, trial)
            if self.args.parallel_mode.value == "distributed":
                torch.distributed.barrier()  # each process writes its own random state
            if self.args.should_save:
                mark_complete(folder / f"{PREFIX_CHECKPOINT_DIR}-{self.state.global_step}")
                # Only now may the one before go.
                rotate_checkpoints(
                    str(folder), save_total_limit=_KEPT, best_model_checkpoint=self.state.best_model_checkpoint
                )


class _EpochLoader(DataLoader[Any]):
    """A loader that hands the number of the epoch on to its batch sampler."""

    def set_epoch(self, epoch: int) -> None:
        sampler: Any = self.batch_sampler
        sampler.set_epoch(epoch)
