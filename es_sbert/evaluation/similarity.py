"""Similarities of paired vectors: what pairs are ranked by."""

from __future__ import annotations

from enum import StrEnum

import numpy as np
from numpy.typing import NDArray

from es_sbert.errors import ModelError


class Similarity(StrEnum):
    """How alike two vectors are, the higher the more; distances are negated."""

    COSINE = "cosine"
    EUCLIDEAN = "euclidean"
    MANHATTAN = "manhattan"
    DOT = "dot"


def paired_similarity(
    similarity: Similarity, first: NDArray[np.float32], second: NDArray[np.float32]
) -> NDArray[np.float64]:
    """Similarity of each row of `first` with the same row of `second`, in float64.

    A vector of zeros (a text without a known word) has the cosine 0 with everything.

    Args:
        similarity: Which.
        first, second: *Shape:* ``(pairs, dimensions)``.

    Returns:
        *Shape:* ``(pairs,)``.

    Raises:
        ModelError: a value is not a finite number.
        ValueError: the shapes differ.
    """
    if first.shape != second.shape or first.ndim != 2:
        raise ValueError(f"vectors of the shapes {first.shape} and {second.shape} make no pairs")
    u, v = first.astype(np.float64), second.astype(np.float64)  # (pairs, dimensions) each
    check_finite(u, v)
    match similarity:
        case Similarity.EUCLIDEAN:
            result = -np.linalg.norm(u - v, axis=1)
        case Similarity.MANHATTAN:
            result = -np.abs(u - v).sum(axis=1)
        case Similarity.DOT:
            result = np.einsum("pd,pd->p", u, v)
        case Similarity.COSINE:
            result = np.einsum("pd,pd->p", unit_rows(u), unit_rows(v))
    return np.asarray(result, dtype=np.float64)  # (pairs,)


def unit_rows(vectors: NDArray[np.float64]) -> NDArray[np.float64]:
    """Rows scaled to unit length, *shape* ``(rows, dimensions)``; rows of zeros stay as they are."""
    # By the largest value first: squares of very large or very small values would leave the range of float64.
    largest = np.abs(vectors).max(axis=1, keepdims=True, initial=0.0)  # (rows, 1)
    scaled = vectors / np.where(largest == 0, 1.0, largest)  # (rows, dimensions)
    lengths = np.linalg.norm(scaled, axis=1, keepdims=True)  # (rows, 1)
    result: NDArray[np.float64] = scaled / np.where(lengths == 0, 1.0, lengths)
    return result


def check_finite(*values: NDArray[np.float64] | NDArray[np.float32]) -> None:
    """Refuse what no figure can be made of.

    Raises:
        ModelError: a value is NaN or infinite.
    """
    if not all(np.isfinite(array).all() for array in values):
        raise ModelError(
            "the model gives vectors or scores that are not finite numbers",
            "Its weights are damaged or its training diverged: use another checkpoint, or fp32 in place of fp16.",
        )
