"""What a session on CUDA is opened with and tried on, as far as it can be told without CUDA (see `tests/cuda`)."""

from __future__ import annotations

from pathlib import Path

from es_sbert.bundle.checkpoint import read_model
from es_sbert.bundle.model import Precision
from es_sbert.encoder.cuda_session import computing_operators, cuda_options, trial_feed
from es_sbert.encoder.device import Device
from es_sbert.encoder.session import open_session
from es_sbert.exporters.export import export_bundle
from tests.tiny import write_tiny_bert


def test_the_trial_of_a_padded_graph_is_one_text(tmp_path: Path) -> None:
    export_bundle(read_model(write_tiny_bert(tmp_path / "tiny")), tmp_path / "bundle", [Precision.FP32])
    session = open_session(tmp_path / "bundle/onnx/model_fp32.onnx", Device("cpu"))
    feed = trial_feed(session)
    assert {name: (array.dtype.name, array.tolist()) for name, array in feed.items()} == {
        "input_ids": ("int64", [[0, 0]]),
        "attention_mask": ("int64", [[1, 1]]),
    }
    assert session.run(None, feed)[0].shape[0] == 1


def test_operators_that_compute_more_than_shapes() -> None:
    assert computing_operators(["Concat", "Shape", "Gather", "Squeeze"]) == []
    assert computing_operators(["MatMul", "Concat", "Tan", "MatMul"]) == ["MatMul", "Tan"]


def test_options_of_the_provider() -> None:
    options = cuda_options(Device("cuda", 3))
    assert options == {
        "device_id": 3, "enable_skip_layer_norm_strict_mode": "1", "use_tf32": "0", "sdpa_kernel": "7",
    }  # fmt: skip
    assert cuda_options(Device("cuda"), short=True)["sdpa_kernel"] == "2"
