"""The pure parts of benchmarks.gpu_check: its file, goals, arithmetic, models with random weights, and packages."""

from __future__ import annotations

import importlib
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from benchmarks.gpu_check import requirements, results
from benchmarks.gpu_check.arithmetic import Shape, flops
from benchmarks.gpu_check.random_models import write_cross_encoder, write_model
from benchmarks.gpu_check.steps import STEPS
from es_sbert.bundle.cross_encoder_model import read_cross_encoder
from es_sbert.bundle.sentence_model import read_sentence_model

ROOT = Path(__file__).parents[2]
TINY = Shape(hidden=32, heads=2, layers=2, intermediate=64)


def test_results_round_trip_without_temporary_files(tmp_path: Path) -> None:
    path = tmp_path / "new" / "gpu.json"
    assert results.read(path) == {}
    results.write(path, {"steps": {"a": {"name": "ρ"}}})
    assert results.read(path) == {"steps": {"a": {"name": "ρ"}}}
    assert [entry.name for entry in path.parent.iterdir()] == ["gpu.json"]


@pytest.mark.parametrize(
    ("measured", "bounds", "met"),
    [
        (3.0, {"at_least": 3.0}, True),
        (2.9, {"at_least": 3.0}, False),
        (0.5, {"at_most": 0.5}, True),
        (0.6, {"at_most": 0.5}, False),
        (None, {"at_least": 0.0}, False),
        (float("nan"), {"at_least": 0.0}, False),
        (float("nan"), {"at_most": 1.0}, False),
    ],
)
def test_goal_is_met_within_bounds(measured: float | None, bounds: dict[str, float], met: bool) -> None:
    assert results.goal("a goal", measured, **bounds)["met"] is met


def test_flops_equal_the_sum_of_matrix_products() -> None:
    hidden, wide, length = 8, 32, 5

    def product(rows: int, inner: int, columns: int) -> int:
        return 2 * rows * inner * columns

    layer = 4 * product(length, hidden, hidden) + product(length, hidden, wide) + product(length, wide, hidden)
    layer += product(length, hidden, length) + product(length, length, hidden)  # over all heads
    assert flops(Shape(hidden, 2, 3, wide), np.array([length])) == 3 * layer
    assert flops(Shape(hidden, 2, 3, wide), np.array([length, length])) == 6 * layer


@pytest.mark.slow
def test_random_model_opens_here_and_in_sentence_transformers(tmp_path: Path) -> None:
    from sentence_transformers import CrossEncoder, SentenceTransformer

    from es_sbert.exporters.architectures import read_transformer_weights
    from es_sbert.exporters.numpy_reference import NumpyReference
    from es_sbert.exporters.parity import normalize_rows

    folder = write_model(tmp_path / "model", TINY, vocabulary=200)
    model, texts = read_sentence_model(folder), ["baba bebe bibi", "babe"]
    assert (model.dimensions, model.normalize, [str(mode) for mode in model.pooling]) == (32, True, ["mean"])
    expected = NumpyReference(model, read_transformer_weights(model)).encode(texts)
    theirs = SentenceTransformer(str(folder), device="cpu", local_files_only=True).encode(texts)
    assert np.einsum("td,td->t", normalize_rows(theirs), normalize_rows(expected)).min() > 0.99999
    assert [
        str(mode)
        for mode in read_sentence_model(write_model(tmp_path / "max", TINY, vocabulary=200, pooling="max")).pooling
    ] == ["max"]

    cross = write_cross_encoder(tmp_path / "cross", TINY, vocabulary=200)
    assert len(read_cross_encoder(cross).labels) == 1
    scores = CrossEncoder(str(cross), device="cpu", local_files_only=True).predict([("baba", "bebe")])
    assert np.isfinite(scores).all()


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


@pytest.mark.train
def test_list_option_prints_the_steps() -> None:
    command = [sys.executable, "-m", "benchmarks.gpu_check", "--list"]
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, timeout=120, check=True)
    assert [line.split()[0] for line in done.stdout.splitlines()] == [step.name for step in STEPS]
