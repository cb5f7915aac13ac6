"""The graphs meant for CUDA, proved without it: run in onnx.reference with numpy versions of the fused operators."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx.reference import ReferenceEvaluator

from es_sbert.bundle.checkpoint import read_model
from es_sbert.bundle.model import Precision
from es_sbert.encoder.batches import pad
from es_sbert.encoder.tokenizer import SentenceTokenizer
from es_sbert.errors import ModelError
from es_sbert.exporters import build
from es_sbert.exporters.architectures import read_transformer
from es_sbert.exporters.attention import Attention
from es_sbert.exporters.build import RECIPES, Recipe, build_graph
from es_sbert.exporters.parity import unit
from es_sbert.exporters.reference import NumpyReference
from tests.unit.checkpoints import ARCHITECTURES, write_checkpoint
from tests.unit.exporters.contributed import OPERATORS

TEXTS = ["A nurse fixed the pump.", "Why?", "", "The telescope, the telescope and once more the telescope. " * 3]
FLOAT, FLOAT16 = onnx.TensorProto.FLOAT, onnx.TensorProto.FLOAT16


@pytest.fixture(scope="module", params=ARCHITECTURES)
def folder(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_checkpoint(tmp_path_factory.mktemp("models") / request.param, request.param, layers=3)


@pytest.mark.parametrize("attention", [Attention.FUSED, Attention.PACKED])
@pytest.mark.parametrize(("precision", "least"), [(Precision.FP32, 0.999999), (Precision.FP16, 0.9995)])
def test_vectors_of_fused_and_packed_graphs(
    folder: Path, attention: Attention, precision: Precision, least: float
) -> None:
    model = read_model(folder)
    transformer = read_transformer(model)
    graph = build_graph(model, transformer, Recipe("tested", precision, "cuda", attention))
    ids, mask = pad(SentenceTokenizer(model)(TEXTS).ids)
    (vectors,) = ReferenceEvaluator(graph, new_ops=OPERATORS).run(None, {"input_ids": ids, "attention_mask": mask})
    expected = NumpyReference(model, transformer).encode(TEXTS)
    assert vectors.dtype == np.float32
    assert np.einsum("td,td->t", unit(vectors), unit(expected)).min() >= least


@pytest.mark.parametrize("recipe", RECIPES[Precision.FP16], ids=lambda recipe: recipe.name)
def test_structure_of_fp16_graphs(folder: Path, recipe: Recipe) -> None:
    model = read_model(folder)
    graph = build_graph(model, read_transformer(model), recipe).graph
    operators = [node.op_type for node in graph.node]
    packed = recipe.attention is Attention.PACKED
    assert operators.count("PackedAttention" if packed else "Attention") == 3
    assert operators.count("RemovePadding") == operators.count("RestorePadding") == int(packed)
    # Weights are float16 throughout, and pooling runs in float32: the cast stands before the first reduction.
    weights = {tensor.name: tensor.data_type for tensor in graph.initializer if tensor.name.startswith("layer_")}
    assert set(weights.values()) == {FLOAT16}
    to_float = [
        place for place, node in enumerate(graph.node) if node.op_type == "Cast" and node.attribute[0].i == FLOAT
    ]
    assert operators.index("ReduceL2") > to_float[0] > operators.index("SkipLayerNormalization")
    assert graph.output[0].type.tensor_type.elem_type == FLOAT


def test_padding_is_taken_out_before_the_first_layer_and_put_back_behind_the_last(folder: Path) -> None:
    model = read_model(folder)
    graph = build_graph(model, read_transformer(model), RECIPES[Precision.FP16][1]).graph
    operators = [node.op_type for node in graph.node]
    products = [place for place, name in enumerate(operators) if name in ("PackedAttention", "SkipLayerNormalization")]
    assert operators.index("RemovePadding") < products[0]
    assert operators.index("RestorePadding") > products[-1]


def test_a_layer_without_its_operator_is_an_error(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What other converters do silently: here fused attention where packed attention was asked for."""
    monkeypatch.setitem(build.FORMS, Attention.PACKED, build.FORMS[Attention.FUSED])
    model = read_model(folder)
    with pytest.raises(ModelError, match="0 PackedAttention nodes for 3 layers"):
        build_graph(model, read_transformer(model), RECIPES[Precision.FP16][1])
