"""Averages and first outputs equal transformers with pooling by hand, and sentence-transformers' Pooling."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from sentence_transformers import SentenceTransformer
from sentence_transformers.sentence_transformer.modules import Dense, Pooling, Transformer
from transformers import AutoModel, AutoTokenizer

from benchmarks.baselines.pooled_transformer import TokenPooling, TransformerBaseline, pool_tokens
from es_sbert.errors import BundleInvalid, UnsupportedArchitecture
from es_sbert.evaluation.evaluated_models import SentenceEmbedder
from tests.tiny import HIDDEN, write_tiny_bert
from tests.unit.checkpoints import write_checkpoint

TEXTS = ["a man plays guitar", "", "the cat", "unknown words", "cat " * 60, "the cat sleeps on the mat ."]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_bert(tmp_path_factory.mktemp("model") / "tiny")


def bare(folder: Path, to: Path) -> Path:
    """The transformer alone, as transformers would save it."""
    to.mkdir()
    for name in ("config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json"):
        (to / name).write_bytes((folder / name).read_bytes())
    return to


@pytest.mark.parametrize("pooling", list(TokenPooling))
def test_equals_transformers_text_by_text(folder: Path, pooling: TokenPooling) -> None:
    tokenizer, network = AutoTokenizer.from_pretrained(folder), AutoModel.from_pretrained(folder).eval()
    expected = []
    for text in TEXTS:
        encoding = tokenizer(text, truncation=True, max_length=24, return_tensors="pt")
        with torch.no_grad():
            states = network(**encoding).last_hidden_state[0]
        expected.append((states.mean(0) if pooling is TokenPooling.AVERAGE else states[0]).numpy())
    vectors = TransformerBaseline(folder, pooling, "tiny").embed(TEXTS)
    assert vectors.dtype == np.float32
    np.testing.assert_allclose(vectors, expected, atol=2e-6)


@pytest.mark.parametrize("architecture", ["bert", "roberta", "distilbert", "mpnet"])
@pytest.mark.parametrize(("pooling", "mode"), [(TokenPooling.AVERAGE, "mean"), (TokenPooling.CLS, "cls")])
def test_equals_sentence_transformers(tmp_path: Path, architecture: str, pooling: TokenPooling, mode: str) -> None:
    # The folder's own pooling, Dense and Normalize are not what is measured.
    folder = write_checkpoint(tmp_path / "model", architecture, pooling="max", dense=[Dense(48, 8)], hidden=48)
    transformer = Transformer(str(tmp_path / "model-transformer"), max_seq_length=64)
    reference = SentenceTransformer(modules=[transformer, Pooling(48, pooling_mode=mode)], device="cpu")
    texts = ["A man plays a guitar.", "Word " * 200, "", "Two sentences. And more of them!"]
    vectors = TransformerBaseline(folder, pooling, "model").embed(texts)
    np.testing.assert_allclose(vectors, reference.encode(texts), atol=1e-5)


def test_bare_transformer_folder_gives_equal_vectors(folder: Path, tmp_path: Path) -> None:
    texts = [text for text in TEXTS if len(text) < 100]  # a bare folder says nothing of 24 tokens
    alone = TransformerBaseline(bare(folder, tmp_path / "bare"), TokenPooling.AVERAGE, "bare")
    whole = TransformerBaseline(folder, TokenPooling.AVERAGE, "tiny")
    np.testing.assert_array_equal(alone.embed(texts), whole.embed(texts))
    assert alone.embed(["cat " * 60]).shape == (1, HIDDEN)  # cut at the model's 40 positions


def test_vectors_are_independent_of_the_batch(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("benchmarks.baselines.pooled_transformer.BUDGET", {"cpu": 30})
    model = TransformerBaseline(folder, TokenPooling.AVERAGE, "tiny")
    alone = np.concatenate([model.embed([text]) for text in TEXTS])
    np.testing.assert_allclose(model.embed(TEXTS), alone, atol=2e-6)


def test_lowercase_setting_is_respected(folder: Path, tmp_path: Path) -> None:
    copy = bare(folder, tmp_path / "cased")
    tokenizer = json.loads((copy / "tokenizer.json").read_text())
    tokenizer["normalizer"]["lowercase"] = False
    (copy / "tokenizer.json").write_text(json.dumps(tokenizer))
    cased = TransformerBaseline(copy, TokenPooling.AVERAGE, "cased").embed(["The Cat", "the cat"])
    assert np.abs(cased[0] - cased[1]).max() > 1e-3
    (copy / "sentence_bert_config.json").write_text('{"do_lower_case": true}')
    lowered = TransformerBaseline(copy, TokenPooling.AVERAGE, "cased").embed(["The Cat", "the cat"])
    np.testing.assert_array_equal(lowered, cased[[1, 1]])


def test_pooling_by_hand() -> None:
    states = torch.tensor([[[1.0, 2.0], [3.0, 6.0], [90.0, 90.0]], [[5.0, 5.0], [7.0, 7.0], [9.0, 9.0]]])
    mask = torch.tensor([[1, 1, 0], [0, 0, 0]])
    assert pool_tokens(states, mask, TokenPooling.AVERAGE).tolist() == [[2.0, 4.0], [0.0, 0.0]]
    assert pool_tokens(states, mask, TokenPooling.CLS).tolist() == [[1.0, 2.0], [5.0, 5.0]]


def test_empty_input_and_unknown_prompt(folder: Path) -> None:
    model = TransformerBaseline(folder, TokenPooling.CLS, "tiny")
    assert isinstance(model, SentenceEmbedder)
    assert model.embed([]).shape == (0, HIDDEN)
    np.testing.assert_array_equal(model.embed(["a cat"], "query"), model.embed(["a cat"]))


def test_pickle_is_refused(folder: Path, tmp_path: Path) -> None:
    copy = bare(folder, tmp_path / "pickled")
    torch.save(load_file(copy / "model.safetensors"), copy / "pytorch_model.bin")
    (copy / "model.safetensors").unlink()
    with pytest.raises(BundleInvalid, match="pickle") as error:
        TransformerBaseline(copy, TokenPooling.AVERAGE, "pickled")
    assert "safetensors" in error.value.remedy


def test_weights_missing_tensors_are_rejected(folder: Path, tmp_path: Path) -> None:
    copy = bare(folder, tmp_path / "holes")
    tensors = load_file(copy / "model.safetensors")
    del tensors["encoder.layer.1.output.dense.weight"]
    save_file(tensors, copy / "model.safetensors", {"format": "pt"})
    with pytest.raises(BundleInvalid, match="lack encoder.layer.1.output.dense.weight"):
        TransformerBaseline(copy, TokenPooling.AVERAGE, "holes")


@pytest.mark.parametrize("name", ["config.json", "tokenizer.json", "model.safetensors"])
def test_missing_files_are_named(folder: Path, tmp_path: Path, name: str) -> None:
    copy = bare(folder, tmp_path / "part")
    (copy / name).unlink()
    with pytest.raises(BundleInvalid, match=name):
        TransformerBaseline(copy, TokenPooling.AVERAGE, "part")


@pytest.mark.parametrize(
    ("file", "content", "error", "message"),
    [
        ("tokenizer.json", '{"model": 1}', BundleInvalid, "cannot be opened by transformers"),
        (
            "config.json",
            '{"model_type": "unheard-of", "max_position_embeddings": 9}',
            BundleInvalid,
            "cannot be opened",
        ),
        ("config.json", '{"model_type": "t5", "is_encoder_decoder": true}', UnsupportedArchitecture, "decoder"),
        ("modules.json", "[]", BundleInvalid, "modules.json is broken"),
        ("modules.json", '[{"type": "a.WordEmbeddings", "path": ""}]', UnsupportedArchitecture, "WordEmbeddings"),
        ("modules.json", '[{"type": "a.Transformer", "path": "../x"}]', BundleInvalid, "outside the folder"),
    ],
)
def test_broken_folders_are_refused(
    folder: Path, tmp_path: Path, file: str, content: str, error: type[Exception], message: str
) -> None:
    copy = bare(folder, tmp_path / "broken")
    (copy / file).write_text(content)
    with pytest.raises(error, match=message):
        TransformerBaseline(copy, TokenPooling.AVERAGE, "broken")
