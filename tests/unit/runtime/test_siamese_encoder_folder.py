"""Siamese encoders as sentence-transformers folders: both libraries give the same vectors, both ways."""

import shutil
from pathlib import Path

import numpy as np
import pytest
from safetensors.torch import load_file, save_file
from sentence_transformers import SentenceTransformer

from es_sbert.bundle.model_lookup import resolve_model
from es_sbert.bundle.modules import Activation, Pooling
from es_sbert.bundle.sentence_model import read_sentence_model
from es_sbert.errors import BundleInvalid, ModelError
from es_sbert.runtime.siamese_encoder import open_siamese_encoder, save_siamese_encoder
from es_sbert.training.bi_encoder_task import open_initial_model
from es_sbert.training.recipe import DenseSpec, ModelSpec
from tests.raised import raises_as_recorded
from tests.tiny import rotate_vectors
from tests.unit.checkpoints import ARCHITECTURES, UNFUSED_ARCHITECTURES, keep_only_the_vocabulary, write_checkpoint
from tests.unit.exporters.comparison import edit

TEXTS = ["A man plays a guitar.", "The committee has not yet decided.", "", "word " * 80, "naïve café 北京"]


def both(folder: Path, ours: np.ndarray) -> float:
    """Largest difference between our vectors and sentence-transformers' of the same folder."""
    theirs = SentenceTransformer(str(folder), device="cpu").encode(TEXTS)
    return float(np.abs(theirs - ours).max())


@pytest.mark.parametrize("architecture", [*ARCHITECTURES, *UNFUSED_ARCHITECTURES])
def test_vectors_equal_sentence_transformers(tmp_path: Path, architecture: str) -> None:
    folder = write_checkpoint(tmp_path / "model", architecture)
    encoder = open_siamese_encoder(folder)
    vectors = encoder.embed(TEXTS)
    assert vectors.shape == (len(TEXTS), 48)
    assert both(folder, vectors) < 1e-5
    save_siamese_encoder(encoder, tmp_path / "saved")
    assert both(tmp_path / "saved", vectors) < 1e-5
    np.testing.assert_array_equal(open_siamese_encoder(tmp_path / "saved").embed(TEXTS), vectors)


@pytest.mark.parametrize("normalize", [True, False])
def test_cut_and_rotated_models_are_trained_as_dense_layers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, normalize: bool
) -> None:
    monkeypatch.setenv("ES_SBERT_CACHE", str(tmp_path / "cache"))
    base = write_checkpoint(tmp_path / "model", normalize=normalize)
    axes = np.linalg.qr(np.random.default_rng(0).standard_normal((48, 48)))[0].astype(np.float32)
    rotate_vectors(shutil.copytree(base, tmp_path / "rotated"), axes)
    named = ((f"{base}@8", 1, 8), ("rotated", 1, 48), ("rotated@16", 2, 16), ("rotated@16@8", 3, 8))
    for name, layers, dimensions in named:
        folder = resolve_model(str(tmp_path / name))
        encoder = open_siamese_encoder(folder)
        assert (len(encoder.dense_layers), encoder.dimensions) == (layers, dimensions)
        vectors = encoder.embed(TEXTS)
        assert both(folder, vectors) < 1e-5
        saved = tmp_path / f"saved-{dimensions}-{layers}"
        save_siamese_encoder(encoder, saved)
        assert read_sentence_model(saved).has_plain_modules
        assert both(saved, vectors) < 1e-5


@pytest.mark.parametrize("mode", list(Pooling))
def test_every_pooling_survives_saving(tmp_path: Path, mode: Pooling) -> None:
    encoder = open_siamese_encoder(write_checkpoint(tmp_path / "model", pooling=str(mode), normalize=False))
    save_siamese_encoder(encoder, tmp_path / "saved")
    assert read_sentence_model(tmp_path / "saved").pooling == (mode,)
    assert both(tmp_path / "saved", encoder.embed(TEXTS)) < 1e-5


@pytest.mark.parametrize("vocabulary_only", [False, True])
def test_saved_model_keeps_its_fingerprint(tmp_path: Path, vocabulary_only: bool) -> None:
    folder = write_checkpoint(tmp_path / "model", prompts={"query": "find: ", "document": ""})
    if vocabulary_only:
        keep_only_the_vocabulary(folder)
    save_siamese_encoder(open_siamese_encoder(folder), tmp_path / "saved")
    assert read_sentence_model(tmp_path / "saved").fingerprint == read_sentence_model(folder).fingerprint


def test_a_recipe_changes_pooling_dense_length_and_prompts(tmp_path: Path) -> None:
    folder = write_checkpoint(tmp_path / "model", pooling="mean", normalize=True)
    spec = ModelSpec(
        base=str(folder),
        pooling=(Pooling.CLS, Pooling.MEAN),
        normalize=False,
        max_tokens=7,
        dense=DenseSpec(out_features=5, activation=Activation.RELU),
        prompts={"query": "ask "},
    )
    encoder = open_initial_model(folder, spec)
    save_siamese_encoder(encoder, tmp_path / "saved")
    model = read_sentence_model(tmp_path / "saved")
    assert (model.dimensions, model.max_tokens, model.normalize) == (5, 7, False)
    assert model.prompts["query"] == "ask "
    assert both(tmp_path / "saved", encoder.embed(TEXTS)) < 1e-5
    queries = SentenceTransformer(str(tmp_path / "saved"), device="cpu").encode(TEXTS, prompt="ask ")
    np.testing.assert_allclose(encoder.embed(TEXTS, "query"), queries, atol=1e-5)


def test_a_pickled_checkpoint_is_refused(tmp_path: Path) -> None:
    folder = write_checkpoint(tmp_path / "model")
    for place in (folder, tmp_path / "model-transformer"):
        (place / "model.safetensors").unlink()
        (place / "pytorch_model.bin").write_bytes(b"\x80\x04 not to be opened")
        with raises_as_recorded(BundleInvalid):
            open_siamese_encoder(place)


def test_settings_that_cannot_be_trained_with_are_refused(tmp_path: Path) -> None:
    for number, (file, setting) in enumerate((
        ("config_sentence_transformers.json", {"truncate_dim": 8}),
        ("1_Pooling/config.json", {"include_prompt": False}),
        ("tokenizer_config.json", {"tokenizer_class": "AlbertTokenizer"}),
        ("config.json", {"num_attention_heads": 5}),
        ("sentence_bert_config.json", {"config_kwargs": {"num_hidden_layers": 3}}),
    )):  # fmt: skip
        folder = write_checkpoint(tmp_path / str(number))
        edit(folder / file, **setting)
        with raises_as_recorded(ModelError):
            open_siamese_encoder(folder)


def test_weights_missing_tensors_are_rejected(tmp_path: Path) -> None:
    """transformers would train on from random numbers."""
    folder = write_checkpoint(tmp_path / "model")
    weights = load_file(folder / "model.safetensors")
    del weights["encoder.layer.1.output.dense.weight"]
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    with raises_as_recorded(BundleInvalid):
        open_siamese_encoder(folder)
