"""Self-attention as ONNX nodes, in two forms; shapes as in `layers`."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from enum import StrEnum

import numpy as np

from es_sbert.encoder.packing import round_up
from es_sbert.exporters.graph import CONTRIB
from es_sbert.exporters.layers import Writer
from es_sbert.exporters.positions import relative_bias_by_distance
from es_sbert.exporters.transformer import Floats, Layer, Linear, Transformer

# Added to the scores of padding. Finite, so that a row of nothing but padding gives no NaN.
_MASKED = float(np.finfo(np.float32).min)


class Attention(StrEnum):
    """How attention is written."""

    PLAIN = "plain"  # MatMul, Softmax, MatMul: fastest on a CPU
    PACKED = "packed"  # com.microsoft::PackedMultiHeadAttention over tokens without padding, for CUDA
    TRACED = "traced"  # as torch's exporter writes the model's own code


# (hidden state, name, layer) → attention's output before its last product, of the hidden state's shape.
Attend = Callable[[str, str, Layer], str]


@dataclass(frozen=True)
class Form:
    """One form of attention, and what goes around the layers for it.

    Attributes:
        enter: Done to the hidden state before the first layer.
        attend: Attention of one layer.
        leave: Done to the hidden state behind the last layer, giving (B, S, D), or (T, D) without padding.
        fold: Rewriting of a layer's weights that `attend` counts on, without effect on the result.
    """

    enter: Callable[[str], str]
    attend: Attend
    leave: Callable[[str], str]
    fold: Callable[[Layer], Layer] = lambda layer: layer


def merge_qkv(layer: Layer, query_scale: float = 1.0) -> Linear:
    """Query, key and value as one product: weight (D, 3 D), bias (3 D,)."""
    scaled = Linear(layer.query.weight * np.float32(query_scale), layer.query.bias * np.float32(query_scale))
    parts = (scaled, layer.key, layer.value)
    return Linear(
        np.concatenate([part.weight for part in parts], axis=1), np.concatenate([part.bias for part in parts])
    )


def fold_key_and_value_bias(layer: Layer) -> Layer:
    """The same layer without biases on keys and values: two additions less for every token.

    A bias on the keys adds the same to all scores of a query, which softmax does not see. Attention's weights sum
    to 1, so a bias on the values comes through unchanged and joins the bias of the product behind it.
    """
    behind = layer.attention_output
    moved = layer.value.bias.astype(np.float64) @ behind.weight + behind.bias
    nothing = np.zeros_like(layer.key.bias)
    return replace(
        layer,
        key=replace(layer.key, bias=nothing),
        value=replace(layer.value, bias=nothing),
        attention_output=replace(behind, bias=moved.astype(np.float32)),
    )


def relative_bias(writer: Writer, table: Floats, max_tokens: int, longest: str) -> str:
    """Bias on attention scores by relative position, computed once for all layers: (1, H, S, S).

    Args:
        table: *Shape:* ``(buckets, heads)``.
        max_tokens: Largest S.
        longest: Value of shape (1,), the number S.
    """
    graph = writer.graph
    by_distance = relative_bias_by_distance(table, max_tokens).T  # (H, 2 max_tokens - 1)
    tokens = graph.add("Squeeze", longest)
    place = graph.add("Range", graph.integer(0), tokens, graph.integer(1))  # (S,)
    key = graph.add("Add", place, graph.integer(max_tokens - 1))
    offset = graph.add("Sub", key, graph.add("Unsqueeze", place, graph.integers(1)))  # (S, S): key - query, from 0
    bias = graph.add("Gather", writer.weight("relative_bias", by_distance), offset, axis=1)  # (H, S, S)
    return graph.add("Unsqueeze", bias, graph.integers(0))


def plain(writer: Writer, transformer: Transformer, max_tokens: int) -> Form:
    """MatMul, Softmax, MatMul, on layers whose key and value biases are folded away."""
    graph = writer.graph
    hidden, heads, size = transformer.hidden, transformer.heads, transformer.head_size
    keep = graph.add("Cast", "attention_mask", to=1)
    masked = graph.add("Mul", graph.add("Sub", graph.scalar(1.0), keep), graph.scalar(_MASKED))
    bias = graph.add("Unsqueeze", masked, graph.integers(1, 2))  # (B, 1, 1, S)
    if transformer.relative_bias is not None:
        longest = graph.add("Shape", "input_ids", start=1, end=2)
        bias = graph.add("Add", bias, relative_bias(writer, transformer.relative_bias, max_tokens, longest))

    # One row a token, (T, D), the first tokens of all texts in front, then the second tokens, …: products need no
    # shapes, int8 scales are by token, and attention takes heads out of that order by strides, without copying.
    texts = graph.add("Shape", "input_ids", start=0, end=1)
    tokens = graph.add("Shape", "input_ids", start=1, end=2)
    by_token = graph.add("Concat", tokens, texts, graph.integers(hidden), axis=0)
    by_head = graph.add("Concat", tokens, graph.integers(-1, size), axis=0)
    square = graph.add("Concat", texts, graph.integers(heads), tokens, tokens, axis=0)
    flat = graph.add("Concat", graph.integers(-1), tokens, tokens, axis=0)

    def attend(x: str, name: str, layer: Layer) -> str:
        # The scale of the scores is folded into the query's weights.
        qkv = merge_qkv(layer, 1 / math.sqrt(size))
        parts = graph.add_many(
            "Split", writer.multiply(x, f"{name}.qkv", qkv), outputs=3, axis=-1, num_outputs=3
        )  # each (T, D)
        query = graph.add("Add", parts[0], writer.weight(f"{name}.query.bias", qkv.bias[:hidden]))
        query, key, value = (graph.add("Reshape", part, by_head) for part in (query, *parts[1:]))  # (S, B H, d)
        scores = graph.add(
            "FusedMatMul", query, key, domain=CONTRIB, transBatchA=1, transBatchB=1, transB=1
        )  # (B H, S, S)
        scores = graph.add("Add", graph.add("Reshape", scores, square), bias)  # (B, H, S, S)
        weights = graph.add("Reshape", graph.add("Softmax", scores, axis=-1), flat)  # (B H, S, S)
        mixed = graph.add("FusedMatMul", weights, value, domain=CONTRIB, transBatchB=1)  # (B H, S, d)
        return graph.add("Reshape", graph.add("Transpose", mixed, perm=[1, 0, 2]), graph.integers(-1, hidden))

    return Form(
        lambda x: graph.add("Reshape", graph.add("Transpose", x, perm=[1, 0, 2]), graph.integers(-1, hidden)),
        attend,
        lambda x: graph.add("Transpose", graph.add("Reshape", x, by_token), perm=[1, 0, 2]),
        fold=fold_key_and_value_bias,
    )


def packed(writer: Writer, transformer: Transformer, max_tokens: int) -> Form:
    """com.microsoft::PackedMultiHeadAttention over tokens without padding.

    Padding is left out on the host, so that everything runs on (T, D) and the card waits for nothing. With query, key
    and value apart, onnxruntime's FlashAttention-2 and its CUTLASS kernel both read them where they are: neither needs
    the transposed copy that the joint product of PackedAttention asks for.
    """
    graph = writer.graph
    bias: list[str] = []
    if transformer.relative_bias is not None:
        # S is a multiple of LENGTH_MULTIPLE, with which the CUTLASS kernel takes a bias; FlashAttention-2 takes none.
        longest = graph.add("Shape", "token_offset", start=1, end=2)
        bias = [relative_bias(writer, transformer.relative_bias, round_up(max_tokens), longest)]

    def attend(x: str, name: str, layer: Layer) -> str:
        query = writer.product(x, f"{name}.query", layer.query)
        key = writer.multiply(x, f"{name}.key", layer.key)
        value = writer.multiply(x, f"{name}.value", layer.value)
        return graph.add(
            "PackedMultiHeadAttention", query, key, value, "", "token_offset", "cumulated_lengths", *bias,
            domain=CONTRIB, num_heads=transformer.heads,
        )  # (T, D)  # fmt: skip

    return Form(lambda x: x, attend, lambda x: x, fold=fold_key_and_value_bias)


FORMS: dict[Attention, Callable[[Writer, Transformer, int], Form]] = {
    Attention.PLAIN: plain,
    Attention.PACKED: packed,
}
