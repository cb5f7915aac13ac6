"""Embeddings, normalisation and feed-forward blocks as ONNX nodes; attention is in `attention`.

Shapes in comments: B texts in the batch, S tokens of the longest, T tokens of all texts without padding,
D hidden, H heads, d = D / H. A hidden state `x` is (B, S, D), or (T, D) where padding was taken out.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from es_sbert.exporters.graph import CONTRIB, INT64, Graph
from es_sbert.exporters.quantise import quantised_product
from es_sbert.exporters.transformer import Embeddings, HiddenActivation, Layer, Linear, Norm


@dataclass(frozen=True)
class Writer:
    """A graph and the form in which layers are written to it.

    Attributes:
        graph: Where nodes go.
        dtype: Of activations and floating-point weights.
        int8: Whether products with weights are quantised.
        fused: Whether operators that onnxruntime has for CUDA join several steps (bias, residual and norm).
    """

    graph: Graph
    dtype: type[np.floating[Any]] = np.float32
    int8: bool = False
    fused: bool = False

    def weight(self, name: str, value: np.ndarray[Any, Any]) -> str:
        """A constant in this writer's number format."""
        return self.graph.constant(name, value.astype(self.dtype, copy=False))

    def product(self, x: str, name: str, linear: Linear, *, lower: float | None = None) -> str:
        """x W + b: (…, in_features) → (…, out_features); no value of x is less than `lower`."""
        product = self.multiply(x, name, linear, lower=lower)
        return self.graph.add("Add", product, self.weight(f"{name}.bias", linear.bias))

    def multiply(self, x: str, name: str, linear: Linear, *, lower: float | None = None) -> str:
        """x W, for where the operator behind it adds the bias; no value of x is less than `lower`."""
        if self.int8:
            return quantised_product(self.graph, x, name, linear.weight, lower=lower)
        return self.graph.add("MatMul", x, self.weight(f"{name}.weight", linear.weight))

    def norm(self, x: str, name: str, norm: Norm) -> str:
        """Layer normalisation; onnxruntime computes mean and variance in float32 whatever x is."""
        weight, bias = self.weight(f"{name}.weight", norm.weight), self.weight(f"{name}.bias", norm.bias)
        return self.graph.add("LayerNormalization", x, weight, bias, axis=-1, epsilon=norm.epsilon)

    def product_add_norm(
        self, x: str, residual: str, name: str, linear: Linear, norm: Norm, *, lower: float | None = None
    ) -> str:
        """norm(x W + b + residual), the end of both blocks of a layer; no value of x is less than `lower`."""
        if not self.fused:
            product = self.product(x, name, linear, lower=lower)
            return self.norm(self.graph.add("Add", product, residual), f"{name}.norm", norm)
        return self.graph.add(
            "SkipLayerNormalization",
            self.multiply(x, name, linear),
            residual,
            self.weight(f"{name}.norm.weight", norm.weight),
            self.weight(f"{name}.norm.bias", norm.bias),
            self.weight(f"{name}.bias", linear.bias),
            domain=CONTRIB,
            epsilon=norm.epsilon,
        )


def embed(writer: Writer, embeddings: Embeddings) -> str:
    """Token ids to the first hidden state, (B, S) → (B, S, D)."""
    graph = writer.graph
    words, positions = _tables(writer, embeddings)
    vectors = graph.add("Gather", words, "input_ids")  # (B, S, D)
    if embeddings.padding_id is None:
        tokens = graph.add("Shape", "input_ids", start=1, end=2)
        rows = graph.add("Slice", positions, graph.integers(0), tokens, graph.integers(0))  # (S, D)
    else:
        # The reference counts ids that are not padding, not the mask: a text may spell out "<pad>".
        real = graph.add("Cast", graph.add("Equal", "input_ids", graph.integer(embeddings.padding_id)), to=INT64)
        real = graph.add("Sub", graph.integer(1), real)  # (B, S), 1 where not padding
        rank = graph.add("Mul", graph.add("CumSum", real, graph.integer(1)), real)
        rows = graph.add("Gather", positions, graph.add("Add", rank, graph.integer(embeddings.padding_id)))  # (B, S, D)
    return writer.norm(graph.add("Add", vectors, rows), "embeddings.norm", embeddings.norm)


def embed_packed(writer: Writer, embeddings: Embeddings) -> str:
    """Token ids and their positions to the first hidden state, (T,) → (T, D)."""
    graph = writer.graph
    words, positions = _tables(writer, embeddings)
    return graph.add(
        "SkipLayerNormalization",
        graph.add("Gather", words, "input_ids"),
        graph.add("Gather", positions, "position_ids"),
        writer.weight("embeddings.norm.weight", embeddings.norm.weight),
        writer.weight("embeddings.norm.bias", embeddings.norm.bias),
        domain=CONTRIB,
        epsilon=embeddings.norm.epsilon,
    )


def _tables(writer: Writer, embeddings: Embeddings) -> tuple[str, str]:
    """Vectors of words and of positions; every token is of type 0, whose vector is added to all positions."""
    positions = embeddings.positions + (0 if embeddings.token_type is None else embeddings.token_type)
    return writer.weight("embeddings.words", embeddings.words), writer.weight("embeddings.positions", positions)


# What an activation never goes below, rounded down.
_LOWER_BOUNDS = {
    HiddenActivation.GELU: -0.1701,
    HiddenActivation.GELU_TANH: -0.1701,
    HiddenActivation.RELU: -1e-12,
    HiddenActivation.SILU: -0.2785,
}


def activate(writer: Writer, x: str, bias: str, activation: HiddenActivation) -> str:
    """The activation of x + bias, elementwise."""
    graph = writer.graph
    # Where products are quantised, the tanh approximation of Gelu differs by less than they do,
    # and one operator adds the bias as well.
    if activation is HiddenActivation.GELU_TANH or (activation is HiddenActivation.GELU and writer.int8):
        return graph.add("FastGelu", x, bias, domain=CONTRIB)
    if activation is HiddenActivation.GELU and writer.fused:
        return graph.add("BiasGelu", x, bias, domain=CONTRIB)
    x = graph.add("Add", x, bias)
    match activation:
        case HiddenActivation.GELU:
            return graph.add("Gelu", x, approximate="none")
        case HiddenActivation.RELU:
            return graph.add("Relu", x)
        case HiddenActivation.SILU:
            return graph.add("Mul", x, graph.add("Sigmoid", x))


def feed_forward(writer: Writer, x: str, name: str, layer: Layer, activation: HiddenActivation) -> str:
    """The second block of a layer with its residual and norm."""
    bias = writer.weight(f"{name}.intermediate.bias", layer.intermediate.bias)
    inner = activate(
        writer, writer.multiply(x, f"{name}.intermediate", layer.intermediate), bias, activation
    )  # (…, 4 D)
    lower = _LOWER_BOUNDS[activation]
    return writer.product_add_norm(inner, x, f"{name}.output", layer.output, layer.output_norm, lower=lower)
