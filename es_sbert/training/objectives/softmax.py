"""Classification of pairs: the objective of SBERT's training on natural language inference."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from es_sbert.training.data.shape import LabelKind
from es_sbert.training.objectives import settings
from es_sbert.training.objectives.objective import Objective
from es_sbert.training.objectives.settings import Feature


class SoftmaxLoss(Objective):
    """Cross-entropy of softmax(W_t (u, v, |u − v|)) (Reimers and Gurevych 2019, section 3).

    W_t ∈ ℝ^{k×fn} for k classes, f features and vectors of n values; the other choices of features are those of the
    paper's ablation (section 6). The formula has no bias; the authors' code does, and so has this. Weights start as
    those of `torch.nn.Linear`. They are thrown away after training.

    Args:
        spec: Which features, in which order, and the classes.
        dimensions: Of the sentence vectors.
    """

    roles = ("sentence1", "sentence2")
    label = LabelKind.CLASS

    def __init__(self, spec: settings.Softmax, dimensions: int) -> None:
        super().__init__()
        self.features = spec.features
        self.classifier = nn.Linear(len(spec.features) * dimensions, len(spec.classes))

    def compute(self, vectors: Sequence[Tensor], labels: Tensor | None) -> Tensor:
        u, v = vectors
        features = torch.cat([_feature(u, v, name) for name in self.features], dim=-1)  # (batch, features · dimensions)
        return cross_entropy(self.classifier(features), labels)


def _feature(u: Tensor, v: Tensor, name: Feature) -> Tensor:
    """*Shape:* ``(batch, dimensions)``, as `u` and `v`."""
    match name:
        case Feature.U:
            return u
        case Feature.V:
            return v
        case Feature.DIFFERENCE:
            return (u - v).abs()
        case Feature.PRODUCT:
            return u * v
