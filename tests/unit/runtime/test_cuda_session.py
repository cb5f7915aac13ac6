"""What a session on CUDA is opened with and tried on, as far as it can be told without CUDA (see `tests/cuda`)."""

from __future__ import annotations

from pathlib import Path

from es_sbert.bundle.sentence_model import read_sentence_model
from es_sbert.bundle.variants import Variant
from es_sbert.exporters.export_bundle import export_bundle
from es_sbert.runtime.cuda_session import cuda_provider_options, non_shape_operators, warmup_inputs
from es_sbert.runtime.device import Device
from es_sbert.runtime.onnx_session import open_session
from tests.tiny import write_tiny_bert


def test_padded_graph_warmup_input_is_one_text(tmp_path: Path) -> None:
    export_bundle(read_sentence_model(write_tiny_bert(tmp_path / "tiny")), tmp_path / "bundle", [Variant.FP32])
    session = open_session(tmp_path / "bundle/onnx/model_fp32.onnx", Device("cpu"))
    feed = warmup_inputs(session)
    assert {name: (array.dtype.name, array.tolist()) for name, array in feed.items()} == {
        "input_ids": ("int64", [[0, 0]]),
        "attention_mask": ("int64", [[1, 1]]),
    }
    assert session.run(None, feed)[0].shape[0] == 1


def test_non_shape_operators() -> None:
    assert non_shape_operators(["Concat", "Shape", "Gather", "Squeeze"]) == []
    assert non_shape_operators(["MatMul", "Concat", "Tan", "MatMul"]) == ["MatMul", "Tan"]


def test_cuda_provider_options() -> None:
    options = cuda_provider_options(Device("cuda", 3))
    assert options == {"device_id": 3, "enable_skip_layer_norm_strict_mode": "1", "use_tf32": "0", "sdpa_kernel": "7"}
    assert cuda_provider_options(Device("cuda"), short=True)["sdpa_kernel"] == "2"
