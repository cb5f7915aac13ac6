"""A model's ONNX graph, from the token ids to the sentence vector, in each of the forms that are exported."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx

from es_sbert.bundle.model import Precision, SentenceModel
from es_sbert.errors import ModelError
from es_sbert.exporters.attention import FORMS, Attention
from es_sbert.exporters.graph import FLOAT, INT64, Graph
from es_sbert.exporters.layers import Writer, embed, feed_forward
from es_sbert.exporters.pooling import sentence_vector
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
    Precision.FP16: (
        Recipe("fp16-fused", Precision.FP16, "cuda", Attention.FUSED),
        Recipe("fp16-packed", Precision.FP16, "cuda", Attention.PACKED),
    ),
}

# Of models whose graph is traced (`traced`), not built.
TRACED_RECIPES: dict[Precision, tuple[Recipe, ...]] = {
    precision: (Recipe(str(precision), precision, "cpu", Attention.TRACED),)
    for precision in (Precision.FP32, Precision.INT8)
}

# The operator that must stand once in every layer; other tools' converters leave it out silently.
_OPERATORS = {Attention.PLAIN: "Softmax", Attention.FUSED: "Attention", Attention.PACKED: "PackedAttention"}


def build_graph(model: SentenceModel, transformer: Transformer, recipe: Recipe) -> onnx.ModelProto:
    """Build a graph.

    Inputs `input_ids` and `attention_mask`, int64, (batch, tokens), padded on the right; output
    `sentence_embedding`, float32, (batch, dimensions).

    Raises:
        ModelError: attention does not stand once in every layer, which would be a bug here.
    """
    graph = Graph()
    dtype: type[np.floating[Any]] = np.float16 if recipe.precision is Precision.FP16 else np.float32
    writer = Writer(
        graph, dtype, int8=recipe.precision is Precision.INT8, fused=recipe.attention is not Attention.PLAIN
    )
    form = FORMS[recipe.attention](writer, transformer, model.max_tokens)
    x = form.enter(embed(writer, transformer.embeddings))
    for number, layer in enumerate(map(form.fold, transformer.layers)):
        name = f"layer_{number}"
        attended = form.attend(x, name, layer)
        x = writer.product_add_norm(
            attended, x, f"{name}.attention_output", layer.attention_output, layer.attention_norm
        )
        x = feed_forward(writer, x, name, layer, transformer.activation)
    graph.rename(sentence_vector(graph, model, form.leave(x)), "sentence_embedding")

    operator = _OPERATORS[recipe.attention]
    if graph.count(operator) != len(transformer.layers):
        raise ModelError(
            f"{model.name}: {graph.count(operator)} {operator} nodes for {len(transformer.layers)} layers",
            "Report this: it is a bug of es-sbert.",
        )
    return graph.model(
        model.name,
        [(name, INT64, ("batch", "tokens")) for name in ("input_ids", "attention_mask")],
        [("sentence_embedding", FLOAT, ("batch", model.dimensions))],
    )
