"""`NAME@DIMENSIONS` is the model with the first values of its vectors, scaled to length 1, in every library."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from es_sbert.bundle.local_registry import register_model
from es_sbert.bundle.model_lookup import find_index_model, resolve_model
from es_sbert.bundle.sentence_model import read_sentence_model
from es_sbert.bundle.shortened_model import shortened_model_folder, shortened_name, split_shortened_name
from es_sbert.encoder.encoder import Encoder
from es_sbert.errors import ModelNotFound, UsageError
from tests.raised import raises, raises_as_recorded
from tests.tiny import HIDDEN, write_tiny_bert

pytestmark = pytest.mark.usefixtures("own_models")
TEXTS = ["a man plays guitar", "the cat sleeps on the mat", "query : guitar"]


def cut(vectors: NDArray[np.float32], dimensions: int) -> NDArray[np.float32]:
    """The first values, scaled to length 1."""
    kept = vectors[:, :dimensions]
    scaled: NDArray[np.float32] = kept / np.linalg.norm(kept, axis=1, keepdims=True)
    return scaled


@pytest.mark.parametrize("dimensions", [2, 5, HIDDEN - 1])
@pytest.mark.parametrize("normalize", [True, False])
def test_vectors_are_cut_and_scaled(dimensions: int, normalize: bool, tmp_path: Path) -> None:
    folder = write_tiny_bert(tmp_path / "tiny", normalize=normalize)
    with Encoder(folder, precision="fp32") as whole, Encoder(f"{folder}@{dimensions}", precision="fp32") as short:
        assert short.info.dimensions == dimensions
        np.testing.assert_allclose(short.encode(TEXTS), cut(whole.encode(TEXTS), dimensions), atol=1e-6)
        assert short.info.fingerprint != whole.info.fingerprint


@pytest.mark.train
@pytest.mark.parametrize("pooling", ["mean", ["cls", "max"]])
def test_folder_has_the_same_vectors_in_sentence_transformers(pooling: str | list[str], tmp_path: Path) -> None:
    from sentence_transformers import SentenceTransformer

    from tests.unit.checkpoints import write_checkpoint

    folder = write_checkpoint(tmp_path / "model", pooling=pooling)
    short = shortened_model_folder(folder, 20)
    expected = SentenceTransformer(str(folder), device="cpu").encode(TEXTS, truncate_dim=20, normalize_embeddings=True)
    np.testing.assert_allclose(SentenceTransformer(str(short), device="cpu").encode(TEXTS), expected, atol=1e-6)
    with Encoder(short, precision="fp32") as encoder:
        np.testing.assert_allclose(encoder.encode(TEXTS), expected, atol=1e-5)


def test_plain_transformer_keeps_its_pooling(tmp_path: Path) -> None:
    folder = write_tiny_bert(tmp_path / "tiny")
    for name in ("modules.json", "sentence_bert_config.json", "config_sentence_transformers.json"):
        (folder / name).unlink()
    shutil.rmtree(folder / "1_Pooling")
    with Encoder(folder, precision="fp32") as whole, Encoder(f"{folder}@6", precision="fp32") as short:
        np.testing.assert_allclose(short.encode(TEXTS), cut(whole.encode(TEXTS), 6), atol=1e-6)


def test_model_with_truncate_dim_is_cut_further(tmp_path: Path) -> None:
    folder = write_tiny_bert(tmp_path / "tiny")
    settings = folder / "config_sentence_transformers.json"
    settings.write_text(json.dumps({**json.loads(settings.read_text()), "truncate_dim": 8}))
    with Encoder(folder, precision="fp32") as whole, Encoder(f"{folder}@5", precision="fp32") as short:
        assert whole.info.dimensions == 8
        np.testing.assert_allclose(short.encode(TEXTS), cut(whole.encode(TEXTS), 5), atol=1e-6)
    with raises(UsageError, "model"):
        resolve_model(f"{folder}@8")


@pytest.mark.parametrize("dimensions", [HIDDEN, HIDDEN + 1, 10**8])
def test_no_more_dimensions_than_the_model_has(dimensions: int, tmp_path: Path) -> None:
    folder = write_tiny_bert(tmp_path / "tiny")
    with raises(UsageError, "model"):
        resolve_model(f"{folder}@{dimensions}")
    assert not (tmp_path / "cache").exists()


def test_index_model_is_found_by_its_name(tmp_path: Path) -> None:
    folder = write_tiny_bert(tmp_path / "tiny")
    register_model(folder, read_sentence_model(folder).fingerprint, name="mine")
    fingerprint = read_sentence_model(resolve_model("mine@3")).fingerprint
    found = find_index_model("docs", "mine@3", fingerprint)
    assert (found.name, read_sentence_model(found.folder).fingerprint) == ("mine@3", fingerprint)
    with raises_as_recorded(ModelNotFound):
        find_index_model("docs", "mine@4", fingerprint)
    with raises_as_recorded(ModelNotFound):
        find_index_model("docs", "mine@400", fingerprint)


def test_half_a_folder_of_a_killed_process_is_replaced(tmp_path: Path) -> None:
    folder = write_tiny_bert(tmp_path / "tiny")
    partial = tmp_path / "cache/shortened" / f"{read_sentence_model(folder).fingerprint}-5.partial"
    partial.mkdir(parents=True)
    (partial / "config.json").write_text("{")
    (folder / "es_sbert.json").write_text("{}")  # of an export, whose graphs have all dimensions
    short = shortened_model_folder(folder, 5)
    assert read_sentence_model(short).dimensions == 5
    assert not partial.exists()
    assert not (short / "es_sbert.json").exists()


@given(st.text(min_size=1), st.integers(1, 10**9 - 1))
def test_name_is_split_as_it_was_put_together(name: str, dimensions: int) -> None:
    expected = None if "\n" in name else (name, dimensions)
    assert split_shortened_name(shortened_name(name, dimensions)) == expected


@pytest.mark.parametrize("name", ["model", "model@", "@5", "model@0", "model@05", "model@5x", "a@b", "model@-3"])
def test_other_names_are_left_alone(name: str) -> None:
    assert split_shortened_name(name) is None
