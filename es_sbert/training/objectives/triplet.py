"""An anchor is to be nearer to a positive than to a negative."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from es_sbert.training.data.shape import LabelKind
from es_sbert.training.objectives import settings
from es_sbert.training.objectives.objective import Objective
from es_sbert.training.objectives.similarity import pairwise_distance


class TripletLoss(Objective):
    """Mean of max(d(a, p) − d(a, n) + ε, 0) (Reimers and Gurevych 2019, section 3; there Euclidean, ε = 1).

    Args:
        spec: The distance d and the margin ε, in the units of d.
    """

    roles = ("anchor", "positive", "negative")
    label = LabelKind.NONE

    def __init__(self, spec: settings.Triplet) -> None:
        super().__init__()
        self.distance = spec.distance
        self.margin = spec.margin

    def compute(self, vectors: Sequence[Tensor], labels: Tensor | None) -> Tensor:
        anchor, positive, negative = vectors
        nearer = pairwise_distance(anchor, positive, self.distance)  # (batch,)
        farther = pairwise_distance(anchor, negative, self.distance)  # (batch,)
        return (nearer - farther + self.margin).relu().mean()
