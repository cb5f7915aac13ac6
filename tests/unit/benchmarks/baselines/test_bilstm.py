"""BiLSTM-max: padding and neighbors do not matter, and a saved model is the same when it is opened."""

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

from benchmarks.baselines import bilstm
from benchmarks.baselines.bilstm import BiLstmMax, InferSent, open_infersent
from benchmarks.baselines.word_vectors import WordVectors, tokenize
from es_sbert.errors import BundleInvalid, OutputError, SourceError
from es_sbert.evaluation.evaluated_models import SentenceEmbedder

WORDS = ["a", "man", "plays", "guitar", "the", "cat", "sleeps", "."]
TEXTS = ["a man plays guitar.", "the", "unknown", "", "the cat sleeps", "cat " * 40, "The unknown cat"]


@pytest.fixture
def model() -> InferSent:
    vectors = np.random.default_rng(0).normal(size=(len(WORDS), 6)).astype(np.float32)
    torch.manual_seed(0)
    table = WordVectors({word: number for number, word in enumerate(WORDS)}, vectors)
    return InferSent(BiLstmMax(vectors, 5), table, "BiLSTM-max")


def test_equals_the_lstm_without_padding(model: InferSent) -> None:
    vectors = model.embed(TEXTS)
    assert vectors.dtype == np.float32
    for text, vector in zip(TEXTS, vectors, strict=True):
        rows = model.vectors.rows(tokenize(text))
        expected = np.zeros(10, dtype=np.float32)
        if len(rows):
            with torch.no_grad():
                states, _ = model.network.lstm(torch.from_numpy(model.vectors.vectors[rows])[None])
            expected = states[0].numpy().max(axis=0)
        np.testing.assert_allclose(vector, expected, atol=1e-6)


def test_vectors_are_independent_of_the_batch(model: InferSent, monkeypatch: pytest.MonkeyPatch) -> None:
    together = model.embed(TEXTS)
    monkeypatch.setattr(bilstm, "_BUDGET", 8)
    np.testing.assert_allclose(model.embed(TEXTS), together, atol=1e-6)
    alone = np.concatenate([model.embed([text]) for text in TEXTS])
    np.testing.assert_allclose(alone, together, atol=1e-6)


def test_texts_without_known_words_give_zero(model: InferSent) -> None:
    np.testing.assert_array_equal(model.embed(["unknown", ""]), np.zeros((2, 10)))
    assert model.embed([]).shape == (0, 10)


def test_word_vectors_are_not_trained(model: InferSent) -> None:
    assert {name.split(".")[0] for name, _ in model.network.named_parameters()} == {"lstm"}
    assert all(name.startswith("lstm.") for name in model.network.state_dict())


def test_gradients_reach_the_lstm_past_padding_and_empty_texts(model: InferSent) -> None:
    model.network([np.array([0, 1]), np.array([], dtype=np.int64), np.array([5])]).sum().backward()
    gradients = [parameter.grad for parameter in model.network.parameters()]
    assert all(gradient is not None and bool(torch.isfinite(gradient).all()) for gradient in gradients)
    assert any(bool(gradient.any()) for gradient in gradients if gradient is not None)


def test_save_and_open_round_trip(model: InferSent, tmp_path: Path) -> None:
    model.save(tmp_path / "deep/infersent")
    again = open_infersent(tmp_path / "deep/infersent")
    assert isinstance(again, SentenceEmbedder)
    assert again.name == "infersent"
    np.testing.assert_array_equal(again.embed(TEXTS), model.embed(TEXTS))


def _config(**changes: object) -> Callable[[Path], object]:
    def change(folder: Path) -> object:
        path = folder / "config.json"
        return path.write_text(json.dumps(json.loads(path.read_text()) | changes))

    return change


def _pickle(folder: Path) -> None:
    (folder / "model.safetensors").rename(folder / "pytorch_model.bin")


@pytest.mark.parametrize(
    ("damage", "error", "message"),
    [
        (lambda folder: (folder / "config.json").unlink(), BundleInvalid, "config.json is missing"),
        (_config(hidden=0), BundleInvalid, "describes no BiLSTM-max"),
        (_config(model_type="bert"), BundleInvalid, "describes no BiLSTM-max"),
        (_config(architecture="gru"), BundleInvalid, "holds a gru"),
        (_config(hidden=7), BundleInvalid, "does not fit config.json"),
        (_config(dimensions=7), BundleInvalid, "has 6 dimensions, the network reads 7"),
        (_pickle, BundleInvalid, "pickle"),
        (lambda folder: save_file({}, folder / "model.safetensors"), BundleInvalid, "does not fit"),
        (lambda folder: (folder / "model.safetensors").write_bytes(b"cut"), BundleInvalid, "does not fit"),
        (lambda folder: (folder / "words.vec").unlink(), SourceError, "words.vec cannot be read"),
    ],
)
def test_broken_folders_are_refused(
    model: InferSent, tmp_path: Path, damage: Callable[[Path], object], error: type[Exception], message: str
) -> None:
    model.save(tmp_path)
    damage(tmp_path)
    with pytest.raises(error, match=message):
        open_infersent(tmp_path)


def test_unwritable_path_raises_output_error(model: InferSent, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(OutputError, match="cannot be written"):
        model.save(tmp_path / "file")
