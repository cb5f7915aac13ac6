"""Cores and instructions are read from what Linux prints."""

import pytest

from es_sbert.runtime import device
from es_sbert.runtime.device import available_cores, has_int8_products


def _processor(number: int, socket: int, core: int) -> str:
    return f"processor\t: {number}\nphysical id\t: {socket}\ncore id\t\t: {core}\nmodel name\t: some CPU"


HYPERTHREADS = [_processor(0, 0, 0), _processor(1, 0, 0), _processor(2, 0, 1), _processor(3, 0, 1), ""]


@pytest.mark.parametrize(
    ("flags", "machine", "expected"),
    [
        ("flags\t\t: fpu avx2 avx512_vnni", "x86_64", True),
        ("flags\t\t: fpu avx2 avx_vnni", "AMD64", True),
        ("flags\t\t: fpu avx2 avx512f", "x86_64", False),
        ("Features\t: fp asimd asimddp", "aarch64", True),
        ("Features\t: fp asimd", "aarch64", False),
        ("", "x86_64", False),
    ],
)
def test_has_int8_products(flags: str, machine: str, expected: bool) -> None:
    assert has_int8_products(flags, machine) is expected


@pytest.mark.parametrize(
    ("cpuinfo", "cpu_max", "cores"),
    [
        (HYPERTHREADS, "max 100000", 2),
        (HYPERTHREADS, "300000 100000", 2),
        (HYPERTHREADS, "150000 100000", 1),
        (HYPERTHREADS, "50000 100000", 1),
        ([_processor(0, 0, 0), _processor(1, 1, 0)], "", 2),
        (["BogoMIPS\t: 50.00"], "", 4),
    ],
    ids=["hyperthreads", "larger quota", "quota", "less than a core", "two sockets", "unknown topology"],
)
def test_available_cores_are_physical_ones_within_the_quota(
    cpuinfo: list[str], cpu_max: str, cores: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = {"cpuinfo": "\n\n".join(cpuinfo), "cpu.max": cpu_max}
    monkeypatch.setattr(device, "_allowed_processors", lambda: {0, 1, 2, 3})
    monkeypatch.setattr(device, "_read_text", lambda path: files[path.name])
    assert available_cores() == cores
