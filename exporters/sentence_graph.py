"""Build the ONNX graph of a sentence encoder from its weights, from token ids to the sentence vector.

Shapes in comments: B texts in the batch, S tokens of the longest text, T tokens of all texts without padding, D hidden,
H heads, d = D / H. A hidden state `x` is (B, S, D), or (T, D) without padding.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray

from es_sbert.bundle.sentence_model import SentenceModel
from es_sbert.bundle.variants import Precision
from es_sbert.exporters.graph_builder import CONTRIB, FLOAT, INT32, INT64, GraphBuilder
from es_sbert.exporters.pooling import (
    PADDED_INPUTS,
    TokenVectors,
    add_sentence_vector,
    finish_padded_graph,
    packed_token_vectors,
    padded_token_vectors,
)
from es_sbert.exporters.quantization import add_quantized_product
from es_sbert.exporters.transformer_weights import (
    AttentionWeights,
    EmbeddingWeights,
    Floats,
    HiddenActivation,
    LayerWeights,
    LinearWeights,
    NormWeights,
    StaticWeights,
    TransformerWeights,
)
from es_sbert.runtime.batching import PADDING_ID_PROPERTY, round_up

_PACKED_INPUTS: list[tuple[str, int, Sequence[str | int]]] = [
    ("input_ids", INT32, ("tokens",)),
    ("position_ids", INT32, ("tokens",)),
    ("token_offset", INT32, ("batch", "longest")),
    ("cumulated_lengths", INT32, ("batch + 1",)),
    ("padded_rows", INT32, ("batch", "longest")),
]


def build_sentence_graph(
    model: SentenceModel, transformer: TransformerWeights, precision: Precision, *, packed: bool | None = None
) -> onnx.ModelProto:
    """Build the graph of a BERT or one of its kin; `rotary_graph` builds those with rotary positions.

    Its inputs are int64 `input_ids` and `attention_mask`, (batch, tokens), padded on the right. A packed graph has the
    inputs of `es_sbert.runtime.batching.PackedBatch` instead. The output is `sentence_embedding`, float32,
    (batch, dimensions).

    Args:
        model: The model.
        transformer: Its weights.
        precision: Number format of products with weights.
        packed: Whether the graph takes tokens without padding, for CUDA. The default is true for fp16 only.
    """
    packed = precision is Precision.FP16 if packed is None else packed
    graph = GraphBuilder()
    dtype: type[np.floating[Any]] = np.float16 if precision is Precision.FP16 else np.float32
    writer = LayerWriter(graph, dtype, int8=precision is Precision.INT8, fused=packed)
    attention = packed_attention if packed else strided_attention if writer.int8 else plain_attention
    form = attention(writer, transformer, model.longest_input)
    x = form.embed()
    for number, layer in enumerate(transformer.layers):
        name, block = f"layer_{number}", fold_key_and_value_bias(layer.attention)
        attended = form.attend(x, name, block)
        x = writer.product_add_norm(attended, x, f"{name}.attention_output", block.output, layer.attention_norms.after)
        x = add_feed_forward(writer, x, name, layer, transformer.activation)
    graph.rename(add_sentence_vector(graph, model, form.token_vectors(x)), "sentence_embedding")
    padding_id = transformer.embeddings.padding_id
    return graph.model(
        model.name,
        _PACKED_INPUTS if packed else PADDED_INPUTS,
        [("sentence_embedding", FLOAT, ("batch", model.dimensions))],
        {PADDING_ID_PROPERTY: str(padding_id)} if packed and padding_id is not None else {},
    )


def build_static_graph(model: SentenceModel, weights: StaticWeights, precision: Precision) -> onnx.ModelProto:
    """Build the graph of a StaticEmbedding, with the inputs and the output of a padded `build_sentence_graph`.

    Args:
        model: The model.
        weights: Its token vectors.
        precision: fp32 or int8. Both give the same graph, because there is no product with a weight.
    """
    graph = GraphBuilder()
    vectors = graph.add("Gather", graph.constant("embedding", weights.table), "input_ids")  # (B, S, D)
    return finish_padded_graph(graph, model, vectors)


@dataclass(frozen=True)
class LayerWriter:
    """Writes parts of layers to a graph, in one number format.

    Attributes:
        graph: Graph that nodes are added to.
        dtype: Type of activations and floating-point weights.
        int8: Whether products with weights are quantized.
        fused: Whether to use onnxruntime's CUDA operators that combine several steps (bias, residual and norm).
    """

    graph: GraphBuilder
    dtype: type[np.floating[Any]] = np.float32
    int8: bool = False
    fused: bool = False

    def weight(self, name: str, value: np.ndarray[Any, Any]) -> str:
        """Add a constant in this writer's number format."""
        return self.graph.constant(name, value.astype(self.dtype, copy=False))

    def product(self, x: str, name: str, linear: LinearWeights, *, lower: float | None = None) -> str:
        """x W + b: (…, in_features) → (…, out_features); no value of x is less than `lower`."""
        product = self.multiply(x, name, linear, lower=lower)
        return self.graph.add("Add", product, self.weight(f"{name}.bias", linear.bias))

    def multiply(self, x: str, name: str, linear: LinearWeights, *, lower: float | None = None) -> str:
        """x W, for an operator that adds the bias later; no value of x is less than `lower`."""
        if self.int8:
            return add_quantized_product(self.graph, x, name, linear.weight, lower=lower)
        return self.graph.add("MatMul", x, self.weight(f"{name}.weight", linear.weight))

    def norm(self, x: str, name: str, norm: NormWeights | None) -> str:
        """Layer normalization; onnxruntime computes mean and variance in float32 for every type of x."""
        if norm is None:
            return x
        if norm.is_rms:
            return self._rms_norm(x, name, norm)
        weights = self._norm_weights(name, norm)
        return self.graph.add("LayerNormalization", x, *weights, axis=-1, epsilon=norm.epsilon)

    def skip_norm(
        self, x: str, residual: str, name: str, norm: NormWeights | None, bias: tuple[str, Floats] | None = None
    ) -> str:
        """norm(x + residual + bias) as one operator of onnxruntime; `bias` has a name."""
        assert norm is not None, "BERT and its kin have a norm after each sum"
        inputs = [x, residual, *self._norm_weights(name, norm)]
        inputs += [] if bias is None else [self.weight(*bias)]
        return self.graph.add("SkipLayerNormalization", *inputs, domain=CONTRIB, epsilon=norm.epsilon)

    def _norm_weights(self, name: str, norm: NormWeights) -> tuple[str, str]:
        return self.weight(f"{name}.weight", norm.weight), self.weight(f"{name}.bias", norm.bias)

    def _rms_norm(self, x: str, name: str, norm: NormWeights) -> str:
        """Root-mean-square normalization, for which ONNX has an operator only since opset 23."""
        graph = self.graph
        # `to_fp16` leaves Pow and the mean in float32, because squares may exceed the largest float16 number.
        mean = graph.add("ReduceMean", graph.add("Pow", x, graph.scalar(2.0)), graph.integers(-1), keepdims=1)
        root = graph.add("Sqrt", graph.add("Add", mean, graph.scalar(norm.epsilon)))
        return graph.add("Mul", graph.add("Div", x, root), self.weight(f"{name}.weight", norm.weight))

    def product_add_norm(
        self,
        x: str,
        residual: str,
        name: str,
        linear: LinearWeights,
        norm: NormWeights | None,
        *,
        lower: float | None = None,
    ) -> str:
        """norm(x W + b + residual), at the end of both blocks of a layer; no value of x is less than `lower`."""
        if not self.fused:
            product = self.product(x, name, linear, lower=lower)
            return self.norm(self.graph.add("Add", product, residual), f"{name}.norm", norm)
        product = self.multiply(x, name, linear)
        return self.skip_norm(product, residual, f"{name}.norm", norm, (f"{name}.bias", linear.bias))


