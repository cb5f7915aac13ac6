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
    batch = pack(SentenceTokenizer(model)(TEXTS).ids, transformer.embeddings.padding_id)
    (vectors,) = ReferenceEvaluator(graph, new_ops=OPERATORS).run(None, vars(batch))
    expected = NumpyReference(model, transformer).encode(TEXTS)
    assert vectors.dtype == np.float32
    assert np.einsum("td,td->t", normalize_rows(vectors), normalize_rows(expected)).min() >= least


@pytest.mark.parametrize("mode", list(Pooling))
def test_packed_graph_pools_as_the_reference_with_and_without_the_prompt(mode: Pooling, tmp_path: Path) -> None:
    read = read_sentence_model(write_checkpoint(tmp_path, "bert", layers=1, prompts={"query": "Why? The nurse: "}))
    transformer = read_transformer_weights(read)
    pooled = []
    for include in (True, False):
        model = read.model_copy(update={"pooling": (mode,), "include_prompt": include})
        graph = build_sentence_graph(model, transformer, Precision.FP32, packed=True)
        inputs = InputBuilder([value.name for value in graph.graph.input], {})
        rows = SentenceTokenizer(model)(TEXTS, "query").ids
        (vectors,) = ReferenceEvaluator(graph, new_ops=OPERATORS).run(None, inputs(rows))
        np.testing.assert_allclose(vectors, NumpyReference(model, transformer).encode(TEXTS, "query"), atol=1e-5)
        pooled.append(vectors)
    assert mode is Pooling.LASTTOKEN or np.abs(pooled[0] - pooled[1]).max() > 1e-3


def test_structure_of_the_fp16_graph(folder: Path) -> None:
    model = read_sentence_model(folder)
    transformer = read_transformer_weights(model)
    graph = build_sentence_graph(model, transformer, Precision.FP16)
    operators = [node.op_type for node in graph.graph.node]
    assert operators.count("PackedMultiHeadAttention") == 3
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
    padding_id = transformer.embeddings.padding_id
    properties = {entry.key: entry.value for entry in graph.metadata_props}
    assert properties == ({} if padding_id is None else {PADDING_ID_PROPERTY: str(padding_id)})
