"""Open onnxruntime sessions on CUDA: load the CUDA libraries, and explain failures with a cause and a remedy."""

from __future__ import annotations

import ctypes
import importlib.util
import os
import re
import sys
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from es_sbert.errors import DeviceError
from es_sbert.installation import CUDA_EXTRA, install_command, install_extra_command
from es_sbert.messages import setting
from es_sbert.runtime.batching import POOLING_MASK, InputBuilder
from es_sbert.runtime.device import Device, compute_capability
from es_sbert.runtime.onnx_runtime import onnxruntime

_EXTRA_MAJOR = 13  # the CUDA version that the extra installs


@dataclass(frozen=True)
class CudaLibrary:
    """A shared library that the CUDA provider loads.

    Attributes:
        name: File name for the system's loader (`libcurand.so.10`).
        package: The pip package that contains it.
        required: Whether the provider needs it to load; the others are needed only by some operators.
    """

    name: str
    package: str
    required: bool = True


def cuda_major() -> int | None:
    """The CUDA major version that the installed onnxruntime was built for; None if it was built without CUDA."""
    try:
        from onnxruntime.capi import build_and_package_info as built
    except ImportError:
        return None
    major = re.match(r"\d+", getattr(built, "cuda_version", None) or "")
    return int(major[0]) if major else None


def needed_libraries(major: int, platform: str = sys.platform) -> tuple[CudaLibrary, ...]:
    """Return the libraries that a CUDA provider needs, each after its dependencies.

    Args:
        major: Major version of the CUDA that onnxruntime was built for.
        platform: Platform, as in `sys.platform`.
    """
    # From CUDA 13 on, package names have no version, except for cuDNN, which is a separate product.
    suffix = "" if major >= 13 else f"-cu{major}"

    def library(stem: str, version: int, package: str, required: bool = True) -> CudaLibrary:
        name = f"{stem}64_{version}.dll" if platform == "win32" else f"lib{stem}.so.{version}"
        return CudaLibrary(name, f"nvidia-{package}", required)

    libraries = (
        library("cudart", major, f"cuda-runtime{suffix}"),
        library("cublasLt", major, f"cublas{suffix}"),
        library("cublas", major, f"cublas{suffix}"),
        library("curand", 10, f"curand{suffix}"),
        library("cudnn", 9, f"cudnn-cu{major}", required=False),
    )
    # Providers built for CUDA 12 were also linked with cuFFT, up to an unknown release.
    return libraries if major >= 13 else (*libraries, library("cufft", 11, f"cufft{suffix}", required=False))


def nvidia_package_folders(roots: Iterable[Path], major: int) -> list[Path]:
    """Find the folders of libraries in NVIDIA's pip packages.

    Args:
        roots: Folders that contain the namespace package `nvidia`.
        major: The CUDA major whose folder comes first: cuRAND's file has the same name in CUDA 12 and 13.
    """
    found = [
        folder
        for root in roots
        for pattern in ("*/lib", "*/bin/x86_64", "*/bin")
        for folder in sorted(root.glob(pattern))
    ]
    return sorted(found, key=lambda folder: f"cu{major}" not in folder.parts)


def missing_libraries(
    libraries: Iterable[CudaLibrary], folders: Sequence[Path], load: Callable[[str], object]
) -> tuple[CudaLibrary, ...]:
    """Load each library with the system's loader, else from a package's folder, and return those that do not load.

    Args:
        folders: Folders of the packages.
        load: Loads a library by its name or path; raises OSError if it cannot be loaded.
    """
    missing: list[CudaLibrary] = []
    for library in libraries:
        packaged = (str(folder / library.name) for folder in folders if (folder / library.name).is_file())
        for name in (library.name, *packaged):
            try:
                load(name)
                break
            except OSError:  # another place may have it; else it is reported as missing
                continue
        else:
            missing.append(library)
    return tuple(missing)


