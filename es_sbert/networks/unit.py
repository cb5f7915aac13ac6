"""Vectors at unit length, with gradients that stay finite where a vector vanishes."""

from __future__ import annotations

import torch
from torch import Tensor

# Vectors shorter than this have no direction; torch.nn.CosineSimilarity draws the line here as well.
SHORTEST = 1e-8


def unit(vectors: Tensor) -> Tensor:
    """Scale vectors to unit length; those without a direction become zero and get no gradient.

    The usual v / max(‖v‖, ε) has the gradient 1/ε at zero: one such vector, clipped with the rest, would drown the
    whole step.

    Args:
        vectors: *Shape:* ``(..., dimensions)``.

    Returns:
        *Shape:* ``(..., dimensions)``.
    """
    length = torch.linalg.vector_norm(vectors, dim=-1, keepdim=True)  # (..., 1)
    # Asked this way round, a length that is no number stays one: a broken network must show in the loss.
    vanished = length <= SHORTEST
    # The divisor is replaced before the division: where() alone would let 0 · ∞ = NaN through from the other branch.
    scaled = vectors / torch.where(vanished, 1.0, length)  # (..., dimensions)
    return torch.where(vanished, 0.0, scaled)
