"""Learning from a teacher's vectors and margins."""

import pytest
import torch
from sentence_transformers.sentence_transformer import losses

from es_sbert.errors import RecipeInvalid
from es_sbert.training.losses import MarginMSELoss, VectorDistillationLoss, check_dimensions
from es_sbert.training.recipe import MarginDistillationSpec
from tests.unit.training.objectives.samples import BATCH, assert_same_as_reference, columns, labels_for, tensor


def test_vector_loss_by_hand() -> None:
    source, target, teacher = tensor([1, 2]), tensor([3, 2]), tensor([1, 0])
    # (0² + 2²) / 2 for the source, (2² + 2²) / 2 for the target.
    assert VectorDistillationLoss()([source], teacher).item() == pytest.approx(2)
    assert VectorDistillationLoss()([source, target], teacher).item() == pytest.approx((2 + 4) / 2)


@pytest.mark.parametrize("targets", [0, 1, 3])
def test_vector_loss_equals_sentence_transformers(targets: int) -> None:
    objective = VectorDistillationLoss()
    assert_same_as_reference(objective, losses.MSELoss, columns(1 + targets), labels_for(objective.schema.label))


def test_margin_loss_by_hand() -> None:
    # (1, 2)·(3, 1) − (1, 2)·(0, 1) = 5 − 2 = 3, two more than the teacher's margin; 1 − 0 = 1, the teacher's own.
    anchor, positive, negative = tensor([1, 2], [0, 1]), tensor([3, 1], [1, 1]), tensor([0, 1], [1, 0])
    loss = MarginMSELoss()([anchor, positive, negative], torch.tensor([1.0, 1]))
    assert loss.item() == pytest.approx((4 + 0) / 2)
    scaled = MarginMSELoss(MarginDistillationSpec(kind="margin-distillation", scale=3))
    assert scaled([anchor, positive, negative], torch.tensor([1.0, 1])).item() == pytest.approx((8**2 + 2**2) / 2)


@pytest.mark.parametrize("seed", range(3))
def test_margin_loss_equals_sentence_transformers(seed: int) -> None:
    objective = MarginMSELoss()
    labels = labels_for(objective.schema.label, seed)
    assert_same_as_reference(objective, losses.MarginMSELoss, columns(3, seed), labels)


def test_teacher_of_another_width_is_rejected_with_remedy() -> None:
    with pytest.raises(RecipeInvalid, match="teacher's vectors have 20 dimensions, the student's 12") as caught:
        VectorDistillationLoss()(columns(2), torch.zeros(BATCH, 20))
    assert "dense: {out_features: 20}" in caught.value.remedy
    check_dimensions(12, 12)
