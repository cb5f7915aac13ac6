"""The triplet objective."""

import pytest
from sentence_transformers.sentence_transformer import losses
from sentence_transformers.sentence_transformer.losses import TripletDistanceMetric

from es_sbert.training.losses import TripletLoss
from es_sbert.training.recipe import TripletDistance, TripletSpec
from tests.unit.training.objectives.samples import assert_same_as_reference, columns, tensor

METRICS = {
    TripletDistance.EUCLIDEAN: TripletDistanceMetric.EUCLIDEAN,
    TripletDistance.MANHATTAN: TripletDistanceMetric.MANHATTAN,
    TripletDistance.COSINE: TripletDistanceMetric.COSINE,
}


def build(distance: TripletDistance = TripletDistance.EUCLIDEAN, margin: float = 1) -> TripletLoss:
    return TripletLoss(TripletSpec(kind="triplet", distance=distance, margin=margin))


@pytest.mark.parametrize(("distance", "margin", "loss"), [
    # From (0, 0) to (3, 4) and (6, 8) it is 5 and 10: max(5 − 10 + 6, 0) = 1 and, the other way round, 11.
    (TripletDistance.EUCLIDEAN, 6, (1 + 11) / 2),
    # max(5 − 10 + 1, 0) = 0 and 6.
    (TripletDistance.EUCLIDEAN, 1, (0 + 6) / 2),
    # 7 and 14: max(7 − 14 + 8, 0) = 1 and 15.
    (TripletDistance.MANHATTAN, 8, (1 + 15) / 2),
])  # fmt: skip
def test_loss_by_hand(distance: TripletDistance, margin: float, loss: float) -> None:
    anchor, near, far = tensor([0, 0], [0, 0]), tensor([3, 4], [6, 8]), tensor([6, 8], [3, 4])
    assert build(distance, margin)([anchor, near, far], None).item() == pytest.approx(loss)


def test_cosine_by_hand() -> None:
    # 1 − 0.6 and 1 − 0.8: 0.4 − 0.2 + 0.1.
    loss = build(TripletDistance.COSINE, 0.1)([tensor([1, 0]), tensor([3, 4]), tensor([4, 3])], None)
    assert loss.item() == pytest.approx(0.3)


@pytest.mark.parametrize("distance", TripletDistance)
@pytest.mark.parametrize("margin", [0.1, 1, 5])
def test_equals_sentence_transformers(distance: TripletDistance, margin: float) -> None:
    assert_same_as_reference(
        build(distance, margin),
        lambda model: losses.TripletLoss(model, distance_metric=METRICS[distance], triplet_margin=margin),
        columns(3),
        None,
    )


def test_positive_equal_to_the_anchor_adds_no_gradient() -> None:
    anchor, negative = tensor([3, 4]).requires_grad_(), tensor([3, 5])
    # d(a, p) = 0 and d(a, n) = 1, so that the loss is 0 − 1 + 2; only n pulls: −∂d(a, n)/∂a = (0, 1).
    loss = build(margin=2)([anchor, anchor.detach().clone(), negative], None)
    loss.backward()
    assert loss.item() == pytest.approx(1)
    assert anchor.grad is not None
    assert anchor.grad.flatten().tolist() == [0, 1]


def test_triplet_beyond_the_margin_has_no_gradient() -> None:
    vectors = [tensor([0, 0]).requires_grad_(), tensor([1, 0]).requires_grad_(), tensor([9, 0]).requires_grad_()]
    build()(vectors, None).backward()
    assert all(column.grad is not None and not column.grad.any() for column in vectors)
