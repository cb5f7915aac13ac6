"""Open onnxruntime sessions on CUDA, and turn CUDA failures into errors with a cause and a remedy."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
from numpy.typing import NDArray

from es_sbert.encoder.batching import InputBuilder
from es_sbert.encoder.cuda_libraries import (
    CudaLibraryStatus,
    cuda_major,
    install_remedy,
    load_libraries,
    missing_library_names,
    needed_libraries,
    provider_problem,
)
from es_sbert.encoder.device import Device, compute_capability
from es_sbert.errors import DeviceError

_ON_CPU = "--device cpu runs without."
# CUDA 13 has no code for cards before Turing, and the last onnxruntime-gpu for CUDA 12 is 1.26.
_MIN_COMPUTE_CAPABILITY = (7, 5)
_MIN_DRIVERS = {12: 525, 13: 580}  # the first driver of each CUDA, by NVIDIA's release notes
_MAX_CAUSE_LENGTH = 300  # characters of a cause that is passed on


@dataclass(frozen=True)
class _KnownFailure:
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
    _KnownFailure(
        r"out of memory|Failed to allocate memory|CUDA failure 2:|MemoryAllocation|STATUS_ALLOC_FAILED|bad_alloc",
        "{device} has too little free memory for this model: {cause}",
        "See with `nvidia-smi` what else uses the card; or take another card (--device cuda:N), --precision fp16 where "
        "it is fp32 now, or --device cpu. In Python, a smaller `budget` makes smaller batches.",
    ),
    _KnownFailure(
        r"cuDNN is unavailable|libcudnn",
        "this model has an operator that needs cuDNN, which does not load: {cause}",
        "{cudnn} {on_cpu}",
    ),
    _KnownFailure(
        r"no kernel image|NoKernelImage|CUDA failure 209:|STATUS_ARCH_MISMATCH",
        "onnxruntime-gpu {onnxruntime} has no code for {device}{card}: {cause}",
        "{upgrade}, take another card (--device cuda:N), or --device cpu.",
    ),
    _KnownFailure(
        r"CUDA failure (35|222|803|804):|InsufficientDriver|UnsupportedPtxVersion|DriverMismatch|CompatNotSupported",
        "the NVIDIA driver does not run the CUDA that onnxruntime-gpu {onnxruntime} was built for: {cause}",
        "Update the driver{driver}; inside a container, that of the host. {on_cpu}",
    ),
    _KnownFailure(
        r"CUDA failure (100|101):|cudaErrorNoDevice|cudaErrorInvalidDevice:",
        "{device} is not there: {cause}",
        "Check `nvidia-smi` and CUDA_VISIBLE_DEVICES. {on_cpu}",
    ),
    _KnownFailure(
        r"CUDA failure 46:|DevicesUnavailable",
        "{device} takes no further process: {cause}",
        "See with `nvidia-smi` what uses it and whether its compute mode is exclusive; take another card (--device "
        "cuda:N) or --device cpu.",
    ),
    _KnownFailure(
        r"CUDA failure (4|214|700|702|719|999):|ECCUncorrectable|IllegalAddress|Launch(Timeout|Failure)|ErrorUnknown",
        "{device} failed: {cause}",
        "Look for NVRM and Xid in `dmesg`, and check `nvidia-smi`. Run the command again if the card is healthy; "
        "otherwise use another one or --device cpu.",
    ),
)
_UNKNOWN_FAILURE = _KnownFailure(
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
    failure = next((known for known in _FAILURES if re.search(known.pattern, text)), _UNKNOWN_FAILURE)
    major = cuda_major()
    cudnn = [] if major is None else [library for library in needed_libraries(major) if "cudnn" in library.name]
    values = {
        "device": device,
        "onnxruntime": onnxruntime.__version__,
        "card": "" if capability is None else " (compute capability {}.{})".format(*capability),
        "cause": error_cause(text),
        "cudnn": install_remedy(cudnn, major),
        "upgrade": _upgrade_hint(major, capability),
        "driver": f" to {_MIN_DRIVERS[major]} or newer" if major in _MIN_DRIVERS else "",
        "on_cpu": _ON_CPU,
    }
    return DeviceError(failure.message.format(**values), failure.remedy.format(**values))


def missing_libraries_error(device: Device, libraries: CudaLibraryStatus, problem: str) -> DeviceError:
    """The error to raise where onnxruntime's CUDA provider does not load.

    Args:
        device: The card.
        libraries: What was found.
        problem: What the system's loader said.
    """
    names = missing_library_names(libraries, problem)
    if "libcuda.so.1" in names:
        return DeviceError(f"no session on {device}: there is no NVIDIA driver ({problem})", f"Install it. {_ON_CPU}")
    missing = [library for library in libraries.missing if library.name in names]
    remedy = install_remedy(missing, cuda_major())
    message = f"{', '.join(names)} not found" if names else problem
    return DeviceError(
        f"no session on {device}: onnxruntime's CUDA provider does not load: {message}",
        f"{remedy or 'Install CUDA of the version that onnxruntime-gpu was built for.'} {_ON_CPU}",
    )


def error_cause(text: str) -> str:
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
    return line if len(line) <= _MAX_CAUSE_LENGTH else f"{line[:_MAX_CAUSE_LENGTH]}…"


def _upgrade_hint(major: int | None, capability: tuple[int, int] | None) -> str:
    if major is not None and major >= 13 and capability is not None and capability < _MIN_COMPUTE_CAPABILITY:
        return (
            "Install a release for CUDA 12, which may have code for it (pip install 'onnxruntime-gpu[cuda,cudnn]<1.27')"
        )
    return "Install the newest onnxruntime-gpu (pip install --upgrade onnxruntime-gpu)"


_CPU, _CUDA = "CPUExecutionProvider", "CUDAExecutionProvider"
# Bits of the option sdpa_kernel (AttentionBackend): FlashAttention 1, memory-efficient 2, TensorRT's fused 4. Left out
# is cuDNN's 8, which keeps a plan for every shape that it has met.
_ATTENTION_BACKENDS, _SHORT_TEXT_BACKENDS = "7", "2"
_ERRORS_ONLY, _FATAL_ONLY = 3, 4
# onnxruntime's exceptions of a file that it takes on no device.
_INVALID_FILE_ERRORS = ("InvalidGraph", "InvalidProtobuf", "NoModel", "NoSuchFile")
# Operators that compute shapes and indices, and pass them on.
_SHAPE_OPERATORS = """
    Add And Cast Concat Constant ConstantOfShape Div Equal Expand Flatten Gather GatherElements Greater GreaterOrEqual
    Identity If Less LessOrEqual Loop Max Min Mod Mul Neg NonZero Not Or Pad Range ReduceMax ReduceMin ReduceProd
    ReduceSum Reshape Scan ScatterElements ScatterND Shape Size Slice Split Squeeze Sub Tile Transpose Trilu Unsqueeze
    Where
