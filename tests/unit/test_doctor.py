"""The doctor's judgements, without an engine."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from es_sbert.doctor.cuda import CudaState, judge_cuda
from es_sbert.doctor.engine import Disk, judge_disks
from es_sbert.doctor.findings import Finding, Level
from es_sbert.doctor.index import judge_field, judge_settings
from es_sbert.encoder.cuda import CudaLibraries, needed_libraries
from es_sbert.encoder.hardware import Card, Driver
from es_sbert.encoder.types import EncoderInfo
from es_sbert.engines.protocol import IndexState
from es_sbert.errors import UsageError
from es_sbert.index.describe import FieldSummary
from es_sbert.index.meta import VectorFieldMeta

GB = 10**9
MARK = "cluster.routing.allocation.disk.watermark"
INFO = EncoderInfo(
    model="tiny", fingerprint="f" * 32, dimensions=16, max_tokens=24, variant="int8", precision="int8",
    provider="CPUExecutionProvider", device="cpu", threads=2,
)  # fmt: skip


def disk(free: float, total: float = 100.0) -> Disk:
    return Disk("node", int(total * GB), int(free * GB))


@pytest.mark.parametrize(
    ("free", "settings", "level", "words"),
    [
        (50, {}, Level.OK, "50.0 GB free of 100.0"),
        (15, {}, Level.WARNING, "no new shards"),
        (9, {}, Level.WARNING, "moved away"),
        (4, {}, Level.ERROR, "read-only"),
        (50, {f"{MARK}.flood_stage": "40%"}, Level.ERROR, "read-only"),
        (50, {f"{MARK}.flood_stage": "0.4"}, Level.ERROR, "read-only"),
        (50, {f"{MARK}.flood_stage": "60gb"}, Level.ERROR, "read-only"),
        (50, {f"{MARK}.flood_stage": "10gb", f"{MARK}.high": "44GB", f"{MARK}.low": "46gb"}, Level.OK, "free"),
        (50, {f"{MARK}.high": "not a number"}, Level.OK, "free"),
    ],
)
def test_disks_are_judged_by_the_engines_own_watermarks(
    free: float, settings: dict[str, Any], level: Level, words: str
) -> None:
    [finding] = judge_disks([disk(99), disk(free)], settings, guarded=True)
    assert (finding.level, words in finding.message) == (level, True)
    assert bool(finding.remedy) is (level is not Level.OK)


def test_watermarks_that_are_off_and_nodes_that_do_not_tell() -> None:
    [off] = judge_disks([disk(1)], {}, guarded=False)
    assert (off.level, "switched off" in off.message) == (Level.OK, True)
    [silent] = judge_disks([], {}, guarded=True)
    assert silent.level is Level.WARNING


def test_blocks_and_settings_left_behind() -> None:
    meta = {"es_sbert": {"load": {"before": {"index.refresh_interval": None, "index.number_of_replicas": "1"}}}}
    state = IndexState("docs", {"_meta": meta}, {"index.blocks.write": "true", "index.blocks.read": "false"})
    blocked, left = judge_settings(state)
    assert (blocked.level, "index.blocks.write" in blocked.message) == (Level.ERROR, True)
    assert "docs/_settings" in blocked.remedy
    assert (left.level, left.remedy) == (Level.WARNING, "If none is running now: `es-sbert index repair docs`.")
    assert list(judge_settings(IndexState("docs", {}, {}))) == []


def field(**counts: int) -> FieldSummary:
    meta = VectorFieldMeta(fingerprint="f" * 32, model="tiny", dimensions=16, index_type="hnsw")
    return FieldSummary(
        "embedding", meta, **({"vectors": 10, "current": 10, "truncated": 0, "passages": None} | counts)
    )


def levels(findings: Any) -> list[Level]:
    return [finding.level for finding in findings]


def test_vector_fields() -> None:
    assert levels(judge_field("docs", field(), 10, INFO)) == [Level.OK]
    assert levels(judge_field("docs", field(), 12, INFO)) == [Level.WARNING]
    assert levels(judge_field("docs", field(truncated=3), 10, None)) == [Level.OK, Level.WARNING]
    assert levels(judge_field("docs", field(current=9), 10, INFO)) == [Level.ERROR, Level.OK]
    other = replace(INFO, model="another", fingerprint="0" * 32)
    assert levels(judge_field("docs", field(), 10, other)) == [Level.WARNING, Level.OK]
    # Nothing that could be named would search it.
    changed = replace(INFO, fingerprint="0" * 32)
    assert levels(judge_field("docs", field(), 10, changed)) == [Level.ERROR, Level.OK]


def test_an_error_is_a_finding() -> None:
    finding = Finding.of("engine", UsageError("broken", "Mend it."))
    assert finding.as_json() == {"level": "error", "about": "engine", "message": "broken", "remedy": "Mend it."}


GPU_WHEEL = CudaState(("onnxruntime-gpu",), "1.31.1", 13, Driver((Card("H200", (9, 0)),), (13, 2)))


def libraries(*missing: str) -> CudaLibraries:
    needed = needed_libraries(13, "linux")
    found = tuple((library, f"/lib/{library.name}") for library in needed if library.name not in missing)
    return CudaLibraries(found, tuple(library for library in needed if library.name in missing))


@pytest.mark.parametrize("device", ["auto", "cpu"])
def test_without_a_card_one_line_suffices(device: str) -> None:
    for driver in (None, Driver(())):
        [finding] = judge_cuda(replace(GPU_WHEEL, driver=driver), CudaLibraries(), device)
        assert (finding.level, finding.about) == (Level.OK, "cuda")
        assert finding.message == "no NVIDIA GPU; onnxruntime-gpu 1.31.1, built for CUDA 13, runs on the CPU"


def test_a_complete_installation_lists_every_library() -> None:
    findings = list(judge_cuda(GPU_WHEEL, libraries(), "auto"))
    assert {finding.level for finding in findings} == {Level.OK}
    assert [finding.message for finding in findings][:3] == [
        "onnxruntime-gpu 1.31.1, built for CUDA 13",
        "cuda:0 is H200 (compute capability 9.0)",
        "libcudart.so.13: /lib/libcudart.so.13",
    ]
    assert len(findings) == 2 + len(needed_libraries(13, "linux"))


@pytest.mark.parametrize(("device", "level"), [("auto", Level.WARNING), ("cuda", Level.ERROR), ("cuda:1", Level.ERROR)])
def test_a_missing_library_comes_with_its_package(device: str, level: Level) -> None:
    said = judge_cuda(GPU_WHEEL, libraries("libcurand.so.10", "libcudnn.so.9"), device)
    curand, cudnn = (finding for finding in said if finding.level is not Level.OK)
    assert (curand.level, curand.message) == (level, "libcurand.so.10: not found")
    assert "pip install nvidia-curand;" in curand.remedy
    # Only some models need cuDNN.
    assert (cudnn.level, cudnn.message.partition(":")[0]) == (Level.WARNING, "libcudnn.so.9")
    assert "pip install nvidia-cudnn-cu13;" in cudnn.remedy


@pytest.mark.parametrize(
    ("state", "device", "level", "words"),
    [
        (replace(GPU_WHEEL, packages=("onnxruntime",), major=None), "auto", Level.WARNING, "was built without CUDA"),
        (replace(GPU_WHEEL, packages=("onnxruntime",), major=None), "cuda", Level.ERROR, "was built without CUDA"),
        (replace(GPU_WHEEL, packages=("onnxruntime", "onnxruntime-gpu")), "auto", Level.WARNING, "both installed"),
        (replace(GPU_WHEEL, driver=None), "cuda", Level.ERROR, "no NVIDIA driver"),
        (replace(GPU_WHEEL, driver=Driver((), None, "cuInit 100")), "cuda", Level.ERROR, "offers no GPU (cuInit 100)"),
        (
            replace(GPU_WHEEL, driver=Driver((Card("", None),), (12, 4))),
            "auto",
            Level.WARNING,
            "runs CUDA up to 12.4, onnxruntime needs 13",
        ),
        (replace(GPU_WHEEL, problem="a symbol is missing"), "cuda", Level.ERROR, "does not load: a symbol is missing"),
    ],
)
def test_what_keeps_a_gpu_from_being_used(state: CudaState, device: str, level: Level, words: str) -> None:
    [finding] = [finding for finding in judge_cuda(state, libraries(), device) if finding.level is not Level.OK]
    assert (finding.level, words in finding.message) == (level, True)
    assert finding.remedy
