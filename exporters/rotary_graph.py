"""Build the ONNX graph of a sentence encoder with rotary positions from its weights.

Shapes in comments: B texts in the batch, S tokens of the longest text, T = S · B tokens with padding, D hidden, H query
heads, K key heads, d coordinates of a head. A hidden state is (T, D), so that products need no shapes and int8 scales
are per token. Quantized graphs hold the first tokens of all texts, then the second tokens, and so on, because attention
can then read the heads by strides. Other graphs keep the tokens of a text together.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import NamedTuple

import numpy as np
import onnx
from onnx import helper

from es_sbert.bundle.sentence_model import SentenceModel
from es_sbert.bundle.variants import Precision
from es_sbert.exporters.fp16 import to_fp16
from es_sbert.exporters.graph_builder import CONTRIB, FLOAT, GraphBuilder
from es_sbert.exporters.pooling import PADDED_INPUTS, TOKEN_VECTORS, finish_padded_graph, pool_fp16_network
from es_sbert.exporters.sentence_graph import (
    LayerWriter,
    RowsByToken,
    add_activation,
    add_padding_bias,
    join_products,
    mix_by_text,
)
from es_sbert.exporters.transformer_weights import (
    AttentionWeights,
    BlockNorms,
    FeedForwardWeights,
    Floats,
    LinearWeights,
    TransformerWeights,
)

# Added to scores that are masked. It stays finite if padding and a window both add it, so that a row with nothing but
# padding does not become NaN.
_MASK_VALUE = -1e30


def build_rotary_graph(model: SentenceModel, weights: TransformerWeights, precision: Precision) -> onnx.ModelProto:
    """Build a graph with the inputs and the output of a padded `build_sentence_graph`.

    Args:
        model: The model.
        weights: Weights of its transformer.
        precision: Number format of the network; pooling is always float32.
    """
    if precision is Precision.FP16:
        return pool_fp16_network(model, _fp16_network(model, weights))
    graph = GraphBuilder()
    writer = LayerWriter(graph, int8=precision is Precision.INT8)
    network = _RotaryGraph(writer, weights, model.longest_input)
    return finish_padded_graph(graph, model, network.token_vectors())


def _fp16_network(model: SentenceModel, weights: TransformerWeights) -> onnx.ModelProto:
    """Build the network up to its token vectors, without pooling, with float16 weights and hidden states."""
    graph = GraphBuilder()
    network = _RotaryGraph(LayerWriter(graph), weights, model.longest_input, for_cuda=True)
    graph.rename(network.token_vectors(), TOKEN_VECTORS)
    output = (TOKEN_VECTORS, FLOAT, ("batch", "tokens", weights.hidden))
    made = graph.model(model.name, PADDED_INPUTS, [output])
    fused = [node for node in made.graph.node if node.op_type == "MultiHeadAttention"]
    made.graph.value_info.extend(helper.make_tensor_value_info(node.output[0], FLOAT, None) for node in fused)
    return to_fp16(made)


class _Rotation(NamedTuple):
    """Names of the cosines and sines of the angles by position, (S, 1, d / 2)."""

    cosine: str
    sine: str


class _RotaryGraph:
    """Writes one transformer to a graph.

    In quantized graphs, rows are in the order (S, B, …), as in `sentence_graph.strided_attention`. Other graphs keep
    the tokens of a text together, (B, S, …), and use only ONNX operators if they are for a CPU.

    Args:
        writer: Writer that nodes are added to.
        weights: The transformer.
        max_tokens: Largest S.
        for_cuda: Use an operator of onnxruntime for attention.
    """

    def __init__(
        self, writer: LayerWriter, weights: TransformerWeights, max_tokens: int, *, for_cuda: bool = False
    ) -> None:
        self._writer = writer
        self._for_cuda = for_cuda
        self._by_text = not writer.int8
        self._graph = graph = writer.graph
        self._weights = weights
        self._texts = graph.add("Shape", "input_ids", start=0, end=1)
        self._tokens = graph.add("Shape", "input_ids", start=1, end=2)
        rows = [self._texts, self._tokens] if self._by_text else [self._tokens]
        self._by_head = graph.add("Concat", *rows, graph.integers(-1, weights.head_size), axis=0)
        self._rows = RowsByToken(graph, weights.heads, self._texts, self._tokens)
        attentions = [layer.attention for layer in weights.layers]
        self._masks = self._add_masks({attention.window for attention in attentions})
        self._rotations = self._add_rotations(
            {each.frequencies.tobytes(): each.frequencies for each in attentions if each.frequencies is not None},
            max_tokens,
        )

    def token_vectors(self) -> str:
        """Add the network, and return its hidden state after the last layer, (B, S, D)."""
        graph, weights, embeddings = self._graph, self._weights, self._weights.embeddings
        table = embeddings.words * np.float32(embeddings.scale)
        table = table if embeddings.token_type is None else table + embeddings.token_type
        ids = "input_ids" if self._by_text else graph.add("Transpose", "input_ids", perm=[1, 0])
        rows = graph.add("Gather", self._writer.weight("embeddings.words", table), ids)  # (S, B, D) or (B, S, D)
        x = graph.add("Reshape", rows, graph.integers(-1, weights.hidden))
        x = self._writer.norm(x, "embeddings.norm", embeddings.norm)
        for number, layer in enumerate(weights.layers):
            name = f"layer_{number}"
            x = self._add_block(x, f"{name}.attention", layer.attention, layer.attention_norms)
            x = self._add_block(x, f"{name}.feed_forward", layer.feed_forward, layer.feed_forward_norms)
        x = self._writer.norm(x, "final_norm", weights.final_norm)
        hidden = graph.integers(weights.hidden)
        if self._by_text:
            return graph.add("Reshape", x, graph.add("Concat", self._texts, self._tokens, hidden, axis=0))
        by_token = graph.add("Concat", self._tokens, self._texts, hidden, axis=0)
        return graph.add("Transpose", graph.add("Reshape", x, by_token), perm=[1, 0, 2])

    def _add_block(self, x: str, name: str, block: AttentionWeights | FeedForwardWeights, norms: BlockNorms) -> str:
        """Add a block with its residual and its norms, (T, D) → (T, D)."""
        y = self._writer.norm(x, f"{name}.before", norms.before)
        y = self._attend(y, name, block) if isinstance(block, AttentionWeights) else self._feed_forward(y, name, block)
        y = self._writer.norm(y, f"{name}.after_block", norms.output)
        return self._writer.norm(self._graph.add("Add", x, y), f"{name}.after", norms.after)

    def _add_masks(self, windows: set[int | None]) -> Mapping[int | None, str]:
        """Add, for each window, the mask that is added to attention scores: (B, 1, 1 or S, S)."""
        graph = self._graph
        padding = add_padding_bias(graph, _MASK_VALUE)
        if not self._weights.is_causal and windows == {None}:
            return {None: padding}
        place = graph.add("Range", graph.integer(0), graph.add("Squeeze", self._tokens), graph.integer(1))  # (S,)
        distance = graph.add("Sub", place, graph.add("Unsqueeze", place, graph.integers(1)))  # (S, S): key - query
        return {window: self._add_mask(padding, distance, window) for window in sorted(windows, key=str)}

    def _add_mask(self, padding: str, distance: str, window: int | None) -> str:
        graph = self._graph
        hidden: list[str] = []
        if window is not None:
            hidden.append(graph.add("Less", distance, graph.integer(-window)))
        if self._weights.is_causal:
            hidden.append(graph.add("Greater", distance, graph.integer(0)))
        elif window is not None:
            hidden.append(graph.add("Greater", distance, graph.integer(window)))
        if not hidden:
            return padding
        either = hidden[0] if len(hidden) == 1 else graph.add("Or", *hidden)
        return graph.add(
            "Add", padding, graph.add("Mul", graph.add("Cast", either, to=FLOAT), graph.scalar(_MASK_VALUE))
        )

    def _add_rotations(self, frequencies: Mapping[bytes, Floats], max_tokens: int) -> dict[bytes, _Rotation]:
        """Add the rotation for each list of frequencies; returned by the bytes of the list."""
        graph, rotations = self._graph, {}
        for number, (key, each) in enumerate(frequencies.items()):
            # Computed in float32, as the libraries do: at distant positions the rounding of angles matters.
            angles = np.arange(max_tokens, dtype=np.float32)[:, None] * each  # (max_tokens, d / 2)
            names = []
            for kind, values in (("cosine", np.cos(angles)), ("sine", np.sin(angles))):
                table = self._writer.weight(f"rotation_{number}.{kind}", values[:, None, :])
                names.append(graph.add("Slice", table, graph.integers(0), self._tokens, graph.integers(0)))
            rotations[key] = _Rotation(*names)
        return rotations

    def _attend(self, x: str, name: str, attention: AttentionWeights) -> str:
        """Add attention, (T, D) → (T, D)."""
        graph, weights = self._graph, self._weights
        # The scale of the scores is folded into the weights of the queries or of their norm.
        query, query_norm = attention.query, attention.query_norm
        if query_norm is None:
            query = query.scaled(weights.score_scale)
        else:
            query_norm = replace(query_norm, weight=query_norm.weight * np.float32(weights.score_scale))
        parts = self._joint_product(x, f"{name}.qkv", [query, attention.key, attention.value])
        # (S, B H or B K, d), or (B, S, H or K, d)
        heads, key, value = (graph.add("Reshape", part, self._by_head) for part in parts)
        assert attention.frequencies is not None, "rotary"
        rotation = self._rotations[attention.frequencies.tobytes()]
        heads = self._rotate(self._writer.norm(heads, f"{name}.query_norm", query_norm), rotation)
        key = self._rotate(self._writer.norm(key, f"{name}.key_norm", attention.key_norm), rotation)
        mix = self._mix_for_cuda if self._for_cuda else self._mix if self._by_text else self._rows.mix
        mixed = mix(heads, self._repeat_heads(key), self._repeat_heads(value), self._masks[attention.window])
        flat = graph.add("Reshape", mixed, graph.integers(-1, weights.heads * weights.head_size))
        return self._product(flat, f"{name}.output", attention.output)

    def _mix(self, query: str, key: str, value: str, mask: str) -> str:
        """Attention in ONNX operators: each argument and the result (B, S, H, d)."""
        graph = self._graph
        query, value = (graph.add("Transpose", part, perm=[0, 2, 1, 3]) for part in (query, value))  # (B, H, S, d)
        key = graph.add("Transpose", key, perm=[0, 2, 3, 1])  # (B, H, d, S)
        return mix_by_text(graph, query, key, value, mask)

    def _mix_for_cuda(self, query: str, key: str, value: str, mask: str) -> str:
        """Attention as one operator: each argument (B, S, H, d), the result (B, S, H d)."""
        graph, weights = self._graph, self._weights
        width = graph.integers(weights.heads * weights.head_size)
        flat = graph.add("Concat", self._texts, self._tokens, width, axis=0)
        parts = [graph.add("Reshape", part, flat) for part in (query, key, value)]
        square = graph.add("Concat", self._texts, graph.integers(1), self._tokens, self._tokens, axis=0)
        # The inputs for biases and for a padding mask are left empty.
        inputs = [*parts, "", "", graph.add("Expand", mask, square)]
        options = {"num_heads": weights.heads, "scale": 1.0}
        return graph.add("MultiHeadAttention", *inputs, domain=CONTRIB, **options)

    def _rotate(self, x: str, rotation: _Rotation) -> str:
        """Rotate each pair of coordinates i and i + d / 2: (…, S, heads, d) → the same shape."""
        graph = self._graph
        first, second = graph.add_many("Split", x, outputs=2, axis=-1, num_outputs=2)
        turned = [
            graph.add("Sub", graph.add("Mul", first, rotation.cosine), graph.add("Mul", second, rotation.sine)),
            graph.add("Add", graph.add("Mul", second, rotation.cosine), graph.add("Mul", first, rotation.sine)),
        ]
        return graph.add("Concat", *turned, axis=-1)

    def _repeat_heads(self, x: str) -> str:
        """Repeat keys or values for each query head, (…, K, d) → (…, H, d)."""
        graph, group = self._graph, self._weights.heads // self._weights.key_heads
        if group == 1:
            return x
        repeated = graph.add("Expand", graph.add("Unsqueeze", x, graph.integers(-2)), graph.integers(group, 1))
        return graph.add("Reshape", repeated, self._by_head)

    def _feed_forward(self, x: str, name: str, block: FeedForwardWeights) -> str:
        """Add the gated block, (T, D) → (T, D)."""
        assert block.gate is not None, "gated"
        gate, up = self._joint_product(x, f"{name}.gate_up", [block.gate, block.up])
        inner = self._graph.add("Mul", add_activation(self._writer, gate, self._weights.activation), up)
        return self._product(inner, f"{name}.down", block.down)

    def _joint_product(self, x: str, name: str, parts: list[LinearWeights]) -> tuple[str, ...]:
        """Compute several products of the same rows as one, and split the result."""
        widths = self._graph.integers(*(part.weight.shape[1] for part in parts))
        return self._graph.add_many(
            "Split", self._product(x, name, join_products(*parts)), widths, outputs=len(parts), axis=-1
        )

    def _product(self, x: str, name: str, linear: LinearWeights) -> str:
        """x W + b; most of these products have no bias."""
        return self._writer.product(x, name, linear) if linear.bias.any() else self._writer.multiply(x, name, linear)