def add_embeddings(writer: LayerWriter, embeddings: EmbeddingWeights) -> str:
    """Compute the first hidden state from token ids, (B, S) → (B, S, D)."""
    graph = writer.graph
    words, positions = _embedding_tables(writer, embeddings)
    vectors = graph.add("Gather", words, "input_ids")  # (B, S, D)
    if embeddings.padding_id is None:
        tokens = graph.add("Shape", "input_ids", start=1, end=2)
        rows = graph.add("Slice", positions, graph.integers(0), tokens, graph.integers(0))  # (S, D)
    else:
        # Like the reference, count ids that are not padding and ignore the mask, because a text may contain "<pad>".
        real = graph.add("Cast", graph.add("Equal", "input_ids", graph.integer(embeddings.padding_id)), to=INT64)
        real = graph.add("Sub", graph.integer(1), real)  # (B, S), 1 where not padding
        rank = graph.add("Mul", graph.add("CumSum", real, graph.integer(1)), real)
        rows = graph.add("Gather", positions, graph.add("Add", rank, graph.integer(embeddings.padding_id)))  # (B, S, D)
    return writer.norm(graph.add("Add", vectors, rows), "embeddings.norm", embeddings.norm)


def add_packed_embeddings(writer: LayerWriter, embeddings: EmbeddingWeights) -> str:
    """Compute the first hidden state from token ids and their positions, (T,) → (T, D)."""
    graph = writer.graph
    words, positions = _embedding_tables(writer, embeddings)
    vectors, rows = graph.add("Gather", words, "input_ids"), graph.add("Gather", positions, "position_ids")
    return writer.skip_norm(vectors, rows, "embeddings.norm", embeddings.norm)


