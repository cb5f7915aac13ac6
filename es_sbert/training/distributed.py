"""Compute the loss over the joint batch of all processes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor


def processes() -> int:
    """How many processes train together; 1 without torchrun."""
    return dist.get_world_size() if dist.is_available() and dist.is_initialized() else 1


def gather(local: Tensor, sizes: Sequence[int] = ()) -> Tensor:
    """Stack the rows of all processes, with gradients.

    Every process then has the loss of the joint batch. Its gradient with respect to the local rows is summed over the
    processes on the way back, and data-parallel training divides by their number: what arrives at the parameters of
    encoder and objective alike is the gradient of one process with the joint batch.

    Args:
        local: *Shape:* ``(batch, …)``; the number of rows may differ between processes.
        sizes: Rows of every process, as the sampler has dealt them out: to ask the others would take an exchange, and
            the host would have to wait for the GPU to read its answer. One process needs none.

    Returns:
        *Shape:* ``(joint batch, …)``, in the order of the processes; `local` itself where there is one.

    Raises:
        ValueError: `sizes` is not that of the processes and of `local`.
    """
    if processes() == 1:
        return local
    if len(sizes) != processes() or sizes[dist.get_rank()] != len(local):
        raise ValueError(f"parts of {list(sizes)} rows, but process {dist.get_rank()} has {len(local)}")
    joint: Tensor = _Gather.apply(local, tuple(sizes))
    return joint


def joint_mean(losses: Tensor, sizes: Sequence[int] = ()) -> Tensor:
    """The mean over the losses of the joint batch, *shape* ``(batch,)`` in each process, as a scalar."""
    return gather(losses, sizes).mean()


def rows_before(sizes: Sequence[int] = ()) -> int:
    """How many rows of the joint batch stand in front of this process's own."""
    return 0 if processes() == 1 else sum(sizes[: dist.get_rank()])


class _Gather(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, local: Tensor, sizes: tuple[int, ...]) -> Tensor:
        ctx.sizes = sizes
        longest = max(sizes)
        filled = local.contiguous()
        if len(local) < longest:
            # Backends gather tensors of one shape only: shorter parts are filled up and cut again.
            filled = local.new_zeros((longest, *local.shape[1:]))  # (longest part, …)
            filled[: len(local)] = local
        joint = local.new_empty((len(sizes) * longest, *local.shape[1:]))  # (processes · longest part, …)
        dist.all_gather_into_tensor(joint, filled)
        if min(sizes) == longest:
            return joint
        return torch.cat([part[:rows] for part, rows in zip(joint.split(longest), sizes, strict=True)])

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        (joint,) = gradients  # (joint batch, …)
        summed = joint.contiguous().clone()
        dist.all_reduce(summed)
        own: Tensor = summed.split(ctx.sizes)[dist.get_rank()]
        return own, None
