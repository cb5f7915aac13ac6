"""Detect losses that are not finite, and translate errors of torch and the disk into errors with a remedy."""

from __future__ import annotations

import errno
import math
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from safetensors import SafetensorError
from torch import Tensor

from es_sbert.errors import EsSbertError, OutOfMemory, OutputError, TrainingDiverged, error_summary
from es_sbert.training.data.examples import Examples

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


# Lines of a batch named in a message.
_MAX_LINES_SHOWN = 8

# A run that goes on repeats what it did: its recipe cannot change.
_DIVERGED_REMEDY = (
    "Lower learning_rate, or raise warmup; with precision: fp16 try bf16 or fp32. Then start anew in another folder: "
    "--resume runs the same recipe, into the same end."
)

# How allocators of CPU memory word a failure; torch has no class of its own for it there.
_CPU_OUT_OF_MEMORY = ("can't allocate memory", "not enough memory", "std::bad_alloc", "cannot allocate memory")


def check_loss_finite(loss: float, step: int, examples: Examples, rows: Sequence[int] | NDArray[np.int64]) -> None:
    """Stop where a loss is not a number.

    Raises:
        TrainingDiverged: with step and batch.
    """
    if math.isfinite(loss):
        return
    lines = sorted(int(examples.lines[row]) for row in rows)
    named = ", ".join(map(str, lines[:_MAX_LINES_SHOWN])) + (
        f" and {len(lines) - _MAX_LINES_SHOWN} more" if len(lines) > _MAX_LINES_SHOWN else ""
    )
    raise TrainingDiverged(
        f"the loss of step {step} is {loss}, in the batch of {examples.path}, lines {named}",
        f"Where it is step 1, look at these lines. {_DIVERGED_REMEDY}",
    )


def check_model_finite(loss: Tensor, step: int) -> None:
    """Stop where a model gives values that are not numbers, before it is measured or saved.

    Args:
        loss: Of a few examples, by the weights as they are: loss and gradient of the step that broke them may have
            been finite, and after the last step no other loss follows.
        step: The last one done.

    Raises:
        TrainingDiverged: with the step.
    """
    if not torch.isfinite(loss):
        raise TrainingDiverged(
            f"after step {step} the model gives values that are not finite numbers", _DIVERGED_REMEDY
        )


@contextmanager
def translate_out_of_memory(batch: int, mini_batch: int | None) -> Iterator[None]:
    """Turn a failed allocation into advice.

    Raises:
        OutOfMemory: names the setting to lower.
    """
    try:
        yield
    except torch.OutOfMemoryError as error:
        raise _out_of_memory(error, batch, mini_batch) from error
    except (RuntimeError, MemoryError) as error:
        if isinstance(error, MemoryError) or any(words in str(error).lower() for words in _CPU_OUT_OF_MEMORY):
            raise _out_of_memory(error, batch, mini_batch) from error
        raise


def _out_of_memory(error: Exception, batch: int, mini_batch: int | None) -> OutOfMemory:
    held = mini_batch or batch
    setting = "mini_batch" if mini_batch else "batch"
    smaller = max(1, held // 2)
    instead = (
        ""
        if mini_batch
        else f" (with mini_batch: {smaller} in its place, the batch stays {batch} and steps take longer)"
    )
    return OutOfMemory(
        f"a batch does not fit into memory with {setting}: {held} ({error_summary(error)})",
        f"Lower {setting} in the recipe to {smaller}{instead}, or lower model.max_tokens, or set "
        "gradient_checkpointing: true.",
    )


@contextmanager
def translate_disk_errors(folder: Path) -> Iterator[None]:
    """Turn a failed write into advice; what was written whole before stays.

    Raises:
        OutputError: the disk is full, or the folder cannot be written to.
    """
    try:
        yield
    except EsSbertError:
        raise
    except (OSError, SafetensorError) as error:
        raise _write_failed(folder, error) from error
    except RuntimeError as error:
        # torch.save reports a failed write as a RuntimeError of its own zip writer.
        if not any(word in str(error) for word in ("PytorchStreamWriter", "unexpected pos", "file write failed")):
            raise
        raise _write_failed(folder, error) from error


def _write_failed(folder: Path, error: Exception) -> OutputError:
    full = isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
    return OutputError(
        f"{folder} cannot be written: {'no space is left there' if full else error_summary(error)}",
        "Free space, or make the folder writable, and run the same command with --resume: it goes on from the last "
        "checkpoint that was written whole.",
    )
