"""`to_fp16`: what is rounded and what is not, and that no number leaves float16's range."""

from __future__ import annotations

import numpy as np
import onnx
import onnxruntime
from numpy.typing import NDArray
from onnx import helper

from es_sbert.errors import UnsupportedArchitecture
from es_sbert.exporters.fp16 import emulate_fp16, to_fp16
from es_sbert.exporters.graph_builder import FLOAT, FLOAT16, INT64, GraphBuilder
from tests.raised import raises_as_recorded

WEIGHT = np.random.default_rng(0).normal(size=(4, 4)).astype(np.float32)
TABLE = np.arange(12, dtype=np.float32).reshape(3, 4) / 7
MASK = np.float32(np.finfo(np.float32).min)


def finished(graph: GraphBuilder, value: str, axes: int = 3) -> onnx.ModelProto:
    """From `input_ids`, (batch, tokens), to `score`."""
    graph.rename(value, "score")
    shape = tuple(f"axis {number}" for number in range(axes))
    return graph.model("a model", [("input_ids", INT64, ("batch", "tokens"))], [("score", FLOAT, shape)])


def types(model: onnx.ModelProto) -> dict[str, set[int]]:
    """Operator → element types of its results."""
    full = onnx.shape_inference.infer_shapes(model, strict_mode=True)
    kinds = {info.name: info.type.tensor_type.elem_type for info in [*full.graph.value_info, *full.graph.output]}
    found: dict[str, set[int]] = {}
    for node in full.graph.node:
        found.setdefault(node.op_type, set()).update(kinds[name] for name in node.output)
    return found


def run(model: onnx.ModelProto, ids: list[list[int]]) -> NDArray[np.float32]:
    onnx.checker.check_model(model, full_check=True)
    session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    [score] = session.run(["score"], {"input_ids": np.array(ids)})
    return score


def test_weights_are_float16_and_positions_are_not() -> None:
    graph = GraphBuilder()
    words = graph.add("Gather", graph.constant("words", TABLE), "input_ids")  # (B, S, 4)
    position = graph.add("Cast", "input_ids", to=FLOAT)
    angle = graph.add("Sin", graph.add("Unsqueeze", position, graph.integers(2)))
    x = graph.add("MatMul", graph.add("Add", words, angle), graph.constant("weight", WEIGHT))
    model = to_fp16(finished(graph, graph.add("Tanh", x)))
    found = types(model)
    assert found["Sin"] == {FLOAT}
    assert found["Gather"] == found["Add"] == found["MatMul"] == found["Tanh"] == {FLOAT16}
    assert [value.type.tensor_type.elem_type for value in model.graph.output] == [FLOAT]
    assert {tensor.name: tensor.data_type for tensor in model.graph.initializer}["weight_fp16"] == FLOAT16


def test_fully_padded_row_stays_finite() -> None:
    """Masks of float32's least number, added twice; a plain conversion makes -inf of them, and softmax NaN."""
    graph = GraphBuilder()
    words = graph.add("Gather", graph.constant("words", TABLE), "input_ids")  # (B, S, 4)
    scores = graph.add("MatMul", words, graph.constant("weight", WEIGHT))
    empty = graph.add("Equal", "input_ids", graph.integer(0))
    mask = graph.add("Where", empty, graph.constant("least", MASK), graph.scalar(0.0))  # (B, S)
    mask = graph.add("Unsqueeze", mask, graph.integers(2))  # (B, S, 1): whole rows of scores
    masked = graph.add("Add", graph.add("Add", scores, mask), mask)
    model = finished(graph, graph.add("Softmax", masked, axis=-1))
    half = to_fp16(onnx.ModelProto.FromString(model.SerializeToString()))
    for made in (half, emulate_fp16(onnx.ModelProto.FromString(half.SerializeToString()))):
        score = run(made, [[1, 2], [0, 1]])
        assert np.isfinite(score).all()
        np.testing.assert_allclose(score[0], run(model, [[1, 2], [0, 1]])[0], atol=2e-3)


def test_decomposed_norm_is_computed_in_float32() -> None:
    """Root mean square of values whose squares no float16 holds."""
    graph = GraphBuilder()
    x = graph.add("Gather", graph.constant("words", 300 + 500 * TABLE), "input_ids")  # (B, S, 4)
    mean = graph.add("ReduceMean", graph.add("Pow", x, graph.scalar(2.0)), graph.integers(2), keepdims=1)
    root = graph.add("Sqrt", graph.add("Add", mean, graph.scalar(1e-12)))
    model = finished(graph, graph.add("Mul", x, graph.add("Reciprocal", root)))
    expected = run(model, [[0, 2]])
    made = to_fp16(model)
    found = types(made)
    assert found["Pow"] == found["ReduceMean"] == found["Add"] == found["Reciprocal"] == {FLOAT}
    assert found["Mul"] == {FLOAT16}
    np.testing.assert_allclose(run(emulate_fp16(made), [[0, 2]]), expected, rtol=2e-3)


def test_the_head_stays_in_float32() -> None:
    graph = GraphBuilder()
    words = graph.add("Gather", graph.constant("words", TABLE), "input_ids")
    first = graph.add("Gather", words, graph.integer(0), axis=1)  # (B, 4)
    model = to_fp16(finished(graph, graph.add("Gemm", first, graph.constant("weight", WEIGHT)), 2))
    assert types(model)["Gemm"] == {FLOAT}
    assert {tensor.name: tensor.data_type for tensor in model.graph.initializer}["weight"] == FLOAT


def test_emulation_rounds_every_result() -> None:
    graph = GraphBuilder()
    words = graph.add("Gather", graph.constant("words", TABLE), "input_ids")
    thirds = graph.add("Mul", words, graph.scalar(1 / 3))
    model = emulate_fp16(to_fp16(finished(graph, graph.add("Add", thirds, words))))
    half = TABLE.astype(np.float16)
    third = (half.astype(np.float32) * np.float32(np.float16(1 / 3))).astype(np.float16)
    expected = (third.astype(np.float32) + half.astype(np.float32)).astype(np.float16).astype(np.float32)
    np.testing.assert_array_equal(run(model, [[0, 1, 2]])[0], expected)
    assert not any(tensor.data_type == FLOAT16 for tensor in model.graph.initializer)


def test_unsupported_graphs_are_rejected() -> None:
    graph = GraphBuilder()
    position = graph.add("Cast", "input_ids", to=FLOAT)
    with raises_as_recorded(UnsupportedArchitecture):
        to_fp16(finished(graph, graph.add("Sin", position), 2))

    graph = GraphBuilder()
    value = graph.add("Gather", graph.constant("words", TABLE), "input_ids")
    with raises_as_recorded(UnsupportedArchitecture):
        to_fp16(finished(graph, graph.add("Nothing", value, domain="somewhere")))

    graph = GraphBuilder()
    same = [helper.make_node("Identity", ["input_ids"], ["same"])]
    branch = helper.make_graph(same, "branch", [], [helper.make_tensor_value_info("same", INT64, None)])
    yes = graph.constant("yes", np.array(True))
    with raises_as_recorded(UnsupportedArchitecture):
        to_fp16(finished(graph, graph.add("If", yes, then_branch=branch, else_branch=branch)))
