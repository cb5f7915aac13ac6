"""Which variant of a sentence encoder runs, and its export on the first use."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from es_sbert.bundle.bundle import EncoderManifest, open_encoder_bundle
from es_sbert.bundle.sentence_model import SentenceModel, read_sentence_model
from es_sbert.bundle.variants import Variant
from es_sbert.encoder import model_loading
from es_sbert.encoder.model_loading import find_encoder, select_encoder_variant
from es_sbert.errors import ParityFailed
from es_sbert.exporters.export_bundle import export_bundle
from es_sbert.runtime import device
from es_sbert.runtime.device import Device
from tests.tiny import write_tiny_bert

CPU = Device("cpu")
BOTH = (Variant.INT8, Variant.FP32)


@pytest.fixture(autouse=True)
def int8_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An empty cache, and a processor on which int8 is usually the fastest."""
    monkeypatch.setenv("ES_SBERT_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(model_loading, "variant_order", lambda device, runtime, precision: BOTH)


@pytest.mark.parametrize(
    ("change", "reason"), [({"forced": True}, "below its parity threshold"), ({"parity": None}, "was never compared")]
)
def test_variant_without_parity_runs_only_if_there_is_no_other(
    change: dict[str, object], reason: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    export_bundle(read_sentence_model(write_tiny_bert(tmp_path / "tiny")), tmp_path / "bundle", BOTH)
    bundle = open_encoder_bundle(tmp_path / "bundle")
    for changed, runs in (("int8",), "fp32"), (("int8", "fp32"), "int8"):
        variants = dict(bundle.manifest.variants)
        variants |= {name: variants[name].model_copy(update=change) for name in changed}
        other = replace(bundle, manifest=bundle.manifest.model_copy(update={"variants": variants}))
        monkeypatch.setattr(model_loading, "open_encoder_bundle", lambda folder, other=other: other)
        selected = select_encoder_variant(find_encoder(bundle.folder), CPU, report=lambda message: None)
        assert selected.variant == runs
        assert any("variant int8" in warning and reason in warning for warning in selected.warnings)


def test_variant_that_cannot_be_exported_is_tried_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tried: list[str] = []

    def export(model: SentenceModel, output: Path, variants: Sequence[Variant], **options: Any) -> EncoderManifest:
        tried.extend(variants)
        if Variant.INT8 in variants:
            raise ParityFailed("int8 is too far off", "Leave it out.")
        return export_bundle(model, output, variants, **options)

    monkeypatch.setattr("es_sbert.exporters.export_bundle.export_bundle", export)
    folder = write_tiny_bert(tmp_path / "tiny")
    for _ in range(2):
        selected = select_encoder_variant(find_encoder(folder), CPU, report=lambda message: None)
        assert selected.variant == "fp32"
        assert "there is no int8 variant (int8 is too far off): fp32 runs instead" in selected.warnings
    assert tried == ["int8", "fp32"]
    monkeypatch.setattr(device, "processor_name", lambda: "another processor")
    select_encoder_variant(find_encoder(folder), CPU, report=lambda message: None)
    assert tried == ["int8", "fp32", "int8"]
