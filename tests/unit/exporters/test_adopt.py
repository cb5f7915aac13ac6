"""Taking a traced graph over: what is quantized, what stays, and that the result is the same product."""

from __future__ import annotations

import numpy as np
import onnx
import onnxruntime
import pytest
from hypothesis import given
from hypothesis import strategies as st
from onnx import TensorProto, helper, numpy_helper

from es_sbert.errors import UnsupportedArchitecture
from es_sbert.exporters.graph_builder import FLOAT, OPSET
from es_sbert.exporters.parity import max_padding_batches
from es_sbert.exporters.quantization import einsum_product, graph_from_trace
from es_sbert.exporters.transformer_weights import Floats
from es_sbert.runtime.onnx_session import session_options
from tests.raised import raises_as_recorded


def graph(nodes: list[onnx.NodeProto], weights: dict[str, Floats]) -> onnx.ModelProto:
    """A graph from `x` to `y`."""
    made = helper.make_graph(
        nodes,
        "traced",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [None, None, None])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)],
        [numpy_helper.from_array(value, name) for name, value in weights.items()],
    )
    return helper.make_model(made, opset_imports=[helper.make_opsetid("", OPSET)], ir_version=9)


def run(traced: onnx.ModelProto, x: Floats, rank: int, *, int8: bool) -> tuple[list[str], Floats]:
    """Operators of the adopted graph and its result."""
    shape = [f"axis_{number}" for number in range(3)]
    made = graph_from_trace(traced, int8=int8).model(
        "m", [("x", FLOAT, shape)], [("y", FLOAT, [f"y_{n}" for n in range(rank)])]
    )
    session = onnxruntime.InferenceSession(
        made.SerializeToString(), session_options(), providers=["CPUExecutionProvider"]
    )
    (y,) = session.run(None, {"x": x})
    return [node.op_type for node in made.graph.node], y


WEIGHT = np.random.default_rng(0).normal(size=(12, 8)).astype(np.float32)
X = np.random.default_rng(1).normal(size=(3, 5, 12)).astype(np.float32)


def test_matmul_with_a_weight_is_quantized() -> None:
    traced = graph([helper.make_node("MatMul", ["x", "w"], ["y"])], {"w": WEIGHT})
    operators, y = run(traced, X, 3, int8=True)
    assert "MatMulIntegerToFloat" in operators
    assert "MatMul" not in operators
    assert y.shape == (3, 5, 8)
    np.testing.assert_allclose(y, X @ WEIGHT, atol=0.15)  # sums of 12 products, each factor to one part in 254
    assert np.abs(y - X @ WEIGHT).max() > 0
    operators, y = run(traced, X, 3, int8=False)
    assert operators == ["MatMul"]
    np.testing.assert_allclose(y, X @ WEIGHT, rtol=1e-5, atol=1e-5)


def test_shared_weight_is_kept() -> None:
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["product"]),
        helper.make_node("ReduceMax", ["w"], ["most"], keepdims=0),
        helper.make_node("Add", ["product", "most"], ["y"]),
    ]
    _, y = run(graph(nodes, {"w": WEIGHT}), X, 3, int8=True)
    np.testing.assert_allclose(y, X @ WEIGHT + WEIGHT.max(), atol=0.15)


def test_graph_without_weight_products_is_rejected_for_int8() -> None:
    traced = graph([helper.make_node("Relu", ["x"], ["y"])], {})
    with raises_as_recorded(UnsupportedArchitecture):
        graph_from_trace(traced, int8=True)
    assert run(traced, X, 3, int8=False)[0] == ["Relu"]


@pytest.mark.parametrize(
    ("equation", "shape", "x"),
    [
        ("ibh,hnd->ibnd", (12, 2, 4), (3, 5, 12)),  # XLNet's query, key and value
        ("ibnd,hnd->ibh", (6, 3, 4), (2, 5, 3, 4)),  # its output
        ("bsh, kh -> bsk", (7, 12), (3, 5, 12)),
    ],
)
def test_einsum_product(equation: str, shape: tuple[int, ...], x: tuple[int, ...]) -> None:
    random = np.random.default_rng(3)
    weight, values = random.normal(size=shape).astype(np.float32), random.normal(size=x).astype(np.float32)
    product = einsum_product(equation, weight)
    assert product is not None
    leading = x[: product.leading]
    result = values.reshape(-1, product.weight.shape[0]) @ product.weight
    expected = np.einsum(equation.replace(" ", ""), values, weight)
    np.testing.assert_allclose(result.reshape(*leading, *product.tail), expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    "equation",
    [
        "ibnd,jbnd->bnij",  # a batch axis in the weight
        "bhs,hd->bsd",  # summed over an axis that is not the last
        "bsh,hd->bds",  # the result's axes interleaved
        "bsh,hd->bs",  # the weight summed beforehand
        "bsh,hd",  # the result left to the operator
    ],
)
def test_other_einsum_is_no_product(equation: str) -> None:
    axes = equation.partition(",")[2].partition("->")[0]
    assert einsum_product(equation, np.zeros((2,) * len(axes), np.float32)) is None


@given(st.lists(st.integers(1, 64), min_size=1, max_size=40))
def test_padded_batches_hold_every_text_once(lengths: list[int]) -> None:
    batches = max_padding_batches(np.array(lengths))
    assert sorted(int(index) for batch in batches for index in batch) == list(range(len(lengths)))
    if len(lengths) > 1:
        assert {lengths[index] for index in batches[0]} == {min(lengths), max(lengths)}
