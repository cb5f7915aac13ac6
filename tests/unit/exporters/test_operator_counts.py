"""Operators of a layer in each graph: one more is another pass over memory for every token."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from es_sbert.bundle.sentence_model import read_sentence_model
from es_sbert.bundle.variants import Precision
from es_sbert.exporters.export_bundle import choose_graph_source
from tests.unit.checkpoints import write_checkpoint

# Of one layer. A change that adds an operator has to be measured (`make bench-encode`) before this is changed.
BERT = {
    Precision.FP32: Counter(
        {"MatMul": 8, "Add": 7, "Reshape": 4, "Transpose": 4, "LayerNormalization": 2, "Softmax": 1, "Gelu": 1}
    ),
    Precision.INT8: Counter(
        {
            "MatMulIntegerToFloat": 4, "QuantizeLinear": 4, "ReduceMax": 4, "ReduceMin": 3, "Neg": 3, "Max": 4,
            "Shape": 4, "Expand": 4, "Unsqueeze": 4, "Mul": 8, "Add": 6, "Reshape": 6, "FusedMatMul": 2,
            "LayerNormalization": 2, "FastGelu": 1, "Softmax": 1, "Split": 1, "Transpose": 1,
        }
    ),
    Precision.FP16: Counter(
        {"MatMul": 6, "SkipLayerNormalization": 2, "Add": 1, "BiasGelu": 1, "PackedMultiHeadAttention": 1}
    ),
}  # fmt: skip


def count(folder: Path, layers: int, precision: Precision) -> Counter[str]:
    model = read_sentence_model(write_checkpoint(folder / f"{layers}-{precision}", "bert", layers=layers))
    build, _ = choose_graph_source(model)
    return Counter(node.op_type for node in build(precision).graph.node)


@pytest.mark.parametrize("precision", list(BERT))
def test_layer_has_no_more_operators_than_were_measured(precision: Precision, tmp_path: Path) -> None:
    assert count(tmp_path, 3, precision) - count(tmp_path, 2, precision) == BERT[precision]
