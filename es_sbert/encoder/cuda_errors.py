"""What onnxruntime raises on CUDA, as errors that name the cause and what to do about it."""

from __future__ import annotations

import re
from dataclasses import dataclass

import onnxruntime

from es_sbert.encoder.cuda import CudaLibraries, cuda_major, install_remedy, missing_names, needed_libraries
from es_sbert.encoder.device import Device
from es_sbert.errors import DeviceError

_ON_CPU = "--device cpu runs without."
# CUDA 13 has no code for cards before Turing, and the last onnxruntime-gpu for CUDA 12 is 1.26.
_OLDEST = (7, 5)
_DRIVERS = {12: 525, 13: 580}  # the first driver of each CUDA, by NVIDIA's release notes
_LONGEST = 300  # characters of a cause that is passed on


@dataclass(frozen=True)
class _Failure:
    """A kind of failure.

    Attributes:
        pattern: Found in the text of the exception, which has the number of a `cudaError` or its name.
        message: What is wrong, with `{device}`, `{onnxruntime}`, `{card}` and `{cause}` to be filled in.
        remedy: What to do, with the same names, `{cudnn}` and `{driver}`.
    """

    pattern: str
    message: str
    remedy: str


_FAILURES = (
    _Failure(
        r"out of memory|Failed to allocate memory|CUDA failure 2:|MemoryAllocation|STATUS_ALLOC_FAILED|bad_alloc",
        "{device} has too little free memory for this model: {cause}",
        "See with `nvidia-smi` what else uses the card; or take another card (--device cuda:N), --precision fp16 where "
        "it is fp32 now, or --device cpu. In Python, a smaller `budget` makes smaller batches.",
    ),
    _Failure(
        r"cuDNN is unavailable|libcudnn",
        "this model has an operator that needs cuDNN, which does not load: {cause}",
        "{cudnn} {on_cpu}",
    ),
    _Failure(
        r"no kernel image|NoKernelImage|CUDA failure 209:|STATUS_ARCH_MISMATCH",
        "onnxruntime-gpu {onnxruntime} has no code for {device}{card}: {cause}",
        "{upgrade}, take another card (--device cuda:N), or --device cpu.",
    ),
    _Failure(
        r"CUDA failure (35|222|803|804):|InsufficientDriver|UnsupportedPtxVersion|DriverMismatch|CompatNotSupported",
        "the NVIDIA driver does not run the CUDA that onnxruntime-gpu {onnxruntime} was built for: {cause}",
        "Update the driver{driver}; inside a container, that of the host. {on_cpu}",
    ),
    _Failure(
        r"CUDA failure (100|101):|cudaErrorNoDevice|cudaErrorInvalidDevice:",
        "{device} is not there: {cause}",
        "Check `nvidia-smi` and CUDA_VISIBLE_DEVICES. {on_cpu}",
    ),
    _Failure(
        r"CUDA failure 46:|DevicesUnavailable",
        "{device} takes no further process: {cause}",
        "See with `nvidia-smi` what uses it and whether its compute mode is exclusive; take another card (--device "
        "cuda:N) or --device cpu.",
    ),
    _Failure(
        r"CUDA failure (4|214|700|702|719|999):|ECCUncorrectable|IllegalAddress|Launch(Timeout|Failure)|ErrorUnknown",
        "{device} failed: {cause}",
        "Look for NVRM and Xid in `dmesg`, and check `nvidia-smi`. Run the command again if the card is healthy; "
        "otherwise use another one or --device cpu.",
    ),
)
_UNKNOWN = _Failure(
    "", "this model does not run on {device}: {cause}", "Check `es-sbert doctor --device {device}`. {on_cpu}"
)


def device_error(device: Device, error: Exception, capability: tuple[int, int] | None = None) -> DeviceError:
    """The error to raise where onnxruntime fails on a card.

    Args:
        device: The card.
        error: What onnxruntime raised; only its text is read.
        capability: The card's compute capability, where known.
    """
    text = str(error)
    failure = next((known for known in _FAILURES if re.search(known.pattern, text)), _UNKNOWN)
    major = cuda_major()
    cudnn = [] if major is None else [library for library in needed_libraries(major) if "cudnn" in library.name]
    values = {
        "device": device,
        "onnxruntime": onnxruntime.__version__,
        "card": "" if capability is None else " (compute capability {}.{})".format(*capability),
        "cause": cause(text),
        "cudnn": install_remedy(cudnn, major),
        "upgrade": _other_release(major, capability),
        "driver": f" to {_DRIVERS[major]} or newer" if major in _DRIVERS else "",
        "on_cpu": _ON_CPU,
    }
    return DeviceError(failure.message.format(**values), failure.remedy.format(**values))


def libraries_error(device: Device, libraries: CudaLibraries, problem: str) -> DeviceError:
    """The error to raise where onnxruntime's CUDA provider does not load.

    Args:
        device: The card.
        libraries: What was found.
        problem: What the system's loader said.
    """
    names = missing_names(libraries, problem)
    if "libcuda.so.1" in names:
        return DeviceError(f"no session on {device}: there is no NVIDIA driver ({problem})", f"Install it. {_ON_CPU}")
    missing = [library for library in libraries.missing if library.name in names]
    remedy = install_remedy(missing, cuda_major())
    message = f"{', '.join(names)} not found" if names else problem
    return DeviceError(
        f"no session on {device}: onnxruntime's CUDA provider does not load: {message}",
        f"{remedy or 'Install CUDA of the version that onnxruntime-gpu was built for.'} {_ON_CPU}",
    )


def cause(text: str) -> str:
    """The part of an exception's text that says what failed, on one line.

    onnxruntime puts its own functions and source files around it.
    """
    call = re.search(r"\bCU[A-Z]+ failure -?\d+: [^;\n]*", text)
    if call is not None:
        return call[0].strip()
    _, _, status = text.rpartition("Status Message: ")
    short = re.sub(r"^\[ONNXRuntimeError\] : \d+ : \w+ : ", "", status.strip())
    memory = re.search(r"Failed to allocate memory[^;\n]*", short)
    lines = (memory[0] if memory else short).splitlines()
    operator = re.search(r"while running (\w+) node", text)
    line = (f"{operator[1]}: " if operator else "") + (lines[0] if lines else "no reason given")
    return line if len(line) <= _LONGEST else f"{line[:_LONGEST]}…"


def _other_release(major: int | None, capability: tuple[int, int] | None) -> str:
    if major is not None and major >= 13 and capability is not None and capability < _OLDEST:
        return (
            "Install a release for CUDA 12, which may have code for it (pip install 'onnxruntime-gpu[cuda,cudnn]<1.27')"
        )
    return "Install the newest onnxruntime-gpu (pip install --upgrade onnxruntime-gpu)"
