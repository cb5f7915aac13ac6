"""CoSENT."""

from math import log

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from sentence_transformers.sentence_transformer import losses

from es_sbert.training.losses import CoSENTLoss
from es_sbert.training.recipe import CoSentSpec
from tests.unit.training.objectives.samples import BATCH, assert_same_as_reference, columns, labels_for, tensor


def build(scale: float = 20) -> CoSENTLoss:
    return CoSENTLoss(CoSentSpec(kind="cosent", scale=scale))


def test_loss_by_hand() -> None:
    # Cosines 1, 0 and −1 with scores 0, 1 and 1: the first lies 1 above the second and 2 above the third, though its
    # score is lower. Times log 2, exp makes 2 and 4 of that; the pairs of score 1 are not compared.
    u, v = tensor([1, 0], [1, 0], [1, 0]), tensor([2, 0], [0, 1], [-3, 0])
    assert build(log(2))([u, v], torch.tensor([0.0, 1, 1])).item() == pytest.approx(log(1 + 2 + 4))
    # In the right order they are 1/2 and 1/4.
    assert build(log(2))([u, v], torch.tensor([1.0, 0, 0])).item() == pytest.approx(log(1 + 1 / 2 + 1 / 4))


@pytest.mark.parametrize("scale", [1, 20, 100])
@pytest.mark.parametrize("steps", [2, 5, 1000])  # few steps: many equal scores
def test_equals_sentence_transformers(scale: float, steps: int) -> None:
    objective = build(scale)
    labels = labels_for(objective.schema.label)
    assert labels is not None
    rounded = (labels * steps).round() / steps
    assert_same_as_reference(objective, lambda model: losses.CoSENTLoss(model, scale=scale), columns(2), rounded)


def test_equal_scores_give_zero_loss_and_gradient() -> None:
    vectors = columns(2)
    loss = build()(vectors, torch.full((BATCH,), 0.5))
    assert loss.item() == 0
    assert not any(gradient.any() for gradient in torch.autograd.grad(loss, vectors))


@settings(deadline=None)
@given(st.integers(0, 1000), st.floats(0.5, 3), st.floats(-2, 2))
def test_loss_depends_only_on_score_order(seed: int, power: float, shift: float) -> None:
    objective = build()
    vectors = columns(2, seed)
    labels = (torch.randperm(BATCH, generator=torch.Generator().manual_seed(seed)) + 1).float()
    assert objective(vectors, labels).item() == objective(vectors, labels**power + shift).item()


def test_gradient_reverses_a_wrong_order() -> None:
    u, v = tensor([1, 0], [1, 0]), tensor([2, 1], [1, 2]).requires_grad_()
    build()([u, v], torch.tensor([0.0, 1])).backward()  # the first cosine is the higher, its score the lower
    assert v.grad is not None
    assert v.grad[0, 0] > 0 > v.grad[1, 0]
