"""Pool token vectors into the sentence vector as ONNX nodes, always in float32.

The nodes follow sentence-transformers' Pooling module, for padding on the right. `sentence_graph` explains the shapes
in comments.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache

import onnx

from es_sbert.bundle.modules import Pooling
from es_sbert.bundle.sentence_model import SentenceModel
from es_sbert.exporters.graph_builder import FLOAT, INT32, INT64, GraphBuilder
from es_sbert.exporters.quantization import graph_from_trace
from es_sbert.exporters.vector_modules import add_modules
from es_sbert.runtime.batching import LENGTH_MULTIPLE, LENGTH_MULTIPLE_PROPERTY, POOLING_MASK

PADDED_INPUTS = [(name, INT64, ("batch", "tokens")) for name in ("input_ids", "attention_mask")]
# Name of the output of a network without pooling, (B, S, D).
TOKEN_VECTORS = "token_embeddings"

_MIN_COUNT = 1e-9  # sentence-transformers' guard against texts without tokens


@dataclass(frozen=True)
class TokenVectors:
    """The output of the last layer, to be pooled. Each function adds its nodes to the graph and returns a value's name.

    Attributes:
        padded: The vectors with padding, (B, S, D) float32; the mask excludes padding.
        first: The vector of each text's first token, (B, D) float32.
        mask: 1 for tokens that are pooled, 0 for others and for padding, (B, S) float32.
        is_whole: Whether all tokens are pooled, so that the ones of the mask start at the first position.
    """

    padded: Callable[[], str]
    first: Callable[[], str]
    mask: Callable[[], str]
    is_whole: bool = True


def padded_token_vectors(graph: GraphBuilder, vectors: str) -> TokenVectors:
    """Return the token vectors of a graph whose hidden state is (B, S, D); `attention_mask` marks padding."""
    tokens = graph.add("Cast", vectors, to=FLOAT)
    return TokenVectors(
        padded=lambda: tokens,
        first=lambda: graph.add("Gather", tokens, graph.integer(0), axis=1),
        mask=cache(lambda: graph.add("Cast", "attention_mask", to=FLOAT)),
    )


def packed_token_vectors(graph: GraphBuilder, vectors: str) -> TokenVectors:
    """Return the token vectors of a graph whose hidden state is (T, D).

    `padded_rows`, (B, S), holds each token's row, and -1 for padding. Row -1 is the last row, so padding repeats a
    finite vector, which the mask then excludes.
    """
    mask = cache(lambda: graph.add("Cast", graph.add("GreaterOrEqual", "padded_rows", graph.int32(0)), to=FLOAT))
    padded = cache(lambda: graph.add("Cast", graph.add("Gather", vectors, "padded_rows"), to=FLOAT))

    def first() -> str:
        rows = graph.add("Gather", "padded_rows", graph.integer(0), axis=1)  # (B,)
        return graph.add("Cast", graph.add("Gather", vectors, rows), to=FLOAT)

    return TokenVectors(padded, first, mask)


def finish_padded_graph(
    graph: GraphBuilder, model: SentenceModel, vectors: str, metadata: Mapping[str, str] | None = None
) -> onnx.ModelProto:
    """Pool the token vectors of a graph with padded inputs.

    Args:
        graph: The graph so far.
        model: The model.
        vectors: Value of shape (B, S, D).
        metadata: Properties of the graph.

    Returns:
        A model with int64 inputs `input_ids` and `attention_mask`, (batch, tokens), padded on the right, and the output
        `sentence_embedding`, float32, (batch, dimensions).
    """
    vector = add_sentence_vector(graph, model, padded_token_vectors(graph, vectors))
    graph.rename(vector, "sentence_embedding")
    output = ("sentence_embedding", FLOAT, ("batch", model.dimensions))
    return graph.model(model.name, PADDED_INPUTS, [output], metadata)


def pool_fp16_network(model: SentenceModel, network: onnx.ModelProto) -> onnx.ModelProto:
    """Pool the token vectors of a float16 network, whose output `TOKEN_VECTORS` is float32, and return the model."""
    # Lengths are not rounded up beyond the longest input, for which a network may have no positions.
    multiple = LENGTH_MULTIPLE if model.longest_input % LENGTH_MULTIPLE == 0 else 1
    pooled = finish_padded_graph(
        graph_from_trace(network, int8=False), model, TOKEN_VECTORS, {LENGTH_MULTIPLE_PROPERTY: str(multiple)}
    )
    # Keep the result types of operators that do not belong to ONNX.
    pooled.graph.value_info.extend(network.graph.value_info)
    return pooled


def add_sentence_vector(graph: GraphBuilder, model: SentenceModel, tokens: TokenVectors) -> str:
    """Apply the modules before pooling to the token vectors, pool them, and apply the modules after pooling.

    Returns:
        Value of shape (B, dimensions), float32.
    """
    if not model.include_prompt:
        tokens = _without_prompt(graph, tokens)
    if model.token_modules:
        tokens = _apply_to_tokens(graph, model, tokens)
    pooled = [_add_pooling(graph, mode, tokens) for mode in model.pooling]  # each (B, D)
    vector = pooled[0] if len(pooled) == 1 else graph.add("Concat", *pooled, axis=1)
    vector = add_modules(graph, vector, model, model.modules)
    if model.truncate_dim is not None:
        kept = graph.integers(model.truncate_dim)
        vector = graph.add("Slice", vector, graph.integers(0), kept, graph.integers(1))
    return vector


def _without_prompt(graph: GraphBuilder, tokens: TokenVectors) -> TokenVectors:
    """Return the token vectors with a mask that excludes those of the prompt from pooling."""
    mask = cache(lambda: graph.add("Cast", graph.input(POOLING_MASK, INT32, ("batch", "longest")), to=FLOAT))

    def first() -> str:
        rank = graph.add("CumSum", mask(), graph.integer(1))  # (B, S)
        is_first = graph.add("Cast", graph.add("Equal", rank, graph.scalar(1.0)), to=FLOAT)
        one_hot = graph.add("Mul", is_first, mask())
        # If a text has no other tokens, sentence-transformers takes the first one.
        count = graph.add("ReduceSum", mask(), graph.integers(1), keepdims=1)  # (B, 1)
        is_empty = graph.add("Cast", graph.add("Equal", count, graph.scalar(0.0)), to=FLOAT)
        at_start = graph.add("Cast", graph.add("Equal", _token_ranks(graph, mask()), graph.scalar(1.0)), to=FLOAT)
        one_hot = graph.add("Add", one_hot, graph.add("Mul", is_empty, at_start))
        return _weighted_sum(graph, tokens, one_hot)

    return TokenVectors(tokens.padded, first, mask, is_whole=False)


def _apply_to_tokens(graph: GraphBuilder, model: SentenceModel, tokens: TokenVectors) -> TokenVectors:
    """Apply the modules before pooling to the token vectors."""
    padded = cache(lambda: add_modules(graph, tokens.padded(), model, model.token_modules))
    first = cache(lambda: add_modules(graph, tokens.first(), model, model.token_modules))
    return TokenVectors(padded, first, tokens.mask, tokens.is_whole)


def _add_pooling(graph: GraphBuilder, mode: Pooling, tokens: TokenVectors) -> str:
    """(B, S, D) → (B, D)."""
    match mode:
        case Pooling.CLS:
            return tokens.first()
        case Pooling.MAX:
            padding = graph.add("Equal", graph.add("Unsqueeze", tokens.mask(), graph.integers(2)), graph.scalar(0.0))
            masked = graph.add("Where", padding, graph.scalar(float("-inf")), tokens.padded())
            return graph.add("ReduceMax", masked, graph.integers(1), keepdims=0)
        case Pooling.MEAN:
            return graph.add("Div", _weighted_sum(graph, tokens, tokens.mask()), _weight_sum(graph, tokens.mask()))
        case Pooling.MEAN_SQRT_LEN:
            total = graph.add("Sqrt", _weight_sum(graph, tokens.mask()))
            return graph.add("Div", _weighted_sum(graph, tokens, tokens.mask()), total)
        case Pooling.WEIGHTEDMEAN:
            mask = tokens.mask()
            weights = graph.add("Mul", mask, _token_ranks(graph, mask))  # (B, S): 1, 2, 3, …, 0 for padding
            return graph.add("Div", _weighted_sum(graph, tokens, weights), _weight_sum(graph, weights))
        case Pooling.LASTTOKEN:
            # The last token is the one whose rank among the pooled tokens equals their number.
            mask = tokens.mask()
            ranks = _token_ranks(graph, mask) if tokens.is_whole else graph.add("CumSum", mask, graph.integer(1))
            count = graph.add("ReduceSum", mask, graph.integers(1), keepdims=1)  # (B, 1)
            last = graph.add("Cast", graph.add("Equal", ranks, count), to=FLOAT)  # (B, S), one-hot
            last = last if tokens.is_whole else graph.add("Mul", last, mask)
            return _weighted_sum(graph, tokens, last)


def _token_ranks(graph: GraphBuilder, mask: str) -> str:
    """1, 2, 3, … over the tokens: (S,) float32."""
    count = graph.add("Squeeze", graph.add("Shape", mask, start=1, end=2))
    after = graph.add("Add", count, graph.integer(1))
    return graph.add("Cast", graph.add("Range", graph.integer(1), after, graph.integer(1)), to=FLOAT)


def _weighted_sum(graph: GraphBuilder, tokens: TokenVectors, weights: str) -> str:
    """Sum of token vectors times weights as one product: (B, S, D), (B, S) → (B, D)."""
    row = graph.add("Unsqueeze", weights, graph.integers(1))  # (B, 1, S)
    return graph.add("Squeeze", graph.add("MatMul", row, tokens.padded()), graph.integers(1))


def _weight_sum(graph: GraphBuilder, weights: str) -> str:
    """Sum of the weights of a text, never 0: (B, S) → (B, 1)."""
    total = graph.add("ReduceSum", weights, graph.integers(1), keepdims=1)
    return graph.add("Max", total, graph.scalar(_MIN_COUNT))
