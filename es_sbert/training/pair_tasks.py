"""Train a cross-encoder, which scores pairs of texts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn

from es_sbert.errors import RecipeInvalid
from es_sbert.evaluation.evaluated_models import PairScorer
from es_sbert.networks.cross_encoder import REGRESSION_LABELS, CrossEncoder, save_cross_encoder
from es_sbert.training.bi_encoder_task import Batch, PairColumn, TrainingTask
from es_sbert.training.recipe import ObjectiveSpec, RegressionSpec, SoftmaxSpec
from es_sbert.training.training_device import joint_mean
from es_sbert.training.training_examples import Examples

# Tolerance at the limits of the range: mapping a float32 score to the range may turn 1 into 1.0000001.
_SCORE_TOLERANCE = 1e-5


def gold_scores(examples: Examples, rows: Sequence[int], allowed: tuple[float, float]) -> Tensor:
    """Return the gold scores of some rows, *shape* ``(rows,)`` float32.

    Args:
        examples: A data set with scores.
        rows: The rows.
        allowed: Lowest and highest score of the objective.

    Raises:
        RecipeInvalid: a score is outside the allowed range.
    """
    scores = np.asarray(examples.labels, dtype=np.float32)[list(rows)]  # (rows,)
    low, high = allowed
    outside = np.flatnonzero((scores < low - _SCORE_TOLERANCE) | (scores > high + _SCORE_TOLERANCE))
    if len(outside):
        raise RecipeInvalid(
            f"{examples.origin(rows[int(outside[0])])}: the score {scores[outside[0]]:g} is not between {low:g} "
            f"and {high:g}",
            "Set score_range of the data set to the lowest and highest score of the file; scores are then mapped.",
        )
    return torch.from_numpy(scores)


class CrossEncoderTask(TrainingTask):
    """A cross-encoder with its objectives.

    All data sets share the one head: all are scored (`regression`: one logit, binary cross-entropy against the gold
    score) or all have the same classes (`softmax`: cross-entropy; its features are ignored, because a cross-encoder
    does not have sentence vectors).

    Args:
        encoder: The network, with a head of the labels that `labels_of` gives for the objectives.
        objectives: Data set → objective.
    """

    def __init__(self, encoder: CrossEncoder, objectives: Mapping[str, ObjectiveSpec]) -> None:
        super().__init__()
        self.encoder = encoder
        self.objectives = dict(objectives)

    def tokenize_columns(self, examples: Examples) -> list[PairColumn]:
        first, second = examples.texts
        return [PairColumn(first, second, self.encoder.tokenize)]

    def collate(self, examples: Examples, rows: Sequence[int]) -> Batch:
        """Make a batch: `inputs` as the tokenizer pads them; `labels` ``(batch,)``, float32 in [0, 1] or int64 classes.

        Raises:
            RecipeInvalid: a gold score lies outside the objective's range.
        """
        inputs = self.encoder.inputs(self.tokenized(examples)[0].pairs(rows))
        objective = self.objectives[examples.name]
        if isinstance(objective, RegressionSpec):
            low, high = objective.range
            labels = ((gold_scores(examples, rows, objective.range) - low) / (high - low)).clamp(0, 1)
        else:
            labels = torch.as_tensor(np.asarray(examples.labels)[list(rows)], dtype=torch.int64)
        return {"inputs": inputs, "labels": labels}

    def forward(self, dataset: str, batch: Batch) -> Tensor:
        """Compute the mean loss of the joint batch."""
        logits = self.encoder(batch["inputs"])  # (batch, labels)
        if isinstance(self.objectives[dataset], RegressionSpec):
            gold = batch["labels"]  # (batch,)
            losses = nn.functional.binary_cross_entropy_with_logits(logits[:, 0], gold, reduction="none")
        else:
            losses = nn.functional.cross_entropy(logits, batch["labels"], reduction="none")
        return joint_mean(losses, batch.get("sizes", ()))

    def evaluated_model(self) -> PairScorer:
        return self.encoder

    def save(self, folder: Path, *, name: str) -> None:
        """Write a transformers folder, whose name is the model's name: the format has no other place for it."""
        save_cross_encoder(self.encoder, folder)


def head_labels(objectives: Mapping[str, ObjectiveSpec]) -> tuple[str, ...]:
    """Return the labels of the head that all objectives share: their classes, or a single label for a score.

    Raises:
        RecipeInvalid: an objective needs sentence vectors, or the objectives need different heads.
    """
    heads: dict[str, tuple[str, ...]] = {}
    for dataset, objective in objectives.items():
        if objective.matryoshka is not None:
            raise RecipeInvalid(
                f"{dataset}: matryoshka truncates sentence vectors, which a cross-encoder does not have",
                "Leave matryoshka out, or set the model's kind to bi-encoder.",
            )
        if not isinstance(objective, RegressionSpec | SoftmaxSpec):
            raise RecipeInvalid(
                f"{dataset}: a cross-encoder cannot be trained with the objective {objective.kind}",
                "Use regression (pairs with a score) or softmax (pairs with a class).",
            )
        heads[dataset] = objective.classes if isinstance(objective, SoftmaxSpec) else REGRESSION_LABELS
    if len(set(heads.values())) > 1:
        heads_text = "; ".join(
            f"{dataset}: {'a score' if labels == REGRESSION_LABELS else ', '.join(labels)}"
            for dataset, labels in heads.items()
        )
        raise RecipeInvalid(
            f"a cross-encoder has one head, and the data sets of a stage need different ones ({heads_text})",
            "Train on them in separate stages.",
        )
    return next(iter(heads.values()))
