"""Static int8 quantization: ranges from sample texts, outliers smoothed, and the graph otherwise unchanged."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest
from hypothesis import given
from hypothesis import strategies as st
from onnx import numpy_helper
from onnx.reference import ReferenceEvaluator

from es_sbert.bundle.cross_encoder_model import read_cross_encoder
from es_sbert.bundle.sentence_model import read_sentence_model
from es_sbert.bundle.variants import Precision, Variant
from es_sbert.encoder.reranker import Reranker
from es_sbert.exporters.export_bundle import choose_graph_source, export_bundle, export_reranker
from es_sbert.exporters.graph_builder import FLOAT, INT64, GraphBuilder
from es_sbert.exporters.static_quantization import (
    equal_length_batches,
    quantization_range,
    quantize_statically,
    sample_batches,
    sample_texts,
    smoothing_factors,
)
from es_sbert.runtime.device import has_int8_products
from es_sbert.runtime.openvino_session import has_openvino
from tests.unit.checkpoints import keep_only_the_vocabulary, write_checkpoint, write_cross_encoder

needs_openvino = pytest.mark.skipif(not has_openvino(), reason="openvino is not installed")
runs_int8 = pytest.mark.skipif(
    not (has_openvino() and has_int8_products()), reason="OpenVINO has no int8 products here"
)

CHANNELS, WIDTH, WORDS = 16, 8, 50


def random_graph(random: np.random.Generator, *, outlier: float = 1.0) -> onnx.ModelProto:
    """Token ids to (texts, tokens, WIDTH) by two products, to one row a text by a third; one channel is an outlier."""
    graph = GraphBuilder()
    table = random.normal(size=(WORDS, CHANNELS)).astype(np.float32)
    table[:, 3] *= outlier

    def weight(name: str, *shape: int) -> str:
        return graph.constant(name, random.normal(size=shape).astype(np.float32))

    x = graph.add("Gather", graph.constant("table", table), "input_ids")
    first = graph.add("MatMul", x, weight("first", CHANNELS, WIDTH))
    second = graph.add("MatMul", x, weight("second", CHANNELS, WIDTH))
    tokens = graph.add("Mul", first, second)
    pooled = graph.add("ReduceMean", tokens, graph.integers(1), keepdims=0)
    graph.rename(graph.add("MatMul", pooled, weight("dense", WIDTH, WIDTH)), "output")
    return graph.model("random", [("input_ids", INT64, ("texts", "tokens"))], [("output", FLOAT, ("texts", WIDTH))], {})


def batches(random: np.random.Generator, count: int = 6) -> list[dict[str, np.ndarray]]:
    return [{"input_ids": random.integers(WORDS, size=(4, 1 + number))} for number in range(count)]


def run(model: onnx.ModelProto, inputs: dict[str, np.ndarray]) -> np.ndarray:
    session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    return session.run(None, inputs)[0]


def compute_exactly(model: onnx.ModelProto, inputs: dict[str, np.ndarray]) -> np.ndarray:
    """The output as ONNX defines it: onnxruntime's int8 products saturate on processors without VNNI."""
    return ReferenceEvaluator(model).run(None, inputs)[0]


@pytest.mark.parametrize("outlier", [1.0, 100.0])
def test_quantized_graph_stays_near_the_exact_one(outlier: float) -> None:
    random = np.random.default_rng(0)
    exact = random_graph(random, outlier=outlier)
    quantized = quantize_statically(exact, batches(random, 20))
    inputs = {"input_ids": random.integers(WORDS, size=(8, 9))}
    expected, actual = run(exact, inputs), compute_exactly(quantized, inputs)
    assert np.linalg.norm(actual - expected) < 0.05 * np.linalg.norm(expected)
    assert np.abs(actual - expected).max() > 0


def test_products_share_the_quantized_activations_and_what_runs_once_a_text_stays_exact() -> None:
    random = np.random.default_rng(1)
    exact = random_graph(random)
    before = exact.SerializeToString()
    quantized = quantize_statically(exact, batches(random))
    assert Counter(node.op_type for node in quantized.graph.node) == Counter(
        {"Gather": 1, "Mul": 2, "QuantizeLinear": 1, "DequantizeLinear": 3, "MatMul": 3, "ReduceMean": 1, "Identity": 1}
    )
    kinds = {tensor.name: numpy_helper.to_array(tensor).dtype for tensor in quantized.graph.initializer}
    assert Counter(str(kind) for kind in kinds.values())["int8"] == 2
    assert "dense" in kinds
    assert not {"first", "second"} & set(kinds)
    assert {node.domain for node in quantized.graph.node} == {""}
    assert exact.SerializeToString() == before


