"""In-batch negatives, with and without hard ones, one way and both ways."""

from math import log

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sentence_transformers.sentence_transformer import losses

from es_sbert.training.losses import MultipleNegativesRankingLoss
from es_sbert.training.recipe import InBatchSpec
from tests.unit.training.objectives.samples import assert_same_as_reference, columns, tensor


def build(scale: float = 20, *, symmetric: bool = False) -> MultipleNegativesRankingLoss:
    return MultipleNegativesRankingLoss(InBatchSpec(kind="in-batch", scale=scale, symmetric=symmetric))


def test_loss_by_hand() -> None:
    # Cosines are 1 on the diagonal and 0 beside it; times log 3, exp makes 3 and 1 of them.
    anchors, positives = tensor([1, 0], [0, 1]), tensor([5, 0], [0, 2])
    assert build(log(3))([anchors, positives], None).item() == pytest.approx(log(4 / 3))
    assert build(log(3), symmetric=True)([anchors, positives], None).item() == pytest.approx(log(4 / 3))


def test_hard_negatives_by_hand() -> None:
    anchors, positives, negatives = tensor([1, 0], [0, 1]), tensor([1, 0], [0, 1]), tensor([1, 0], [-1, 0])
    # Over positives and negatives, exp makes 3, 1 | 3, 1/3 of the first anchor's cosines and 1, 3 | 1, 1 of the
    # second's: −log(3 / (22/3)) and −log(3 / 6).
    forward = (log(22 / 9) + log(2)) / 2
    assert build(log(3))([anchors, positives, negatives], None).item() == pytest.approx(forward)
    # From a positive to the anchors there are no hard negatives: 3 / (3 + 1) each.
    both = build(log(3), symmetric=True)([anchors, positives, negatives], None)
    assert both.item() == pytest.approx((forward + log(4 / 3)) / 2)


@pytest.mark.parametrize("scale", [1, 20, 100])
@pytest.mark.parametrize("negatives", [0, 1, 3])
@pytest.mark.parametrize("symmetric", [False, True])
def test_equals_sentence_transformers(scale: float, negatives: int, symmetric: bool) -> None:
    both_ways = {"directions": ("query_to_doc", "doc_to_query"), "partition_mode": "per_direction"}
    assert_same_as_reference(
        build(scale, symmetric=symmetric),
        lambda model: losses.MultipleNegativesRankingLoss(model, scale=scale, **(both_ways if symmetric else {})),
        columns(2 + negatives),
        None,
    )


def test_gradient_pulls_positives_and_pushes_negatives() -> None:
    anchor, positive, negative = tensor([1, 0]), tensor([1, 1]).requires_grad_(), tensor([1, 1]).requires_grad_()
    build()([anchor, positive, negative], None).backward()
    assert positive.grad is not None
    assert negative.grad is not None
    assert positive.grad[0, 0] < 0 < negative.grad[0, 0]


@settings(deadline=None)
@given(st.integers(0, 1000))
def test_a_further_negative_never_lowers_the_loss(seed: int) -> None:
    vectors = columns(4, seed)
    without, with_one, with_two = (build()(vectors[:count], None).item() for count in (2, 3, 4))
    assert 0 <= without <= with_one <= with_two
