"""The card, its driver and the CUDA libraries of this process; the step `environment`."""

from __future__ import annotations

import contextlib
import importlib.metadata
import platform
import re
import statistics
import subprocess
import time
from pathlib import Path

from benchmarks.common import machine
from benchmarks.gpu_check.context import Context
from benchmarks.gpu_check.results import JSON, goal

CUDA = "CUDAExecutionProvider"
_PACKAGES = (
    "onnxruntime-gpu", "torch", "transformers", "sentence-transformers", "tokenizers", "numpy", "onnx",
    "nvidia-cublas", "nvidia-cuda-runtime", "nvidia-curand", "nvidia-cudnn-cu13",
)  # fmt: skip
_LIBRARY = re.compile(r"(/\S*lib(?:cuda|cudart|cublas|cublasLt|curand|cudnn)[\w.-]*\.so\S*)")
_WARM_UP = 5
_MATRIX = 8192  # rows and columns of the product that the measured peak is taken from


def load_libraries() -> None:
    """Load CUDA's libraries as the encoder does, torch's before all others: no process can hold two of a kind."""
    with contextlib.suppress(ImportError):
        import torch  # noqa: F401
    from es_sbert.runtime import cuda_session

    cuda_session.load_libraries()


def missing_cuda() -> str | None:
    """Why this machine cannot run the steps, or None."""
    from es_sbert.runtime.device import cuda_devices
    from es_sbert.runtime.onnx_session import available_providers

    if CUDA not in available_providers():
        return "the installed onnxruntime has no CUDA provider: install onnxruntime-gpu in its place"
    if not cuda_devices():
        return "the NVIDIA driver offers no card: check `nvidia-smi` and CUDA_VISIBLE_DEVICES"
    return None


def device() -> JSON:
    """Name, driver and memory of the first card, as far as they can be found."""
    from es_sbert.runtime.device import cuda_driver

    found = cuda_driver()
    card = found.cards[0] if found and found.cards else None
    asked = _smi("driver_version,memory.total,power.limit,clocks.max.sm")
    driver, memory, power, clock = asked if asked else (None, None, None, None)
    return {
        "name": card.name if card else None,
        "compute_capability": ".".join(map(str, card.capability)) if card and card.capability else None,
        "driver": driver,
        "cuda_of_driver": ".".join(map(str, found.cuda)) if found and found.cuda else None,
        "memory_mib": _number(memory),
        "power_limit_w": _number(power),
        "max_sm_clock_mhz": _number(clock),
    }


def stamp() -> JSON:
    """What belongs to every section: device, versions, commit and time."""
    return {
        "device": device(),
        "versions": {name: _version(name) for name in _PACKAGES},
        "python": platform.python_version(),
        "machine": {key: value for key, value in machine().items() if key in ("cpu", "cores", "commit")},
        "time": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
    }


def memory_used_mib() -> float | None:
    """Memory of the first card that is in use, by all processes; None without nvidia-smi."""
    asked = _smi("memory.used")
    return _number(asked[0]) if asked else None


def loaded_libraries() -> list[str]:
    """Paths of the CUDA libraries that this process has loaded."""
    maps = Path("/proc/self/maps")
    return sorted(set(_LIBRARY.findall(maps.read_text()))) if maps.exists() else []


def environment(context: Context) -> JSON:
    """Card, driver, versions and libraries; opens a model on CUDA and reads back where it runs."""
    import numpy as np

    from es_sbert.encoder.encoder import Encoder

    load_libraries()
    name, folder = context.first_model
    bundle = context.bundle(folder)
    begun = time.perf_counter()
    with Encoder(bundle.folder, precision="fp16", device="cuda", threads=1) as encoder:
        opened = time.perf_counter() - begun
        begun = time.perf_counter()
        vectors = encoder.encode(["A man plays a guitar."])
        first = time.perf_counter() - begun
        provider = encoder.info.provider
    return {
        "model": name,
        "provider": provider,
        "seconds_to_open": opened,
        "seconds_of_first_text": first,
        "vector_is_finite": bool(np.isfinite(vectors).all()),
        "libraries": loaded_libraries(),
        "fp16_measured_tflops": measured_tflops(),
        "goals": [goal("the session runs on CUDA (1 yes, 0 no)", float(provider == CUDA), at_least=1)],
    }


def measured_tflops(runs: int = 20) -> float | None:
    """TFLOP/s of a large fp16 product by torch, median; None without torch or a card that it sees."""
    try:
        import torch
    except ImportError:
        return None
    if not torch.cuda.is_available():
        return None
    a = torch.randn(_MATRIX, _MATRIX, device="cuda", dtype=torch.float16)
    times = []
    for _ in range(_WARM_UP + runs):
        begun = time.perf_counter()
        a @ a
        torch.cuda.synchronize()
        times.append(time.perf_counter() - begun)
    return 2 * _MATRIX**3 / statistics.median(times[_WARM_UP:]) / 1e12


def _smi(fields: str) -> list[str] | None:
    command = ["nvidia-smi", f"--query-gpu={fields}", "--format=csv,noheader,nounits", "--id=0"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return None
    lines = done.stdout.splitlines()
    return [part.strip() for part in lines[0].split(",")] if done.returncode == 0 and lines else None


def _number(text: str | None) -> float | None:
    try:
        return None if text is None else float(text)
    except ValueError:  # "[N/A]"
        return None


def _version(package: str) -> str | None:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None
