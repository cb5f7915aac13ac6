"""The pure parts of benchmarks.gpu_check: its file, goals, arithmetic, models with random weights, and packages."""

from __future__ import annotations

import importlib
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from tokenizers import Tokenizer

from benchmarks.gpu_check import requirements, results
from benchmarks.gpu_check.arithmetic import Shape, flops, peak_tflops
from benchmarks.gpu_check.context import Context, OutOfTime
from benchmarks.gpu_check.random_models import make_texts, whole_words, write_cross_encoder, write_model
from benchmarks.gpu_check.steps import STEPS
from benchmarks.gpu_check.training import training_case
from es_sbert.bundle.cross_encoder_model import read_cross_encoder
from es_sbert.bundle.sentence_model import read_sentence_model
from es_sbert.runtime.tokenizer import SentenceTokenizer

ROOT = Path(__file__).parents[2]
TINY = Shape(hidden=32, heads=2, layers=2, intermediate=64)


def test_merge_replaces_only_the_section_of_its_step() -> None:
    document = results.merge({"steps": {"a": {"x": 1}, "b": {"y": 2}}}, "a", {"z": 3})
    assert document == {"steps": {"a": {"z": 3}, "b": {"y": 2}}}


def test_merge_keeps_other_cases_of_a_step() -> None:
    before = {"steps": {"speed": {"time": 1, "cases": {"minilm/15": {"rate": 1}, "minilm/64": {"rate": 2}}}}}
    after = results.merge(before, "speed", {"time": 2, "cases": {"minilm/64": {"rate": 3}}})
    assert after["steps"]["speed"] == {"time": 2, "cases": {"minilm/15": {"rate": 1}, "minilm/64": {"rate": 3}}}
    assert before["steps"]["speed"]["cases"]["minilm/64"] == {"rate": 2}


def test_results_round_trip_without_temporary_files(tmp_path: Path) -> None:
    path = tmp_path / "new" / "gpu.json"
    assert results.read(path) == {}
    results.write(path, {"steps": {"a": {"name": "ρ"}}})
    assert results.read(path) == {"steps": {"a": {"name": "ρ"}}}
    assert [entry.name for entry in path.parent.iterdir()] == ["gpu.json"]


def test_failed_write_keeps_the_previous_file(tmp_path: Path) -> None:
    path = tmp_path / "gpu.json"
    results.write(path, {"steps": {}})
    with pytest.raises(TypeError):
        results.write(path, {"steps": {"a": object()}})
    assert results.read(path) == {"steps": {}}
    assert [entry.name for entry in tmp_path.iterdir()] == ["gpu.json"]


def test_invalid_results_file_is_not_overwritten(tmp_path: Path) -> None:
    path = tmp_path / "list.json"
    path.write_text("[1]")
    with pytest.raises(ValueError, match="no JSON object"):
        results.read(path)


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


def test_summary_lists_goals_and_errors() -> None:
    missed = results.goal("sentences a second", 100.0, at_least=150.0)
    met = results.goal("seconds", 0.25, at_most=0.5)
    document = {
        "steps": {
            "speed": {"cases": {"a": {"goals": [missed]}, "b": {"error": "no memory"}}},
            "pairs": {"goals": [met]},
        }
    }
    assert results.summary(document, ["speed", "pairs", "absent"]) == [
        "speed: failed: b: no memory",
        "speed: MISSED: sentences a second: 100 (wanted >= 150)",
        "pairs: met: seconds: 0.25 (wanted <= 0.5)",
    ]


def test_summary_names_what_was_not_run_without_a_verdict() -> None:
    cases = {"no libraries": {results.NOT_RUN: "libcublas.so.13 is found by the system's loader"}}
    document = {"steps": {"profile": {"cases": cases}, "reranker": {results.NOT_RUN: "no time was left"}}}
    assert results.summary(document, ["profile", "reranker"]) == [
        "profile: not run: no libraries: libcublas.so.13 is found by the system's loader",
        "reranker: not run: no time was left",
    ]
    section = document["steps"]["profile"]
    assert (results.errors_of(section), list(results.goals_of(section))) == ([], [])


def test_time_that_is_too_short_for_a_case_names_the_limit(tmp_path: Path) -> None:
    context = Context((), None, tmp_path, limit=60.0)
    context.check_time(30)
    with pytest.raises(OutOfTime, match=r"of the 60 s of --limit are left, and a case needs 60; raise --limit"):
        context.check_time(60)


