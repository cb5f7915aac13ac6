"""Dynamic int8: weights quantised here with one scale an output column, activations in the graph with one a token.

onnxruntime's own dynamic quantisation (DynamicQuantizeMatMul) takes one scale for the whole batch. That saves a few
passes, but the vector of a text then depends on the texts that happen to run beside it, and one outlier coarsens
every token. With a scale for each token a text has one vector, whatever runs beside it. Scales a token follow Yao
et al. 2022, ZeroQuant (arXiv 2206.01861, section 4.1).
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from es_sbert.exporters.graph import CONTRIB, Graph
from es_sbert.exporters.transformer import Floats

_LARGEST = 127  # -128 stays unused: the range is symmetric
# Activations are uint8 around this zero point, since CPUs with VNNI multiply unsigned by signed.
_ZERO_POINT = 128
# Keeps a token of nothing but zeros from being divided by zero.
_SMALLEST = 1e-12


def quantise_columns(weight: Floats) -> tuple[NDArray[np.int8], Floats]:
    """Quantise a weight matrix, each output column by its own largest value.

    Args:
        weight: *Shape:* ``(in_features, out_features)``.

    Returns:
        The int8 matrix of the same shape, and scales of *shape* ``(out_features,)``: column ≈ int8 × scale.
    """
    scale = np.abs(weight).max(axis=0) / _LARGEST  # (out_features,)
    scale = np.where(scale == 0, 1, scale).astype(np.float32)  # a column of zeros stays one
    return np.rint(weight / scale).astype(np.int8), scale


def quantised_product(graph: Graph, x: str, name: str, weight: Floats, *, lower: float | None = None) -> str:
    """x W with factors of 8 bits: (T, in_features) → (T, out_features) float32, T tokens.

    Args:
        graph: Where nodes go.
        x: The activations, float32; quantised here by the largest magnitude of each token.
        name: Of the weight.
        weight: *Shape:* ``(in_features, out_features)``.
        lower: What no value of x is below, where that is known; saves looking for the least.
    """
    quantised, scale = quantise_columns(weight)
    last = graph.integers(1)
    magnitude = graph.add("ReduceMax", x, last, keepdims=0)  # (T,)
    if lower is None:
        least = graph.add("ReduceMin", x, last, keepdims=0)
        magnitude = graph.add("Max", magnitude, graph.add("Neg", least), graph.scalar(_SMALLEST))
    else:
        magnitude = graph.add("Max", magnitude, graph.scalar(-lower))
    step = graph.add("Mul", magnitude, graph.scalar(1 / _LARGEST))  # (T,)
    # Rows are quantised with their own step in one pass, then multiplied as if the step were 1 and scaled behind.
    centre = graph.add("Expand", graph.constant("centre", np.array([_ZERO_POINT], np.uint8)), graph.add("Shape", step))
    levels = graph.add("QuantizeLinear", x, step, centre, axis=0)  # (T, in_features) uint8, 1 … 255
    product = graph.add(
        "MatMulIntegerToFloat",
        levels,
        graph.constant(f"{name}.weight", quantised),
        graph.scalar(1.0),
        graph.constant(f"{name}.scale", scale),
        graph.constant("zero_point", np.array(_ZERO_POINT, dtype=np.uint8)),
        domain=CONTRIB,
    )
    return graph.add("Mul", product, graph.add("Unsqueeze", step, last))  # (T, out_features)
