"""From settings to objectives, and what is known of an objective before there is a model."""

from typing import Any, get_args

import pytest
from pydantic import ValidationError

from es_sbert.training.recipe import ObjectiveSpec
from tests.unit.training.objectives.samples import SPECS, settings


def test_every_objective_kind_has_a_sample() -> None:
    kinds = set(get_args(get_args(ObjectiveSpec)[0]))
    assert {type(settings(values)) for values in SPECS.values()} == kinds


@pytest.mark.parametrize(("values", "message"), [
    ({"kind": "softmax", "classes": ["a", "b", "a"]}, "classes has a repeated value"),
    ({"kind": "regression", "range": [0, 5]}, "must ascend and lie within"),
    ({"kind": "triplet", "margin": 0}, "greater than 0"),
    ({"kind": "cosent", "matryoshka": {"dimensions": [8, 8]}}, "dimensions has a repeated value"),
])  # fmt: skip
def test_invalid_settings_are_rejected(values: dict[str, Any], message: str) -> None:
    with pytest.raises(ValidationError, match=message):
        settings(values)
