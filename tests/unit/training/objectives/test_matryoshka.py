"""Objectives on the first d values as well."""

from typing import Any

import pytest
from sentence_transformers.sentence_transformer import losses

from es_sbert.errors import RecipeInvalid
from es_sbert.training.losses import Objective, build_objective
from tests.raised import raises_as_recorded
from tests.unit.training.objectives.samples import (
    DIMENSIONS,
    SPECS,
    assert_same_as_reference,
    columns,
    labels_for,
    settings,
    tensor,
)


def build(values: dict[str, Any], *shapes: int) -> Objective:
    return build_objective(settings(values | {"matryoshka": {"dimensions": shapes}}), DIMENSIONS)


def test_teacher_vectors_are_truncated_too() -> None:
    # Of one value each: (1 − 3)² = 4; of two: (4 + 1) / 2.
    objective = build(SPECS["vector-distillation"], 1, 2)
    assert objective([tensor([1, 2])], tensor([3, 1])).item() == pytest.approx(4 + 2.5)


@pytest.mark.parametrize(("values", "count", "reference"), [
    ({"kind": "regression"}, 2, losses.CosineSimilarityLoss),
    ({"kind": "cosent"}, 2, losses.CoSENTLoss),
    ({"kind": "in-batch"}, 2, losses.MultipleNegativesRankingLoss),
    ({"kind": "in-batch"}, 4, losses.MultipleNegativesRankingLoss),
])  # fmt: skip
def test_equals_sentence_transformers(values: dict[str, Any], count: int, reference: Any) -> None:
    objective = build(values, DIMENSIONS, 6, 3)
    assert_same_as_reference(
        objective,
        lambda model: losses.MatryoshkaLoss(model, reference(model), [DIMENSIONS, 6, 3]),
        columns(count),
        labels_for(objective.schema.label),
    )


def test_dimension_above_the_model_width_is_rejected() -> None:
    with raises_as_recorded(RecipeInvalid):
        build({"kind": "cosent"}, 16, 8)
