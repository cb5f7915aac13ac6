"""What a user calls a model leads to what can be measured, on the backend asked for."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Literal

import numpy as np
import pytest

from es_sbert.bundle.cross_encoder_model import read_cross_encoder
from es_sbert.bundle.variants import Variant
from es_sbert.encoder.reranker import Reranker
from es_sbert.errors import DeviceError, ModelError, ModelNotFound, UnsupportedArchitecture, UsageError
from es_sbert.evaluation.evaluated_models import OnnxEmbedder, PairScorer, SentenceEmbedder, close_model, open_model
from es_sbert.exporters.export_bundle import export_reranker
from es_sbert.networks.cross_encoder import CrossEncoder
from es_sbert.networks.siamese_encoder import SiameseEncoder
from tests.tiny import write_tiny_bert
from tests.unit.checkpoints import write_checkpoint, write_cross_encoder

TEXTS = ["a man plays the guitar", "the cat sleeps on the mat", "a cat"]


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_bert(tmp_path_factory.mktemp("models") / "tiny", prompts={"query": "query : "})


@pytest.fixture(autouse=True)
def _own_cache(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ES_SBERT_CACHE", str(tmp_path_factory.getbasetemp() / "cache"))


def test_backend_defaults_to_onnx_and_torch_gives_equal_vectors(tiny: Path) -> None:
    told: list[str] = []
    onnx = open_model(str(tiny), precision="fp32", device="cpu", report=told.append)
    siamese = open_model(str(tiny), backend="torch", device="cpu")
    assert isinstance(onnx, OnnxEmbedder)
    assert isinstance(onnx, SentenceEmbedder)
    assert isinstance(siamese, SiameseEncoder)
    assert isinstance(siamese, SentenceEmbedder)
    assert (onnx.name, siamese.name) == (f"{tiny} (fp32)", str(tiny))
    assert any("Exporting" in message for message in told)
    for kind in (None, "query"):
        np.testing.assert_allclose(onnx.embed(TEXTS, kind), siamese.embed(TEXTS, kind), atol=1e-5)  # type: ignore[arg-type]
    assert np.abs(onnx.embed(TEXTS) - onnx.embed(TEXTS, "query")).max() > 0.01
    close_model(onnx)
    close_model(siamese)
    with pytest.raises(UsageError, match="the model is closed"):
        onnx.embed(TEXTS)


def test_open_cross_encoder(tmp_path: Path) -> None:
    folder, exported = tmp_path / "cross", tmp_path / "exported"
    write_cross_encoder(folder, layers=1)
    network = open_model(str(folder), device="cpu")
    assert isinstance(network, CrossEncoder)
    assert isinstance(network, PairScorer)
    assert not isinstance(network, SentenceEmbedder)
    assert network.name == str(folder)
    with pytest.raises(UsageError, match="was not exported") as caught:
        open_model(str(folder), backend="onnx")
    assert f"es-sbert export {folder}" in caught.value.remedy

    export_reranker(read_cross_encoder(folder), exported, [Variant.FP32])
    onnx = open_model(str(exported), device="cpu", precision="fp32")
    assert isinstance(onnx, Reranker)
    assert isinstance(onnx, PairScorer)
    np.testing.assert_allclose(onnx.score(TEXTS, TEXTS[::-1]), network.score(TEXTS, TEXTS[::-1]), atol=1e-4)
    close_model(onnx)
    assert isinstance(open_model(str(exported), backend="torch", device="cpu"), CrossEncoder)


@pytest.mark.parametrize("backend", ["onnx", "torch"])
def test_poly_encoder_is_refused_by_name(tiny: Path, tmp_path: Path, backend: Literal["onnx", "torch"]) -> None:
    folder = Path(shutil.copytree(tiny, tmp_path / "poly"))
    (folder / "poly_encoder.json").write_text('{"format": 1, "name": "poly", "codes": 3}')
    with pytest.raises(UnsupportedArchitecture, match="poly is a poly-encoder") as caught:
        open_model(str(folder), backend=backend, device="cpu")
    assert "cross-encoder" in caught.value.remedy


def test_bare_transformer_is_mean_pooled_in_torch(tmp_path: Path) -> None:
    write_checkpoint(tmp_path / "model", layers=1)
    model = open_model(str(tmp_path / "model-transformer"), device="cpu")  # without modules.json
    assert isinstance(model, OnnxEmbedder) is False
    assert isinstance(model, SentenceEmbedder)
    whole = open_model(str(tmp_path / "model"), backend="torch", device="cpu")
    assert isinstance(whole, SentenceEmbedder)
    # The folder with modules.json adds mean pooling and unit length.
    vectors = model.embed(TEXTS)
    np.testing.assert_allclose(vectors / np.linalg.norm(vectors, axis=1, keepdims=True), whole.embed(TEXTS), atol=1e-5)


def test_baseline_spec_error_names_the_command() -> None:
    for spec in ("glove:words.txt", "tfidf", "average:model"):
        with pytest.raises(ModelNotFound, match="is a baseline") as caught:
            open_model(spec)
        assert f"python -m benchmarks.baselines evaluate {spec}" in caught.value.remedy


def test_folder_named_like_a_baseline_is_opened(tiny: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "glove:tiny").symlink_to(tiny)
    monkeypatch.chdir(tmp_path)
    assert isinstance(open_model("glove:tiny", backend="torch", device="cpu"), SiameseEncoder)


@pytest.mark.parametrize("precision", ["int8", "fp16"])
def test_torch_backend_rejects_other_precisions(tiny: Path, precision: str) -> None:
    with pytest.raises(UsageError, match=f"in fp32, not in {precision}"):
        open_model(str(tiny), backend="torch", precision=precision)


@pytest.mark.parametrize("device", ["gpu", "cpu:1", "cuda:x"])
def test_unknown_devices_are_rejected(tiny: Path, device: str) -> None:
    with pytest.raises(UsageError, match="unknown device"):
        open_model(str(tiny), backend="torch", device=device)


def test_absent_device_raises_device_error(tiny: Path) -> None:
    with pytest.raises(DeviceError, match="cuda:99 does not exist: torch sees"):
        open_model(str(tiny), backend="torch", device="cuda:99")


def test_non_model_folder_raises_model_error(tmp_path: Path) -> None:
    with pytest.raises(ModelError):
        open_model(str(tmp_path))
