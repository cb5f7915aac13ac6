"""The pure parts of benchmarks.gpu_check: its file, goals, arithmetic, models with random weights, and packages."""

from __future__ import annotations

import importlib
from pathlib import Path

import pytest

from benchmarks.gpu_check import requirements
from benchmarks.gpu_check.arithmetic import Shape
from benchmarks.gpu_check.steps import STEPS

ROOT = Path(__file__).parents[2]
TINY = Shape(hidden=32, heads=2, layers=2, intermediate=64)


@pytest.mark.train
def test_every_step_is_a_function_of_its_module() -> None:
    for step in STEPS:
        assert callable(getattr(importlib.import_module(f"benchmarks.gpu_check.{step.module}"), step.name)), step
        assert step.missing() == [], "the extras of the tests bring all that the steps need"


@pytest.mark.parametrize("training", [False, True])
def test_requirements_are_pinned(training: bool) -> None:
    lines = requirements.pinned(training=training)
    assert all(line.count("==") == 1 for line in lines)
    assert len(set(lines)) == len(lines)
    assert any(line.startswith("onnxruntime-gpu==") for line in lines)
    assert any(line.startswith("transformers==") for line in lines) is training
