"""The kind of processor that a table of results is for, and how busy other programs keep it."""

from __future__ import annotations

import os
import platform
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from es_sbert.runtime.device import available_cores

# Kind → its heading in docs/results.md, best first.
KINDS = {
    "amx": "x86 with AMX",
    "avx512-bf16": "x86 with AVX-512, VNNI and bf16, without AMX",
    "avx512-vnni": "x86 with AVX-512 and VNNI",
    "avx2-vnni": "x86 with AVX2 and VNNI",
    "avx512": "x86 with AVX-512, without VNNI",
    "avx2": "x86 with AVX2",
    "arm-i8mm": "ARM with int8 matrix products",
    "arm-dotprod": "ARM with int8 dot products",
    "arm": "ARM",
    "other": "other processors",
}
# Instructions that decide how fast matrix products are.
_FEATURES = {
    *("avx2", "fma", "avx_vnni", "avx512f", "avx512_vnni", "avx512_bf16", "avx512_fp16", "amx_tile", "amx_int8"),
    *("amx_bf16", "amx_fp16", "asimd", "asimddp", "i8mm", "bf16", "sve", "sve2", "sme"),
}
_CPUINFO, _STAT = Path("/proc/cpuinfo"), Path("/proc/stat")


@dataclass(frozen=True)
class Processor:
    """What a table says about the machine.

    Attributes:
        kind: One of `KINDS`.
        name: The model's name, as the system gives it.
        features: The instructions that matter.
        cores: Physical cores that a process may use.
    """

    kind: str
    name: str
    features: tuple[str, ...]
    cores: int


def this_processor() -> Processor:
    """The processor of this machine."""
    text = _CPUINFO.read_text(errors="replace") if _CPUINFO.exists() else ""
    return describe(text, platform.machine(), available_cores())


def describe(cpuinfo: str, machine: str, cores: int) -> Processor:
    """The processor of a text such as /proc/cpuinfo.

    Args:
        cpuinfo: The text; empty on systems without.
        machine: The architecture as `platform.machine()` gives it.
    """
    fields = [(key.strip(), value.strip()) for key, _, value in (line.partition(":") for line in cpuinfo.splitlines())]
    flags = {flag for key, value in fields if key in ("flags", "Features") for flag in value.split()}
    names = [value for key, value in fields if key in ("model name", "Model")]
    name = " ".join(names[0].split()) if names else platform.processor() or machine
    return Processor(_kind(flags, machine.lower()), name, tuple(sorted(flags & _FEATURES)), cores)


def _kind(flags: set[str], machine: str) -> str:
    if machine in ("arm64", "aarch64"):
        return "arm-i8mm" if "i8mm" in flags else "arm-dotprod" if "asimddp" in flags else "arm"
    if "amx_tile" in flags and flags & {"amx_int8", "amx_bf16"}:
        return "amx"
    if {"avx512_bf16", "avx512_vnni"} <= flags:
        return "avx512-bf16"
    if "avx512f" in flags:
        return "avx512-vnni" if "avx512_vnni" in flags else "avx512"
    if "avx2" in flags:
        return "avx2-vnni" if "avx_vnni" in flags else "avx2"
    return "other"


def onnx_instructions(processor: Processor) -> str:
    """The preset of optimum's int8 quantization for ONNX that fits the processor."""
    if processor.kind.startswith("arm"):
        return "arm64"
    if "avx512_vnni" in processor.features:
        return "avx512_vnni"
    return "avx512" if "avx512f" in processor.features else "avx2"


def busy_seconds() -> float | None:
    """Seconds that all processors have worked since the start, time that a hypervisor took included.

    None where the system does not tell.
    """
    return parse_busy(_STAT.read_text().splitlines(), os.sysconf("SC_CLK_TCK")) if _STAT.exists() else None


def parse_busy(lines: Iterable[str], ticks: int) -> float | None:
    """The same of the lines of /proc/stat."""
    for line in lines:
        name, *numbers = line.split()
        if name == "cpu":
            user, nice, system, _idle, _wait, interrupts, soft, steal = map(int, numbers[:8])
            return (user + nice + system + interrupts + soft + steal) / ticks
    return None


def others_share(before: float | None, after: float | None, own: float, seconds: float) -> float | None:
    """The share of all logical processors that other programs used; None where the system does not tell.

    Args:
        before, after: Of `busy_seconds`.
        own: Processor seconds of the contender.
        seconds: Wall time.
    """
    if before is None or after is None or seconds <= 0:
        return None
    return max(0.0, after - before - own) / (seconds * (os.cpu_count() or 1))
