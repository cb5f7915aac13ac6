"""Detect losses that are not finite, and translate errors of torch and the disk into errors with a remedy."""

from __future__ import annotations

import errno
import math
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from safetensors import SafetensorError
from torch import Tensor

from es_sbert.errors import OutOfMemory, OutputError, TrainingDiverged, error_summary
from es_sbert.messages import setting
from es_sbert.training.training_examples import Examples

# Batches between a loss and its check on a GPU. The host may run ahead of the GPU by this many.
CHECK_DELAY = 8

# Lines of a batch named in a message.
_MAX_LINES_SHOWN = 8


def _diverged_remedy() -> str:
    return (
        "Lower learning_rate, or raise warmup; with precision: fp16 try bf16 or fp32. Then start a new run in another "
        f"folder: {setting('resume')} uses the same recipe and would diverge again."
    )


class LossCheck:
    """Checks that the loss of every batch is finite, in order.

    On a CPU a loss is checked as soon as it is computed, before it reaches the weights. On a GPU the host would have to
    wait for it, and the GPU would then wait for the host. So each loss is copied to pinned memory without blocking and
    checked some batches later. `finish` checks the rest: before the weights are evaluated or saved, and before a loss
    is logged.

    Args:
        device: Device of the losses.
        delay: Batches between a loss and its check; 0: check at once.
    """

    def __init__(self, device: torch.device, delay: int | None = None) -> None:
        self._on_gpu = device.type == "cuda"
        self._delay = (CHECK_DELAY if self._on_gpu else 0) if delay is None else delay
        self._places = torch.zeros(self._delay + 1, pin_memory=self._on_gpu)  # (delay + 1,) float32
        self._added = 0
        # Losses that are being copied to the host: memory that receives each, the CUDA event after the copy (None on a
        # CPU), and step, data set and rows of the batch.
        self._pending: deque[tuple[Tensor, Any, int, Examples, NDArray[np.int64]]] = deque()

    def add(self, loss: Tensor, step: int, examples: Examples, rows: NDArray[np.int64]) -> None:
        """Add a loss and check the one from `delay` batches ago.

        Args:
            loss: A scalar.
            step: Step of the optimizer, from 1.
            examples: The data set of the batch.
            rows: Its examples, *shape* ``(batch,)``.

        Raises:
            TrainingDiverged: a loss is not finite; the message names its step and its batch.
        """
        place = self._places[self._added % len(self._places)]
        self._added += 1
        place.copy_(loss.detach(), non_blocking=True)
        event = None
        if self._on_gpu:
            event = torch.cuda.Event()
            event.record()
        self._pending.append((place, event, step, examples, rows))
        while len(self._pending) > self._delay:
            self._check_oldest()

    def finish(self) -> None:
        """Check all remaining losses.

        Raises:
            TrainingDiverged: a loss is not finite.
        """
        while self._pending:
            self._check_oldest()

    def _check_oldest(self) -> None:
        place, event, step, examples, rows = self._pending.popleft()
        if event is not None:
            event.synchronize()
        loss = float(place.numpy())  # numpy reads host memory; torch could synchronize with the GPU
        if math.isfinite(loss):
            return
        lines = sorted(int(examples.lines[row]) for row in rows)
        more = f" and {len(lines) - _MAX_LINES_SHOWN} more" if len(lines) > _MAX_LINES_SHOWN else ""
        named = ", ".join(map(str, lines[:_MAX_LINES_SHOWN])) + more
        raise TrainingDiverged(
            f"the loss of step {step} is {loss}, in the batch of {examples.path}, lines {named}",
            f"If it is step 1, check these lines. {_diverged_remedy()}",
        )


# torch.save reports a failed write as a RuntimeError of its zip writer, with one of these texts.
_FAILED_WRITE = ("PytorchStreamWriter", "unexpected pos", "file write failed")

# Messages of CPU allocators; torch has no error class for them.
_CPU_OUT_OF_MEMORY = ("can't allocate memory", "not enough memory", "std::bad_alloc", "cannot allocate memory")


def check_model_finite(loss: Tensor, step: int) -> None:
    """Stop if a model returns NaN or infinite values, before it is evaluated or saved.

    Args:
        loss: Loss of a few examples with the current weights. Loss and gradient of the step that broke them may have
            been finite, and no other loss follows the last step.
        step: The last step.

    Raises:
        TrainingDiverged: the model returns NaN or infinite values; the message names the step.
    """
    if not torch.isfinite(loss):
        raise TrainingDiverged(f"after step {step} the model returns NaN or infinite values", _diverged_remedy())


@contextmanager
def translate_out_of_memory(batch: int, mini_batch: int | None) -> Iterator[None]:
    """Turn a failed allocation into an error with a remedy.

    Raises:
        OutOfMemory: memory does not suffice; the remedy names the setting to lower.
    """
    try:
        yield
    except (RuntimeError, MemoryError) as error:  # torch.OutOfMemoryError is a RuntimeError
        is_memory_error = isinstance(error, torch.OutOfMemoryError | MemoryError)
        if not is_memory_error and not any(words in str(error).lower() for words in _CPU_OUT_OF_MEMORY):
            raise
        setting, held = ("mini_batch", mini_batch) if mini_batch else ("batch", batch)
        smaller = max(1, held // 2)
        instead = f" (or set mini_batch: {smaller} instead: the batch stays {batch}, but steps take longer)"
        raise OutOfMemory(
            f"a batch does not fit into memory with {setting}: {held} ({error_summary(error)})",
            f"Lower {setting} in the recipe to {smaller}{'' if mini_batch else instead}, or lower model.max_tokens.",
        ) from error


@contextmanager
def translate_disk_errors(folder: Path) -> Iterator[None]:
    """Turn a failed write into an error with a remedy. Complete files are kept.

    Raises:
        OutputError: the disk is full, or the folder cannot be written to.
    """
    try:
        yield
    except (OSError, SafetensorError, RuntimeError) as error:
        if isinstance(error, RuntimeError) and not any(words in str(error) for words in _FAILED_WRITE):
            raise
        full = isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
        raise OutputError(
            f"{folder} cannot be written: {'the disk is full' if full else error_summary(error)}",
            f"Free space, or make the folder writable, and run the same command with {setting('resume')}: it continues "
            "from the last complete checkpoint.",
        ) from error