def test_flops_equal_the_sum_of_matrix_products() -> None:
    hidden, wide, length = 8, 32, 5

    def product(rows: int, inner: int, columns: int) -> int:
        return 2 * rows * inner * columns

    layer = 4 * product(length, hidden, hidden) + product(length, hidden, wide) + product(length, wide, hidden)
    layer += product(length, hidden, length) + product(length, length, hidden)  # over all heads
    assert flops(Shape(hidden, 2, 3, wide), np.array([length])) == 3 * layer
    assert flops(Shape(hidden, 2, 3, wide), np.array([length, length])) == 6 * layer


def test_shape_is_read_from_bert_and_distilbert_config() -> None:
    bert = {"hidden_size": 384, "num_attention_heads": 12, "num_hidden_layers": 6, "intermediate_size": 1536}
    distilbert = {"dim": 384, "n_heads": 12, "n_layers": 6, "hidden_dim": 1536}
    assert Shape.of_config(bert) == Shape.of_config(distilbert) == Shape(384, 12, 6, 1536)


@pytest.mark.parametrize(
    ("card", "peak"),
    [
        ("NVIDIA H200", 989.4),
        ("NVIDIA H100 80GB HBM3", 989.4),
        ("NVIDIA H100 PCIe", 756.5),
        ("NVIDIA A100-SXM4-80GB", 312.0),
        ("NVIDIA L40S", 362.1),
        ("NVIDIA L4", 121.0),
        ("Tesla T4", 65.1),
        ("NVIDIA GeForce GT 710", None),
    ],
)
def test_peak_tflops_by_gpu_name(card: str, peak: float | None) -> None:
    assert peak_tflops(card) == peak


@pytest.mark.slow
def test_random_model_opens_here_and_in_sentence_transformers(tmp_path: Path) -> None:
    from sentence_transformers import CrossEncoder, SentenceTransformer

    from es_sbert.exporters.numpy_reference import NumpyReference
    from es_sbert.exporters.parity import normalize_rows
    from es_sbert.exporters.transformer_weights import read_transformer_weights

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


def test_texts_have_about_the_requested_token_count(tmp_path: Path) -> None:
    folder = write_model(tmp_path / "model", TINY, vocabulary=300)
    words = whole_words(folder / "tokenizer.json")
    for tokens in (15, 64):
        texts = make_texts(words, 400, tokens, seed=1)
        counted = SentenceTokenizer(read_sentence_model(folder))(texts).tokens
        assert len(set(texts)) == 400
        assert counted.min() >= tokens // 2
        assert counted.max() <= 1.5 * tokens
        assert abs(counted.mean() - tokens) < tokens / 10
        assert make_texts(words, 400, tokens, seed=1) == texts
        assert make_texts(words, 400, tokens, seed=2) != texts


def test_whole_words_of_a_sentencepiece_tokenizer(tmp_path: Path) -> None:
    from tests.unit.checkpoints import write_checkpoint

    folder = write_checkpoint(tmp_path / "model", "xlm-roberta", layers=1)
    words = whole_words(folder / "tokenizer.json")[:50]
    tokenize = SentenceTokenizer(read_sentence_model(folder))
    assert words
    assert tokenize([" ".join(words)]).tokens.tolist() == [len(words) + 2]


def test_whole_words_ignores_padding_settings(tmp_path: Path) -> None:
    folder = write_model(tmp_path / "model", TINY, vocabulary=300)
    words = whole_words(folder / "tokenizer.json")
    padding = Tokenizer.from_file(str(folder / "tokenizer.json"))
    padding.enable_padding(length=128)
    padding.enable_truncation(max_length=128)
    padding.save(str(tmp_path / "tokenizer.json"))
    assert words
    assert whole_words(tmp_path / "tokenizer.json") == words


def test_training_goals_are_those_of_our_trainers() -> None:
    measured = {"batch": 16, "ratio": {"sentence-transformers' trainer": [1.0, 1.0], "es-sbert train": [0.5, 1.7]}}
    [goal] = training_case(measured)["goals"]
    assert goal["goal"].startswith("es-sbert train")
    assert (goal["measured"], goal["met"]) == (1.1, True)


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
