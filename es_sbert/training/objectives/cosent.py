"""CoSENT: cosines are to stand in the order of the gold scores, whatever their values."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from es_sbert.training.data.shape import LabelKind
from es_sbert.training.objectives import settings
from es_sbert.training.objectives.objective import Objective
from es_sbert.training.objectives.similarity import pairwise_cosine


class CoSentLoss(Objective):
    """log(1 + Σ exp(λ (cosᵢ − cosⱼ))), the sum over all i, j of the batch with a gold score sᵢ < sⱼ.

    Consistent sentence embedding (Su 2022, kexue.fm/archives/8847; Huang et al. 2024, IEEE/ACM TASLP 32). It is what
    Spearman's ρ measures, made smooth: only the order of the scores counts, and pairs of equal score say nothing. It
    is one value of the whole batch and no mean over examples; a larger batch has more pairs and a larger loss.

    Args:
        spec: The scale λ.
    """

    roles = ("sentence1", "sentence2")
    label = LabelKind.SCORE

    def __init__(self, spec: settings.CoSent) -> None:
        super().__init__()
        self.scale = spec.scale

    def compute(self, vectors: Sequence[Tensor], labels: Tensor | None) -> Tensor:
        assert labels is not None  # forward has checked it
        u, v = vectors
        cosines = self.scale * pairwise_cosine(u, v)  # (batch,)
        excess = cosines[:, None] - cosines[None, :]  # (batch, batch): how far i lies above j
        excess = excess.masked_fill(labels[:, None] >= labels[None, :], -torch.inf)
        # log(1 + Σ exp(x)) is the logsumexp of all x and a 0, which also keeps a batch of equal scores finite.
        return torch.cat([excess.flatten(), excess.new_zeros(1)]).logsumexp(dim=0)
