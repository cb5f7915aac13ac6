"""Steps of benchmarks.gpu_check run through to JSON on the stand-ins, without torch. Their values mean nothing here."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from benchmarks.gpu_check.arithmetic import Shape
from benchmarks.gpu_check.random_models import write_model
from tests.cuda.stand_in import Run, StandIns

TINY = Shape(hidden=64, heads=2, layers=1, intermediate=128)

# Kernels compute nothing, so vectors are what lay in memory, and may well be no numbers.
PROGRAM = """
import runpy, sys, types
from es_sbert.encoder import encoder
encoder.math = types.SimpleNamespace(isfinite=lambda value: True)
sys.argv[1:] = {arguments!r}
runpy.run_module("benchmarks.gpu_check", run_name="__main__", alter_sys=True)
"""


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_model(tmp_path_factory.mktemp("models") / "tiny", TINY, vocabulary=1_000)


@pytest.fixture(scope="module")
def scratch(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("scratch")


def run_step(
    stand_ins: StandIns, name: str, folder: Path, model: Path, scratch: Path, *more: str, **settings: Any
) -> tuple[Run, dict[str, Any]]:
    output = folder / "gpu.json"
    arguments = ["--step", name, "--output", str(output), "--scratch", str(scratch), "--model", str(model), *more]
    settings = {"timeout": 600.0, **settings}
    done = stand_ins.run(PROGRAM.format(arguments=arguments), **settings)
    section = json.loads(output.read_text())["steps"][name] if output.exists() else {}
    assert "error" not in section, section
    return done, section


def test_environment_reports_gpu_libraries_and_provider(
    cuda_stand_ins: StandIns, tmp_path: Path, model: Path, scratch: Path
) -> None:
    done, section = run_step(cuda_stand_ins, "environment", tmp_path, model, scratch)
    assert section["provider"] == "CUDAExecutionProvider"
    assert section["ran_on"]["device"]["name"]
    assert any("libcudart" in path for path in section["libraries"])
    assert section["left_out_without"] == ["torch"]
    assert done.returncode == 0, done.stderr
    assert done.stdout == ""


def test_no_gpu_writes_no_results(cuda_stand_ins: StandIns, tmp_path: Path, model: Path, scratch: Path) -> None:
    done, section = run_step(cuda_stand_ins, "environment", tmp_path, model, scratch, cards=0)
    assert done.returncode == 2
    assert "the NVIDIA driver offers no card" in done.stderr
    assert section == {}


def test_steps_run_in_separate_processes_and_share_one_file(
    cuda_stand_ins: StandIns, tmp_path: Path, model: Path, scratch: Path
) -> None:
    """The second run of the step measures other cases, and the file is named relative to where they are started."""
    for case, steps in (("tiny/15", 2), ("tiny/64", 1)):
        step = (*["--step", "speed"] * steps, "--case", case, "--texts", "300")
        paths = ("--output", "gpu.json", "--scratch", str(scratch), "--model", str(model))
        done = cuda_stand_ins.run(["-m", "benchmarks.gpu_check", *step, *paths], folder=tmp_path, timeout=600.0)
        assert done.returncode == 0, done.stderr
        assert steps == 1 or done.stderr.count("=== speed") == steps
    written = json.loads((tmp_path / "gpu.json").read_text())["steps"]
    assert sorted(written["speed"]["cases"]) == ["tiny/15", "tiny/64"]
