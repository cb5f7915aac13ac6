"""From logits to one score a pair."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
import torch

from es_sbert.bundle.cross_encoder_model import CrossEncoderModel, ScoreActivation
from es_sbert.errors import UsageError
from es_sbert.networks.cross_encoder import pair_scores, similar_class_index


def model(*labels: str, activation: ScoreActivation = ScoreActivation.SIGMOID) -> CrossEncoderModel:
    return CrossEncoderModel(
        folder=Path("x"),
        name="x",
        architecture="bert",
        config={},
        labels=labels,
        activation=activation,
        max_tokens=8,
        lowercase=False,
        fingerprint="",
    )


def test_single_logit_gives_its_sigmoid() -> None:
    scores = pair_scores(torch.tensor([[0.0], [math.log(3)]]), model("LABEL_0"))
    assert scores.tolist() == pytest.approx([0.5, 0.75])


def test_identity_activation_gives_the_logit() -> None:
    plain = model("LABEL_0", activation=ScoreActivation.IDENTITY)
    assert pair_scores(torch.tensor([[-7.0], [2.0]]), plain).tolist() == [-7.0, 2.0]


def test_classes_give_the_probability_of_entailment() -> None:
    logits = torch.tensor([[0.0, math.log(2), 0.0], [0.0, 0.0, math.log(8)]])
    scores = pair_scores(logits, model("contradiction", "entailment", "neutral"))
    assert scores.tolist() == pytest.approx([0.5, 0.1])


@pytest.mark.parametrize(
    ("classes", "number"),
    [(("0", "1"), 1), (("Duplicate", "other"), 0), (("NEUTRAL", "CONTRADICTION", "ENTAILMENT"), 2)],
)
def test_similar_class_index(classes: tuple[str, ...], number: int) -> None:
    assert similar_class_index(classes) == number


@pytest.mark.parametrize("classes", [("LABEL_0", "LABEL_1"), ("entailment", "paraphrase", "none")])
def test_ambiguous_classes_are_rejected(classes: tuple[str, ...]) -> None:
    with pytest.raises(UsageError, match="is not clear") as caught:
        similar_class_index(classes)
    assert "regression" in caught.value.remedy
