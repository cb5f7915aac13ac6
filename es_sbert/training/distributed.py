"""Several processes as one: every process computes the objective over the joint batch."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor


def processes() -> int:
    """How many processes train together; 1 without torchrun."""
    return dist.get_world_size() if dist.is_available() and dist.is_initialized() else 1


def gather(local: Tensor) -> Tensor:
    """Stack the rows of all processes, with gradients.

    Every process then has the loss of the joint batch. Its gradient with respect to the local rows is summed over the
    processes on the way back, and data-parallel training divides by their number: what arrives at the parameters of
    encoder and objective alike is the gradient of one process with the joint batch.

    Args:
        local: *Shape:* ``(batch, …)``; the number of rows may differ between processes.

    Returns:
        *Shape:* ``(joint batch, …)``, in the order of the processes; `local` itself where there is one.
    """
    if processes() == 1:
        return local
    joint: Tensor = _Gather.apply(local)
    return joint


def joint_mean(losses: Tensor) -> Tensor:
    """The mean over the losses of the joint batch, *shape* ``(batch,)`` in each process, as a scalar."""
    return gather(losses).mean()


def rows_before(count: int, device: torch.device) -> int:
    """How many rows of the joint batch stand in front of this process's own `count`."""
    if processes() == 1:
        return 0
    return sum(_sizes(count, device)[: dist.get_rank()])


def _sizes(count: int, device: torch.device) -> list[int]:
    """Rows of every process."""
    size = torch.tensor([count], device=device)
    sizes = [torch.empty_like(size) for _ in range(dist.get_world_size())]
    dist.all_gather(sizes, size)
    return [int(each) for each in sizes]


class _Gather(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, local: Tensor) -> Tensor:
        ctx.sizes = _sizes(len(local), local.device)
        # Backends gather tensors of one shape only: shorter parts are filled up and cut again.
        filled = local.new_zeros((max(ctx.sizes), *local.shape[1:]))  # (longest part, …)
        filled[: len(local)] = local
        parts = [torch.empty_like(filled) for _ in ctx.sizes]
        dist.all_gather(parts, filled)
        return torch.cat([part[:rows] for part, rows in zip(parts, ctx.sizes, strict=True)])

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Tensor:
        (joint,) = gradients  # (joint batch, …)
        summed = joint.contiguous().clone()
        dist.all_reduce(summed)
        own: Tensor = summed.split(ctx.sizes)[dist.get_rank()]
        return own