@cache
def load_libraries() -> tuple[CudaLibrary, ...]:
    """Load the libraries of the installed onnxruntime's CUDA provider once per process; return the missing ones."""
    major = cuda_major()
    if major is None:
        return ()
    namespace = importlib.util.find_spec("nvidia")
    roots = (namespace.submodule_search_locations if namespace else None) or ()
    folders = nvidia_package_folders(map(Path, roots), major)
    if sys.platform == "win32":
        for folder in folders:
            os.add_dll_directory(str(folder))
    return missing_libraries(needed_libraries(major), folders, partial(ctypes.CDLL, mode=ctypes.RTLD_GLOBAL))


def provider_problem() -> str | None:
    """Return why the CUDA provider does not load, as the system's loader reports it; None if it loads.

    onnxruntime itself only logs this and uses the CPU. On Windows the result is None, because the loader does not name
    the missing file.
    """
    provider = Path(onnxruntime.__file__).parent / "capi" / "libonnxruntime_providers_cuda.so"
    if not provider.is_file():
        return None
    try:
        ctypes.CDLL(str(provider))
    except OSError as error:
        return str(error)
    return None


def missing_library_names(missing: Iterable[CudaLibrary], problem: str) -> list[str]:
    """Return the names of the missing libraries that the provider needs to load.

    Args:
        missing: Result of the search.
        problem: Message of the system's loader, which names at most one of them.
    """
    named = re.match(r"(\S+): cannot open shared object file", problem)
    names = [library.name for library in missing if library.required]
    return names if named is None or named[1] in names else [*names, named[1]]


def install_remedy(libraries: Sequence[CudaLibrary], major: int | None) -> str:
    """Return commands that install missing libraries: their packages, and the extra if it is for this CUDA version."""
    extra = f"{install_extra_command(CUDA_EXTRA)} installs everything that CUDA needs" if major == _EXTRA_MAJOR else ""
    packages = dict.fromkeys(library.package for library in libraries)
    command = f"Install the missing libraries: {install_command(*packages)}" if libraries else ""
    return "; ".join(filter(None, (command, extra))) + "." if command or extra else ""


# CUDA 13 has no code for cards before Turing, and the last onnxruntime-gpu for CUDA 12 is 1.26.
_MIN_COMPUTE_CAPABILITY = (7, 5)
_MIN_DRIVERS = {12: 525, 13: 580}  # the first driver of each CUDA, by NVIDIA's release notes
_MAX_CAUSE_LENGTH = 300  # characters of a cause that are shown


# Kinds of failure:
# - a pattern that is found in the text of the exception, which has the number of a `cudaError` or its name;
# - the problem, with the placeholders `{device}`, `{onnxruntime}`, `{card}` and `{cause}`;
# - the remedy, with the same placeholders and others of `device_error`.
_FAILURES = (
    (
        r"out of memory|Failed to allocate memory|CUDA failure 2:|MemoryAllocation|STATUS_ALLOC_FAILED|bad_alloc",
        "{device} has too little free memory for this model: {cause}",
        "Check with `nvidia-smi` what else uses the card, or use another card ({other}), {fp16} "
        "instead of fp32, or {cpu}. In Python, a smaller `budget` makes smaller batches.",
    ),
    (
        r"cuDNN is unavailable|libcudnn",
        "this model has an operator that needs cuDNN, which does not load: {cause}",
        "{cudnn} {on_cpu}",
    ),
    (
        r"no kernel image|NoKernelImage|CUDA failure 209:|STATUS_ARCH_MISMATCH",
        "onnxruntime-gpu {onnxruntime} has no code for {device}{card}: {cause}",
        "{upgrade}, or use another card ({other}) or {cpu}.",
    ),
    (
        r"CUDA failure (35|222|803|804):|InsufficientDriver|UnsupportedPtxVersion|DriverMismatch|CompatNotSupported",
        "the NVIDIA driver does not support the CUDA that onnxruntime-gpu {onnxruntime} was built for: {cause}",
        "Update the driver{driver}; for a container, update the driver of the host. {on_cpu}",
    ),
    (
        r"CUDA failure (100|101):|cudaErrorNoDevice|cudaErrorInvalidDevice:",
        "{device} does not exist: {cause}",
        "Check `nvidia-smi` and CUDA_VISIBLE_DEVICES. {on_cpu}",
    ),
    (
        r"CUDA failure 46:|DevicesUnavailable",
        "{device} cannot run another process: {cause}",
        "Check with `nvidia-smi` what uses the card and whether its compute mode is exclusive, or use another card "
        "({other}) or {cpu}.",
    ),
    (
        r"CUDA failure (4|214|700|702|719|999):|ECCUncorrectable|IllegalAddress|Launch(Timeout|Failure)|ErrorUnknown",
        "{device} failed: {cause}",
        "Look for NVRM and Xid in `dmesg`, and check `nvidia-smi`. Run the command again if the card is healthy; "
        "otherwise use another one or {cpu}.",
    ),
    # Any other failure.
    ("", "this model does not run on {device}: {cause}", "Check `es-sbert doctor --device {device}`. {on_cpu}"),
)


