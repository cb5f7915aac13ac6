"""Take a traced graph over into a `Graph`, with its products by weights in int8 where asked for.

The int8 is that of graphs built from weights (`quantise`): one scale an output column, one a token, so that a
traced model's text has one vector too, whatever runs beside it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx
from onnx import helper, numpy_helper

from es_sbert.errors import UnsupportedArchitecture
from es_sbert.exporters.graph import OPSET, Graph
from es_sbert.exporters.quantise import quantised_product
from es_sbert.exporters.transformer import Floats


@dataclass(frozen=True)
class Product:
    """Activations times a weight: (…, in_features) → (…, *tail), however the graph spells it.

    Attributes:
        weight: *Shape:* ``(in_features, out_features)``.
        leading: Where the activations' axes that are summed over begin; negative from the end.
        tail: Axes of the result behind the leading ones; their product is out_features.
    """

    weight: Floats
    leading: int
    tail: tuple[int, ...]


def adopt(traced: onnx.ModelProto, *, int8: bool) -> Graph:
    """The nodes and constants of a traced graph, ready to be built on.

    Args:
        traced: Graph of opset `OPSET`.
        int8: Quantise every MatMul with a weight, and every Einsum that is one (XLNet). What runs once a text, the
            Gemm of a classification head, stays float32.

    Raises:
        UnsupportedArchitecture: int8 is asked for and nothing can be quantised.
    """
    opset = next(entry.version for entry in traced.opset_import if not entry.domain)
    if opset != OPSET:
        raise ValueError(f"a graph of opset {opset} cannot be joined with nodes of opset {OPSET}")
    constants = {tensor.name: tensor for tensor in traced.graph.initializer}
    graph = Graph()
    used: set[str] = set()
    replaced: set[str] = set()
    for node in traced.graph.node:
        product = _product(node, constants) if int8 else None
        if product is None:
            graph.copy(node)
            used.update(node.input)
        else:
            _write_quantised(graph, node, product)
            replaced.add(node.input[1])
    if int8 and not replaced:
        raise UnsupportedArchitecture(
            f"{traced.graph.name}: no product with a weight was found that could be quantised",
            "Export another precision: --precision fp32.",
        )
    for name, tensor in constants.items():
        if name in used or name not in replaced:
            graph.constant(name, numpy_helper.to_array(tensor))
    return graph


def _product(node: onnx.NodeProto, constants: Mapping[str, onnx.TensorProto]) -> Product | None:
    """The product that a node is; None where it is something else."""
    if node.op_type not in ("MatMul", "Einsum") or len(node.input) != 2 or node.input[1] not in constants:
        return None
    weight = numpy_helper.to_array(constants[node.input[1]])
    if weight.dtype != np.float32:
        return None
    if node.op_type == "Einsum":
        return einsum_product(helper.get_node_attr_value(node, "equation").decode(), weight)
    return Product(weight, -1, (weight.shape[1],)) if weight.ndim == 2 else None


def einsum_product(equation: str, weight: np.ndarray[Any, Any]) -> Product | None:
    """The product that `einsum(equation, x, weight)` is, as in `ibh,hnd->ibnd`; None where it is none.

    It is one where x ends in the axes that are summed over, all of them axes of the weight, and the result is x's
    other axes with the weight's behind them.
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
    return Product(ordered.reshape(rows, -1), len(leading), sizes[len(summed) :])


def _write_quantised(graph: Graph, node: onnx.NodeProto, product: Product) -> None:
    x = node.input[0]
    rows = graph.add("Reshape", x, graph.integers(-1, product.weight.shape[0]))  # (T, in_features)
    flat = quantised_product(graph, rows, node.input[1], product.weight)  # (T, out_features)
    leading = graph.add("Shape", x, start=0, end=product.leading)
    shape = graph.add("Concat", leading, graph.integers(*product.tail), axis=0)
    graph.rename(graph.add("Reshape", flat, shape), node.output[0])
