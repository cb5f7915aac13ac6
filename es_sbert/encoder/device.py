"""Which device and which ONNX variant run: decided here, in pure functions, from what was asked and what is there."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import TypeVar

from es_sbert.bundle.model import Precision
from es_sbert.errors import DeviceError, UsageError

T = TypeVar("T")

# Both packages write the same files, so that the one which stays must be installed after the other is gone.
INSTALL_PROVIDER = "pip uninstall onnxruntime onnxruntime-gpu; pip install 'es-sbert[cuda]'"

NO_CARD = "No NVIDIA GPU found: texts are embedded on the CPU."

# Variants in order of preference for a device and precision.
VARIANTS: dict[tuple[str, Precision], tuple[str, ...]] = {
    ("cpu", Precision.FP32): ("fp32",),
    ("cpu", Precision.INT8): ("int8",),
    ("cuda", Precision.FP16): ("fp16", "fp16-packed"),
    ("cuda", Precision.FP32): ("fp32",),
}


@dataclass(frozen=True)
class Device:
    """`cpu`, or `cuda` with the number of the card."""

    kind: str
    number: int = 0

    def __str__(self) -> str:
        return self.kind if self.kind == "cpu" else f"{self.kind}:{self.number}"


def choose_device(asked: str, providers: Collection[str], cards: int) -> Device:
    """Parse `auto|cpu|cuda[:n]` against what is there.

    Args:
        asked: The user's words.
        providers: Execution providers the installed onnxruntime was built with.
        cards: CUDA devices the driver offers.

    Raises:
        UsageError: not of that form.
        DeviceError: CUDA asked where there is none, or a card that is not there.
    """
    match = re.fullmatch(r"(auto|cpu)|cuda(?::(\d+))?", asked)
    if match is None:
        raise UsageError(f"--device {asked!r} is none of auto, cpu, cuda, cuda:N", "Give one of those.")
    built = "CUDAExecutionProvider" in providers
    number = int(match[2] or 0)
    if match[1] == "cpu" or (match[1] == "auto" and not (built and cards)):
        return Device("cpu")
    if not built:
        raise DeviceError(
            f"--device {asked}: the installed onnxruntime has no CUDA provider",
            f"Install onnxruntime-gpu in place of onnxruntime: {INSTALL_PROVIDER}",
        )
    if not cards:
        raise DeviceError(
            f"--device {asked}: no NVIDIA driver offers a GPU here",
            "Check `nvidia-smi` and CUDA_VISIBLE_DEVICES; in a container, that it was started with access to the GPU "
            "(docker run --gpus all). --device cpu runs without.",
        )
    if number >= cards:
        raise DeviceError(
            f"--device {asked}: the NVIDIA driver offers {cards} device{'' if cards == 1 else 's'} here",
            "Check `nvidia-smi` and CUDA_VISIBLE_DEVICES; --device cpu runs without.",
        )
    return Device("cuda", number)


def unused_cards(asked: str, providers: Collection[str], cards: int) -> str | None:
    """What every summary says where `auto` leaves a GPU unused, since onnxruntime was built without CUDA; else None."""
    if asked != "auto" or not cards or "CUDAExecutionProvider" in providers:
        return None
    return (
        "there is an NVIDIA GPU, but the installed onnxruntime has no CUDA provider. To use the GPU: "
        f"{INSTALL_PROVIDER}"
    )


def missing_cards(asked: str, providers: Collection[str], cards: int) -> str | None:
    """What is said once where `auto` finds no GPU for an onnxruntime that was built with CUDA; else None."""
    if asked != "auto" or cards or "CUDAExecutionProvider" not in providers:
        return None
    return NO_CARD


def open_or_fall_back(asked: str, chosen: Device, open_on: Callable[[Device, Sequence[str]], T]) -> T:
    """Open a model on the chosen device; under `auto` on the CPU where CUDA's libraries do not run, and say so.

    Args:
        asked: The user's words.
        chosen: What `choose_device` made of them.
        open_on: Opens the model on a device, with warnings for every summary.

    Raises:
        DeviceError: the device asked for is not the one that would run.
    """
    try:
        return open_on(chosen, ())
    except DeviceError as error:
        if asked != "auto" or chosen.kind == "cpu":
            raise
        # A card is there, but its libraries are not: `auto` promises the best that runs, and says what does not.
        return open_on(Device("cpu"), (f"CUDA does not run here: {error.message}. {error.remedy}",))


def choose_precision(asked: str, device: Device, int8_products: bool) -> Precision:
    """`auto` means fp16 on CUDA; on a CPU int8 where it multiplies int8 natively, else fp32.

    Raises:
        UsageError: fp16 on a CPU or int8 on CUDA, for which there are no kernels.
    """
    if asked == "auto":
        if device.kind == "cuda":
            return Precision.FP16
        return Precision.INT8 if int8_products else Precision.FP32
    precision = Precision(asked)
    if (device.kind, precision) not in VARIANTS:
        raise UsageError(
            f"--precision {precision} does not run on {device.kind}",
            "Use fp32 or int8 on a CPU, fp32 or fp16 on CUDA, or leave --precision at auto.",
        )
    return precision


def choose_variant(device: Device, precision: Precision, present: Collection[str]) -> str | None:
    """The best variant that a bundle has for this device and precision; None where it has none."""
    return next((name for name in VARIANTS[device.kind, precision] if name in present), None)
