"""Folders of other shapes than Transformer, Pooling, Normalize: sentence-transformers' vectors, or a refusal."""

from __future__ import annotations

import json
import shutil
from functools import partial
from operator import itemgetter
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.numpy import load_file, save_file
from sentence_transformers import SentenceTransformer
from sentence_transformers.sentence_transformer.modules import Dense, LayerNorm, Normalize, StaticEmbedding

from es_sbert.bundle.sentence_model import read_sentence_model
from es_sbert.encoder.encoder import Encoder
from es_sbert.encoder.reranker import Reranker
from es_sbert.errors import BundleInvalid, UnsupportedArchitecture, UnsupportedSetting, UsageError
from es_sbert.exporters import export_model
from tests.raised import raises_as_recorded
from tests.tiny import tiny_tokenizer
from tests.unit.checkpoints import keep_only_the_vocabulary, write_checkpoint, write_cross_encoder
from tests.unit.exporters.comparison import assert_same, check, edit, our_vectors, their_vectors

pytestmark = pytest.mark.slow


@pytest.fixture(autouse=True)
def _cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ES_SBERT_CACHE", str(tmp_path / "cache"))


def _plain(folder: Path) -> Path:
    """The folder of the transformer alone, as transformers writes it."""
    for name in ("modules.json", "sentence_bert_config.json", "config_sentence_transformers.json"):
        (folder / name).unlink()
    shutil.rmtree(folder / "1_Pooling")
    return folder


@pytest.mark.parametrize("architecture", ["bert", "roberta"])
def test_transformer_alone_is_pooled_by_its_mean(tmp_path: Path, architecture: str) -> None:
    folder = _plain(write_checkpoint(tmp_path / "model", architecture, normalize=False))
    check(folder, tmp_path / "bundle")
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, "architectures": ["BertForSequenceClassification"]}))
    with raises_as_recorded(BundleInvalid):
        read_sentence_model(folder)
    (folder / "config.json").write_text(json.dumps(config))
    (folder / "chat_template.jinja").write_text("{{ messages }}")
    with raises_as_recorded(UnsupportedSetting):
        read_sentence_model(folder)


def test_folder_that_lost_its_modules_is_not_pooled(tmp_path: Path) -> None:
    """The mean would be wrong for a model that pools by its first token."""
    with raises_as_recorded(BundleInvalid):
        read_sentence_model(tmp_path)
    for kept in ("1_Pooling", "sentence_bert_config.json", "config_sentence_transformers.json"):
        folder = write_checkpoint(tmp_path / kept / "model", layers=1, pooling="cls")
        plain = _plain(shutil.copytree(folder, tmp_path / kept / "plain"))
        shutil.move(folder / kept, plain / kept)
        with raises_as_recorded(BundleInvalid):
            read_sentence_model(plain)


def test_static_embedding_is_the_mean_of_token_vectors(tmp_path: Path) -> None:
    torch.manual_seed(0)
    tokenizer = tiny_tokenizer()
    tokenizer.enable_padding()  # which must not count
    static = StaticEmbedding(tokenizer, embedding_dim=24)
    modules = [static, Normalize(), LayerNorm(24), Dense(24, 16), Normalize()]
    SentenceTransformer(modules=modules, prompts={"query": "query : "}).save(str(tmp_path / "model"))
    check(tmp_path / "model", tmp_path / "bundle")
    assert_same(our_vectors(tmp_path / "model"), their_vectors(tmp_path / "model"))  # on first use


def test_static_embedding_in_the_form_of_model2vec(tmp_path: Path) -> None:
    """Tokens share rows, and have weights."""
    folder = tmp_path / "model"
    folder.mkdir()
    tokenizer = tiny_tokenizer()
    tokenizer.enable_padding()
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
    check(folder, tmp_path / "bundle")
    (folder / "modules.json").unlink()
    (folder / "config.json").write_text(json.dumps({"model_type": "model2vec", "normalize": True}))
    with raises_as_recorded(UnsupportedArchitecture):
        read_sentence_model(folder)


@pytest.mark.parametrize("architecture", ["bert", "distilbert", "mpnet", "roberta"])
def test_vocabulary_without_tokenizer_file_makes_one(tmp_path: Path, architecture: str) -> None:
    folder = write_checkpoint(tmp_path / "model", architecture, layers=1)
    keep_only_the_vocabulary(folder)
    check(folder, tmp_path / "bundle")


@pytest.mark.parametrize("kind", ["bert", "electra", "cross-encoder"])
def test_tokenizer_with_more_tokens_than_the_weights(kind: str, tmp_path: Path) -> None:
    """A graph that is built, one that is traced, and one of pairs: texts with such a token are refused."""
    if kind == "cross-encoder":
        folder = write_cross_encoder(tmp_path / "model", layers=1)
    else:
        folder = write_checkpoint(tmp_path / "model", kind, layers=1)
    (rare, _) = max(json.loads((folder / "tokenizer.json").read_text())["model"]["vocab"].items(), key=itemgetter(1))
    for rows in (550, 40):  # 40: most words lack one
        weights = load_file(folder / "model.safetensors")
        (name,) = (name for name in weights if name.endswith("word_embeddings.weight"))
        weights[name] = weights[name][:rows].copy()
        save_file(weights, folder / "model.safetensors", {"format": "pt"})
        edit(folder / "config.json", vocab_size=rows)
        if rows == 40:
            with raises_as_recorded(BundleInvalid):
                export_model(folder, tmp_path / "other", ["fp32"])
            break
        export_model(folder, output := tmp_path / "bundle", ["fp32", "int8"])
        with Reranker(output) if kind == "cross-encoder" else Encoder(output) as opened:
            run = partial(opened.predict, "a") if isinstance(opened, Reranker) else opened.encode
            assert np.isfinite(run(["the telescope"])).all()
            with raises_as_recorded(UsageError):
                run([f"a {rare}"])
