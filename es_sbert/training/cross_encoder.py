"""Training of a cross-encoder: the baseline that reads both texts together (Reimers and Gurevych 2019, section 4)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from es_sbert.bundle.resolve import resolve_model
from es_sbert.errors import RecipeInvalid
from es_sbert.evaluation.models import PairScorer
from es_sbert.networks.cross_encoder import ONE_LABEL, CrossEncoder
from es_sbert.networks.cross_encoder_folder import save_cross_encoder, start_cross_encoder
from es_sbert.training.data.examples import Examples
from es_sbert.training.data.tokens import PairColumn
from es_sbert.training.distributed import joint_mean
from es_sbert.training.objectives.settings import ObjectiveSpec, Regression, Softmax
from es_sbert.training.pair_labels import to_unit_interval
from es_sbert.training.recipe import ModelSpec
from es_sbert.training.task import Batch, TrainingTask


class CrossEncoderTask(TrainingTask):
    """A cross-encoder and what it is trained for.

    All data sets share the one head: all are scored (`regression`: one logit, binary cross-entropy against the gold
    score) or all have the same classes (`softmax`: cross-entropy; its features are of sentence vectors, which a
    cross-encoder does not have, and are not looked at).

    Args:
        encoder: The network, with a head of the labels that `labels_of` gives for the objectives.
        objectives: Data set → objective.
    """

    def __init__(self, encoder: CrossEncoder, objectives: Mapping[str, ObjectiveSpec]) -> None:
        super().__init__()
        self.encoder = encoder
        self.objectives = dict(objectives)
        self._pairs: dict[str, PairColumn] = {}

    @classmethod
    def open(cls, spec: ModelSpec, objectives: Mapping[str, ObjectiveSpec]) -> CrossEncoderTask:
        """Start from the base of a recipe. A new head takes its random weights from torch's seed.

        Raises:
            RecipeInvalid: settings or objectives that a cross-encoder does not have.
            ModelNotFound: there is no such base.
            BundleInvalid: a file of the base is missing or broken, or its weights are pickled.
            UnsupportedArchitecture: transformers has no sequence classification for it.
        """
        given = {"pooling": spec.pooling, "dense": spec.dense, "normalize": spec.normalize, "prompts": spec.prompts}
        needless = [name for name, value in given.items() if value is not None and value != {}]
        if needless:
            raise RecipeInvalid(
                f"a cross-encoder makes no sentence vectors, so {', '.join(needless)} mean nothing to it",
                "Leave them out of `model`, or set its kind to bi-encoder.",
            )
        labels = labels_of(objectives)
        base = resolve_model(spec.base)
        return cls(start_cross_encoder(base, labels, name=spec.base, max_tokens=spec.max_tokens), objectives)

    def lengths(self, examples: Examples) -> NDArray[np.int64]:
        return self._tokenized(examples).lengths

    def _tokenized(self, examples: Examples) -> PairColumn:
        """Once for all epochs: tokenising costs more than everything else that the host does to make a batch."""
        if examples.name not in self._pairs:
            first, second = examples.texts
            self._pairs[examples.name] = PairColumn(first, second, self.encoder.tokenize)
        return self._pairs[examples.name]

    def collate(self, examples: Examples, rows: Sequence[int]) -> Batch:
        """`inputs` as the tokenizer pads them, `labels` ``(batch,)``: float32 in [0, 1], or int64 classes.

        Raises:
            RecipeInvalid: a gold score lies outside the objective's range.
        """
        inputs = self.encoder.inputs(self._tokenized(examples).pairs(rows))
        objective = self.objectives[examples.name]
        if isinstance(objective, Regression):
            labels = to_unit_interval(examples, rows, objective.range)
        else:
            labels = torch.as_tensor(np.asarray(examples.labels)[list(rows)], dtype=torch.int64)
        return {"inputs": inputs, "labels": labels}

    def forward(self, dataset: str, batch: Batch) -> Tensor:
        """The mean loss of the joint batch."""
        logits = self.encoder(batch["inputs"])  # (batch, labels)
        if isinstance(self.objectives[dataset], Regression):
            gold = batch["labels"]  # (batch,)
            losses = nn.functional.binary_cross_entropy_with_logits(logits[:, 0], gold, reduction="none")
        else:
            losses = nn.functional.cross_entropy(logits, batch["labels"], reduction="none")
        return joint_mean(losses, batch.get("sizes", ()))

    def measured(self) -> PairScorer:
        return self.encoder

    def save(self, folder: Path, *, name: str) -> None:
        """Write a transformers folder; the folder's name is the model's, its format has no other place for one."""
        save_cross_encoder(self.encoder, folder)


def labels_of(objectives: Mapping[str, ObjectiveSpec]) -> tuple[str, ...]:
    """The labels of the one head that all objectives share: their classes, or one for a score.

    Raises:
        RecipeInvalid: an objective that needs sentence vectors, or objectives that need different heads.
    """
    heads: dict[str, tuple[str, ...]] = {}
    for dataset, objective in objectives.items():
        if objective.matryoshka is not None:
            raise RecipeInvalid(
                f"{dataset}: matryoshka cuts sentence vectors, which a cross-encoder does not make",
                "Leave matryoshka out, or set the model's kind to bi-encoder.",
            )
        if not isinstance(objective, Regression | Softmax):
            raise RecipeInvalid(
                f"{dataset}: a cross-encoder cannot be trained with the objective {objective.kind}",
                "Use regression (pairs with a score) or softmax (pairs with a class).",
            )
        heads[dataset] = objective.classes if isinstance(objective, Softmax) else ONE_LABEL
    if len(set(heads.values())) > 1:
        told = "; ".join(
            f"{dataset}: {'a score' if labels == ONE_LABEL else ', '.join(labels)}" for dataset, labels in heads.items()
        )
        raise RecipeInvalid(
            f"a cross-encoder has one head, and the data sets of a stage need different ones ({told})",
            "Train on them in stages that follow each other.",
        )
    return next(iter(heads.values()))
