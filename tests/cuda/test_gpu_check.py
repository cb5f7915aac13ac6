"""benchmarks.gpu_check runs on the stand-ins without torch, and writes its JSON."""

from __future__ import annotations

import json
from pathlib import Path

from benchmarks.gpu_check.arithmetic import Shape
from benchmarks.gpu_check.random_models import write_model
from tests.cuda.stand_in import StandIns

TINY = Shape(hidden=64, heads=2, layers=1, intermediate=128)

# Kernels compute nothing, so vectors are what lay in memory, and may well be no numbers.
PROGRAM = """
import runpy, sys, types
from es_sbert.encoder import encoder
encoder.math = types.SimpleNamespace(isfinite=lambda value: True)
sys.argv[1:] = {arguments!r}
runpy.run_module("benchmarks.gpu_check", run_name="__main__", alter_sys=True)
"""


def test_environment_reports_gpu_libraries_and_provider(cuda_stand_ins: StandIns, tmp_path: Path) -> None:
    model, output = write_model(tmp_path / "tiny", TINY, vocabulary=1_000), tmp_path / "gpu.json"
    arguments = ["--step", "environment", "--output", str(output), "--scratch", str(tmp_path), "--model", str(model)]
    done = cuda_stand_ins.run(PROGRAM.format(arguments=arguments))
    assert (done.returncode, done.stdout) == (0, ""), done.stderr
    section = json.loads(output.read_text())["steps"]["environment"]
    assert "error" not in section, section
    assert section["provider"] == "CUDAExecutionProvider"
    assert section["ran_on"]["device"]["name"]
    assert any("libcudart" in path for path in section["libraries"])
    assert section["left_out_without"] == ["torch"]
