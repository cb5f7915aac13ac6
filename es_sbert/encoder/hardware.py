"""What this machine has: cores this process may use, int8 instructions, and NVIDIA cards."""

from __future__ import annotations

import ctypes
import os
import platform
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

_CPUINFO = Path("/proc/cpuinfo")
_CAPABILITY_MAJOR, _CAPABILITY_MINOR = 75, 76  # CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_…


def available_cores() -> int:
    """Physical cores this process may run on; logical ones where the system does not tell them apart.

    A second thread of the same core gains nothing for matrix products. Affinity (taskset) and a container's
    CPU quota (cgroup v2) are respected.
    """
    allowed = _affinity()
    cores = count_cores(_read(_CPUINFO).split("\n\n"), allowed) or len(allowed)
    return max(1, min(cores, quota_cores(_read(Path("/sys/fs/cgroup/cpu.max"))) or cores))


def count_cores(processors: Iterable[str], allowed: set[int]) -> int:
    """Distinct (socket, core) pairs among the allowed processors of /proc/cpuinfo; 0 where it has no such lines."""
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

    Without it int8 is hardly faster than fp32, and AVX2's products saturate and cost accuracy. Systems whose
    flags cannot be read (Windows) count as without.
    """
    machine = (machine or platform.machine()).lower()
    cpuinfo = _read(_CPUINFO) if cpuinfo is None else cpuinfo
    flags = {flag for line in cpuinfo.splitlines() if line.lower().startswith(("flags", "features"))
             for flag in line.partition(":")[2].split()}  # fmt: skip
    if machine in ("arm64", "aarch64"):
        return "asimddp" in flags or platform.system() == "Darwin"
    return bool(flags & {"avx512_vnni", "avx_vnni"})


@dataclass(frozen=True)
class Card:
    """An NVIDIA card as its driver describes it.

    Attributes:
        name: Of the product; empty where the driver does not tell.
        capability: Compute capability, such as (9, 0); None where the driver does not tell.
    """

    name: str
    capability: tuple[int, int] | None

    def __str__(self) -> str:
        capability = "" if self.capability is None else "compute capability {}.{}".format(*self.capability)
        return f"{self.name} ({capability})" if self.name and capability else self.name or capability or "a card"


@dataclass(frozen=True)
class Driver:
    """The NVIDIA driver.

    Attributes:
        cards: Those that it offers this process (CUDA_VISIBLE_DEVICES respected).
        cuda: The newest CUDA that it runs, such as (13, 2); None where it does not tell.
        problem: Why it offers no cards, where it says so.
    """

    cards: tuple[Card, ...]
    cuda: tuple[int, int] | None = None
    problem: str = ""


def cuda_driver() -> Driver | None:
    """Ask the NVIDIA driver what it offers; None without a driver.

    onnxruntime-gpu lists its CUDA provider on every machine, so that the driver itself is asked.
    """
    try:
        driver = ctypes.CDLL("nvcuda.dll" if os.name == "nt" else "libcuda.so.1")
    except OSError:
        return None
    status = driver.cuInit(0)
    version = _ask_driver(driver, "cuDriverGetVersion")
    cuda = None if version is None else (version // 1000, version % 1000 // 10)
    if status != 0:
        return Driver((), cuda, f"cuInit gives the error {status}")
    cards = _ask_driver(driver, "cuDeviceGetCount") or 0
    return Driver(tuple(_card(driver, number) for number in range(cards)), cuda)


def cuda_devices() -> int:
    """How many NVIDIA cards the driver offers this process; 0 without a driver."""
    driver = cuda_driver()
    return 0 if driver is None else len(driver.cards)


def compute_capability(number: int) -> tuple[int, int] | None:
    """Compute capability of a card, such as (9, 0); None where the driver does not tell."""
    driver = cuda_driver()
    return None if driver is None or number >= len(driver.cards) else driver.cards[number].capability


def _card(driver: ctypes.CDLL, number: int) -> Card:
    device = _ask_driver(driver, "cuDeviceGet", number)
    if device is None:
        return Card("", None)
    major = _ask_driver(driver, "cuDeviceGetAttribute", _CAPABILITY_MAJOR, device)
    minor = _ask_driver(driver, "cuDeviceGetAttribute", _CAPABILITY_MINOR, device)
    name = ctypes.create_string_buffer(256)
    try:
        if driver.cuDeviceGetName(name, len(name), device) != 0:
            name.value = b""
    except AttributeError:
        pass
    return Card(name.value.decode(errors="replace"), None if major is None or minor is None else (major, minor))


def _ask_driver(driver: ctypes.CDLL, function: str, *arguments: int) -> int | None:
    """The number that a function of the driver stores at its first argument; None where it fails or is not there."""
    number = ctypes.c_int(0)
    try:
        status: int = getattr(driver, function)(ctypes.byref(number), *arguments)
    except AttributeError:
        return None
    return number.value if status == 0 else None


def _affinity() -> set[int]:
    if hasattr(os, "sched_getaffinity"):
        return set(os.sched_getaffinity(0))
    return set(range(os.cpu_count() or 1))


def _read(path: Path) -> str:
    # These files exist on Linux only; elsewhere the caller falls back to what the system offers.
    try:
        return path.read_text(errors="replace")
    except OSError:
        return ""
