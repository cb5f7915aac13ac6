"""Recipes: shipped ones, and everything that a recipe must not be."""

import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from es_sbert.errors import RecipeInvalid
from es_sbert.training.losses import objective_schema
from es_sbert.training.recipe import Recipe, load_recipe, parse_overrides, shipped_recipes
from es_sbert.training.training_examples import assign_columns
from tests.unit.training.support import recipe, write_recipe

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


@pytest.mark.parametrize(
    ("way", "value", "named"),
    [
        ("compile", True, "torch.compile; train with sentence-transformers"),
        ("model.codes", 16, "poly-encoder"),
        ("model.kind", "poly-encoder", "kind"),
        ("model.lora", {"rank": 4}, "LoRA"),
        ("model.kind", "cross-encoder", "training of cross-encoders"),
        ("stages.0.objective", {"kind": "denoising", "ratio": 0.6}, "TSDAE"),
        ("stages.0.data.0.objective", {"kind": "denoising"}, "TSDAE"),
        ("stages.0.objective.teacher", "a-model", "Augmented SBERT"),
        ("stages.0.data.0.neighbors", {"among": 5}, "Augmented SBERT"),
        ("stages.0.data.0.neighbours", {}, "Augmented SBERT"),
        ("stages.0.mixing", "round-robin", "mixing"),
        ("stages.0.gradient_checkpointing", True, "mini_batch"),
        ("export.sts", "pairs.tsv", "es-sbert evaluate --task sts"),
        ("test", {"task": "sts"}, "es-sbert evaluate"),
        ("stages.0.patience", 3, "best checkpoint"),
        ("stages.0.data.0.hard_negatives", {"reranker": "a-model"}, "mine_hard_negatives"),
        ("stages.0.objective.matryoshka", {"dimensions": [8], "weights": [1]}, "weight for each dimension"),
    ],
)
def test_settings_of_earlier_releases_are_refused_by_name(tmp_path: Path, way: str, value: Any, named: str) -> None:
    path = write_recipe(tmp_path, change(recipe(tmp_path), way, value))
    with pytest.raises(RecipeInvalid, match="es-sbert no longer has") as caught:
        load_recipe(str(path))
    assert named in caught.value.message


@pytest.mark.parametrize(
    ("name", "method"), [("tsdae", "TSDAE"), ("gpl", "GPL"), ("stsb-augmented", "Augmented SBERT")]
)
def test_recipes_of_earlier_releases_are_refused_by_name(name: str, method: str) -> None:
    with pytest.raises(RecipeInvalid, match=rf"no longer has the recipe {name} \({method}\)") as caught:
        load_recipe(name)
    assert "sentence-transformers" in caught.value.remedy


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


@pytest.mark.parametrize(
    ("way", "value", "message"),
    [
        ("stages.0.learning_rat", 1e-5, "stages.0.learning_rat: no such setting$"),
        ("score_range", [0, 5], "score_range: no such setting$"),
        ("stages.0.objective.margin", 1, "stages.0.objective.regression.margin: no such setting"),
        ("stages.0.objective.kind", "contrast", "stages.0.objective: .*'contrast'"),
        ("stages.0.batch", 0, "stages.0.batch: .*greater than 0"),
        ("stages.0.objective", None, "no objective for train.tsv"),
        ("stages.0.dev.task", "retrieval", "stages.0.dev.task"),
        ("stages", [], "stages: "),
        ("stages.0.epochs", float("inf"), "stages.0.epochs: .*finite"),
        ("stages.0.data.0.score_range", [0, float("inf")], "score_range.1: .*finite"),
        *(("stages.0.name", name, "stages.0.name: ") for name in ("", ".built", "../pairs", "run.json")),
        ("precision", "int8", "precision: .*'fp32'"),
        ("name", "../elsewhere", "name: "),
        ("model.base", None, "model.base"),
    ],
)
def test_invalid_setting_is_named_with_its_path(tmp_path: Path, way: str, value: Any, message: str) -> None:
    path = write_recipe(tmp_path, change(recipe(tmp_path), way, value))
    with pytest.raises(RecipeInvalid) as caught:
        load_recipe(str(path))
    assert re.search(message, caught.value.message)
    assert "docs/commands/train.md" in caught.value.remedy


