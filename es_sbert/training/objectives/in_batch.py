"""In-batch negatives: the other examples of the batch stand in for texts that do not belong to the anchor."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from es_sbert.networks.unit import unit
from es_sbert.training.data.shape import LabelKind
from es_sbert.training.objectives import settings
from es_sbert.training.objectives.objective import Objective


class InBatchNegativesLoss(Objective):
    """Mean of −log( exp(λ cos(aᵢ, pᵢ)) / Σ_d exp(λ cos(aᵢ, d)) ), d over all positives and hard negatives of the batch.

    Multiple negatives ranking loss (Henderson et al. 2017, arXiv 1705.00652), there on dot products;
    with cosines and a temperature 1/λ it is InfoNCE (van den Oord et al. 2018, arXiv 1807.03748).

    Symmetric: the mean of this and of −log( exp(λ cos(aᵢ, pᵢ)) / Σⱼ exp(λ cos(aⱼ, pᵢ)) ), from each positive to all
    anchors (as in CLIP, Radford et al. 2021, arXiv 2103.00020). Hard negatives belong to no anchor and take part in
    the first half only.

    A text that stands twice in a batch would be its own negative, so that `distinct` keeps it out.

    Args:
        spec: The scale λ, and whether it is symmetric.
    """

    roles = ("anchor", "positive", "negative")
    repeats_last = True
    label = LabelKind.NONE
    distinct = True

    def __init__(self, spec: settings.InBatch) -> None:
        super().__init__()
        self.scale = spec.scale
        self.symmetric = spec.symmetric

    def compute(self, vectors: Sequence[Tensor], labels: Tensor | None) -> Tensor:
        anchors = unit(vectors[0])  # (batch, dimensions)
        candidates = unit(torch.cat(list(vectors[1:])))  # (batch · (1 + negatives), dimensions), positives first
        logits = self.scale * anchors @ candidates.T  # (batch, batch · (1 + negatives))
        own = torch.arange(len(anchors), device=anchors.device)  # (batch,): aᵢ's positive is candidate i
        loss = cross_entropy(logits, own)
        if not self.symmetric:
            return loss
        return (loss + cross_entropy(logits[:, : len(anchors)].T, own)) / 2
