"""Build the ONNX graph of a sentence encoder, from token ids to the sentence vector, in each exported form."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx

from es_sbert.bundle.sentence_model import Precision, SentenceModel
from es_sbert.encoder.batching import PADDING_ID_PROPERTY
from es_sbert.errors import ModelError
from es_sbert.exporters.graph_builder import FLOAT, INT32, INT64, GraphBuilder
from es_sbert.exporters.pooling import add_sentence_vector, packed_token_vectors, padded_token_vectors
from es_sbert.exporters.transformer_layers import (
    ATTENTION_FORMS,
    AttentionKind,
    LayerWriter,
    add_embeddings,
    add_feed_forward,
    add_packed_embeddings,
)
from es_sbert.exporters.transformer_weights import TransformerWeights


@dataclass(frozen=True)
class GraphSpec:
    """One form of a model's graph.

    Attributes:
        name: Of the variant.
        precision: Number format of products with weights.
        device: Where it is meant to run: `cpu` or `cuda`.
        attention: How attention is written.
    """

    name: str
    precision: Precision
    device: str
    attention: AttentionKind


GRAPH_SPECS: dict[Precision, tuple[GraphSpec, ...]] = {
    Precision.FP32: (GraphSpec("fp32", Precision.FP32, "cpu", AttentionKind.PLAIN),),
    Precision.INT8: (GraphSpec("int8", Precision.INT8, "cpu", AttentionKind.PLAIN),),
    Precision.FP16: (GraphSpec("fp16", Precision.FP16, "cuda", AttentionKind.PACKED),),
}

# For traced graphs.
TRACED_GRAPH_SPECS: dict[Precision, tuple[GraphSpec, ...]] = {
    precision: (GraphSpec(str(precision), precision, "cpu", AttentionKind.TRACED),)
    for precision in (Precision.FP32, Precision.INT8)
}

# The operator that every layer must have once; some converters leave it out silently.
_ATTENTION_OPERATORS = {AttentionKind.PLAIN: "Softmax", AttentionKind.PACKED: "PackedMultiHeadAttention"}


_PADDED_INPUTS = [(name, INT64, ("batch", "tokens")) for name in ("input_ids", "attention_mask")]
_PACKED_INPUTS: list[tuple[str, int, Sequence[str | int]]] = [
    ("input_ids", INT32, ("tokens",)),
    ("position_ids", INT32, ("tokens",)),
    ("token_offset", INT32, ("batch", "longest")),
    ("cumulated_lengths", INT32, ("batch + 1",)),
    ("padded_rows", INT32, ("batch", "longest")),
]


def build_sentence_graph(model: SentenceModel, transformer: TransformerWeights, spec: GraphSpec) -> onnx.ModelProto:
    """Build a graph.

    Its inputs are int64 `input_ids` and `attention_mask`, (batch, tokens), padded on the right; with packed attention
    those of `es_sbert.encoder.batching.PackedBatch`. Output `sentence_embedding`, float32, (batch, dimensions).

    Raises:
        ModelError: a layer does not have attention exactly once, which would be a bug here.
    """
    graph = GraphBuilder()
    packed = spec.attention is AttentionKind.PACKED
    dtype: type[np.floating[Any]] = np.float16 if spec.precision is Precision.FP16 else np.float32
    writer = LayerWriter(graph, dtype, int8=spec.precision is Precision.INT8, fused=packed)
    form = ATTENTION_FORMS[spec.attention](writer, transformer, model.max_tokens)
    embeddings = transformer.embeddings
    x = form.enter(add_packed_embeddings(writer, embeddings) if packed else add_embeddings(writer, embeddings))
    for number, layer in enumerate(map(form.fold, transformer.layers)):
        name = f"layer_{number}"
        attended = form.attend(x, name, layer)
        x = writer.product_add_norm(
            attended, x, f"{name}.attention_output", layer.attention_output, layer.attention_norm
        )
        x = add_feed_forward(writer, x, name, layer, transformer.activation)
    tokens = (packed_token_vectors if packed else padded_token_vectors)(graph, form.leave(x))
    graph.rename(add_sentence_vector(graph, model, tokens), "sentence_embedding")

    operator = _ATTENTION_OPERATORS[spec.attention]
    if graph.count(operator) != len(transformer.layers):
        raise ModelError(
            f"{model.name}: {graph.count(operator)} {operator} nodes for {len(transformer.layers)} layers",
            "Report this: it is a bug of es-sbert.",
        )
    return graph.model(
        model.name,
        _PACKED_INPUTS if packed else _PADDED_INPUTS,
        [("sentence_embedding", FLOAT, ("batch", model.dimensions))],
        {PADDING_ID_PROPERTY: str(embeddings.padding_id)} if packed and embeddings.padding_id is not None else {},
    )
