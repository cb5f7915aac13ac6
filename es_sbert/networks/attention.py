"""The two attentions of a poly-encoder (Humeau et al. 2020, arXiv 1905.01969, section 4.4), as pure functions."""

from __future__ import annotations

import torch
from torch import Tensor

from es_sbert.networks.unit import SHORTEST, unit


def summarise(tokens: Tensor, mask: Tensor, codes: Tensor) -> Tensor:
    """The context as m vectors: each code attends over the context's token vectors.

    yᵢ = Σⱼ wⱼ hⱼ with w = softmax(cᵢ · h₁, …, cᵢ · h_N): dot products as in the paper, without a scale.

    Args:
        tokens: The transformer's outputs h. *Shape:* ``(batch, tokens, width)``.
        mask: 1 for a token, 0 for padding. *Shape:* ``(batch, tokens)``; every row has a token.
        codes: The learnt codes c. *Shape:* ``(m, width)``.

    Returns:
        *Shape:* ``(batch, m, width)``.
    """
    logits = codes @ tokens.mT  # (batch, m, tokens)
    logits = logits.masked_fill(mask.unsqueeze(1) == 0, float("-inf"))
    return torch.softmax(logits, dim=-1) @ tokens


def attended_cosine(contexts: Tensor, candidates: Tensor) -> Tensor:
    """Each candidate attends over the m vectors of a context; the score is its cosine with the result.

    With s = (x · y₁, …, x · y_m) for a candidate x and w = softmax(s), the context's final vector is y = Σᵢ wᵢ yᵢ
    and the score x · y / (‖x‖ ‖y‖). The paper scores by the dot product; a cosine is also what STS gold scores are
    compared with, and what a temperature was chosen for. 0 where x or y is zero.

    y itself is never made: x · y = w · s, and ‖y‖² = wᵀ G w with Gᵢⱼ = yᵢ · yⱼ, so that a batch against all its
    candidates takes m numbers a pair instead of m + width.

    Args:
        contexts: *Shape:* ``(batch, m, width)``.
        candidates: *Shape:* ``(batch, candidates, width)``: those of each context; or ``(1, candidates, width)``:
            the same for all.

    Returns:
        *Shape:* ``(batch, candidates)``.
    """
    logits = candidates @ contexts.mT  # (batch, candidates, m)
    weights = torch.softmax(logits, dim=-1)  # (batch, candidates, m)
    gram = contexts @ contexts.mT  # (batch, m, m)
    squared = ((weights @ gram) * weights).sum(dim=-1)  # (batch, candidates): ‖y‖²
    has_direction = squared > SHORTEST**2
    # Replaced before root and division: where() alone would let NaN through from the branch not taken.
    length = torch.where(has_direction, squared, 1.0).sqrt()  # (batch, candidates)
    # x/‖x‖ · y, by way of the unit candidate, whose gradient stays finite at zero.
    dots = (weights * (unit(candidates) @ contexts.mT)).sum(dim=-1)  # (batch, candidates)
    return torch.where(has_direction, dots / length, 0.0)
