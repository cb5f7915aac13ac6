"""Weights out of ONNX files that torch has exported, against the weights of the network itself."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import onnx
import pytest
import torch
from numpy.typing import NDArray
from onnx import helper, numpy_helper
from safetensors.numpy import load_file
from torch import Tensor, nn
from transformers import AutoModel

from es_sbert.bundle.sentence_model import read_sentence_model
from es_sbert.bundle.variants import Variant
from es_sbert.errors import BundleInvalid, ParityFailed
from es_sbert.exporters.export_bundle import export_bundle
from es_sbert.exporters.onnx_weights import check_against_onnx, read_onnx_weights, write_onnx_weights
from es_sbert.exporters.tracing import trace_module
from tests.raised import raises_as_recorded
from tests.unit.bundle.test_model_files import LFS_POINTER
from tests.unit.checkpoints import ARCHITECTURES, mostly_long, write_checkpoint


class LastHiddenState(nn.Module):
    """A transformer whose only output is the vectors of its tokens."""

    def __init__(self, folder: Path) -> None:
        super().__init__()
        self.model = AutoModel.from_pretrained(folder, attn_implementation="eager")

    def forward(self, input_ids: Tensor, attention_mask: Tensor) -> Tensor:
        vectors: Tensor = self.model(input_ids=input_ids, attention_mask=attention_mask).last_hidden_state
        return vectors


class TextVectors(LastHiddenState):
    """The vector of the first token, not normalized."""

    def forward(self, input_ids: Tensor, attention_mask: Tensor) -> Tensor:
        return 3 * super().forward(input_ids, attention_mask)[:, 0]


def export_with_torch(folder: Path, path: Path, kind: type = LastHiddenState, output: str = "tokens") -> Path:
    """The transformer of a folder as torch exports it."""
    ids = torch.tensor([[5, 6, 7], [8, 9, 2]])
    mask = torch.tensor([[1, 1, 1], [1, 1, 0]])
    inputs = {"input_ids": ids, "attention_mask": mask}
    onnx.save(trace_module(kind(folder), inputs, output, name="foreign"), path)
    return path


@pytest.fixture(scope="module")
def bert(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A model folder, and the ONNX file of its transformer."""
    folder = write_checkpoint(tmp_path_factory.mktemp("foreign") / "bert", "bert")
    return folder, export_with_torch(folder, folder.parent / "model.onnx")


@pytest.mark.parametrize("architecture", mostly_long(ARCHITECTURES))
def test_weights_are_those_of_the_network(architecture: str, tmp_path: Path) -> None:
    folder = write_checkpoint(tmp_path / "model", architecture)
    path = export_with_torch(folder, tmp_path / "model.onnx")
    expected = load_file(folder / "model.safetensors")
    found = read_onnx_weights(path)
    prefix = next(name for name in expected if name.endswith("embeddings.word_embeddings.weight"))
    prefix = prefix.removesuffix("embeddings.word_embeddings.weight")
    for name, tensor in found.items():
        np.testing.assert_array_equal(tensor, expected[prefix + name], err_msg=name)
    unused = {name.removeprefix(prefix) for name in expected} - set(found)
    assert all("pooler" in name or "position_ids" in name for name in unused), unused


def test_model_made_of_an_onnx_file_equals_the_original(bert: tuple[Path, Path], tmp_path: Path) -> None:
    folder, path = bert
    copy = Path(shutil.copytree(folder, tmp_path / "copy"))
    (copy / "model.safetensors").unlink()
    write_onnx_weights(path, copy)
    model = read_sentence_model(copy)
    assert check_against_onnx(model, path) < 1e-5
    report = export_bundle(model, tmp_path / "bundle", [Variant.FP32]).variants["fp32"].parity
    assert report is not None
    assert report.passed


@pytest.mark.parametrize("output", ["sentence_embedding", "vectors"])
def test_vectors_of_texts_are_compared_by_their_direction(output: str, tmp_path: Path) -> None:
    folder = write_checkpoint(tmp_path / "bert", "bert", pooling="cls")
    path = export_with_torch(folder, tmp_path / "model.onnx", TextVectors, output)
    assert check_against_onnx(read_sentence_model(folder), path) < 1e-5
    with raises_as_recorded(ParityFailed):
        check_against_onnx(read_sentence_model(write_checkpoint(tmp_path / "mean", "bert")), path)


