"""Cosines and distances of sentence vectors, with gradients that stay finite where vectors vanish or coincide."""

from __future__ import annotations

import torch
from torch import Tensor

from es_sbert.networks.unit import unit
from es_sbert.training.objectives.settings import Distance


def pairwise_cosine(u: Tensor, v: Tensor) -> Tensor:
    """cos(u, v) row by row; 0 where a vector is zero.

    Args:
        u, v: *Shape:* ``(batch, dimensions)``.

    Returns:
        *Shape:* ``(batch,)``.
    """
    return (unit(u) * unit(v)).sum(dim=-1)


def pairwise_dot(u: Tensor, v: Tensor) -> Tensor:
    """u · v row by row.

    Args:
        u, v: *Shape:* ``(batch, dimensions)``.

    Returns:
        *Shape:* ``(batch,)``.
    """
    return (u * v).sum(dim=-1)


def pairwise_distance(u: Tensor, v: Tensor, distance: Distance) -> Tensor:
    """Distance row by row: ‖u − v‖₂, ‖u − v‖₁ or 1 − cos(u, v).

    Args:
        u, v: *Shape:* ``(batch, dimensions)``.
        distance: Which one.

    Returns:
        *Shape:* ``(batch,)``.
    """
    match distance:
        case Distance.EUCLIDEAN:
            # Not the root of a sum of squares, whose gradient is infinite at u = v: vector_norm's is 0 there.
            return torch.linalg.vector_norm(u - v, dim=-1)
        case Distance.MANHATTAN:
            return (u - v).abs().sum(dim=-1)
        case Distance.COSINE:
            return 1 - pairwise_cosine(u, v)