"""


def open_cuda_session(
    path: Path, device: Device, options: onnxruntime.SessionOptions, *, short: bool = False
) -> onnxruntime.InferenceSession:
    """Open an ONNX file on a card and embed one text as a trial.

    A missing cuDNN, a card for which onnxruntime has no code and a lack of memory show only when the graph runs.

    Args:
        options: Of the session, changed here.
        short: As for `es_sbert.encoder.onnx_session.open_session`.

    Raises:
        DeviceError: the graph does not run on the card, or a part of it would run on the CPU.
        Exception: whatever onnxruntime raises on a file that it takes on no device.
    """
    libraries = load_libraries()
    problem = provider_problem()
    if problem is not None:
        raise missing_libraries_error(device, libraries, problem)
    onnxruntime.set_default_logger_severity(_ERRORS_ONLY)  # it warns of every CUDA session that it is no plugin
    options.log_severity_level = _FATAL_ONLY  # what fails is raised, and becomes one of our errors
    options.add_session_config_entry("session.record_ep_graph_assignment_info", "1")
    providers = [
        (_CUDA, cuda_provider_options(device, short=short)),
        _CPU,
    ]  # the CPU takes the few nodes that compute shapes
    try:
        # onnxruntime's fallback would print to stdout and go on elsewhere.
        session = onnxruntime.InferenceSession(str(path), options, providers=providers, enable_fallback=0)
    except Exception as error:  # onnxruntime raises a dozen types that share no base below Exception
        if type(error).__name__ in _INVALID_FILE_ERRORS:
            raise
        raise device_error(device, error, compute_capability(device.number)) from error
    # Where the CUDA provider cannot start, onnxruntime takes the CPU with a log line only: what runs is read back.
    if session.get_providers()[0] != _CUDA:
        raise DeviceError(
            f"asked for {device}, but the session runs on {session.get_providers()[0]}",
            f"Check `es-sbert doctor --device {device}`; --device cpu runs without.",
        )
    refused = non_shape_operators(operators_on_cpu(session))
    if refused:
        raise DeviceError(
            f"{path} would run on the CPU in part: CUDA has no kernel for its {', '.join(refused)}",
            "Export the model again with this installation (es-sbert export MODEL -o BUNDLE), or use --device cpu.",
        )
    try:
        session.run(None, warmup_inputs(session))
    except Exception as error:
        raise device_error(device, error, compute_capability(device.number)) from error
    return session


def cuda_provider_options(device: Device, *, short: bool = False) -> dict[str, Any]:
    """Options of the CUDA provider for one card."""
    return {
        "device_id": device.number,
        # Residuals are summed in fp32, which fp16 models need to stay near their originals.
        "enable_skip_layer_norm_strict_mode": "1",
        # TF32 keeps 10 bits of fp32's 23: an fp32 variant would miss the bar that it was checked against.
        "use_tf32": "0",
        "sdpa_kernel": _SHORT_TEXT_BACKENDS if short else _ATTENTION_BACKENDS,
    }


def operators_on_cpu(session: onnxruntime.InferenceSession) -> list[str]:
    """Types of the operators that a session runs on the CPU; none where onnxruntime is too old to tell."""
    if not hasattr(session, "get_provider_graph_assignment_info"):
        return []
    parts = session.get_provider_graph_assignment_info()
    return [node.op_type for part in parts if part.ep_name == _CPU for node in part.get_nodes()]


def non_shape_operators(operators: Iterable[str]) -> list[str]:
    """Those of some operators that do more than compute shapes and indices, each once, sorted.

    onnxruntime itself puts shapes and indices on the CPU, where they are needed to allocate memory. Which numbers a
    node works on, it does not tell; but the operators of shapes have CUDA kernels for vectors.
    """
    return sorted(set(operators) - set(_SHAPE_OPERATORS.split()))


def warmup_inputs(session: onnxruntime.InferenceSession) -> dict[str, NDArray[Any]]:
    """The inputs of a graph for one text of two tokens, or one pair of them."""
    inputs = InputBuilder(session)
    if inputs.packed:
        return inputs([np.zeros(2, dtype=np.int64)])
    return {
        node.name: np.full((1, 2), node.name == "attention_mask", dtype=np.int64)  # (batch, tokens)
        for node in session.get_inputs()
    }
