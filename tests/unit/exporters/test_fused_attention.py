"""`fuse_attention` finds attention as transformers writes it, and computes the same."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import helper, numpy_helper

from es_sbert.bundle.cross_encoder_model import read_cross_encoder
from es_sbert.bundle.variants import Precision
from es_sbert.exporters.fp16 import fuse_attention
from es_sbert.exporters.tracing import TracedCrossEncoder
from tests.unit.checkpoints import ARCHITECTURES, UNFUSED_ARCHITECTURES, mostly_long, write_cross_encoder

LAYERS = 2


@pytest.fixture(scope="module", params=mostly_long([*ARCHITECTURES, *UNFUSED_ARCHITECTURES]))
def traced(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[str, onnx.ModelProto]:
    folder = write_cross_encoder(tmp_path_factory.mktemp("models") / "model", request.param, layers=LAYERS)
    return request.param, TracedCrossEncoder(read_cross_encoder(folder)).build(Precision.FP32)


def copy(model: onnx.ModelProto) -> onnx.ModelProto:
    return onnx.ModelProto.FromString(model.SerializeToString())


def scores(model: onnx.ModelProto) -> np.ndarray:
    """Of four pairs with padding and without, and one that is nearly all padding."""
    session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    mask = np.ones((4, 24), dtype=np.int64)
    mask[1, 20:], mask[2, 9:], mask[3, 1:] = 0, 0, 0
    ids = np.where(mask == 1, np.arange(10, 106).reshape(4, 24), 1)
    inputs = {"input_ids": ids, "attention_mask": mask, "token_type_ids": np.zeros_like(ids)}
    return session.run(["score"], {value.name: inputs[value.name] for value in session.get_inputs()})[0]


def test_fused_scores_equal_unfused(traced: tuple[str, onnx.ModelProto]) -> None:
    architecture, model = traced
    fused = copy(model)
    count = fuse_attention(fused)
    # ModernBERT turns queries and keys by their positions; XLNet's scores are sums of three products.
    assert count == (0 if architecture in UNFUSED_ARCHITECTURES else LAYERS)
    operators = [node.op_type for node in fused.graph.node]
    assert operators.count("MultiHeadAttention") == count
    assert operators.count("Softmax") == LAYERS - count
    np.testing.assert_allclose(scores(fused), scores(model), atol=2e-6)


def test_fused_heads_equal_the_model(traced: tuple[str, onnx.ModelProto]) -> None:
    fused = copy(traced[1])
    fuse_attention(fused)
    heads = [
        helper.get_node_attr_value(node, "num_heads")
        for node in fused.graph.node
        if node.op_type == "MultiHeadAttention"
    ]
    assert set(heads) <= {4}


def test_unsupported_attention_is_not_fused(tmp_path: Path) -> None:
    """Queries whose heads are laid out in another order than keys."""
    model = TracedCrossEncoder(read_cross_encoder(write_cross_encoder(tmp_path / "model", layers=1))).build(
        Precision.FP32
    )
    [softmax] = [node for node in model.graph.node if node.op_type == "Softmax"]
    makers = {name: node for node in model.graph.node for name in node.output}
    product = makers[makers[makers[softmax.input[0]].input[0]].input[0]]
    turned = makers[product.input[0]]
    assert (product.op_type, turned.op_type) == ("MatMul", "Transpose")
    turned.attribute[0].ints[:] = [0, 2, 3, 1]
    assert fuse_attention(model) == 0
    assert sum(node.op_type == "Softmax" for node in model.graph.node) == 1


def test_mismatched_sizes_are_not_fused(tmp_path: Path) -> None:
    model = TracedCrossEncoder(read_cross_encoder(write_cross_encoder(tmp_path / "model", layers=1))).build(
        Precision.FP32
    )
    [bias] = [tensor for tensor in model.graph.initializer if tensor.name.endswith("attention.self.query.bias")]
    bias.CopyFrom(numpy_helper.from_array(np.zeros(40, dtype=np.float32), bias.name))
    assert fuse_attention(model) == 0
