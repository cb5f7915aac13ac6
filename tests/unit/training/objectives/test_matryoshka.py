"""Objectives on the first d values as well."""

from typing import Any

import pytest
import torch
from sentence_transformers.sentence_transformer import losses

from es_sbert.errors import RecipeInvalid
from es_sbert.training.losses import MatryoshkaLoss, Objective, build_objective
from tests.unit.training.objectives.samples import (
    ALL_SPECS,
    BATCH,
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


def test_loss_by_hand() -> None:
    # Of one value each the cosine is 1, of two (9 − 16) / 25 = −0.28; gold 0. 1² + 0.28².
    u, v = tensor([3, 4]), tensor([3, -4])
    objective = build({"kind": "regression"}, 1, 2)
    assert objective([u, v], torch.tensor([0.0])).item() == pytest.approx(1 + 0.0784)


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


@pytest.mark.parametrize("name", SPECS)
def test_full_dimension_alone_equals_the_wrapped_objective(name: str) -> None:
    torch.manual_seed(0)
    plain = build_objective(settings(SPECS[name]), DIMENSIONS)
    torch.manual_seed(0)
    wrapped = build(SPECS[name], DIMENSIONS)
    vectors, labels = columns(len(plain.schema.roles)), labels_for(plain.schema.label)
    assert wrapped(vectors, labels).item() == plain(vectors, labels).item()


@pytest.mark.parametrize("name", SPECS)
def test_schema_equals_that_of_the_wrapped_objective(name: str) -> None:
    plain, wrapped = (
        build_objective(settings(specs[key]), DIMENSIONS)
        for specs, key in ((SPECS, name), (ALL_SPECS, f"matryoshka of {name}"))
    )
    assert isinstance(wrapped, MatryoshkaLoss)
    assert wrapped.schema == plain.schema


def test_each_dimension_has_its_own_head() -> None:
    objective = build(SPECS["softmax"], 12, 4)
    assert {name: tuple(parameter.shape) for name, parameter in objective.named_parameters()} == {
        "objectives.0.classifier.weight": (3, 36),
        "objectives.0.classifier.bias": (3,),
        "objectives.1.classifier.weight": (3, 12),
        "objectives.1.classifier.bias": (3,),
    }
    objective(columns(2), labels_for(objective.schema.label)).backward()
    assert all(parameter.grad is not None and parameter.grad.any() for parameter in objective.parameters())


def test_dimension_above_the_model_width_is_rejected() -> None:
    with pytest.raises(RecipeInvalid, match="first 16 dimensions, but the vectors have 12") as caught:
        build({"kind": "cosent"}, 16, 8)
    assert "dense: {out_features: 16}" in caught.value.remedy


def test_wider_teacher_is_rejected() -> None:
    with pytest.raises(RecipeInvalid, match="teacher's vectors have 20 dimensions, the student's 12"):
        build(SPECS["vector-distillation"], 12, 6)(columns(1), torch.zeros(BATCH, 20))
