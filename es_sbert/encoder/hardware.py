"""What this machine has: cores this process may use, and int8 instructions."""

from __future__ import annotations

import ctypes
import os
import platform
from collections.abc import Iterable
from pathlib import Path

_CPUINFO = Path("/proc/cpuinfo")


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


def cuda_devices() -> int:
    """NVIDIA cards that the driver offers this process (CUDA_VISIBLE_DEVICES respected); 0 without a driver.

    onnxruntime-gpu lists its CUDA provider on every machine, so the driver itself is asked (cuInit,
    cuDeviceGetCount).
    """
    try:
        driver = ctypes.CDLL("nvcuda.dll" if os.name == "nt" else "libcuda.so.1")
    except OSError:
        return 0
    count = ctypes.c_int(0)
    if driver.cuInit(0) != 0 or driver.cuDeviceGetCount(ctypes.byref(count)) != 0:
        return 0
    return count.value


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
