"""A model's ONNX graph, from the token ids to the sentence vector, in each of the forms that are exported."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx

from es_sbert.bundle.model import Precision, SentenceModel
from es_sbert.encoder.packing import PADDING_ID
from es_sbert.errors import ModelError
from es_sbert.exporters.attention import FORMS, Attention
from es_sbert.exporters.graph import FLOAT, INT32, INT64, Graph
from es_sbert.exporters.layers import Writer, embed, embed_packed, feed_forward
from es_sbert.exporters.pooling import packed_vectors, padded_vectors, sentence_vector
from es_sbert.exporters.transformer import Transformer


@dataclass(frozen=True)
class Recipe:
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
    attention: Attention


RECIPES: dict[Precision, tuple[Recipe, ...]] = {
    Precision.FP32: (Recipe("fp32", Precision.FP32, "cpu", Attention.PLAIN),),
    Precision.INT8: (Recipe("int8", Precision.INT8, "cpu", Attention.PLAIN),),
    Precision.FP16: (Recipe("fp16", Precision.FP16, "cuda", Attention.PACKED),),
}

# Of models whose graph is traced (`traced`), not built.
TRACED_RECIPES: dict[Precision, tuple[Recipe, ...]] = {
    precision: (Recipe(str(precision), precision, "cpu", Attention.TRACED),)
    for precision in (Precision.FP32, Precision.INT8)
}

# The operator that must stand once in every layer; other tools' converters leave it out silently.
_OPERATORS = {Attention.PLAIN: "Softmax", Attention.PACKED: "PackedMultiHeadAttention"}


_PADDED_INPUTS = [(name, INT64, ("batch", "tokens")) for name in ("input_ids", "attention_mask")]
_PACKED_INPUTS: list[tuple[str, int, Sequence[str | int]]] = [
    ("input_ids", INT32, ("tokens",)),
    ("position_ids", INT32, ("tokens",)),
    ("token_offset", INT32, ("batch", "longest")),
    ("cumulated_lengths", INT32, ("batch + 1",)),
    ("padded_rows", INT32, ("batch", "longest")),
]


def build_graph(model: SentenceModel, transformer: Transformer, recipe: Recipe) -> onnx.ModelProto:
    """Build a graph.

    Its inputs are int64 `input_ids` and `attention_mask`, (batch, tokens), padded on the right; with packed attention
    those of `es_sbert.encoder.packing.PackedBatch`. Output `sentence_embedding`, float32, (batch, dimensions).

    Raises:
        ModelError: attention does not stand once in every layer, which would be a bug here.
    """
    graph = Graph()
    packed = recipe.attention is Attention.PACKED
    dtype: type[np.floating[Any]] = np.float16 if recipe.precision is Precision.FP16 else np.float32
    writer = Writer(graph, dtype, int8=recipe.precision is Precision.INT8, fused=packed)
    form = FORMS[recipe.attention](writer, transformer, model.max_tokens)
    embeddings = transformer.embeddings
    x = form.enter(embed_packed(writer, embeddings) if packed else embed(writer, embeddings))
    for number, layer in enumerate(map(form.fold, transformer.layers)):
        name = f"layer_{number}"
        attended = form.attend(x, name, layer)
        x = writer.product_add_norm(
            attended, x, f"{name}.attention_output", layer.attention_output, layer.attention_norm
        )
        x = feed_forward(writer, x, name, layer, transformer.activation)
    tokens = (packed_vectors if packed else padded_vectors)(graph, form.leave(x))
    graph.rename(sentence_vector(graph, model, tokens), "sentence_embedding")

    operator = _OPERATORS[recipe.attention]
    if graph.count(operator) != len(transformer.layers):
        raise ModelError(
            f"{model.name}: {graph.count(operator)} {operator} nodes for {len(transformer.layers)} layers",
            "Report this: it is a bug of es-sbert.",
        )
    return graph.model(
        model.name,
        _PACKED_INPUTS if packed else _PADDED_INPUTS,
        [("sentence_embedding", FLOAT, ("batch", model.dimensions))],
        {PADDING_ID: str(embeddings.padding_id)} if packed and embeddings.padding_id is not None else {},
    )