def test_smoothing_leaves_the_product_as_it_is_and_evens_out_activations() -> None:
    random = np.random.default_rng(3)
    activations, weight = random.normal(size=(50, CHANNELS)), random.normal(size=(CHANNELS, WIDTH))
    activations[:, 5] *= 1000
    factors = smoothing_factors(activations.min(axis=0), activations.max(axis=0), [weight])
    np.testing.assert_allclose((activations / factors) @ (weight * factors[:, None]), activations @ weight, rtol=1e-5)
    before, after = (np.abs(values).max(axis=0) for values in (activations, activations / factors))
    assert after.max() / np.median(after) < before.max() / np.median(before) / 50
    assert np.log(factors).mean() == pytest.approx(0, abs=1e-5)
    zeros = np.zeros(4, dtype=np.float32)
    assert np.isfinite(smoothing_factors(zeros, zeros, [np.zeros((4, 2), np.float32)])).all()


@given(st.floats(-1e4, 1e4, width=32), st.floats(-1e4, 1e4, width=32))
def test_range_holds_zero_exactly_and_every_value_within_a_step(one: float, other: float) -> None:
    step, zero = quantization_range(np.array([min(one, other)]), np.array([max(one, other)]))
    assert zero.dtype == np.uint8
    for value in (0.0, one, other):
        level = np.clip(np.rint(value / step) + float(zero), 0, 255)
        assert abs((level - float(zero)) * step - value) <= 1.01 * step


@given(st.lists(st.integers(1, 600), max_size=60))
def test_batches_hold_every_text_once_and_are_of_one_length(lengths: list[int]) -> None:
    found = list(equal_length_batches(np.array(lengths, dtype=np.int64)))
    assert sorted(number for batch in found for number in batch) == list(range(len(lengths)))
    for batch in found:
        assert len({lengths[number] for number in batch}) == 1
        assert len(batch) == 1 or lengths[batch[0]] * len(batch) <= 1024


@pytest.mark.parametrize("architecture", ["bert", "roberta", "xlm-roberta"])
def test_samples_reach_the_longest_input_without_padding(architecture: str, tmp_path: Path) -> None:
    model = read_sentence_model(write_checkpoint(tmp_path / "model", architecture))
    texts = sample_texts(model)
    assert texts == sample_texts(model)
    assert len(set(texts)) > 300
    build, _ = choose_graph_source(model)
    batches = list(sample_batches(model, build(Precision.FP32)))
    assert max(batch["input_ids"].shape[1] for batch in batches) == model.longest_input
    assert all(batch["attention_mask"].all() for batch in batches)


@runs_int8
@pytest.mark.parametrize("architecture", ["bert", "mpnet", "roberta", "modernbert", "qwen3", "electra"])
def test_variant_passes_the_parity_check(architecture: str, tmp_path: Path) -> None:
    """Built, rotary and traced graphs; `force` would hide a failure, so it is not given."""
    model = read_sentence_model(write_checkpoint(tmp_path / "model", architecture, layers=2))
    manifest = export_bundle(model, tmp_path / "bundle", [Variant.OPENVINO_INT8, Variant.OPENVINO_FP32])
    variant = manifest.variants["openvino-int8"]
    assert variant.file == "onnx/model_openvino_int8.onnx"
    assert (variant.runtime, variant.precision) == ("openvino", "int8")
    assert variant.parity is not None
    assert variant.parity.passed
    assert variant.parity.mean_cosine < 0.9999999  # something was quantized


@needs_openvino
@pytest.mark.parametrize("architecture", ["mpnet", "roberta", "modernbert", "qwen3", "electra"])
def test_graph_passes_the_parity_check_of_fp32(architecture: str, tmp_path: Path) -> None:
    """Relative positions, positions from ids, rotary positions with windows or shared keys, and a traced graph."""
    model = read_sentence_model(write_checkpoint(tmp_path / "model", architecture, layers=2))
    manifest = export_bundle(model, tmp_path / "bundle", [Variant.OPENVINO_FP32])
    report = manifest.variants["openvino-fp32"].parity
    assert report is not None
    assert report.passed


@needs_openvino
@pytest.mark.parametrize("vocabulary_only", [False, True])
def test_reranker_runs_on_openvino_quantized_by_pairs(tmp_path: Path, vocabulary_only: bool) -> None:
    folder = write_cross_encoder(tmp_path / "model", "bert")
    if vocabulary_only:
        keep_only_the_vocabulary(folder)
    precisions = [Variant.OPENVINO_FP32, *([Variant.OPENVINO_INT8] if has_int8_products() else [])]
    export_reranker(read_cross_encoder(folder), tmp_path / "reranker", [Variant.FP32, *precisions])
    first, second = ["a cat", "the mat sleeps"], ["the dog on a mat", "a man"]

    def score(runtime: str, precision: str) -> np.ndarray:
        with Reranker(tmp_path / "reranker", device="cpu", precision=precision, runtime=runtime) as reranker:
            return reranker.score(first, second)

    exact = score("onnxruntime", "fp32")
    assert score("openvino", "fp32") == pytest.approx(exact, abs=1e-5)
    if has_int8_products():
        assert score("openvino", "int8") == pytest.approx(exact, abs=0.05)
        assert not np.array_equal(score("openvino", "int8"), exact)
