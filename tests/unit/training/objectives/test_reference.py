"""Each objective has loss and gradients of sentence-transformers' loss; and what that library lacks, by hand."""

from itertools import permutations
from typing import Any

import pytest
import torch
from sentence_transformers.sentence_transformer import losses
from sentence_transformers.sentence_transformer.losses import TripletDistanceMetric

from es_sbert.errors import RecipeInvalid
from es_sbert.training.losses import Objective, SoftmaxLoss, build_objective
from es_sbert.training.recipe import PairFeature, SoftmaxSpec
from tests.raised import raises_as_recorded
from tests.unit.training.objectives.samples import (
    BATCH,
    DIMENSIONS,
    SPECS,
    assert_same_as_reference,
    columns,
    labels_for,
    settings,
    tensor,
)

BOTH_WAYS = {"directions": ("query_to_doc", "doc_to_query"), "partition_mode": "per_direction"}
METRICS = {
    "euclidean": TripletDistanceMetric.EUCLIDEAN,
    "manhattan": TripletDistanceMetric.MANHATTAN,
    "cosine": TripletDistanceMetric.COSINE,
}


def build(kind: str, **values: Any) -> Objective:
    return build_objective(settings({**SPECS[kind], **values}), DIMENSIONS)


@pytest.mark.parametrize(
    ("kind", "values", "count", "reference", "options"),
    [
        ("regression", {}, 2, losses.CosineSimilarityLoss, {}),
        *(("cosent", {"scale": scale}, 2, losses.CoSENTLoss, {"scale": scale}) for scale in (1, 100)),
        *(
            ("in-batch", {"scale": scale, "symmetric": symmetric}, 2 + negatives, losses.MultipleNegativesRankingLoss,
             {"scale": scale, **(BOTH_WAYS if symmetric else {})})
            for scale, negatives in ((1, 0), (20, 1), (100, 3))
            for symmetric in (False, True)
        ),
        *(("vector-distillation", {}, 1 + targets, losses.MSELoss, {}) for targets in (0, 1, 3)),
        ("margin-distillation", {}, 3, losses.MarginMSELoss, {}),
        *(
            ("triplet, euclidean", {"distance": distance, "margin": margin}, 3, losses.TripletLoss,
             {"distance_metric": metric, "triplet_margin": margin})
            for distance, metric in METRICS.items()
            for margin in (0.1, 5)
        ),
    ],
)  # fmt: skip
def test_loss_and_gradients_equal_sentence_transformers(
    kind: str, values: dict[str, Any], count: int, reference: Any, options: dict[str, Any]
) -> None:
    objective = build(kind, **values)
    for seed in range(2):
        labels = labels_for(objective.schema.label, seed)
        assert_same_as_reference(objective, lambda model: reference(model, **options), columns(count, seed), labels)


@pytest.mark.parametrize(("sentences", "difference", "product"), [
    (True, True, False), (True, True, True), (True, False, False), (False, True, False), (False, False, True),
])  # fmt: skip
def test_softmax_equals_sentence_transformers(sentences: bool, difference: bool, product: bool) -> None:
    features = ["u", "v"] * sentences + ["|u-v|"] * difference + ["u*v"] * product
    objective = build("softmax", features=features)

    def reference(model: object) -> losses.SoftmaxLoss:
        loss = losses.SoftmaxLoss(model, DIMENSIONS, 3, sentences, difference, product)
        loss.classifier.load_state_dict(objective.classifier.state_dict())
        return loss

    assert_same_as_reference(objective, reference, columns(2), labels_for(objective.schema.label))
    objective(columns(2), labels_for(objective.schema.label)).backward()
    assert all(parameter.grad is not None and parameter.grad.any() for parameter in objective.parameters())


def test_softmax_features_are_in_recipe_order_and_by_default_those_of_the_paper() -> None:
    u, v = tensor([1, 2]), tensor([3, 1])
    values = {PairFeature.U: [1, 2], PairFeature.V: [3, 1], PairFeature.DIFFERENCE: [2, 1], PairFeature.PRODUCT: [3, 2]}
    for size in range(1, 5):
        for features in permutations(PairFeature, size):
            objective = SoftmaxLoss(SoftmaxSpec(kind="softmax", classes=("a", "b", "c"), features=features), 2)
            expected = tensor([value for feature in features for value in values[feature]])
            loss = torch.nn.functional.cross_entropy(objective.classifier(expected), torch.tensor([2]))
            assert objective([u, v], torch.tensor([2])).item() == pytest.approx(loss.item())
    paper = (PairFeature.U, PairFeature.V, PairFeature.DIFFERENCE)
    assert SoftmaxSpec(kind="softmax", classes=("a", "b")).features == paper


def test_margin_scale_multiplies_the_margin_of_the_student() -> None:
    # (1, 2)·(3, 1) − (1, 2)·(0, 1) = 3 and 1 − 0 = 1; times 3, they are 8 and 2 above the teacher's margin.
    vectors = [tensor([1, 2], [0, 1]), tensor([3, 1], [1, 1]), tensor([0, 1], [1, 0])]
    loss = build("margin-distillation", scale=3)(vectors, torch.tensor([1.0, 1]))
    assert loss.item() == pytest.approx((8**2 + 2**2) / 2)


def test_teacher_of_another_width_is_rejected_with_remedy() -> None:
    with raises_as_recorded(RecipeInvalid):
        build("vector-distillation")(columns(2), torch.zeros(BATCH, 20))
