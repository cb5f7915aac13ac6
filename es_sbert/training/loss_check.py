"""Stops a run at a loss that is not a number, without making the host wait for the GPU at every step."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from es_sbert.training.data.examples import Examples
from es_sbert.training.failures import check_finite

# Batches between a loss and the look at it on a GPU. The host may run ahead of the GPU by so many.
DELAY = 8


@dataclass(frozen=True)
class _Pending:
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
        self._delay = (DELAY if self._on_gpu else 0) if delay is None else delay
        self._places = torch.zeros(self._delay + 1, pin_memory=self._on_gpu)  # (delay + 1,) float32
        self._added = 0
        self._pending: deque[_Pending] = deque()

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
        self._pending.append(_Pending(place, event, step, examples, rows))
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
        check_finite(float(pending.value.numpy()), pending.step, pending.examples, pending.rows)
