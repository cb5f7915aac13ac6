"""Cores and instructions are read from what Linux prints."""

import pytest

from es_sbert.runtime import device
from es_sbert.runtime.device import Gpu, available_cores, count_cores, has_int8_products, quota_cores


def _processor(number: int, socket: int, core: int) -> str:
    return f"processor\t: {number}\nphysical id\t: {socket}\ncore id\t\t: {core}\nmodel name\t: some CPU"


HYPERTHREADS = [_processor(0, 0, 0), _processor(1, 0, 0), _processor(2, 0, 1), _processor(3, 0, 1), ""]


def test_hyperthreads_of_a_core_count_once() -> None:
    assert count_cores(HYPERTHREADS, {0, 1, 2, 3}) == 2
    assert count_cores(HYPERTHREADS, {0, 1}) == 1


def test_equal_core_ids_on_two_sockets_are_two_cores() -> None:
    assert count_cores([_processor(0, 0, 0), _processor(1, 1, 0)], {0, 1}) == 2


def test_unknown_core_topology_counts_zero() -> None:
    assert count_cores(["processor\t: 0\nBogoMIPS\t: 50.00"], {0}) == 0


@pytest.mark.parametrize(
    ("text", "cores"),
    [("max 100000", None), ("200000 100000\n", 2), ("150000 100000", 1), ("50000 100000", 1), ("", None)],
)
def test_quota_cores(text: str, cores: int | None) -> None:
    assert quota_cores(text) == cores


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


def test_this_machine_has_a_core() -> None:
    assert available_cores() >= 1


@pytest.mark.parametrize(
    ("cpuinfo", "cpu_max", "cores"),
    [
        (HYPERTHREADS, "max 100000", 2),
        (HYPERTHREADS, "300000 100000", 2),
        (HYPERTHREADS, "100000 100000", 1),
        (["BogoMIPS\t: 50.00"], "", 4),
    ],
    ids=["hyperthreads", "larger quota", "quota", "unknown topology"],
)
def test_available_cores_are_physical_ones_within_the_quota(
    cpuinfo: list[str], cpu_max: str, cores: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = {"cpuinfo": "\n\n".join(cpuinfo), "cpu.max": cpu_max}
    monkeypatch.setattr(device, "_allowed_processors", lambda: {0, 1, 2, 3})
    monkeypatch.setattr(device, "_read_text", lambda path: files[path.name])
    assert available_cores() == cores


@pytest.mark.parametrize(
    ("card", "shown"),
    [
        (Gpu("NVIDIA H200", (9, 0)), "NVIDIA H200 (compute capability 9.0)"),
        (Gpu("NVIDIA H200", None), "NVIDIA H200"),
        (Gpu("", (7, 5)), "compute capability 7.5"),
        (Gpu("", None), "a card"),
    ],
)
def test_gpu_is_described_as_far_as_the_driver_reports(card: Gpu, shown: str) -> None:
    assert str(card) == shown
