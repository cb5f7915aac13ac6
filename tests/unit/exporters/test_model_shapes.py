"""Folders of other shapes than Transformer, Pooling, Normalize: sentence-transformers' vectors, or a refusal."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.numpy import save_file
from sentence_transformers import SentenceTransformer
from sentence_transformers.sentence_transformer.modules import (
    Dense,
    Normalize,
    StaticEmbedding,
)
from tokenizers import Tokenizer

from es_sbert.bundle.sentence_model import read_sentence_model
from es_sbert.encoder.encoder import Encoder
from es_sbert.errors import BundleInvalid, UnsupportedArchitecture, UnsupportedSetting
from es_sbert.exporters import export
from es_sbert.exporters.parity import row_cosines
from tests.tiny import tiny_tokenizer
from tests.unit.checkpoints import write_checkpoint

pytestmark = pytest.mark.slow

TEXTS = ["", "a", "The CAT sleeps", "  leading space", "naïve café", "[MASK] and <mask> spelled out", "yes " * 60]


@pytest.fixture(autouse=True)
def _cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ES_SBERT_CACHE", str(tmp_path / "cache"))


def check(folder: Path, tmp_path: Path) -> None:
    """On first use, and from a bundle, which both libraries open."""
    expected = _their_vectors(folder)
    _same(_our_vectors(folder), expected)
    manifest = export(folder, tmp_path / "bundle", ["fp32"])
    assert manifest.fingerprint == read_sentence_model(folder).fingerprint
    _same(_our_vectors(tmp_path / "bundle"), expected)
    _same(_their_vectors(tmp_path / "bundle"), expected)


def _their_vectors(folder: Path) -> np.ndarray[Any, Any]:
    return np.asarray(SentenceTransformer(str(folder), device="cpu", local_files_only=True).float().encode(TEXTS))


def _our_vectors(folder: Path) -> np.ndarray[Any, Any]:
    with Encoder(folder, device="cpu", precision="fp32") as encoder:
        return encoder.encode(TEXTS)


def _same(vectors: np.ndarray[Any, Any], expected: np.ndarray[Any, Any]) -> None:
    assert vectors.shape == expected.shape
    assert row_cosines(vectors, expected).min() > 0.99999


def _plain(folder: Path) -> Path:
    """The folder of the transformer alone, as transformers writes it."""
    for name in ("modules.json", "sentence_bert_config.json", "config_sentence_transformers.json"):
        (folder / name).unlink()
    shutil.rmtree(folder / "1_Pooling")
    return folder


@pytest.mark.parametrize("architecture", ["bert", "distilbert", "roberta"])
def test_transformer_alone_is_pooled_by_its_mean(tmp_path: Path, architecture: str) -> None:
    check(_plain(write_checkpoint(tmp_path / "model", architecture, normalize=False)), tmp_path)


def test_cross_encoder_is_not_pooled(tmp_path: Path) -> None:
    folder = _plain(write_checkpoint(tmp_path / "model"))
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, "architectures": ["BertForSequenceClassification"]}))
    with pytest.raises(BundleInvalid, match="is a cross-encoder") as raised:
        read_sentence_model(folder)
    assert "es-sbert export" in raised.value.remedy


def test_chat_template_alone_is_refused(tmp_path: Path) -> None:
    folder = _plain(write_checkpoint(tmp_path / "model"))
    (folder / "chat_template.jinja").write_text("{{ messages }}")
    with pytest.raises(UnsupportedSetting, match="turns each text into a chat message"):
        read_sentence_model(folder)


def test_folder_that_lost_its_modules_is_not_pooled(tmp_path: Path) -> None:
    """The mean would be wrong for a model that pools by its first token."""
    with pytest.raises(BundleInvalid, match=r"no modules\.json and no config\.json"):
        read_sentence_model(tmp_path)
    for kept in ("1_Pooling", "sentence_bert_config.json", "config_sentence_transformers.json"):
        folder = write_checkpoint(tmp_path / kept / "model", layers=1, pooling="cls")
        plain = _plain(shutil.copytree(folder, tmp_path / kept / "plain"))
        shutil.move(folder / kept, plain / kept)
        with pytest.raises(BundleInvalid, match=rf"no modules\.json but {re.escape(kept)}"):
            read_sentence_model(plain)


def _static_tokenizer() -> Tokenizer:
    tokenizer = Tokenizer.from_str(tiny_tokenizer().to_str())
    tokenizer.enable_padding()
    return tokenizer


def test_static_embedding_is_the_mean_of_token_vectors(tmp_path: Path) -> None:
    torch.manual_seed(0)
    static = StaticEmbedding(_static_tokenizer(), embedding_dim=24)
    network = SentenceTransformer(modules=[static, Dense(24, 16), Normalize()], prompts={"query": "query : "})
    network.save(str(tmp_path / "model"))
    check(tmp_path / "model", tmp_path)
    with Encoder(tmp_path / "bundle", device="cpu", precision="fp32") as encoder:
        _same(encoder.encode(TEXTS, "query"), np.asarray(network.encode_query(TEXTS)))
        assert encoder.encode(["nothing known"]).shape == (1, 16)


def test_static_embedding_in_the_form_of_model2vec(tmp_path: Path) -> None:
    """Tokens share rows, and have weights."""
    folder = tmp_path / "model"
    folder.mkdir()
    tokenizer = _static_tokenizer()
    tokenizer.enable_truncation(6)
    tokenizer.save(str(folder / "tokenizer.json"))
    generator = np.random.default_rng(0)
    count = tokenizer.get_vocab_size()
    tensors = {
        "embeddings": generator.normal(size=(5, 12)).astype(np.float32),
        "mapping": generator.integers(0, 5, count),
        "weights": generator.random(count),
    }
    save_file(tensors, folder / "model.safetensors")
    kind = "sentence_transformers.models"
    modules = [
        {"idx": 0, "name": "0", "path": ".", "type": f"{kind}.StaticEmbedding"},
        {"idx": 1, "name": "1", "path": "1_Normalize", "type": f"{kind}.Normalize"},
    ]
    (folder / "modules.json").write_text(json.dumps(modules))
    (folder / "1_Normalize").mkdir()
    assert read_sentence_model(folder).max_tokens == 6
    check(folder, tmp_path)
    (folder / "modules.json").unlink()
    (folder / "config.json").write_text(json.dumps({"model_type": "model2vec", "normalize": True}))
    with pytest.raises(UnsupportedArchitecture, match="model2vec without modules") as raised:
        read_sentence_model(folder)
    assert "from_model2vec" in raised.value.remedy


@pytest.mark.parametrize("architecture", ["bert", "distilbert", "mpnet", "roberta"])
def test_vocabulary_without_tokenizer_file_makes_one(tmp_path: Path, architecture: str) -> None:
    """As older folders are: vocab.txt, or vocab.json and merges.txt."""
    folder = write_checkpoint(tmp_path / "model", architecture, layers=1)
    name = {"bert": "Bert", "distilbert": "DistilBert", "mpnet": "MPNet", "roberta": "Roberta"}[architecture]
    tokens = {"cls_token", "sep_token", "pad_token", "unk_token", "mask_token", "bos_token", "eos_token"}
    settings = json.loads((folder / "tokenizer_config.json").read_text())
    kept = {key: value for key, value in settings.items() if key in tokens | {"model_max_length"}}
    (folder / "tokenizer_config.json").write_text(json.dumps({**kept, "tokenizer_class": f"{name}Tokenizer"}))
    model = json.loads((folder / "tokenizer.json").read_text())["model"]
    (folder / "tokenizer.json").unlink()
    if architecture == "roberta":
        (folder / "vocab.json").write_text(json.dumps(model["vocab"]))
        pairs = [pair if isinstance(pair, str) else " ".join(pair) for pair in model["merges"]]
        (folder / "merges.txt").write_text("\n".join(["#version: 0.2", *pairs]) + "\n")
    else:
        words = sorted(model["vocab"], key=model["vocab"].get)
        (folder / "vocab.txt").write_text("\n".join(words) + "\n")
    check(folder, tmp_path)


def test_folder_without_a_vocabulary_says_how_to_write_a_tokenizer(tmp_path: Path) -> None:
    folder = write_checkpoint(tmp_path / "model", "xlm-roberta", layers=1)
    (folder / "tokenizer.json").unlink()
    with pytest.raises(BundleInvalid, match=r"no tokenizer\.json") as raised:
        read_sentence_model(folder)
    assert "save_pretrained" in raised.value.remedy
