"""Cosine similarity against a gold score: the objective of SBERT's training on STSb."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor
from torch.nn.functional import mse_loss

from es_sbert.training.data.shape import LabelKind
from es_sbert.training.objectives import settings
from es_sbert.training.objectives.objective import Objective
from es_sbert.training.objectives.similarity import pairwise_cosine


class CosineSimilarityLoss(Objective):
    """Mean of (cos(u, v) − s)², s the gold score (Reimers and Gurevych 2019, section 3).

    Args:
        spec: The range that gold scores are mapped to; it becomes `score_range`.
    """

    roles = ("sentence1", "sentence2")
    label = LabelKind.SCORE

    def __init__(self, spec: settings.Regression) -> None:
        super().__init__()
        self.score_range = spec.range

    def compute(self, vectors: Sequence[Tensor], labels: Tensor | None) -> Tensor:
        u, v = vectors
        return mse_loss(pairwise_cosine(u, v), labels)
