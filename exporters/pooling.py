"""From token vectors to the sentence vector, in float32 whatever the layers compute in.

Follows sentence-transformers' Pooling, Dense and Normalize modules, for padding on the right.
"""

from __future__ import annotations

from es_sbert.bundle.model import Activation, Dense, Pooling, SentenceModel
from es_sbert.exporters.graph import FLOAT, Graph
from es_sbert.exporters.weights import Tensors

_SMALLEST_COUNT = 1e-9  # sentence-transformers' guard against texts without tokens
_SMALLEST_LENGTH = 1e-12  # torch's guard against the zero vector


def sentence_vector(graph: Graph, model: SentenceModel, tokens: str) -> str:
    """Pool token vectors, apply the Dense modules, normalise.

    Args:
        tokens: Value of shape (B, S, D), float16 or float32.

    Returns:
        Value of shape (B, dimensions), float32.
    """
    tokens = graph.add("Cast", tokens, to=FLOAT)
    mask = graph.add("Cast", "attention_mask", to=FLOAT)  # (B, S)
    pooled = [_pool(graph, mode, tokens, mask) for mode in model.pooling]  # each (B, D)
    vector = pooled[0] if len(pooled) == 1 else graph.add("Concat", *pooled, axis=1)
    for layer in model.dense:
        vector = _dense(graph, vector, layer, Tensors(model.folder / layer.folder))
    if model.normalize:
        length = graph.add("ReduceL2", vector, graph.integers(1), keepdims=1)  # (B, 1)
        vector = graph.add("Div", vector, graph.add("Max", length, graph.scalar(_SMALLEST_LENGTH)))
    return vector


def _pool(graph: Graph, mode: Pooling, tokens: str, mask: str) -> str:
    """(B, S, D) and (B, S) → (B, D)."""
    match mode:
        case Pooling.CLS:
            return graph.add("Gather", tokens, graph.integer(0), axis=1)
        case Pooling.MAX:
            padding = graph.add("Equal", graph.add("Unsqueeze", mask, graph.integers(2)), graph.scalar(0.0))
            return graph.add(
                "ReduceMax", graph.add("Where", padding, graph.scalar(float("-inf")), tokens), graph.integers(1),
                keepdims=0,
            )  # fmt: skip
        case Pooling.MEAN:
            return graph.add("Div", _weighted_sum(graph, tokens, mask), _total(graph, mask))
        case Pooling.MEAN_SQRT_LEN:
            return graph.add("Div", _weighted_sum(graph, tokens, mask), graph.add("Sqrt", _total(graph, mask)))
        case Pooling.WEIGHTEDMEAN:
            weights = graph.add("Mul", mask, _ranks(graph, mask))  # (B, S): 1, 2, 3, …, 0 for padding
            return graph.add("Div", _weighted_sum(graph, tokens, weights), _total(graph, weights))
        case Pooling.LASTTOKEN:
            # The last token is the one whose rank is the number of tokens.
            count = graph.add("ReduceSum", mask, graph.integers(1), keepdims=1)  # (B, 1)
            last = graph.add("Cast", graph.add("Equal", _ranks(graph, mask), count), to=FLOAT)  # (B, S), one-hot
            return _weighted_sum(graph, tokens, last)


def _ranks(graph: Graph, mask: str) -> str:
    """1, 2, 3, … over the tokens: (S,) float32."""
    count = graph.add("Squeeze", graph.add("Shape", mask, start=1, end=2))
    after = graph.add("Add", count, graph.integer(1))
    return graph.add("Cast", graph.add("Range", graph.integer(1), after, graph.integer(1)), to=FLOAT)


def _weighted_sum(graph: Graph, tokens: str, weights: str) -> str:
    """Sum of token vectors times weights as one product: (B, S, D), (B, S) → (B, D)."""
    row = graph.add("Unsqueeze", weights, graph.integers(1))  # (B, 1, S)
    return graph.add("Squeeze", graph.add("MatMul", row, tokens), graph.integers(1))


def _total(graph: Graph, weights: str) -> str:
    """Sum of the weights of a text, never 0: (B, S) → (B, 1)."""
    total = graph.add("ReduceSum", weights, graph.integers(1), keepdims=1)
    return graph.add("Max", total, graph.scalar(_SMALLEST_COUNT))


def _dense(graph: Graph, vector: str, layer: Dense, tensors: Tensors) -> str:
    """(B, in_features) → (B, out_features)."""
    linear = tensors.linear("linear", layer.in_features, layer.out_features, bias=layer.bias)
    weight = graph.constant(f"{layer.folder}.weight", linear.weight)
    vector = graph.add("Gemm", vector, weight, graph.constant(f"{layer.folder}.bias", linear.bias))
    match layer.activation:
        case Activation.IDENTITY:
            return vector
        case Activation.TANH:
            return graph.add("Tanh", vector)
        case Activation.RELU:
            return graph.add("Relu", vector)
        case Activation.GELU:
            return graph.add("Gelu", vector, approximate="none")
