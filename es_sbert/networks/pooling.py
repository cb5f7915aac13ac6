"""Pool token vectors into one sentence vector, and normalize vectors; the ONNX counterpart is exporters/pooling.py."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from es_sbert.bundle.modules import Pooling


def pool(tokens: Tensor, mask: Tensor, modes: Sequence[Pooling]) -> Tensor:
    """Pool the vectors of real tokens (Reimers and Gurevych 2019, section 3).

    Args:
        tokens: *Shape:* ``(batch, tokens, width)`` float32.
        mask: *Shape:* ``(batch, tokens)``, 1 for a token, 0 for padding on the right. Every row must have a token,
            except for the mean, which is the zero vector for a row without tokens.
        modes: Pooling modes; several are concatenated in this order.

    Returns:
        *Shape:* ``(batch, width · modes)``.
    """
    real = mask.unsqueeze(-1).to(tokens.dtype)  # (batch, tokens, 1)
    return torch.cat([_pool_by(mode, tokens, real) for mode in modes], dim=1)


def _pool_by(mode: Pooling, tokens: Tensor, real: Tensor) -> Tensor:
    """(batch, tokens, width), (batch, tokens, 1) → (batch, width)."""
    match mode:
        case Pooling.CLS:
            return tokens[:, 0]
        case Pooling.MAX:
            return tokens.masked_fill(real == 0, float("-inf")).amax(dim=1)
        case Pooling.MEAN:
            return (tokens * real).sum(dim=1) / real.sum(dim=1).clamp(min=1)
        case Pooling.MEAN_SQRT_LEN:
            return (tokens * real).sum(dim=1) / real.sum(dim=1).sqrt()
        case Pooling.WEIGHTEDMEAN:
            # Later tokens weigh more, 1, 2, 3, … (Muennighoff 2022, SGPT, arXiv 2202.08904).
            places = torch.arange(1, tokens.shape[1] + 1, device=tokens.device, dtype=tokens.dtype)  # (tokens,)
            weights = real * places.unsqueeze(-1)  # (batch, tokens, 1)
            return (tokens * weights).sum(dim=1) / weights.sum(dim=1)
        case Pooling.LASTTOKEN:
            last = real.squeeze(-1).sum(dim=1).long() - 1  # (batch,)
            return tokens[torch.arange(len(tokens), device=tokens.device), last]


# Vectors shorter than this have no direction; torch.nn.CosineSimilarity has the same limit.
MIN_NORM = 1e-8


def normalize_vectors(vectors: Tensor) -> Tensor:
    """Scale vectors to unit length; those without a direction become zero and get no gradient.

    The usual v / max(‖v‖, ε) has the gradient 1/ε at zero: after gradient clipping, one such vector would dominate the
    whole step.

    Args:
        vectors: *Shape:* ``(..., dimensions)``.

    Returns:
        *Shape:* ``(..., dimensions)``.
    """
    length = torch.linalg.vector_norm(vectors, dim=-1, keepdim=True)  # (..., 1)
    # With this comparison a NaN length stays NaN, so that a broken network shows in the loss.
    vanished = length <= MIN_NORM
    # The divisor is replaced before the division: where() alone would let 0 · ∞ = NaN through from the other branch.
    scaled = vectors / torch.where(vanished, 1.0, length)  # (..., dimensions)
    return torch.where(vanished, 0.0, scaled)
