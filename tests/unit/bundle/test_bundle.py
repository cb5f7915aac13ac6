"""A bundle is what its manifest says, or it is refused."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from es_sbert.bundle.bundle import EncoderManifest, open_encoder_bundle
from es_sbert.bundle.sentence_model import read_sentence_model
from es_sbert.bundle.variants import Variant
from es_sbert.encoder.encoder import Encoder
from es_sbert.errors import BundleInvalid, ModelError
from es_sbert.exporters.export_bundle import export_bundle
from tests.raised import raises_as_recorded
from tests.tiny import write_tiny_bert
from tests.unit.bundle.test_model_files import LFS_POINTER


@pytest.fixture
def bundle(tmp_path: Path) -> Path:
    model = read_sentence_model(write_tiny_bert(tmp_path / "model", prompts={"query": "query: "}), "acme/tiny")
    export_bundle(model, tmp_path / "bundle", [Variant.FP32])
    return tmp_path / "bundle"


def _edit(path: Path, change: Callable[[Any], Any]) -> None:
    value = json.loads(path.read_text())
    change(value)
    path.write_text(json.dumps(value))


@pytest.mark.parametrize(
    ("file", "change"),
    [
        (EncoderManifest.FILE_NAME, lambda m: m.update(fingerprint="0" * 32)),
        (EncoderManifest.FILE_NAME, lambda m: m.update(format=99)),
        (EncoderManifest.FILE_NAME, lambda m: m["variants"]["fp32"].update(file="../../x.onnx")),
        (EncoderManifest.FILE_NAME, lambda m: m.update(dimensions="many")),
        ("1_Pooling/config.json", lambda c: c.update(pooling_mode="cls")),
        ("config_sentence_transformers.json", lambda c: c["prompts"].update(query="Q")),
    ],
)
def test_edited_bundle_is_rejected(bundle: Path, file: str, change: Callable[[Any], Any]) -> None:
    _edit(bundle / file, change)
    with raises_as_recorded(BundleInvalid):
        Encoder(str(bundle), device="cpu", precision="fp32")


def test_changed_graph_is_refused(bundle: Path) -> None:
    opened = open_encoder_bundle(bundle)
    path = opened.variant_file("fp32")
    path.write_bytes(path.read_bytes() + b"\0")
    with raises_as_recorded(BundleInvalid):
        Encoder(str(bundle), device="cpu", precision="fp32")
    path.unlink()
    with raises_as_recorded(BundleInvalid):
        Encoder(str(bundle), device="cpu", precision="fp32")
    path.write_text(LFS_POINTER)
    with raises_as_recorded(BundleInvalid):
        opened.variant_file("fp32")


def test_missing_variant_error_names_the_export_option(bundle: Path) -> None:
    with raises_as_recorded(ModelError):
        Encoder(str(bundle), device="cpu", precision="int8")


def test_cache_that_cannot_be_written_is_a_model_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """For a caller of the gateway it is no mistake of its request."""
    monkeypatch.setenv("ES_SBERT_CACHE", str(tmp_path / "model/config.json"))
    with raises_as_recorded(ModelError):
        Encoder(write_tiny_bert(tmp_path / "model"), device="cpu", precision="fp32")
