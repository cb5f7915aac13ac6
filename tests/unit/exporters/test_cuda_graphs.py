"""The graphs meant for CUDA, proved without it: run in onnx.reference with numpy versions of the fused operators."""

from __future__ import annotations

from dataclasses import fields
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx.reference import ReferenceEvaluator

from es_sbert.bundle.modules import Pooling
from es_sbert.bundle.sentence_model import read_sentence_model
from es_sbert.bundle.variants import Precision
from es_sbert.exporters.architectures import read_transformer_weights
from es_sbert.exporters.numpy_reference import NumpyReference
from es_sbert.exporters.parity import normalize_rows
from es_sbert.exporters.sentence_graph import build_sentence_graph
from es_sbert.runtime.batching import PADDING_ID_PROPERTY, InputBuilder, PackedBatch, pack
from es_sbert.runtime.tokenizer import SentenceTokenizer
from tests.unit.checkpoints import ARCHITECTURES, write_checkpoint
from tests.unit.exporters.contributed import OPERATORS

TEXTS = ["A nurse fixed the pump.", "Why?", "", "The telescope, the telescope and once more the telescope. " * 3]
FLOAT, FLOAT16 = onnx.TensorProto.FLOAT, onnx.TensorProto.FLOAT16


@pytest.fixture(scope="module", params=ARCHITECTURES)
def folder(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_checkpoint(tmp_path_factory.mktemp("models") / request.param, request.param, layers=3)


@pytest.mark.parametrize(("precision", "least"), [(Precision.FP32, 0.999999), (Precision.FP16, 0.9995)])
def test_packed_graph_vectors_equal_the_reference(folder: Path, precision: Precision, least: float) -> None:
    model = read_sentence_model(folder)
    transformer = read_transformer_weights(model)
    graph = build_sentence_graph(model, transformer, precision, packed=True)
    vectors = run_graph(graph, SentenceTokenizer(model)(TEXTS).ids, transformer.embeddings.padding_id)
    expected = NumpyReference(model, transformer).encode(TEXTS)
    assert vectors.dtype == np.float32
    assert np.einsum("td,td->t", normalize_rows(vectors), normalize_rows(expected)).min() >= least


@pytest.mark.parametrize("mode", list(Pooling))
def test_packed_graph_pooling_equals_the_reference(mode: Pooling, tmp_path: Path) -> None:
    model = read_sentence_model(write_checkpoint(tmp_path, "bert", layers=1)).model_copy(update={"pooling": (mode,)})
    transformer = read_transformer_weights(model)
    graph = build_sentence_graph(model, transformer, Precision.FP32, packed=True)
    vectors = run_graph(graph, SentenceTokenizer(model)(TEXTS).ids, None)
    np.testing.assert_allclose(vectors, NumpyReference(model, transformer).encode(TEXTS), atol=1e-5)


@pytest.mark.parametrize("mode", list(Pooling))
def test_packed_graph_leaves_the_prompt_out_of_its_pooling(mode: Pooling, tmp_path: Path) -> None:
    read = read_sentence_model(write_checkpoint(tmp_path, "bert", layers=1, prompts={"query": "Why? The nurse: "}))
    model = read.model_copy(update={"pooling": (mode,), "include_prompt": False})
    transformer = read_transformer_weights(model)
    graph = build_sentence_graph(model, transformer, Precision.FP32, packed=True)
    evaluator = ReferenceEvaluator(graph, new_ops=OPERATORS)
    inputs = InputBuilder([value.name for value in graph.graph.input], {})
    assert inputs.packed
    (vectors,) = evaluator.run(None, inputs(SentenceTokenizer(model)(TEXTS, "query").ids))
    np.testing.assert_allclose(vectors, NumpyReference(model, transformer).encode(TEXTS, "query"), atol=1e-5)
    pooled = NumpyReference(model.model_copy(update={"include_prompt": True}), transformer).encode(TEXTS, "query")
    if mode is not Pooling.LASTTOKEN:
        assert np.abs(vectors - pooled).max() > 1e-3


def run_graph(graph: onnx.ModelProto, rows: list[np.ndarray], padding_id: int | None) -> np.ndarray:
    evaluator = ReferenceEvaluator(graph, new_ops=OPERATORS)
    (vectors,) = evaluator.run(None, vars(pack(rows, padding_id)))
    return vectors


def test_structure_of_the_fp16_graph(folder: Path) -> None:
    model = read_sentence_model(folder)
    graph = build_sentence_graph(model, read_transformer_weights(model), Precision.FP16)
    operators = [node.op_type for node in graph.graph.node]
    assert operators.count("PackedMultiHeadAttention") == 3
    assert operators.count("SkipLayerNormalization") == 7
    assert operators.count("BiasGelu") + operators.count("FastGelu") in (0, 3)
    assert not {"RemovePadding", "RestorePadding", "ReduceL2"} & set(operators)
    # Weights are float16 throughout, and pooling runs in float32: the cast stands before the first reduction.
    layers = {tensor.data_type for tensor in graph.graph.initializer if tensor.name.startswith("layer_")}
    assert layers == {FLOAT16}
    last = max(place for place, name in enumerate(operators) if name == "SkipLayerNormalization")
    first_sum = min(place for place, name in enumerate(operators) if name in ("ReduceSum", "MatMul") and place > last)
    assert any(
        node.op_type == "Cast" and node.attribute[0].i == FLOAT for node in graph.graph.node[last + 1 : first_sum]
    )
    assert graph.graph.output[0].type.tensor_type.elem_type == FLOAT
    assert [value.name for value in graph.graph.input] == [field.name for field in fields(PackedBatch)]


def test_packed_graph_stores_its_padding_id(folder: Path) -> None:
    model = read_sentence_model(folder)
    transformer = read_transformer_weights(model)
    graph = build_sentence_graph(model, transformer, Precision.FP16)
    properties = {entry.key: entry.value for entry in graph.metadata_props}
    padding_id = transformer.embeddings.padding_id
    assert properties == ({} if padding_id is None else {PADDING_ID_PROPERTY: str(padding_id)})