def on_cpu() -> str:
    """Advice to use the CPU instead."""
    return f"Or use the CPU: {setting('device', 'cpu')}."


def device_error(device: Device, error: Exception, capability: tuple[int, int] | None = None) -> DeviceError:
    """Create the error to raise if onnxruntime fails on a GPU.

    Args:
        device: The card.
        error: The exception of onnxruntime; only its text is read.
        capability: The card's compute capability, if known.
    """
    text = str(error)
    message, remedy = next((message, remedy) for pattern, message, remedy in _FAILURES if re.search(pattern, text))
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
        "on_cpu": on_cpu(),
        "cpu": setting("device", "cpu"),
        "other": setting("device", "cuda:N"),
        "fp16": setting("precision", "fp16"),
    }
    return DeviceError(message.format(**values), remedy.format(**values))


def missing_libraries_error(device: Device, missing: Sequence[CudaLibrary], problem: str) -> DeviceError:
    """Create the error to raise if onnxruntime's CUDA provider does not load.

    Args:
        device: The card.
        missing: Result of the search.
        problem: Message of the system's loader.
    """
    names = missing_library_names(missing, problem)
    if "libcuda.so.1" in names:
        return DeviceError(
            f"no session on {device}: there is no NVIDIA driver ({problem})", f"Install the driver. {on_cpu()}"
        )
    remedy = install_remedy([library for library in missing if library.name in names], cuda_major())
    message = f"{', '.join(names)} not found" if names else problem
    return DeviceError(
        f"no session on {device}: onnxruntime's CUDA provider does not load: {message}",
        f"{remedy or 'Install CUDA of the version that onnxruntime-gpu was built for.'} {on_cpu()}",
    )


