"""Device, number formats and processes of a training run."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any, Literal

import torch
import torch.distributed as dist
from torch import Tensor

from es_sbert.errors import DeviceError, UsageError


def choose_training_device(name: str) -> Literal["cpu", "cuda"]:
    """Choose the device to train on.

    Raises:
        DeviceError: the name is unknown, or is `cuda` but torch cannot use CUDA.
    """
    if name not in ("auto", "cpu", "cuda"):
        raise DeviceError(
            f"training runs on cpu or cuda, not on {name!r}",
            "To choose a card, set CUDA_VISIBLE_DEVICES; for several, start with torchrun.",
        )
    if name == "cuda" and not torch.cuda.is_available():
        raise DeviceError(
            "torch cannot use CUDA here", 'Install torch for your CUDA version, or leave `device="cuda"` out.'
        )
    return "cuda" if name != "cpu" and torch.cuda.is_available() else "cpu"


NumberFormat = Literal["fp32", "bf16", "fp16"]


@dataclass(frozen=True)
class TrainingPrecision:
    """Number formats of a run; weights and optimizer stay float32.

    Attributes:
        products: Number format of the transformer's matrix products (autocast).
        tf32: Whether products that stay in float32 (the objective, Dense layers, all of them with `products` fp32) are
            computed in TF32, which keeps 10 bits of 23. Cards before compute capability 8.0 do not have it.
    """

    products: NumberFormat
    tf32: bool

    def __str__(self) -> str:
        if not self.tf32:
            return self.products
        return "TF32" if self.products == "fp32" else f"{self.products}, TF32 for the rest"


def choose_training_precision(
    requested: Literal["auto", "fp32", "bf16", "fp16"], device: Literal["cpu", "cuda"], *, has_bf16: bool
) -> TrainingPrecision:
    """Choose the number formats of a run.

    `auto` is bf16 on a card that computes in it and TF32 on one that does not, as bf16 has the range of float32 and
    needs no loss scaling; on a CPU it is fp32. An explicit precision is kept: fp32 is IEEE float32
    throughout, without TF32.

    Args:
        requested: Precision of the recipe.
        device: Device of the run.
        has_bf16: Whether the GPU has native bf16; False on a CPU.

    Raises:
        DeviceError: fp16 is requested on a CPU.
    """
    if device == "cpu" and requested == "fp16":  # transformers would silently train in fp32
        raise DeviceError(
            "training in fp16 requires a CUDA device", "Set precision: bf16 or fp32, or train on a CUDA device."
        )
    best: NumberFormat = "bf16" if device == "cuda" and has_bf16 else "fp32"
    return TrainingPrecision(best if requested == "auto" else requested, tf32=device == "cuda" and requested != "fp32")


def has_native_bf16() -> bool:
    """Whether the current card computes bf16 natively; torch emulates it on others, slower than fp32."""
    return bool(torch.cuda.is_available() and torch.cuda.is_bf16_supported(including_emulation=False))


@contextmanager
def float32_matmul_precision(precision: TrainingPrecision, device: Literal["cpu", "cuda"]) -> Iterator[None]:
    """Set whether float32 products on a card use TF32 inside the block; torch's setting is restored afterwards.

    A CPU, and a program that has set torch's precisions for each backend on its own, keep their settings.
    """
    before = None
    if device == "cuda":
        with suppress(RuntimeError):  # torch raises an error if the settings of its backends differ
            before = torch.get_float32_matmul_precision()
    if before is None:
        yield
        return
    torch.set_float32_matmul_precision("high" if precision.tf32 else "highest")
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(before)


def refuse_several_processes(command: str, remedy: str) -> None:
    """Check that torchrun or a similar launcher has not started several processes.

    Args:
        command: Name of the command, for the message.
        remedy: The remedy of the error.

    Raises:
        UsageError: several processes were started.
    """
    count = os.environ.get("WORLD_SIZE", "1")
    if count.isdigit() and int(count) > 1:
        raise UsageError(f"{command} runs in one process, but torchrun has started {count} (WORLD_SIZE)", remedy)


def processes() -> int:
    """Number of processes that train together; 1 without torchrun."""
    return dist.get_world_size() if dist.is_available() and dist.is_initialized() else 1


def gather(local: Tensor, sizes: Sequence[int] = ()) -> Tensor:
    """Concatenate the rows of all processes, with gradients.

    Every process then computes the loss of the joint batch. In the backward pass, the gradient with respect to the
    local rows is summed over the processes, and data-parallel training divides it by their number. The result is the
    gradient that a single process would compute on the joint batch.

    Args:
        local: *Shape:* ``(batch, …)``; the number of rows may differ between processes.
        sizes: Number of rows of every process, known from the sampler: exchanging them would make the host wait for the
            GPU. Not needed with one process.

    Returns:
        *Shape:* ``(joint batch, …)``, in the order of the processes; with one process, `local` itself.

    Raises:
        ValueError: `sizes` does not have one entry per process, or the wrong number of rows for this process.
    """
    if processes() == 1:
        return local
    if len(sizes) != processes() or sizes[dist.get_rank()] != len(local):
        raise ValueError(f"parts of {list(sizes)} rows, but process {dist.get_rank()} has {len(local)}")
    joint: Tensor = _Gather.apply(local, tuple(sizes))
    return joint


class _Gather(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, local: Tensor, sizes: tuple[int, ...]) -> Tensor:
        ctx.sizes = sizes
        longest = max(sizes)
        filled = local.contiguous()
        if len(local) < longest:
            # Pad shorter parts and remove the padding afterwards: backends gather only tensors of one shape.
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
