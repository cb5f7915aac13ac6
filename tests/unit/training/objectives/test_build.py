"""From settings to objectives, and what is known of an objective before there is a model."""

from typing import Any, get_args

import pytest
from pydantic import ValidationError

from es_sbert.training.losses import build_objective, objective_schema
from es_sbert.training.recipe import ObjectiveSpec
from es_sbert.training.training_examples import LabelKind
from tests.unit.training.objectives.samples import ALL_SPECS, DIMENSIONS, SPECS, settings


def test_every_objective_kind_has_a_sample() -> None:
    kinds = set(get_args(get_args(ObjectiveSpec)[0]))
    assert {type(settings(values)) for values in SPECS.values()} == kinds


@pytest.mark.parametrize("values", ALL_SPECS.values(), ids=ALL_SPECS.keys())
def test_schema_equals_that_of_the_objective(values: dict[str, Any]) -> None:
    shape, objective = objective_schema(settings(values)), build_objective(settings(values), DIMENSIONS)
    for attribute in ("roles", "repeats_last", "label", "distinct"):
        assert getattr(shape, attribute) == getattr(objective.schema, attribute)


def test_regression_schema_has_the_recipe_range() -> None:
    assert objective_schema(settings({"kind": "regression"})).score_range == (0, 1)
    assert objective_schema(settings({"kind": "regression", "range": [-1, 1]})).score_range == (-1, 1)
    assert objective_schema(settings({"kind": "cosent"})).score_range is None


def test_softmax_schema_has_the_recipe_classes() -> None:
    shape = objective_schema(settings(SPECS["softmax"]))
    assert (shape.label, shape.classes) == (LabelKind.CLASS, ("no", "perhaps", "yes"))


@pytest.mark.parametrize(("values", "taught"), [
    ({"kind": "vector-distillation", "teacher": "a-model"}, True),
    ({"kind": "margin-distillation", "teacher": "a-model"}, True),
    ({"kind": "margin-distillation"}, False),
    ({"kind": "regression"}, False),
    ({"kind": "cosent"}, False),
])  # fmt: skip
def test_schema_tells_whether_a_teacher_labels_the_data(values: dict[str, Any], taught: bool) -> None:
    assert objective_schema(settings(values)).taught is taught


@pytest.mark.parametrize(("values", "message"), [
    ({"kind": "softmax", "classes": ["a", "b", "a"]}, "classes has a repeated value"),
    ({"kind": "softmax", "classes": ["a", "b"], "features": ["u", "u"]}, "features has a repeated value"),
    ({"kind": "softmax", "classes": ["a"]}, "at least 2 items"),
    ({"kind": "softmax", "classes": ["a", "b"], "features": []}, "at least 1 item"),
    ({"kind": "softmax", "classes": ["a", "b"], "features": ["w"]}, r"\|u-v\|"),
    ({"kind": "regression", "range": [0, 5]}, "must ascend and lie within"),
    ({"kind": "regression", "range": [1, 0]}, "must ascend and lie within"),
    ({"kind": "triplet", "margin": 0}, "greater than 0"),
    ({"kind": "triplet", "distance": "hamming"}, "euclidean"),
    ({"kind": "in-batch", "scale": -1}, "greater than 0"),
    ({"kind": "vector-distillation"}, "teacher"),
    ({"kind": "cosent", "temperature": 1}, "Extra inputs"),
    ({"kind": "contrastive"}, "does not match any of the expected tags"),
    ({"kind": "cosent", "matryoshka": {"dimensions": [8, 8]}}, "dimensions has a repeated value"),
    ({"kind": "cosent", "matryoshka": {"dimensions": []}}, "at least 1 item"),
])  # fmt: skip
def test_invalid_settings_are_rejected(values: dict[str, Any], message: str) -> None:
    with pytest.raises(ValidationError, match=message):
        settings(values)
