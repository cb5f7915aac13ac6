"""A rotated model has the cosines of the model, in every library, and can be cut by its name."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner
from numpy.typing import NDArray

from es_sbert.analysis.dimension_reduction import principal_axes
from es_sbert.bundle.rotated_model import write_rotated_model
from es_sbert.bundle.sentence_model import read_sentence_model
from es_sbert.cli.main import cli
from es_sbert.encoder.encoder import Encoder
from es_sbert.errors import OutputError
from tests.tiny import HIDDEN, write_tiny_bert

TEXTS = ["a man plays guitar", "the cat sleeps on the mat", "query : guitar", "the man sleeps"]


@pytest.fixture(autouse=True)
def own_folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ES_SBERT_REGISTRY", str(tmp_path / "registry/models.json"))
    monkeypatch.setenv("ES_SBERT_CACHE", str(tmp_path / "cache"))


def some_axes(dimensions: int) -> NDArray[np.float32]:
    return principal_axes(np.random.default_rng(0).normal(size=(100, dimensions)).astype(np.float32))


@pytest.mark.parametrize("normalize", [True, False])
def test_vectors_are_rotated_and_cosines_stay(normalize: bool, tmp_path: Path) -> None:
    folder = write_tiny_bert(tmp_path / "tiny", normalize=normalize)
    axes = some_axes(HIDDEN)
    written = write_rotated_model(read_sentence_model(folder), axes, tmp_path / "rotated")
    assert written.dimensions == HIDDEN
    with Encoder(folder, precision="fp32") as plain, Encoder(tmp_path / "rotated", precision="fp32") as rotated:
        before, after = plain.encode(TEXTS), rotated.encode(TEXTS)
        assert rotated.info.fingerprint == written.fingerprint != plain.info.fingerprint
    np.testing.assert_allclose(after, before @ axes.T, atol=1e-5)
    np.testing.assert_allclose(after @ after.T, before @ before.T, rtol=1e-5, atol=1e-5)


def test_rotated_model_is_cut_by_its_name(tmp_path: Path) -> None:
    folder, axes = write_tiny_bert(tmp_path / "tiny"), some_axes(HIDDEN)
    write_rotated_model(read_sentence_model(folder), axes, tmp_path / "rotated")
    with Encoder(folder, precision="fp32") as plain, Encoder(f"{tmp_path / 'rotated'}@5", precision="fp32") as short:
        expected = plain.encode(TEXTS) @ axes[:5].T
        expected /= np.linalg.norm(expected, axis=1, keepdims=True)
        np.testing.assert_allclose(short.encode(TEXTS), expected, atol=1e-5)


def test_model_with_truncate_dim_is_rotated_in_what_it_returns(tmp_path: Path) -> None:
    folder = write_tiny_bert(tmp_path / "tiny")
    settings = folder / "config_sentence_transformers.json"
    settings.write_text(json.dumps({**json.loads(settings.read_text()), "truncate_dim": 8}))
    axes = some_axes(8)
    write_rotated_model(read_sentence_model(folder), axes, tmp_path / "rotated")
    with Encoder(folder, precision="fp32") as plain, Encoder(tmp_path / "rotated", precision="fp32") as rotated:
        before, after = plain.encode(TEXTS) @ axes.T, rotated.encode(TEXTS)
    cosines = (before * after).sum(axis=1) / np.linalg.norm(before, axis=1) / np.linalg.norm(after, axis=1)
    assert after.shape == (len(TEXTS), 8)
    np.testing.assert_allclose(cosines, 1, atol=1e-6)


@pytest.mark.train
def test_rotated_folder_has_the_same_vectors_in_sentence_transformers(tmp_path: Path) -> None:
    from sentence_transformers import SentenceTransformer

    from tests.unit.checkpoints import write_checkpoint

    folder = write_checkpoint(tmp_path / "model")
    model = read_sentence_model(folder)
    write_rotated_model(model, some_axes(model.dimensions), tmp_path / "rotated")
    with Encoder(tmp_path / "rotated", precision="fp32") as encoder:
        expected = SentenceTransformer(str(tmp_path / "rotated"), device="cpu").encode(TEXTS)
        np.testing.assert_allclose(encoder.encode(TEXTS), expected, atol=1e-5)


def test_folder_that_holds_something_is_left_alone(tmp_path: Path) -> None:
    folder = write_tiny_bert(tmp_path / "tiny")
    target = tmp_path / "there"
    target.mkdir()
    (target / "mine.txt").write_text("mine")
    with pytest.raises(OutputError, match="is not empty"):
        write_rotated_model(read_sentence_model(folder), some_axes(HIDDEN), target)
    assert [path.name for path in target.iterdir()] == ["mine.txt"]


def test_command_writes_registers_and_measures(tmp_path: Path) -> None:
    folder = write_tiny_bert(tmp_path / "tiny")
    words = ["a", "man", "plays", "guitar", "the", "cat", "sleeps", "on", "mat", "query"]
    random = np.random.default_rng(0)
    texts = tmp_path / "texts.txt"
    texts.write_text("".join(" ".join(random.choice(words, 5)) + "\n" for _ in range(300)))
    arguments = ["model", "rotate", str(folder), str(texts), "-o", str(tmp_path / "rotated"), "--measure", "4"]
    done = CliRunner().invoke(cli, [*arguments, "--sample", "200", "--precision", "fp32", "--json"])
    assert done.exit_code == 0, done.output
    report = json.loads(done.stdout)
    assert 200 >= report["texts"] > report["held_out"]
    [quality] = report["quality"]
    assert quality["dimensions"] == 4
    assert quality["recall"] < quality["rotated_recall"] <= 1
    with Encoder("rotated", precision="fp32") as encoder:  # by its registered name
        assert encoder.info.fingerprint == report["fingerprint"]
    again = CliRunner().invoke(cli, arguments)
    assert isinstance(again.exception, OutputError)
