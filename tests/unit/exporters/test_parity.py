"""The parity gate compares with sentence-transformers, and says which text and what is behind a difference."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from es_sbert.bundle.bundle import cached_bundle_path, open_encoder_bundle
from es_sbert.bundle.sentence_model import read_sentence_model
from es_sbert.bundle.variants import Precision, Variant
from es_sbert.encoder.encoder import Encoder
from es_sbert.errors import ModelError, ParityFailed, UnsupportedSetting
from es_sbert.exporters.architectures import read_transformer_weights
from es_sbert.exporters.export_bundle import export_bundle
from es_sbert.exporters.graph_builder import save_graph
from es_sbert.exporters.parity import row_cosines
from es_sbert.exporters.sentence_graph import build_sentence_graph
from es_sbert.runtime.inference_pool import InferencePool
from es_sbert.runtime.onnx_session import OnnxCpuModel
from tests.raised import raises_as_recorded
from tests.unit.checkpoints import write_checkpoint
from tests.unit.exporters.comparison import edit


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    folder = write_checkpoint(tmp_path / "model", layers=2, max_tokens=40, prompts={"query": "query: "})
    edit(folder / "tokenizer_config.json", tokenizer_class="BertTokenizer")
    return folder


# Setting of a file, how the model is read without it.
MISREAD: list[tuple[str, dict[str, Any], dict[str, Any]]] = [
    ("tokenizer_config.json", {"do_lower_case": False}, {"tokenizer_changes": {}}),
    ("sentence_bert_config.json", {"query_length": 9}, {"max_tokens_by_kind": {}}),
    ("config.json", {}, {"prompts": {"query": "question: "}}),
]


@pytest.mark.parametrize(("file", "settings", "misread"), MISREAD)
def test_misread_setting_is_named(
    file: str, settings: dict[str, Any], misread: dict[str, Any], folder: Path, tmp_path: Path
) -> None:
    edit(folder / file, **settings)
    model = read_sentence_model(folder).model_copy(update=misread)
    with raises_as_recorded(ParityFailed):
        export_bundle(model, tmp_path / "bundle", [Variant.FP32], reference="auto")
    assert not (tmp_path / "bundle").exists()


def test_passage_prompt_is_the_prompt_of_documents(tmp_path: Path) -> None:
    """As sentence-transformers documents it; release 6.2 leaves it out."""
    folder = write_checkpoint(tmp_path / "model", layers=1, prompts={"passage": "passage: "})
    edit(folder / "config_sentence_transformers.json", prompts={"passage": "passage: "})
    model = read_sentence_model(folder)
    assert model.prompt("document") == "passage: "
    manifest = export_bundle(model, tmp_path / "bundle", [Variant.FP32], reference="auto")
    assert manifest.variants["fp32"].parity is not None
    assert manifest.variants["fp32"].parity.passed


@pytest.mark.parametrize("precision", [Variant.FP32, Variant.INT8])
def test_misread_network_is_named(folder: Path, tmp_path: Path, precision: Precision) -> None:
    """Of int8 too, for which lost bits alone would be a reason."""
    model = read_sentence_model(folder)
    fewer = {**model.transformer_config, "num_hidden_layers": 1}
    with raises_as_recorded(ParityFailed):
        export_bundle(
            model.model_copy(update={"transformer_config": fewer}), tmp_path / "bundle", [precision], reference="auto"
        )


def test_first_use_compares_with_sentence_transformers(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ES_SBERT_CACHE", str(tmp_path / "cache"))
    with Encoder(folder, device="cpu", precision="fp32") as encoder:
        bundle = open_encoder_bundle(cached_bundle_path(encoder.info.fingerprint))
    parity = bundle.manifest.variants["fp32"].parity
    assert parity is not None
    assert parity.reference.startswith("sentence-transformers ")


def test_cached_bundle_does_not_open_a_folder_that_is_refused(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The two folders have the same weights, tokenizer and settings that are applied."""
    monkeypatch.setenv("ES_SBERT_CACHE", str(tmp_path / "cache"))
    with Encoder(folder, device="cpu", precision="fp32"):
        pass
    edit(folder / "config.json", auto_map={"AutoModel": "modeling.Model"})
    with raises_as_recorded(UnsupportedSetting):
        Encoder(folder, device="cpu", precision="fp32")


@pytest.mark.parametrize("pooling", ["mean", "cls", "max", "lasttoken"])
def test_text_without_tokens_has_the_zero_vector(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, pooling: str) -> None:
    """The tokenizer adds no special tokens. In a batch sentence-transformers gives it too, where it is defined."""
    monkeypatch.setenv("ES_SBERT_CACHE", str(tmp_path / "cache"))
    folder = write_checkpoint(tmp_path / "model", layers=1, pooling=pooling)
    edit(folder / "tokenizer.json", post_processor=None)
    with Encoder(folder, device="cpu", precision="fp32") as encoder:
        alone = encoder.encode([""])
        both = encoder.encode(["", "a man", ""])
    np.testing.assert_array_equal(alone, np.zeros((1, 48)))
    assert np.abs(both).sum(axis=1).tolist()[::2] == [0, 0]
    assert np.linalg.norm(both[1]) == pytest.approx(1)


def test_two_zero_vectors_are_equal() -> None:
    first = np.array([[0, 0], [1, 0], [0, 0]], np.float32)
    second = np.array([[0, 0], [1, 0], [1, 0]], np.float32)
    assert row_cosines(first, second).tolist() == [1, 1, 0]


def test_graph_that_does_not_run_is_a_model_error(folder: Path, tmp_path: Path) -> None:
    graph = tmp_path / "graph.onnx"
    model = read_sentence_model(folder)
    save_graph(build_sentence_graph(model, read_transformer_weights(model), Precision.FP32), graph)
    with closing(InferencePool(OnnxCpuModel(graph, 1))) as pool, pool.session() as session:
        feed = {name: np.full((1, 3), 10**6) for name in ("input_ids", "attention_mask")}
        with raises_as_recorded(ModelError):
            session.run(feed, np.empty((1, model.dimensions), np.float32))