def _embedding_tables(writer: LayerWriter, embeddings: EmbeddingWeights) -> tuple[str, str]:
    """Add the word and position tables, and return their names.

    Every token has type 0, so the vector of type 0 is added to all positions.
    """
    assert embeddings.positions is not None, "not rotary"
    positions = embeddings.positions + (0 if embeddings.token_type is None else embeddings.token_type)
    return writer.weight("embeddings.words", embeddings.words), writer.weight("embeddings.positions", positions)


# Lower bounds of the activations' values, rounded down.
_LOWER_BOUNDS = {
    HiddenActivation.GELU: -0.1701,
    HiddenActivation.GELU_TANH: -0.1701,
    HiddenActivation.RELU: -1e-12,
    HiddenActivation.SILU: -0.2785,
}


def add_activation(writer: LayerWriter, x: str, activation: HiddenActivation, bias: str | None = None) -> str:
    """Apply the activation to x, or to x + bias, elementwise."""
    graph = writer.graph
    inputs = [x] if bias is None else [x, bias]
    # The tanh approximation of Gelu changes less than quantization does, and its operator adds the bias as well.
    is_gelu = activation in (HiddenActivation.GELU, HiddenActivation.GELU_TANH)
    if is_gelu and (writer.int8 or (writer.fused and activation is HiddenActivation.GELU_TANH)):
        return graph.add("FastGelu", *inputs, domain=CONTRIB)
    if activation is HiddenActivation.GELU and writer.fused:
        return graph.add("BiasGelu", *inputs, domain=CONTRIB)
    x = x if bias is None else graph.add("Add", x, bias)
    match activation:
        case HiddenActivation.GELU:
            return graph.add("Gelu", x, approximate="none")
        case HiddenActivation.GELU_TANH:
            return graph.add("Gelu", x, approximate="tanh")
        case HiddenActivation.RELU:
            return graph.add("Relu", x)
        case HiddenActivation.SILU:
            if writer.int8 and bias is None:
                return graph.add("QuickGelu", x, domain=CONTRIB, alpha=1.0)
            return graph.add("Mul", x, graph.add("Sigmoid", x))