def error_cause(text: str) -> str:
    """Return the part of an exception's text that says what failed, on one line.

    onnxruntime surrounds it with its own functions and source files.
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
        command = install_command("onnxruntime-gpu[cuda,cudnn]<1.27")
        return f"Install a release for CUDA 12, which may have code for it ({command})"
    return f"Install the newest onnxruntime-gpu ({install_command('--upgrade', 'onnxruntime-gpu')})"


_CPU, _CUDA = "CPUExecutionProvider", "CUDAExecutionProvider"
# Bits of the option sdpa_kernel (AttentionBackend): FlashAttention 1, memory-efficient 2, TensorRT's fused 4. cuDNN's 8
# is left out, because it keeps a plan for every shape.
_ATTENTION_BACKENDS, _SHORT_TEXT_BACKENDS = "7", "2"
_ERRORS_ONLY, _FATAL_ONLY = 3, 4
# onnxruntime's exceptions for a file that is invalid on every device.
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

    A missing cuDNN, a card for which onnxruntime has no code, and a lack of memory are detected only when the graph
    runs.

    Args:
        options: Options of the session; changed in place.
        short: As for `es_sbert.runtime.onnx_session.open_session`.

    Raises:
        DeviceError: the graph does not run on the card, or a part of it would run on the CPU.
        Exception: onnxruntime's own error for a file that is invalid on every device.
    """
    missing = load_libraries()
    problem = provider_problem()
    if problem is not None:
        raise missing_libraries_error(device, missing, problem)
    onnxruntime.set_default_logger_severity(_ERRORS_ONLY)  # it warns for every CUDA session that it is not a plugin
    options.log_severity_level = _FATAL_ONLY  # failures are raised, and become errors of es-sbert
    options.add_session_config_entry("session.record_ep_graph_assignment_info", "1")
    # The CPU runs the few nodes that compute shapes.
    providers = [(_CUDA, cuda_provider_options(device, short=short)), _CPU]
    try:
        # onnxruntime's fallback would print to stdout and continue on another device.
        session = onnxruntime.InferenceSession(str(path), options, providers=providers, enable_fallback=0)
    except Exception as error:  # onnxruntime raises a dozen types that share no base below Exception
        if type(error).__name__ in _INVALID_FILE_ERRORS:
            raise
        raise device_error(device, error, compute_capability(device.number)) from error
    # If the CUDA provider cannot start, onnxruntime uses the CPU with only a log line: check what actually runs.
    if session.get_providers()[0] != _CUDA:
        raise DeviceError(
            f"{device} was requested, but the session runs on {session.get_providers()[0]}",
            f"Check `es-sbert doctor --device {device}`, or use the CPU: {setting('device', 'cpu')}.",
        ).about("device", f"{device}")
    refused = non_shape_operators(operators_on_cpu(session))
    if refused:
        raise DeviceError(
            f"{path} would run partly on the CPU: CUDA has no kernel for its {', '.join(refused)}",
            "Export the model again with this installation (`es-sbert export MODEL -o BUNDLE`), or use "
            f"{setting('device', 'cpu')}.",
        ).about("device", f"{device}")
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
        # TF32 keeps 10 of fp32's 23 mantissa bits: an fp32 variant would miss the parity threshold that it passed.
        "use_tf32": "0",
        "sdpa_kernel": _SHORT_TEXT_BACKENDS if short else _ATTENTION_BACKENDS,
    }


def operators_on_cpu(session: onnxruntime.InferenceSession) -> list[str]:
    """Types of the operators that a session runs on the CPU; none if onnxruntime is too old to report them."""
    if not hasattr(session, "get_provider_graph_assignment_info"):
        return []
    parts = session.get_provider_graph_assignment_info()
    return [node.op_type for part in parts if part.ep_name == _CPU for node in part.get_nodes()]


def non_shape_operators(operators: Iterable[str]) -> list[str]:
    """Return the operators that do more than compute shapes and indices, sorted and without duplicates.

    onnxruntime itself puts shapes and indices on the CPU, where they are needed to allocate memory. It does not report
    whether a node computes shapes or vectors, but it runs vectors on CUDA, which has kernels for all shape operators.
    """
    return sorted(set(operators) - set(_SHAPE_OPERATORS.split()))


def warmup_inputs(session: onnxruntime.InferenceSession) -> dict[str, NDArray[Any]]:
    """Create the inputs of a graph for one text, or one pair, of two tokens."""
    inputs = InputBuilder([value.name for value in session.get_inputs()], session.get_modelmeta().custom_metadata_map)
    if inputs.packed:
        return inputs([np.zeros(2, dtype=np.int64)])
    dtypes = {POOLING_MASK: np.int32}
    return {
        node.name: np.full((1, 2), node.name == "attention_mask", dtypes.get(node.name, np.int64))  # (batch, tokens)
        for node in session.get_inputs()
    }
