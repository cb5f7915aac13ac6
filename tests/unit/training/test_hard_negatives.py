"""Which documents become hard negatives."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from es_sbert.errors import RecipeInvalid, SourceError
from es_sbert.evaluation.ranking import search_exact
from es_sbert.training.example_augmentation import choose_negatives, relevant_rows
from es_sbert.training.recipe import HardNegativesSpec, load_recipe
from es_sbert.vectors import unit_vectors
from tests.raised import raises_as_recorded
from tests.unit.training.support import read_json, recipe, train_here, write_recipe


def test_positives_of_equal_queries_and_the_query_itself_are_relevant() -> None:
    documents = ["one", "two", "three", "the  Query"]
    assert relevant_rows(["the query", "THE query ", "other"], [0, 1, 2], documents) == [[0, 1, 3], [1, 0, 3], [2]]


@pytest.mark.parametrize("margin", [0.2, None])
def test_negatives_are_the_nearest_that_are_allowed(margin: float | None) -> None:
    random = np.random.default_rng(0)
    queries, documents = (random.normal(size=(size, 4)).astype(np.float32) for size in (20, 50))
    positives = [[number, 30] for number in range(20)]
    ranking, _ = search_exact(queries, documents, 50)
    spec = HardNegativesSpec(count=2, margin=margin)
    chosen = choose_negatives([ranking], positives, (queries, documents), spec)
    cosines = unit_vectors(queries) @ unit_vectors(documents).T
    for number, rows in enumerate(chosen.tolist()):
        highest = 1.1 if margin is None else cosines[number, number] - margin
        allowed = [row for row in ranking[number] if row not in (number, 30) and cosines[number, row] <= highest]
        assert rows[: len(allowed[:2])] == allowed[:2]
        assert not {number, 30} & set(rows)
    with raises_as_recorded(SourceError):
        choose_negatives([ranking[:, :3]], positives, (queries, documents[:3]), spec)


def pairs_recipe(model: Path, **data: object) -> dict[str, object]:
    columns = {"anchor": "sentence1", "positive": "sentence2"}
    source = {"path": "train.tsv", "columns": columns, **data}
    return recipe(model, data=[source], objective={"kind": "in-batch"}, dev=None)


@pytest.mark.parametrize("objective", ["in-batch", "triplet"])
def test_run_mines_negatives_once(model: Path, folder: Path, objective: str) -> None:
    mined = {"model": str(model), "count": 2, "ranks": [1, 10], "margin": 0.0}
    path = write_recipe(folder, pairs_recipe(model, hard_negatives=mined, objective={"kind": objective}))
    trained = train_here(path, folder / "out").stages[0].examples
    assert trained == (256 if objective == "triplet" else 128)  # a triplet has one negative
    stage = folder / "out/training/pairs"
    chosen = np.load(stage / "negatives-0.npy")
    assert chosen.shape == (128, 2)
    assert read_json(folder / "out/training/run.json")["models"].keys() == {str(model)}


@pytest.mark.parametrize(
    "changes", [{"objective": {"kind": "margin-distillation"}}, {"hard_negatives": {"ranks": [5, 2]}}]
)
def test_hard_negatives_of_other_data_are_refused(tmp_path: Path, changes: dict[str, object]) -> None:
    settings = pairs_recipe(Path("base"), **({"hard_negatives": {}} | changes))
    with raises_as_recorded(RecipeInvalid):
        load_recipe(str(write_recipe(tmp_path, settings)))
