"""Pairs of near texts: against brute force, kept for a resumed run, and only where somebody scores them."""

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from es_sbert.errors import RecipeInvalid, SourceError
from es_sbert.networks.siamese_encoder import open_siamese_encoder
from es_sbert.training import augmentation
from es_sbert.training.augmentation import distinct_texts, mine_neighbor_pairs, nearest_pairs
from es_sbert.training.recipe import NeighborsSpec, load_recipe
from es_sbert.training.training_examples import Examples
from es_sbert.training.training_run import _neighbors_file
from tests.unit.training.support import recipe, train_here, write_model, write_pairs, write_recipe

PAIRS = Examples("pairs", Path("pairs.tsv"), (["a", "b", "a", "d"], ["b", "c", "a", "e"]), None, np.array([2, 3, 4, 5]))


def test_distinct_texts_are_in_order_of_first_line() -> None:
    texts, lines, known = distinct_texts(PAIRS)
    assert texts == ["a", "b", "c", "d", "e"]
    assert lines.tolist() == [2, 2, 3, 5, 5]
    assert known == {(0, 1), (1, 2), (0, 0), (3, 4)}


@given(st.integers(2, 30), st.integers(1, 40), st.integers(0, 3), st.integers(1, 7))
def test_partners_are_among_the_nearest(count: int, among: int, seed: int, block: int) -> None:
    vectors = np.random.default_rng(seed).normal(size=(count, 4)).astype(np.float32)
    known = {(0, 1)}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(augmentation, "_NEIGHBOR_BLOCK", block)
        pairs = nearest_pairs(vectors, known, among=among, seed=seed)
    unit = vectors / np.linalg.norm(vectors, axis=1, keepdims=True)
    cosines = unit @ unit.T
    np.fill_diagonal(cosines, -np.inf)
    nearest = [set(np.argsort(-row)[:among].tolist()) for row in cosines]
    found = list(map(tuple, pairs.tolist()))
    assert found == sorted(set(found) - known)
    assert all(first < second and (second in nearest[first] or first in nearest[second]) for first, second in found)
    paired = {number for pair in [*found, (0, 1)] for number in pair}
    assert paired == set(range(count))  # every text has a partner, or its only one was known


def test_pairs_depend_on_the_seed() -> None:
    vectors = np.random.default_rng(0).normal(size=(50, 4)).astype(np.float32)
    one, same, other = (nearest_pairs(vectors, set(), among=10, seed=seed) for seed in (1, 1, 2))
    assert np.array_equal(one, same)
    assert not np.array_equal(one, other)


def test_zero_vector_has_a_neighbor() -> None:
    assert len(nearest_pairs(np.zeros((3, 4), np.float32), set(), among=1, seed=1))


def test_single_text_has_no_pairs() -> None:
    assert nearest_pairs(np.ones((1, 4), np.float32), set(), among=10, seed=1).shape == (0, 2)


def test_texts_whose_pairs_are_all_known_are_rejected(tmp_path: Path) -> None:
    model = write_model(tmp_path / "model")
    known = Examples("pairs", tmp_path / "pairs.tsv", (["a song"], ["the sea"]), None, np.array([2]))
    with pytest.raises(SourceError, match="the file already contains every neighbor pair"):
        mine_neighbor_pairs(known, NeighborsSpec(model=str(model)), tmp_path / "n.npy", "cpu", lambda message: None)


def test_neighbor_pairs_are_scored_by_the_teacher(tmp_path: Path) -> None:
    model = write_model(tmp_path / "model")
    write_pairs(tmp_path / "train.tsv", 60)
    write_pairs(tmp_path / "dev.tsv", 30, start=60)
    settings = recipe(model, epochs=1)
    columns = settings["stages"][0]["data"][0]["columns"]
    near = {
        "name": "near",
        "path": "train.tsv",
        "columns": {role: columns[role] for role in ("sentence1", "sentence2")},
        "neighbors": {"model": str(model), "among": 3},
        "objective": {"kind": "regression", "teacher": str(model)},
    }
    settings["stages"][0]["data"].append(near)
    settings["export"] = {"precisions": []}
    output = tmp_path / "out"
    (stage,) = train_here(write_recipe(tmp_path, settings), output, keep_checkpoints=True).stages

    rows = [line.split("\t")[:2] for line in (tmp_path / "train.tsv").read_text().splitlines()[1:]]
    texts = list(dict.fromkeys(text for row in rows for text in row))
    pairs = np.load(output / "training/pairs/neighbors-1.npy")
    labels = np.load(output / "training/pairs/teacher-1.npy")
    vectors = open_siamese_encoder(model).embed(texts)
    np.testing.assert_allclose(
        labels, np.clip((vectors[pairs[:, 0]] * vectors[pairs[:, 1]]).sum(axis=1), 0, 1), atol=1e-5
    )
    assert not {frozenset((texts[a], texts[b])) for a, b in pairs} & {frozenset(row) for row in rows}
    assert stage.examples == 60 + len(pairs)


@pytest.mark.parametrize("objective", [{"kind": "regression"}, {"kind": "in-batch"}])
def test_neighbors_without_a_teacher_are_rejected(tmp_path: Path, objective: dict[str, str]) -> None:
    settings = recipe(tmp_path)
    settings["stages"][0]["data"][0] |= {"neighbors": {}, "objective": objective}
    with pytest.raises(RecipeInvalid, match="use objective regression with a teacher"):
        load_recipe(str(write_recipe(tmp_path, settings)))


@pytest.mark.parametrize("key", ["neighbors", "neighbours"])
def test_key_of_earlier_releases_is_still_read(tmp_path: Path, key: str) -> None:
    settings = recipe(tmp_path)
    objective = {"kind": "regression", "teacher": str(tmp_path)}
    settings["stages"][0]["data"][0] |= {key: {"among": 7}, "objective": objective}
    loaded = load_recipe(str(write_recipe(tmp_path, settings)))
    assert loaded.stages[0].data[0].neighbors == NeighborsSpec(among=7)
    written = loaded.model_dump(mode="json")["stages"][0]["data"][0]
    assert written["neighbors"]["among"] == 7
    assert "neighbours" not in written


def test_both_keys_are_rejected(tmp_path: Path) -> None:
    settings = recipe(tmp_path)
    settings["stages"][0]["data"][0] |= {"neighbors": {}, "neighbours": {}}
    with pytest.raises(RecipeInvalid, match="neighbours: no such setting"):
        load_recipe(str(write_recipe(tmp_path, settings)))


def test_resumed_run_reads_the_file_of_an_earlier_release(tmp_path: Path) -> None:
    assert _neighbors_file(tmp_path, 1) == tmp_path / "neighbors-1.npy"
    (tmp_path / "neighbours-1.npy").touch()
    assert _neighbors_file(tmp_path, 1) == tmp_path / "neighbours-1.npy"