def test_duplicate_stage_names_are_rejected(tmp_path: Path) -> None:
    settings = recipe(tmp_path)
    settings["stages"] *= 2
    with pytest.raises(RecipeInvalid, match="different names, not pairs, pairs"):
        load_recipe(str(write_recipe(tmp_path, settings)))


def test_duplicate_key_is_rejected(tmp_path: Path) -> None:
    text = yaml.safe_dump(recipe(tmp_path))
    (tmp_path / "twice.yaml").write_text(text + "seed: 1\nseed: 2\n")
    line = len(text.splitlines()) + 2
    with pytest.raises(RecipeInvalid, match=rf"twice.yaml, line {line}: duplicate key 'seed'"):
        load_recipe(str(tmp_path / "twice.yaml"))


@pytest.mark.parametrize(
    ("text", "message"),
    [("a: [1, 2", "line 1: expected"), ("- a\n- b\n", "does not contain settings"), ("", "does not contain settings")],
)
def test_invalid_recipe_is_rejected(tmp_path: Path, text: str, message: str) -> None:
    (tmp_path / "bad.yaml").write_text(text)
    with pytest.raises(RecipeInvalid, match=message):
        load_recipe(str(tmp_path / "bad.yaml"))


def test_missing_or_unreadable_recipe_is_rejected(tmp_path: Path) -> None:
    with pytest.raises(RecipeInvalid, match="there is no recipe") as caught:
        load_recipe(str(tmp_path / "missing.yaml"))
    assert "--list" in caught.value.remedy
    (tmp_path / "binary.yaml").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(RecipeInvalid, match="cannot be read"):
        load_recipe(str(tmp_path / "binary.yaml"))


def test_overrides_change_single_settings(tmp_path: Path) -> None:
    path = str(write_recipe(tmp_path, recipe(tmp_path)))
    pairs = parse_overrides(["stages.0.batch=32", "model.normalize=false", "export.precisions=[]", "seed=7"])
    changed = load_recipe(path, pairs)
    assert changed.stages[0].batch == 32
    assert changed.model.normalize is False
    assert changed.export.precisions == ()
    assert changed.seed == 7


@pytest.mark.parametrize(
    ("pair", "message"),
    [
        ("stages.0.batch", "is not KEY=VALUE"),
        ("=3", "is not KEY=VALUE"),
        ("stages.5.batch=3", "does not fit the recipe"),
        ("stages.first.batch=3", "does not fit the recipe"),
        ("name.first=3", "does not fit the recipe"),
        ("stages.0.batch=[", "does not fit the recipe"),
        ("stages.0.bacth=3", "stages.0.bacth: no such setting"),
    ],
)
def test_invalid_override_is_rejected(tmp_path: Path, pair: str, message: str) -> None:
    path = str(write_recipe(tmp_path, recipe(tmp_path)))
    with pytest.raises(RecipeInvalid, match=message):
        load_recipe(path, parse_overrides([pair]))


@pytest.mark.parametrize(
    ("key", "settings", "message"),
    [
        ("dev", {"prompts": {"query": "query"}}, "prompts has roles that are not in columns: query"),
        ("dev", {"prompts": {"sentence1": "clustering"}}, "dev.prompts.sentence1"),
    ],
)
def test_prompts_of_dev_and_test_are_checked(tmp_path: Path, key: str, settings: dict[str, Any], message: str) -> None:
    its = recipe(tmp_path)
    its["stages"][0][key] |= settings
    with pytest.raises(RecipeInvalid, match=message):
        load_recipe(str(write_recipe(tmp_path, its)))