def add_feed_forward(writer: LayerWriter, x: str, name: str, layer: LayerWeights, activation: HiddenActivation) -> str:
    """Add the second block of a layer, with its residual and norm."""
    up, down = layer.feed_forward.up, layer.feed_forward.down
    bias = writer.weight(f"{name}.intermediate.bias", up.bias)
    product = writer.multiply(x, f"{name}.intermediate", up)  # (…, 4 D)
    inner = add_activation(writer, product, activation, bias)
    lower, norm = _LOWER_BOUNDS[activation], layer.feed_forward_norms.after
    return writer.product_add_norm(inner, x, f"{name}.output", down, norm, lower=lower)


# MPNet's code uses these numbers and ignores relative_attention_num_buckets in config.json.
BUCKET_COUNT = 32
_MAX_DISTANCE = 128


def relative_position_buckets(offsets: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return the bucket of each offset (key position − query position).

    Half of the buckets are for keys before the query, half for keys after it. In each half, the first buckets hold one
    distance each; the others, as many, grow logarithmically, and the last one holds all larger distances.

    Args:
        offsets: Any shape.

    Returns:
        The same shape, values in [0, BUCKET_COUNT).
    """
    side = BUCKET_COUNT // 2
    exact = side // 2
    distance = np.abs(offsets)
    # Compute in float32, like the reference, because the boundary of a bucket may be a whole number.
    ratio = np.log(np.maximum(distance, 1).astype(np.float32) / np.float32(exact)) / np.float32(
        math.log(_MAX_DISTANCE / exact)
    )
    far = np.minimum(exact + (ratio * np.float32(side - exact)).astype(np.int64), side - 1)
    return np.where(offsets > 0, side, 0) + np.where(distance < exact, distance, far)


# Added to the scores of padding. It is finite, so that a row with nothing but padding does not become NaN.
_MASK_VALUE = float(np.finfo(np.float32).min)


@dataclass(frozen=True)
class AttentionForm:
    """A way to write attention, with the matching steps before the first layer and after the last.

    Attributes:
        embed: Adds the hidden state before the first layer.
        attend: (hidden state, name, attention) → its output before its last product, in the shape of the hidden
            state. It must not have biases on keys and values (`fold_key_and_value_bias`).
        token_vectors: Hidden state after the last layer → token vectors to be pooled.
    """

    embed: Callable[[], str]
    attend: Callable[[str, str, AttentionWeights], str]
    token_vectors: Callable[[str], TokenVectors]


def join_products(*parts: LinearWeights) -> LinearWeights:
    """Join products of the same values into one, whose result has theirs side by side."""
    return LinearWeights(
        np.concatenate([part.weight for part in parts], axis=1), np.concatenate([part.bias for part in parts])
    )


def fold_key_and_value_bias(attention: AttentionWeights) -> AttentionWeights:
    """Return the same attention without biases on keys and values, which saves two additions per token.

    A bias on the keys adds the same number to all scores of a query, and softmax ignores it. Attention weights sum to
    1, so a bias on the values passes through unchanged and can be added to the bias of the next product.
    """
    key, value, output = attention.key, attention.value, attention.output
    moved = value.bias.astype(np.float64) @ output.weight + output.bias
    nothing = np.zeros_like(key.bias)
    return replace(
        attention,
        key=replace(key, bias=nothing),
        value=replace(value, bias=nothing),
        output=replace(output, bias=moved.astype(np.float32)),
    )


def add_padding_bias(graph: GraphBuilder, masked: float) -> str:
    """Add the bias on attention scores for padding: (B, 1, 1, S)."""
    keep = graph.add("Cast", "attention_mask", to=FLOAT)
    bias = graph.add("Mul", graph.add("Sub", graph.scalar(1.0), keep), graph.scalar(masked))
    return graph.add("Unsqueeze", bias, graph.integers(1, 2))


def mix_by_text(graph: GraphBuilder, query: str, key: str, value: str, bias: str) -> str:
    """Attention in ONNX operators: (B, H, S, d), (B, H, d, S), (B, H, S, d) → (B, S, H, d)."""
    scores = graph.add("Add", graph.add("MatMul", query, key), bias)  # (B, H, S, S)
    mixed = graph.add("MatMul", graph.add("Softmax", scores, axis=-1), value)  # (B, H, S, d)
    return graph.add("Transpose", mixed, perm=[0, 2, 1, 3])


class RowsByToken:
    """Attention on rows by token: the first tokens of all texts, then the second tokens, and so on.

    Products then need no shapes, int8 scales are per token, and attention reads the heads by strides without a copy.
    """

    def __init__(self, graph: GraphBuilder, heads: int, texts: str, tokens: str) -> None:
        self._graph = graph
        self._square = graph.add("Concat", texts, graph.integers(heads), tokens, tokens, axis=0)
        self._flat = graph.add("Concat", graph.integers(-1), tokens, tokens, axis=0)

    def mix(self, query: str, key: str, value: str, bias: str) -> str:
        """Attention: each argument (S, B H, d) → the result (S, B H, d)."""
        graph = self._graph
        scores = graph.add("FusedMatMul", query, key, domain=CONTRIB, transBatchA=1, transBatchB=1, transB=1)
        scores = graph.add("Add", graph.add("Reshape", scores, self._square), bias)  # (B, H, S, S)
        weights = graph.add("Reshape", graph.add("Softmax", scores, axis=-1), self._flat)  # (B H, S, S)
        mixed = graph.add("FusedMatMul", weights, value, domain=CONTRIB, transBatchB=1)  # (B H, S, d)
        return graph.add("Transpose", mixed, perm=[1, 0, 2])


def add_relative_bias(writer: LayerWriter, table: Floats, max_tokens: int, longest: str) -> str:
    """Add the bias on attention scores by relative position, computed once for all layers: (1, H, S, S).

    Args:
        table: *Shape:* ``(buckets, heads)``.
        max_tokens: Largest S.
        longest: Value of shape (1,), the number S.
    """
    graph = writer.graph
    buckets = relative_position_buckets(np.arange(1 - max_tokens, max_tokens))
    by_distance = table[buckets].T  # (H, 2 max_tokens - 1), by offset + max_tokens - 1
    tokens = graph.add("Squeeze", longest)
    place = graph.add("Range", graph.integer(0), tokens, graph.integer(1))  # (S,)
    key = graph.add("Add", place, graph.integer(max_tokens - 1))
    offset = graph.add("Sub", key, graph.add("Unsqueeze", place, graph.integers(1)))  # (S, S): key - query, from 0
    bias = graph.add("Gather", writer.weight("relative_bias", by_distance), offset, axis=1)  # (H, S, S)
    return graph.add("Unsqueeze", bias, graph.integers(0))


def plain_attention(writer: LayerWriter, transformer: TransformerWeights, max_tokens: int) -> AttentionForm:
    """Write attention as MatMul, Softmax and MatMul, with ONNX operators only.

    OpenVINO fuses these steps into one. onnxruntime fuses the transpositions with the products.
    """
    graph = writer.graph
    bias = _score_bias(writer, transformer, max_tokens)
    by_head = graph.integers(0, 0, transformer.heads, transformer.head_size)
    by_text = graph.integers(0, 0, transformer.hidden)

    def attend(x: str, name: str, block: AttentionWeights) -> str:
        # The scale of the scores is folded into the query's weights.
        query = writer.product(x, f"{name}.query", block.query.scaled(transformer.score_scale))
        key = writer.multiply(x, f"{name}.key", block.key)
        value = writer.multiply(x, f"{name}.value", block.value)  # each (B, S, D)
        query, value = (
            graph.add("Transpose", graph.add("Reshape", part, by_head), perm=[0, 2, 1, 3]) for part in (query, value)
        )  # (B, H, S, d)
        key = graph.add("Transpose", graph.add("Reshape", key, by_head), perm=[0, 2, 3, 1])  # (B, H, d, S)
        return graph.add("Reshape", mix_by_text(graph, query, key, value, bias), by_text)

    return AttentionForm(
        lambda: add_embeddings(writer, transformer.embeddings), attend, lambda x: padded_token_vectors(graph, x)
    )


def _score_bias(writer: LayerWriter, transformer: TransformerWeights, max_tokens: int) -> str:
    """Add the bias on attention scores for padding and relative positions: (B, 1 or H, 1 or S, S)."""
    graph = writer.graph
    bias = add_padding_bias(graph, _MASK_VALUE)
    if transformer.relative_bias is None:
        return bias
    longest = graph.add("Shape", "input_ids", start=1, end=2)
    return graph.add("Add", bias, add_relative_bias(writer, transformer.relative_bias, max_tokens, longest))


def strided_attention(writer: LayerWriter, transformer: TransformerWeights, max_tokens: int) -> AttentionForm:
    """Write attention as MatMul, Softmax and MatMul on rows by token: with int8 products, the fastest form on a CPU."""
    graph = writer.graph
    hidden = transformer.hidden
    bias = _score_bias(writer, transformer, max_tokens)

    texts = graph.add("Shape", "input_ids", start=0, end=1)
    tokens = graph.add("Shape", "input_ids", start=1, end=2)
    by_token = graph.add("Concat", tokens, texts, graph.integers(hidden), axis=0)
    by_head = graph.add("Concat", tokens, graph.integers(-1, transformer.head_size), axis=0)
    attention = RowsByToken(graph, transformer.heads, texts, tokens)

    def embed() -> str:
        x = graph.add("Transpose", add_embeddings(writer, transformer.embeddings), perm=[1, 0, 2])
        return graph.add("Reshape", x, graph.integers(-1, hidden))  # (T, D)

    def attend(x: str, name: str, block: AttentionWeights) -> str:
        # The scale of the scores is folded into the query's weights.
        qkv = join_products(block.query.scaled(transformer.score_scale), block.key, block.value)
        product = writer.multiply(x, f"{name}.qkv", qkv)  # (T, 3 D)
        parts = graph.add_many("Split", product, outputs=3, axis=-1, num_outputs=3)  # each (T, D)
        query = graph.add("Add", parts[0], writer.weight(f"{name}.query.bias", qkv.bias[:hidden]))
        query, key, value = (graph.add("Reshape", part, by_head) for part in (query, *parts[1:]))  # (S, B H, d)
        return graph.add("Reshape", attention.mix(query, key, value, bias), graph.integers(-1, hidden))

    def token_vectors(x: str) -> TokenVectors:
        by_text = graph.add("Transpose", graph.add("Reshape", x, by_token), perm=[1, 0, 2])
        return padded_token_vectors(graph, by_text)

    return AttentionForm(embed, attend, token_vectors)


def packed_attention(writer: LayerWriter, transformer: TransformerWeights, max_tokens: int) -> AttentionForm:
    """Write attention as com.microsoft::PackedMultiHeadAttention over tokens without padding.

    The host removes padding, so that everything runs on (T, D) and the GPU never waits. Query, key and value are
    separate products, which onnxruntime's FlashAttention-2 and CUTLASS kernels read in place. The joint product of
    PackedAttention would need a transposed copy.
    """
    graph = writer.graph
    bias: list[str] = []
    if transformer.relative_bias is not None:
        # S is a multiple of LENGTH_MULTIPLE because the CUTLASS kernel requires that for a bias. FlashAttention-2 does
        # not support a bias.
        longest = graph.add("Shape", "token_offset", start=1, end=2)
        bias = [add_relative_bias(writer, transformer.relative_bias, round_up(max_tokens), longest)]

    def attend(x: str, name: str, block: AttentionWeights) -> str:
        query = writer.product(x, f"{name}.query", block.query)
        key = writer.multiply(x, f"{name}.key", block.key)
        value = writer.multiply(x, f"{name}.value", block.value)
        inputs = [query, key, value, "", "token_offset", "cumulated_lengths", *bias]
        return graph.add("PackedMultiHeadAttention", *inputs, domain=CONTRIB, num_heads=transformer.heads)  # (T, D)

    return AttentionForm(
        lambda: add_packed_embeddings(writer, transformer.embeddings), attend, lambda x: packed_token_vectors(graph, x)
    )
