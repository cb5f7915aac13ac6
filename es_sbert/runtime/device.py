"""Detect cores, the CPU's instructions and NVIDIA GPUs, and choose the device."""

from __future__ import annotations

import contextlib
import ctypes
import importlib.metadata
import os
import platform
import re
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from pathlib import Path

from es_sbert.errors import DeviceError, UsageError
from es_sbert.installation import CUDA_EXTRA, has_cuda_build, switch_runtime_command
from es_sbert.messages import setting
from es_sbert.version import __version__

_CPUINFO = Path("/proc/cpuinfo")
# Linux's names of vector instructions, on x86 and on ARM.
_MATRIX_INSTRUCTIONS = ("avx", "amx", "asimd", "sve", "i8mm", "bf16")
_CAPABILITY_MAJOR, _CAPABILITY_MINOR = 75, 76  # CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_…


def available_cores() -> int:
    """Number of physical cores that this process may use; of logical cores if the system does not distinguish them.

    Affinity (taskset) and a container's CPU quota (cgroup v2) are respected.
    """
    allowed = _allowed_processors()
    cores = count_cores(_read_text(_CPUINFO).split("\n\n"), allowed) or len(allowed)
    return max(1, min(cores, quota_cores(_read_text(Path("/sys/fs/cgroup/cpu.max"))) or cores))


def count_cores(processors: Iterable[str], allowed: set[int]) -> int:
    """Count the distinct (socket, core) pairs among the allowed processors of /proc/cpuinfo; 0 if it lists no cores."""
    cores = set()
    for block in processors:
        fields = {key.strip(): value.strip() for key, _, value in (line.partition(":") for line in block.splitlines())}
        if "core id" in fields and int(fields.get("processor", "-1")) in allowed:
            cores.add((fields.get("physical id"), fields["core id"]))
    return len(cores)


def quota_cores(cpu_max: str) -> int | None:
    """Whole cores of a cgroup's `cpu.max` (`quota period`), at least 1; None without a limit."""
    quota, _, period = cpu_max.strip().partition(" ")
    return max(1, int(quota) // int(period)) if quota.isdigit() and period.isdigit() and int(period) else None


def has_int8_products(cpuinfo: str | None = None, machine: str | None = None) -> bool:
    """Whether the CPU multiplies int8 natively: VNNI on x86, dot product on ARM.

    Without it int8 is hardly faster than fp32, and AVX2's products saturate and cost accuracy. Systems whose flags
    cannot be read (Windows) count as systems without it.
    """
    machine = (machine or platform.machine()).lower()
    flags = processor_flags(cpuinfo)
    if machine in ("arm64", "aarch64"):
        return "asimddp" in flags or platform.system() == "Darwin"
    return bool(flags & {"avx512_vnni", "avx_vnni"})


def has_bf16_products(cpuinfo: str | None = None) -> bool:
    """Whether the CPU multiplies bf16 natively: AMX or AVX512-BF16 on x86."""
    return bool(processor_flags(cpuinfo) & {"amx_bf16", "avx512_bf16"})


def has_amx() -> bool:
    """Whether the CPU multiplies tiles of matrices (AMX): bf16 products are then nearly as fast as int8 ones."""
    return "amx_bf16" in processor_flags()


def processor_flags(cpuinfo: str | None = None) -> frozenset[str]:
    """The CPU's features by Linux's names; none on systems that do not list them.

    Args:
        cpuinfo: Contents of /proc/cpuinfo, instead of this machine's.
    """
    return frozenset(
        flag
        for line in (_read_text(_CPUINFO) if cpuinfo is None else cpuinfo).splitlines()
        if line.lower().startswith(("flags", "features"))
        for flag in line.partition(":")[2].split()
    )


def processor_name() -> str:
    """The CPU's name, or its architecture if the system does not report the name."""
    for line in _read_text(_CPUINFO).splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()


def describe_machine() -> dict[str, str]:
    """Return the properties on which exports and compiled models depend: the processor, the usable cores, and releases.

    The processor's instructions are included, because virtual machines often name only the family of their processor,
    whose members have different features.
    """
    versions = {"es-sbert": __version__}
    for package in ("onnxruntime", "onnxruntime-gpu", "openvino"):
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):  # left out if it is not installed
            versions[package] = importlib.metadata.version(package)
    instructions = " ".join(sorted(flag for flag in processor_flags() if flag.startswith(_MATRIX_INSTRUCTIONS)))
    cores = str(available_cores())
    return {"processor": processor_name(), "instructions": instructions, "cores": cores, **versions}


@dataclass(frozen=True)
class Gpu:
    """An NVIDIA card as its driver describes it.

    Attributes:
        name: Name of the product; empty if the driver does not report it.
        capability: Compute capability, such as (9, 0); None if the driver does not report it.
    """

    name: str
    capability: tuple[int, int] | None

    def __str__(self) -> str:
        capability = "" if self.capability is None else "compute capability {}.{}".format(*self.capability)
        return f"{self.name} ({capability})" if self.name and capability else self.name or capability or "a card"


@dataclass(frozen=True)
class NvidiaDriver:
    """The NVIDIA driver.

    Attributes:
        cards: The cards that this process may use (CUDA_VISIBLE_DEVICES is respected).
        cuda: The newest CUDA that the driver supports, such as (13, 2); None if the driver does not report it.
        problem: Reason why there are no cards, if the driver reports one.
    """

    cards: tuple[Gpu, ...]
    cuda: tuple[int, int] | None = None
    problem: str = ""


