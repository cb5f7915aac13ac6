"""The classification objective."""

from itertools import permutations
from math import log

import pytest
import torch
from sentence_transformers.sentence_transformer import losses

from es_sbert.training.losses import SoftmaxLoss
from es_sbert.training.recipe import PairFeature, SoftmaxSpec
from tests.unit.training.objectives.samples import DIMENSIONS, assert_same_as_reference, columns, labels_for, tensor

PAPER = (PairFeature.U, PairFeature.V, PairFeature.DIFFERENCE)
CLASSES = ("contradiction", "neutral", "entailment")


def build(*features: PairFeature, dimensions: int = DIMENSIONS, classes: tuple[str, ...] = CLASSES) -> SoftmaxLoss:
    torch.manual_seed(0)
    return SoftmaxLoss(SoftmaxSpec(kind="softmax", classes=classes, features=features or PAPER), dimensions)


def test_loss_by_hand() -> None:
    objective = build(dimensions=2, classes=("no", "yes"))
    with torch.no_grad():
        # u = (1, 2), v = (3, 1): the features are (1, 2 | 3, 1 | 2, 1). Only |u−v|'s first value, 2, counts, so that
        # the logits are 0 and log 3, and p(yes) = 3/4.
        objective.classifier.weight.zero_()
        objective.classifier.weight[1, 4] = log(3) / 2
        objective.classifier.bias.zero_()
    u, v = tensor([1, 2]), tensor([3, 1])
    assert objective([u, v], torch.tensor([1])).item() == pytest.approx(log(4 / 3))
    assert objective([u, v], torch.tensor([0])).item() == pytest.approx(log(4))
    with torch.no_grad():
        objective.classifier.bias[0] = log(3)  # both logits log 3: p = 1/2
    assert objective([u, v], torch.tensor([1])).item() == pytest.approx(log(2))


def test_default_features_are_those_of_the_paper() -> None:
    assert SoftmaxSpec(kind="softmax", classes=CLASSES).features == PAPER


def test_features_are_in_recipe_order() -> None:
    u, v = tensor([1, 2]), tensor([3, 1])
    values = {PairFeature.U: [1, 2], PairFeature.V: [3, 1], PairFeature.DIFFERENCE: [2, 1], PairFeature.PRODUCT: [3, 2]}
    for size in range(1, 5):
        for features in permutations(PairFeature, size):
            objective = build(*features, dimensions=2)
            expected = tensor([value for feature in features for value in values[feature]])
            loss = torch.nn.functional.cross_entropy(objective.classifier(expected), torch.tensor([2]))
            assert objective([u, v], torch.tensor([2])).item() == pytest.approx(loss.item())


@pytest.mark.parametrize(("sentences", "difference", "product"), [
    (True, True, False), (True, True, True), (True, False, False), (True, False, True), (False, True, False),
    (False, True, True), (False, False, True),
])  # fmt: skip
def test_equals_sentence_transformers(sentences: bool, difference: bool, product: bool) -> None:
    features = (
        [PairFeature.U, PairFeature.V] * sentences
        + [PairFeature.DIFFERENCE] * difference
        + [PairFeature.PRODUCT] * product
    )
    objective = build(*features)

    def reference(model: object) -> losses.SoftmaxLoss:
        loss = losses.SoftmaxLoss(model, DIMENSIONS, 3, sentences, difference, product)
        loss.classifier.load_state_dict(objective.classifier.state_dict())
        return loss

    assert_same_as_reference(objective, reference, columns(2), labels_for(objective.schema.label))


def test_initial_weights_equal_sentence_transformers() -> None:
    objective = build()
    torch.manual_seed(0)
    reference = torch.nn.Linear(3 * DIMENSIONS, 3)
    assert torch.equal(objective.classifier.weight, reference.weight)
    assert torch.equal(objective.classifier.bias, reference.bias)


def test_classifier_gets_gradients() -> None:
    objective = build()
    objective(columns(2), labels_for(objective.schema.label)).backward()
    assert all(parameter.grad is not None and parameter.grad.any() for parameter in objective.parameters())