@pytest.mark.parametrize(
    ("key", "value"), [("layer_norm_eps", 0.5), ("hidden_act", "relu"), ("num_attention_heads", 2)]
)
def test_wrong_setting_is_found_by_comparing_with_the_file(
    key: str, value: object, bert: tuple[Path, Path], tmp_path: Path
) -> None:
    folder, path = bert
    copy = Path(shutil.copytree(folder, tmp_path / "copy"))
    config = json.loads((copy / "config.json").read_text())
    (copy / "config.json").write_text(json.dumps({**config, key: value}))
    with raises_as_recorded(ParityFailed):
        check_against_onnx(read_sentence_model(copy), path)


def test_matrix_without_its_name_is_named_by_its_node_and_transposed_once(tmp_path: Path) -> None:
    graph = _graph(tmp_path, "encoder.layer.0.attention.self.query")
    assert set(graph) == {"embeddings.word_embeddings.weight", "encoder.layer.0.attention.self.query.weight"}
    weight = _graph(tmp_path, "encoder.layer.0.output.dense", gemm=True)["encoder.layer.0.output.dense.weight"]
    np.testing.assert_array_equal(weight, np.arange(6, dtype=np.float32).reshape(2, 3))


def test_file_whose_weights_cannot_be_read_is_refused(tmp_path: Path) -> None:
    with raises_as_recorded(BundleInvalid):
        _graph(tmp_path, "")
    path = _save(tmp_path, [helper.make_node("MatMulInteger", ["x", "w"], ["y"])], {})
    with raises_as_recorded(BundleInvalid):
        read_onnx_weights(path)
    path = _save(tmp_path, [], {"onnx::Gather_1": np.zeros((2, 3), np.float32)})
    with raises_as_recorded(BundleInvalid):
        read_onnx_weights(path)
    path = _save(tmp_path, [], {"embeddings.word_embeddings.weight": np.zeros((2, 3), np.float32)})
    onnx.save(onnx.load(path), path, save_as_external_data=True, location="model.onnx_data", size_threshold=0)
    assert set(read_onnx_weights(path)) == {"embeddings.word_embeddings.weight"}
    (tmp_path / "model.onnx_data").write_text(LFS_POINTER)
    with raises_as_recorded(BundleInvalid):
        read_onnx_weights(path)
    (tmp_path / "model.onnx_data").unlink()
    with raises_as_recorded(BundleInvalid):
        read_onnx_weights(path)
    path.write_bytes(b"not a graph")
    with raises_as_recorded(BundleInvalid):
        read_onnx_weights(path)


def _graph(folder: Path, module: str, *, gemm: bool = False) -> dict[str, NDArray[np.float32]]:
    """The weights of a graph with one product, whose matrix has lost its name."""
    name = "/" + module.replace(".", "/") + "/MatMul" if module else "MatMul_0"
    matrix = np.arange(6, dtype=np.float32).reshape(2, 3)  # (outputs, inputs)
    tensors = {
        "model.embeddings.word_embeddings.weight": np.zeros((4, 3), np.float32),
        "onnx::MatMul_7": matrix if gemm else np.ascontiguousarray(matrix.T),
    }
    kind, options = ("Gemm", {"transB": 1}) if gemm else ("MatMul", {})
    node = helper.make_node(kind, ["x", "onnx::MatMul_7"], ["y"], name=name, **options)
    return read_onnx_weights(_save(folder, [node], tensors))


def _save(folder: Path, nodes: list[onnx.NodeProto], tensors: dict[str, NDArray[np.float32]]) -> Path:
    initializers = [numpy_helper.from_array(tensor, name) for name, tensor in tensors.items()]
    path = folder / "model.onnx"
    onnx.save(helper.make_model(helper.make_graph(nodes, "test", [], [], initializers)), path)
    return path