def cuda_driver() -> NvidiaDriver | None:
    """Query the NVIDIA driver; None without a driver.

    onnxruntime-gpu lists its CUDA provider on every machine, so only the driver knows whether there is a GPU.
    """
    try:
        driver = ctypes.CDLL("nvcuda.dll" if os.name == "nt" else "libcuda.so.1")
    except OSError:
        return None
    status = driver.cuInit(0)
    version = _query_driver(driver, "cuDriverGetVersion")
    cuda = None if version is None else (version // 1000, version % 1000 // 10)
    if status != 0:
        return NvidiaDriver((), cuda, f"cuInit returns the error {status}")
    cards = _query_driver(driver, "cuDeviceGetCount") or 0
    return NvidiaDriver(tuple(_query_gpu(driver, number) for number in range(cards)), cuda)


def cuda_devices() -> int:
    """Number of NVIDIA cards that this process may use; 0 without a driver."""
    driver = cuda_driver()
    return 0 if driver is None else len(driver.cards)


def compute_capability(number: int) -> tuple[int, int] | None:
    """Compute capability of a card, such as (9, 0); None if the driver does not report it."""
    driver = cuda_driver()
    return None if driver is None or number >= len(driver.cards) else driver.cards[number].capability


def _query_gpu(driver: ctypes.CDLL, number: int) -> Gpu:
    device = _query_driver(driver, "cuDeviceGet", number)
    if device is None:
        return Gpu("", None)
    major = _query_driver(driver, "cuDeviceGetAttribute", _CAPABILITY_MAJOR, device)
    minor = _query_driver(driver, "cuDeviceGetAttribute", _CAPABILITY_MINOR, device)
    name = ctypes.create_string_buffer(256)
    try:
        if driver.cuDeviceGetName(name, len(name), device) != 0:
            name.value = b""
    except AttributeError:  # the name stays empty
        pass
    return Gpu(name.value.decode(errors="replace"), None if major is None or minor is None else (major, minor))


def _query_driver(driver: ctypes.CDLL, function: str, *arguments: int) -> int | None:
    """Return the number that a driver function stores at its first argument; None if it fails or does not exist."""
    number = ctypes.c_int(0)
    try:
        status: int = getattr(driver, function)(ctypes.byref(number), *arguments)
    except AttributeError:
        return None
    return number.value if status == 0 else None


def _allowed_processors() -> set[int]:
    if hasattr(os, "sched_getaffinity"):
        return set(os.sched_getaffinity(0))
    return set(range(os.cpu_count() or 1))


def _read_text(path: Path) -> str:
    try:
        return path.read_text(errors="replace")
    except OSError:  # these files exist only on Linux; elsewhere the caller uses other sources
        return ""


NO_GPU_FOUND = "No NVIDIA GPU found: texts are embedded on the CPU."


@dataclass(frozen=True)
class Device:
    """`cpu`, or `cuda` with the number of the card."""

    kind: str
    number: int = 0

    def __str__(self) -> str:
        return self.kind if self.kind == "cpu" else f"{self.kind}:{self.number}"


def cuda_build_remedy() -> str:
    """Return the remedy if the installed onnxruntime was built without CUDA."""
    if not has_cuda_build():
        return f"The build for CUDA exists only for Linux and Windows on x86-64. Use {setting('device', 'cpu')}."
    return f"Install the build for CUDA in its place: {switch_runtime_command(CUDA_EXTRA)}"


def choose_device(name: str, providers: Collection[str], cards: int) -> Device:
    """Choose the device for `auto`, `cpu`, `cuda` or `cuda:N`.

    Args:
        name: The requested device.
        providers: Execution providers that the installed onnxruntime was built with.
        cards: Number of CUDA devices that the driver reports.

    Raises:
        UsageError: the name is none of these.
        DeviceError: CUDA is requested but not available, or there is no GPU with that number.
    """
    shown = setting("device", name)
    match = re.fullmatch(r"(auto|cpu)|cuda(?::(\d+))?", name)
    if match is None:
        raise UsageError(f"{shown} is not a device", "Use auto, cpu, cuda or cuda:N.").about("device", name)
    built = "CUDAExecutionProvider" in providers
    number = int(match[2] or 0)
    if match[1] == "cpu" or (match[1] == "auto" and not (built and cards)):
        return Device("cpu")
    if not built:
        raise DeviceError(f"{shown}: onnxruntime has no CUDA provider", cuda_build_remedy()).about("device", name)
    if not cards:
        raise DeviceError(
            f"{shown}: there is no NVIDIA driver, or it reports no GPU",
            "Check `nvidia-smi` and CUDA_VISIBLE_DEVICES, and start a container with access to the GPU "
            f"(`docker run --gpus all`). Or use the CPU: {setting('device', 'cpu')}.",
        ).about("device", name)
    if number >= cards:
        raise DeviceError(
            f"{shown}: the NVIDIA driver reports only {cards} device{'' if cards == 1 else 's'}",
            f"Check `nvidia-smi` and CUDA_VISIBLE_DEVICES, or use the CPU: {setting('device', 'cpu')}.",
        ).about("device", name)
    return Device("cuda", number)
