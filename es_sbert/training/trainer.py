"""transformers' Trainer for training tasks: mixed data sets, exact resume, errors with a remedy.

It also compiles the transformer (`torch.compile`) where the recipe asks for it, and stops at a loss that is not finite
without synchronising with the GPU at every step.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.utils.data import DataLoader
from transformers import PrinterCallback, Trainer, TrainerCallback, TrainerControl, TrainingArguments
from transformers.trainer_utils import PREFIX_CHECKPOINT_DIR, rotate_checkpoints

from es_sbert.errors import TrainingError, error_summary
from es_sbert.networks.siamese_encoder import eval_mode
from es_sbert.training.data.examples import Examples
from es_sbert.training.data.sampler import BatchItem, MixedBatchSampler, MixedDataset, process_part_sizes
from es_sbert.training.recipe import StageSpec
from es_sbert.training.run_folder import mark_checkpoint_complete
from es_sbert.training.training_errors import (
    check_loss_finite,
    check_model_finite,
    translate_disk_errors,
    translate_out_of_memory,
)
from es_sbert.training.training_task import TrainingTask


def compile_transformer(encoder: nn.Module, backend: str = "inductor") -> None:
    """Have an encoder's transformer compiled by its first step, for batches of any size and length.

    It is compiled in place: its class and the names of its weights stay as they are, so that checkpoints and saved
    models do not differ. Pooling and objective, which take little time, run as before.

    Args:
        encoder: A network with a `transformer`.
        backend: One of `torch.compiler.list_backends(())`.
    """
    transformer: Any = encoder.transformer
    # Lengths differ from batch to batch: fixed ones would be compiled over and over.
    transformer.compile(dynamic=True, backend=backend)


def eager_mode(*, compiled: bool) -> AbstractContextManager[Any]:
    """Run compiled networks as they were written inside the block.

    Measurements need no gradients, which would be another graph to compile.

    Args:
        compiled: Whether there are any.
    """
    # Without any, torch's compiler need not even be imported.
    return torch.compiler.set_stance("force_eager") if compiled else nullcontext()


@contextmanager
def translate_compiler_errors(*, compiled: bool) -> Iterator[None]:
    """Turn a failed compilation into advice.

    Args:
        compiled: Whether anything is compiled inside the block.

    Raises:
        TrainingError: there is no compiler, or it does not take the network.
    """
    if not compiled:
        yield
        return
    from torch._dynamo.exc import TorchDynamoException

    try:
        yield
    except TorchDynamoException as error:
        cause = getattr(error, "inner_exception", error)  # of the compiler behind torch.compile
        raise TrainingError(
            f"torch.compile cannot compile the network here: {error_summary(cause)}",
            "Install a C++ compiler (g++), which torch calls on GPUs too, or set compile: false and start anew in "
            "another folder.",
        ) from error


# Batches between a loss and the look at it on a GPU. The host may run ahead of the GPU by so many.
CHECK_DELAY = 8


@dataclass(frozen=True)
class _PendingLoss:
    """A loss on its way to the host.

    Attributes:
        value: *Shape:* ``()``, page-locked memory that receives it.
        event: Has passed on the GPU when `value` is there; None on a CPU.
        step, examples, rows: What it is the loss of.
    """

    value: Tensor
    event: Any
    step: int
    examples: Examples
    rows: NDArray[np.int64]


class LossCheck:
    """Looks at the loss of every batch, in order.

    On a CPU a loss is looked at as soon as it is computed, before it reaches the weights. On a GPU the host would have
    to wait for it, and the GPU would then wait for the host. So each loss is copied into page-locked memory, which does
    not block, and looked at some batches later; by then it has long arrived. `finish` looks at the rest: before the
    weights are measured or saved, and before a loss is logged.

    All processes of a run look at the same loss at the same step, so that all stop together.

    Args:
        device: Where losses are computed.
        delay: Batches between a loss and the look at it; 0: look at once.
    """

    def __init__(self, device: torch.device, delay: int | None = None) -> None:
        self._on_gpu = device.type == "cuda"
        self._delay = (CHECK_DELAY if self._on_gpu else 0) if delay is None else delay
        self._places = torch.zeros(self._delay + 1, pin_memory=self._on_gpu)  # (delay + 1,) float32
        self._added = 0
        self._pending: deque[_PendingLoss] = deque()

    def add(self, loss: Tensor, step: int, examples: Examples, rows: NDArray[np.int64]) -> None:
        """Take note of a loss and look at the one of `delay` batches ago.

        Args:
            loss: A scalar.
            step: Of the optimiser, from 1.
            examples: The data set of the batch.
            rows: Its examples, *shape* ``(batch,)``.

        Raises:
            TrainingDiverged: a loss is not finite; with its step and its batch.
        """
        place = self._places[self._added % len(self._places)]
        self._added += 1
        place.copy_(loss.detach(), non_blocking=True)
        event = None
        if self._on_gpu:
            event = torch.cuda.Event()
            event.record()
        self._pending.append(_PendingLoss(place, event, step, examples, rows))
        while len(self._pending) > self._delay:
            self._look()

    def finish(self) -> None:
        """Look at every loss that has not been looked at.

        Raises:
            TrainingDiverged: one is not finite.
        """
        while self._pending:
            self._look()

    def _look(self) -> None:
        pending = self._pending.popleft()
        if pending.event is not None:
            pending.event.synchronize()
        # By way of numpy: this is memory of the host, whatever torch would do to read a tensor.
        check_loss_finite(float(pending.value.numpy()), pending.step, pending.examples, pending.rows)


# Examples that a model is tried on before it is measured or saved.
_PROBE_EXAMPLES = 8

# The last checkpoint and, where a dev set tells, the best one.
_KEPT_CHECKPOINTS = 2


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
        stage: StageSpec,
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

    def _collate(self, items: list[BatchItem]) -> dict[str, Any]:
        number, rows = items[0].dataset, [item.row for item in items]
        batch = self._task.collate(self._data[number], rows)
        sizes = process_part_sizes(items[0].joint, self._sampler.processes)
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
            translate_compiler_errors(compiled=self._compiled),
            translate_out_of_memory(self._stage.batch, self._stage.mini_batch),
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
        with eager_mode(compiled=self._compiled):
            metrics = {"eval_dev": self._measure()}
        self.log(metrics)
        self.control = self.callback_handler.on_evaluate(self.args, self.state, self.control, metrics)
        return metrics

    def _check_still_finite(self) -> None:
        examples = self._data[0]
        with eval_mode(self._task), eager_mode(compiled=self._compiled):
            tried = min(_PROBE_EXAMPLES, len(examples))
            batch = self._prepare_inputs(self._task.collate(examples, range(tried)))
            # Every process tries the same ones.
            loss = self._task(examples.name, {**batch, "sizes": (tried,) * self._sampler.processes})
        check_model_finite(loss, self.state.global_step)

    def _save_checkpoint(self, model: nn.Module, trial: Any) -> None:
        self._check_still_finite()
        folder = Path(self.args.output_dir)
        with translate_disk_errors(folder):
            super()._save_checkpoint(model, trial)
            if self.args.parallel_mode.value == "distributed":
                torch.distributed.barrier()  # each process writes its own random state
            if self.args.should_save:
                mark_checkpoint_complete(folder / f"{PREFIX_CHECKPOINT_DIR}-{self.state.global_step}")
                # Only now may the one before go.
                rotate_checkpoints(
                    str(folder),
                    save_total_limit=_KEPT_CHECKPOINTS,
                    best_model_checkpoint=self.state.best_model_checkpoint,
                )


class _EpochLoader(DataLoader[Any]):
    """A loader that hands the number of the epoch on to its batch sampler."""

    def set_epoch(self, epoch: int) -> None:
        sampler: Any = self.batch_sampler
        sampler.set_epoch(epoch)
