"""What holds for every objective, whatever it computes."""

from typing import Any

import pytest
import torch

from es_sbert.training.losses import Objective, build_objective
from tests.unit.training.objectives.samples import ALL_SPECS, BATCH, DIMENSIONS, columns, labels_for, settings

every_objective = pytest.mark.parametrize("values", ALL_SPECS.values(), ids=ALL_SPECS.keys())


def build(values: dict[str, Any]) -> Objective:
    torch.manual_seed(0)
    return build_objective(settings(values), DIMENSIONS)


@every_objective
def test_nan_in_a_vector_makes_the_loss_nan(values: dict[str, Any]) -> None:
    objective = build_objective(settings(values), DIMENSIONS)
    vectors = columns(len(objective.schema.roles))
    with torch.no_grad():
        vectors[0][3] = float("nan")
    assert torch.isnan(objective(vectors, labels_for(objective.schema.label)))


@every_objective
def test_zero_and_equal_vectors_give_finite_gradients(values: dict[str, Any]) -> None:
    objective = build(values)
    column = torch.zeros(BATCH, DIMENSIONS)
    column[BATCH // 2 :] = 1  # half of the batch zero, half equal
    vectors = [column.clone().requires_grad_() for _ in objective.schema.roles]
    loss = objective(vectors, labels_for(objective.schema.label))
    gradients = torch.autograd.grad(loss, vectors)
    assert loss.isfinite()
    # Finite is not enough: 1/ε at a zero vector would be finite too, and drown the step.
    assert all(gradient.isfinite().all() and gradient.abs().max() < 100 for gradient in gradients)


@every_objective
def test_half_precision_vectors_are_computed_with_in_float32(values: dict[str, Any]) -> None:
    objective = build(values)
    halves = [column.detach().bfloat16().requires_grad_() for column in columns(len(objective.schema.roles))]
    labels = labels_for(objective.schema.label)
    loss = objective(halves, labels)
    assert loss.dtype == torch.float32
    assert loss.item() == objective([column.detach().float() for column in halves], labels).item()
    assert all(gradient.dtype == torch.bfloat16 for gradient in torch.autograd.grad(loss, halves))
