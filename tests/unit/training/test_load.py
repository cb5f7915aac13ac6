"""Recipes: shipped ones, and everything that a recipe must not be."""

from pathlib import Path
from typing import Any

import pytest

from es_sbert.errors import RecipeInvalid, SourceError
from es_sbert.training.losses import objective_schema
from es_sbert.training.recipe import Recipe, load_recipe, parse_overrides, shipped_recipes
from es_sbert.training.training_examples import assign_columns
from tests.raised import raises_as_recorded
from tests.unit.training.support import recipe, train_here, write_recipe

SHIPPED = {
    "in-batch", "multilingual-distillation", "nli-softmax", "nli-then-stsb", "quickstart", "stsb-cosent",
    "stsb-regression", "wiki-sections-triplet",
}  # fmt: skip


def test_every_shipped_recipe_has_a_description() -> None:
    recipes = shipped_recipes()
    assert set(recipes) == SHIPPED
    assert all(len(description) > 30 for description in recipes.values())


@pytest.mark.parametrize("name", sorted(SHIPPED))
def test_shipped_recipes_map_the_columns_of_their_objectives(name: str) -> None:
    loaded = load_recipe(name)
    assert loaded.name == name
    for stage in loaded.stages:
        for data in stage.data:
            objective = data.objective or stage.objective
            assert objective is not None
            schema = objective_schema(objective)
            if data.hard_negatives:
                schema = schema.without_negatives()
            assign_columns(data.path, data.columns, schema)


def test_defaults_are_the_paper_settings(tmp_path: Path) -> None:
    settings = recipe(tmp_path)
    del settings["stages"][0]["batch"], settings["stages"][0]["learning_rate"]
    (stage,) = Recipe.model_validate(settings).stages
    assert (stage.batch, stage.learning_rate, stage.warmup, stage.epochs) == (16, 2e-5, 0.1, 1)


def change(settings: dict[str, Any], way: str, value: Any) -> dict[str, Any]:
    place: Any = settings
    *parts, last = way.split(".")
    for part in parts:
        place = place[int(part)] if part.isdigit() else place[part]
    place[last] = value
    return settings


STAGE = {"data": [{"path": "a.tsv", "columns": {}}], "objective": {"kind": "cosent"}}
VECTORS = {"task": "vectors", "path": "dev.tsv", "columns": {"text": "a"}}


@pytest.mark.parametrize(
    ("way", "value"),
    [
        ("stages.0.learning_rat", 1e-5),
        ("stages.0.objective.margin", 1),
        ("stages.0.batch", 0),
        ("stages.0.epochs", float("inf")),
        *(("stages.0.name", name) for name in ("", ".built", "../pairs", "run.json")),
        ("model.base", None),
        ("model", "a-model"),
        ("stages.0.dev.prompts", {"anchor": "query"}),
        ("stages.0.dev", VECTORS | {"prompts": {"text": "query"}}),
        ("stages.0.dev", VECTORS),
        ("stages.0.objective", None),
        ("stages.0.data.0.hard_negatives", {}),
        ("stages", [STAGE, STAGE]),
    ],
)
def test_invalid_setting_is_named_with_its_path(tmp_path: Path, way: str, value: Any) -> None:
    path = write_recipe(tmp_path, change(recipe(tmp_path), way, value))
    with raises_as_recorded(RecipeInvalid):
        load_recipe(str(path))


def test_setting_that_fits_neither_model_nor_data_is_rejected_before_training(folder: Path, model: Path) -> None:
    pair = {"path": "train.tsv", "columns": {"anchor": "sentence1", "positive": "sentence2"}, "limit": 1}
    for way, value in (
        ("model.max_tokens", 64),
        ("stages.0.data.0.prompts", {"sentence1": "ask"}),
        ("stages.0.data", [pair | {"objective": {"kind": "in-batch"}}]),
    ):
        with raises_as_recorded((RecipeInvalid, SourceError)):
            train_here(write_recipe(folder, change(recipe(model), way, value)), folder / f"out {way}")


@pytest.mark.parametrize("text", [b"name: a\nseed: 1\nseed: 2\n", b"- name: a", b"name: caf\xe9"])
def test_file_that_is_not_one_set_of_settings_is_rejected(tmp_path: Path, text: bytes) -> None:
    (tmp_path / "a.yaml").write_bytes(text)
    with raises_as_recorded(RecipeInvalid):
        load_recipe(str(tmp_path / "a.yaml"))


def test_overrides_change_single_settings(tmp_path: Path) -> None:
    path = str(write_recipe(tmp_path, recipe(tmp_path)))
    pairs = parse_overrides(["stages.0.batch=32", "model.normalize=false", "export.precisions=[]", "seed=7"])
    changed = load_recipe(path, pairs)
    assert changed.stages[0].batch == 32
    assert changed.model.normalize is False
    assert changed.export.precisions == ()
    assert changed.seed == 7


@pytest.mark.parametrize("pair", ["stages.0.batch", "stages.5.batch=3", "stages.0.bacth=3"])
def test_invalid_override_is_rejected(tmp_path: Path, pair: str) -> None:
    path = str(write_recipe(tmp_path, recipe(tmp_path)))
    with raises_as_recorded(RecipeInvalid):
        load_recipe(path, parse_overrides([pair]))
