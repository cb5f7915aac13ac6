"""The regression objective."""

import pytest
import torch
from sentence_transformers.sentence_transformer import losses

from es_sbert.training.losses import CosineSimilarityLoss
from es_sbert.training.recipe import RegressionSpec
from tests.unit.training.objectives.samples import assert_same_as_reference, columns, labels_for, tensor


def test_loss_by_hand() -> None:
    # Cosines 24/25 and 0; (0.96 − 1)² = 0.0016 and (0 − 0.5)² = 0.25.
    u, v = tensor([3, 4], [1, 0]), tensor([4, 3], [0, 7])
    loss = CosineSimilarityLoss(RegressionSpec(kind="regression"))([u, v], torch.tensor([1, 0.5]))
    assert loss.item() == pytest.approx((0.0016 + 0.25) / 2)


@pytest.mark.parametrize("seed", range(3))
def test_equals_sentence_transformers(seed: int) -> None:
    objective = CosineSimilarityLoss(RegressionSpec(kind="regression"))
    labels = labels_for(objective.schema.label, seed)
    assert_same_as_reference(objective, losses.CosineSimilarityLoss, columns(2, seed), labels)


def test_gradient_raises_a_cosine_below_the_score() -> None:
    u, v = tensor([1, 0]).requires_grad_(), tensor([0, 1])
    CosineSimilarityLoss(RegressionSpec(kind="regression"))([u, v], torch.tensor([1.0])).backward()
    assert u.grad is not None
    assert u.grad.flatten().tolist() == [0, -2]  # against it lies v's direction
