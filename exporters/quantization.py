"""Dynamic int8 quantization of products with weights, in built graphs and in traced ones.

Weights have one scale per output column, activations one per token (Yao et al. 2022, ZeroQuant, arXiv 2206.01861,
section 4.1). onnxruntime's DynamicQuantizeMatMul uses one scale per batch, so a text's vector would depend on the
other texts of its batch, and one outlier would coarsen every token.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import helper, numpy_helper

from es_sbert.errors import UnsupportedArchitecture
from es_sbert.exporters.graph_builder import CONTRIB, GraphBuilder
from es_sbert.exporters.transformer_weights import Floats
from es_sbert.messages import setting

_MAX_INT8 = 127  # -128 stays unused: the range is symmetric
# Activations are uint8 around this zero point, since CPUs with VNNI multiply unsigned by signed.
_ZERO_POINT = 128
# Prevents a division by zero for a token whose values are all zero.
_MIN_MAGNITUDE = 1e-12


def quantize_columns(weight: Floats) -> tuple[NDArray[np.int8], Floats]:
    """Quantize a weight matrix, each output column by its own largest value.

    Args:
        weight: *Shape:* ``(in_features, out_features)``.

    Returns:
        The int8 matrix of the same shape, and scales of *shape* ``(out_features,)``: column ≈ int8 × scale.
    """
    scale = np.abs(weight).max(axis=0) / _MAX_INT8  # (out_features,)
    scale = np.where(scale == 0, 1, scale).astype(np.float32)  # a column of zeros stays one
    return np.rint(weight / scale).astype(np.int8), scale


def add_quantized_product(graph: GraphBuilder, x: str, name: str, weight: Floats, *, lower: float | None = None) -> str:
    """x W with factors of 8 bits: (T, in_features) → (T, out_features) float32, T tokens.

    Args:
        graph: Graph that nodes are added to.
        x: The activations, float32; quantized here by the largest magnitude of each token.
        name: Name of the weight.
        weight: *Shape:* ``(in_features, out_features)``.
        lower: Lower bound of the values of x, if known; saves computing their minimum.
    """
    quantized, scale = quantize_columns(weight)
    last = graph.integers(1)
    magnitude = graph.add("ReduceMax", x, last, keepdims=0)  # (T,)
    if lower is None:
        least = graph.add("ReduceMin", x, last, keepdims=0)
        magnitude = graph.add("Max", magnitude, graph.add("Neg", least), graph.scalar(_MIN_MAGNITUDE))
    else:
        magnitude = graph.add("Max", magnitude, graph.scalar(-lower))
    step = graph.add("Mul", magnitude, graph.scalar(1 / _MAX_INT8))  # (T,)
    # Quantize all rows in one pass, each with its own step. Multiply as if the steps were 1, and scale the product.
    center = graph.add("Expand", graph.constant("centre", np.array([_ZERO_POINT], np.uint8)), graph.add("Shape", step))
    levels = graph.add("QuantizeLinear", x, step, center, axis=0)  # (T, in_features) uint8, 1 … 255
    product = graph.add(
        "MatMulIntegerToFloat",
        levels,
        graph.constant(f"{name}.weight", quantized),
        graph.scalar(1.0),
        graph.constant(f"{name}.scale", scale),
        graph.constant("zero_point", np.array(_ZERO_POINT, dtype=np.uint8)),
        domain=CONTRIB,
    )
    return graph.add("Mul", product, graph.add("Unsqueeze", step, last))  # (T, out_features)


@dataclass(frozen=True)
class WeightProduct:
    """Activations times a weight, (…, in_features) → (…, *tail), independent of how the graph writes it.

    Attributes:
        weight: *Shape:* ``(in_features, out_features)``.
        leading: Index of the activations' first axis that is summed over; negative from the end.
        tail: Axes of the result after the leading ones; their product is out_features.
    """

    weight: Floats
    leading: int
    tail: tuple[int, ...]


def graph_from_trace(traced: onnx.ModelProto, *, int8: bool) -> GraphBuilder:
    """Create a builder with the nodes and constants of a traced graph, so that more can be added.

    Args:
        traced: Graph of `graph_builder.OPSET`.
        int8: Quantize every MatMul with a weight, and every equivalent Einsum (XLNet). The Gemm of a classification
            head, which runs once per text, stays float32.

    Raises:
        UnsupportedArchitecture: `int8` is set and nothing can be quantized.
    """
    constants = {tensor.name: tensor for tensor in traced.graph.initializer}
    graph = GraphBuilder()
    used: set[str] = set()
    replaced: set[str] = set()
    for node in traced.graph.node:
        product = _as_weight_product(node, constants) if int8 else None
        if product is None:
            graph.copy(node)
            used.update(node.input)
        else:
            _replace_product(graph, node, product)
            replaced.add(node.input[1])
    if int8 and not replaced:
        raise UnsupportedArchitecture(
            f"{traced.graph.name}: no product with a weight was found that could be quantized",
            f"Export another precision: {setting('variants', ['fp32'])}.",
        )
    for name, tensor in constants.items():
        if name in used or name not in replaced:
            graph.constant(name, numpy_helper.to_array(tensor))
    return graph


def _as_weight_product(node: onnx.NodeProto, constants: Mapping[str, onnx.TensorProto]) -> WeightProduct | None:
    """Return the product that a node computes; None if the node is not a product with a weight."""
    if node.op_type not in ("MatMul", "Einsum") or len(node.input) != 2 or node.input[1] not in constants:
        return None
    weight = numpy_helper.to_array(constants[node.input[1]])
    if weight.dtype != np.float32:
        return None
    if node.op_type == "Einsum":
        return einsum_product(helper.get_node_attr_value(node, "equation").decode(), weight)
    return WeightProduct(weight, -1, (weight.shape[1],)) if weight.ndim == 2 else None


def einsum_product(equation: str, weight: np.ndarray[Any, Any]) -> WeightProduct | None:
    """Return the product equivalent to `einsum(equation, x, weight)`, as in `ibh,hnd->ibnd`; None if there is none.

    It exists if x ends in the axes that are summed over, the weight has all of them, and the result has the other
    axes of x followed by those of the weight.
    """
    operands, arrow, result = equation.replace(" ", "").partition("->")
    x, _, factors = operands.partition(",")
    summed = "".join(axis for axis in x if axis in factors)
    leading = x.removesuffix(summed)
    tail = result.removeprefix(leading)
    distinct = all(len(set(axes)) == len(axes) for axes in (x, factors, result))
    if not (arrow and summed and tail and distinct and leading + summed == x and leading + tail == result):
        return None
    if set(factors) != set(summed) | set(tail) or set(summed) & set(tail):
        return None
    ordered = np.transpose(weight, [factors.index(axis) for axis in summed + tail])
    sizes = ordered.shape
    rows = int(np.prod(sizes[: len(summed)]))
    return WeightProduct(ordered.reshape(rows, -1), len(leading), sizes[len(summed) :])


def _replace_product(graph: GraphBuilder, node: onnx.NodeProto, product: WeightProduct) -> None:
    x = node.input[0]
    rows = graph.add("Reshape", x, graph.integers(-1, product.weight.shape[0]))  # (T, in_features)
    flat = add_quantized_product(graph, rows, node.input[1], product.weight)  # (T, out_features)
    leading = graph.add("Shape", x, start=0, end=product.leading)
    shape = graph.add("Concat", leading, graph.integers(*product.tail), axis=0)
    graph.rename(graph.add("Reshape", flat, shape), node.output[0])
