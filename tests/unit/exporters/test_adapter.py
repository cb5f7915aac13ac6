"""LoRA adapters are merged as peft merges them, alone in a folder or beside the weights."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors.torch
import torch
from peft import LoraConfig
from safetensors.numpy import load_file, save_file
from sentence_transformers import SentenceTransformer

from es_sbert.bundle.sentence_model import read_sentence_model
from es_sbert.encoder.encoder import Encoder
from es_sbert.errors import BundleInvalid, ModelError, UnsupportedSetting
from es_sbert.exporters import export
from es_sbert.exporters.parity import row_cosines
from tests.tiny import write_tiny_bert

pytestmark = pytest.mark.slow

TEXTS = ["a man plays guitar", "the cat sleeps", "query : passage .", "a"]
PLAIN = {"r": 4, "lora_alpha": 16, "target_modules": ["query", "value"]}


def write_adapter(folder: Path, **settings: Any) -> Path:
    """A model whose weights are in `base` next to it."""
    base = write_tiny_bert(folder.parent / "base")
    network = SentenceTransformer(str(base), device="cpu")
    torch.manual_seed(0)
    network.add_adapter(LoraConfig(**{**PLAIN, "init_lora_weights": False, **settings}))
    network.save(str(folder))
    return folder


def their_vectors(folder: Path) -> np.ndarray[Any, Any]:
    return np.asarray(SentenceTransformer(str(folder), device="cpu", local_files_only=True).encode(TEXTS))


def our_vectors(folder: Path) -> np.ndarray[Any, Any]:
    with Encoder(folder, device="cpu", precision="fp32") as encoder:
        return encoder.encode(TEXTS)


@pytest.fixture(autouse=True)
def _cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ES_SBERT_CACHE", str(tmp_path / "cache"))


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"use_rslora": True},
        {"target_modules": "all-linear"},
        {"alpha_pattern": {"layer.0.attention.self.query": 64}, "rank_pattern": {"value": 2}},
        {"modules_to_save": ["intermediate.dense"]},
        {"bias": "all"},
    ],
    ids=["plain", "rank-stabilized", "all modules", "patterns", "saved modules", "biases"],
)
def test_adapter_is_merged_as_by_peft(tmp_path: Path, settings: dict[str, Any]) -> None:
    folder = write_adapter(tmp_path / "adapted", **settings)
    expected = their_vectors(folder)
    assert row_cosines(their_vectors(tmp_path / "base"), expected).min() < 0.9
    assert row_cosines(our_vectors(folder), expected).min() > 0.99999


def test_adapter_beside_the_weights_is_merged(tmp_path: Path) -> None:
    adapted = write_adapter(tmp_path / "adapted")
    beside = shutil.copytree(tmp_path / "base", tmp_path / "beside")
    for name in ("adapter_config.json", "adapter_model.safetensors"):
        shutil.copy(adapted / name, beside / name)
    assert row_cosines(our_vectors(beside), their_vectors(beside)).min() > 0.99999
    assert read_sentence_model(beside).fingerprint != read_sentence_model(tmp_path / "base").fingerprint


def test_bundle_of_an_adapter_needs_neither_it_nor_its_base(tmp_path: Path) -> None:
    folder = write_adapter(tmp_path / "adapted")
    expected = their_vectors(folder)
    manifest = export(folder, tmp_path / "bundle", ["fp32"])
    assert manifest.fingerprint == read_sentence_model(folder).fingerprint
    shutil.rmtree(tmp_path / "base")
    shutil.rmtree(folder)
    assert not list((tmp_path / "bundle").glob("adapter*"))
    assert row_cosines(our_vectors(tmp_path / "bundle"), expected).min() > 0.99999
    assert row_cosines(their_vectors(tmp_path / "bundle"), expected).min() > 0.99999


def test_weights_in_bfloat16_keep_their_type_where_nothing_is_merged(tmp_path: Path) -> None:
    folder = write_adapter(tmp_path / "adapted")
    weights = load_file(tmp_path / "base" / "model.safetensors")
    halved = {name: torch.from_numpy(value).to(torch.bfloat16) for name, value in weights.items()}
    safetensors.torch.save_file(halved, tmp_path / "base" / "model.safetensors", metadata={"format": "pt"})
    export(folder, tmp_path / "bundle", ["fp32"])
    read = safetensors.torch.load_file(tmp_path / "bundle/model.safetensors")
    assert read["embeddings.LayerNorm.weight"].dtype == torch.bfloat16
    assert read["encoder.layer.0.attention.self.query.weight"].dtype == torch.float32
    assert read_sentence_model(tmp_path / "bundle").fingerprint == read_sentence_model(folder).fingerprint


@pytest.mark.parametrize(
    ("settings", "named"),
    [
        ({"use_dora": True}, "use_dora"),
        ({"peft_type": "IA3"}, "peft_type"),
        ({"init_lora_weights": "pissa"}, "init_lora_weights"),
        ({"fan_in_fan_out": True}, "fan_in_fan_out"),
        ({"a_new_setting": 1}, "a_new_setting"),
    ],
)
def test_other_adapters_are_refused_by_name(tmp_path: Path, settings: dict[str, Any], named: str) -> None:
    folder = write_adapter(tmp_path / "adapted")
    config = json.loads((folder / "adapter_config.json").read_text())
    (folder / "adapter_config.json").write_text(json.dumps(config | settings))
    with pytest.raises(UnsupportedSetting, match=named):
        read_sentence_model(folder)


def test_base_of_a_bare_name_is_that_repository_of_the_hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from huggingface_hub import constants

    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "hub"))
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    folder = write_adapter(tmp_path / "adapted")
    config = json.loads((folder / "adapter_config.json").read_text())
    base = tmp_path / "hub/models--tiny-base/snapshots" / ("a" * 40)
    shutil.copytree(Path(config["base_model_name_or_path"]), base)
    (base.parents[1] / "refs").mkdir()
    (base.parents[1] / "refs/main").write_text("a" * 40)
    fingerprint = read_sentence_model(folder).fingerprint
    (folder / "adapter_config.json").write_text(json.dumps(config | {"base_model_name_or_path": "tiny-base"}))
    assert read_sentence_model(folder).fingerprint == fingerprint


def test_adapter_without_its_base_says_what_to_fetch(tmp_path: Path) -> None:
    folder = write_adapter(tmp_path / "adapted")
    config = json.loads((folder / "adapter_config.json").read_text())
    for name, message in (("/no/such/folder", "/no/such/folder"), (None, "does not name the base model")):
        (folder / "adapter_config.json").write_text(json.dumps(config | {"base_model_name_or_path": name}))
        with pytest.raises(ModelError, match=message) as raised:
            read_sentence_model(folder)
        assert "base_model_name_or_path" in raised.value.remedy
    (folder / "adapter_model.safetensors").unlink()
    with pytest.raises(BundleInvalid, match="no adapter_model.safetensors"):
        read_sentence_model(folder)


def test_adapter_of_another_model_is_refused(tmp_path: Path) -> None:
    folder = write_adapter(tmp_path / "adapted")
    tensors = load_file(folder / "adapter_model.safetensors")
    name = next(name for name in tensors if name.endswith("lora_B.weight"))
    save_file({**tensors, name: np.zeros((32, 4), np.float32)}, folder / "adapter_model.safetensors")
    with pytest.raises(BundleInvalid, match=r"shape \(32, 16\)"):
        read_sentence_model(folder)
    renamed = {each.replace("layer.1", "layer.9"): value for each, value in tensors.items()}
    save_file(renamed, folder / "adapter_model.safetensors")
    with pytest.raises(BundleInvalid, match=r"layer\.9.* 0 tensors"):
        read_sentence_model(folder)


def test_adapter_of_a_checkpoint_with_a_prefix_is_in_the_graph(tmp_path: Path) -> None:
    """Weights that BertForMaskedLM wrote, and an adapter that was trained on it, are called `bert.…`."""
    folder = write_adapter(tmp_path / "adapted")
    expected = our_vectors(folder)
    base = load_file(tmp_path / "base" / "model.safetensors")
    save_file({f"bert.{name}": value for name, value in base.items()}, tmp_path / "base" / "model.safetensors")
    tensors = load_file(folder / "adapter_model.safetensors")
    prefixed = {name.replace("base_model.model.", "base_model.model.bert."): value for name, value in tensors.items()}
    save_file(prefixed, folder / "adapter_model.safetensors")
    assert row_cosines(our_vectors(folder), expected).min() > 0.99999
