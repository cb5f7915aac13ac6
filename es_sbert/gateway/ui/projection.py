"""Vectors as points of a plane."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from es_sbert.encoder.types import Vectors


def project(vectors: Vectors) -> NDArray[np.float64]:
    """The two directions in which vectors differ most, by principal component analysis.

    Args:
        vectors: *Shape:* ``(points, dimensions)``.

    Returns:
        *Shape:* ``(points, 2)``, within [-1, 1], both axes in the same unit. Vectors that are all alike (or one alone)
        lie at the origin. The same vectors always give the same picture: of the two signs that each axis may have, the
        one is taken by which its greatest weight is positive.
    """
    centred = vectors.astype(np.float64) - vectors.mean(axis=0, dtype=np.float64)
    left, sizes, axes = np.linalg.svd(centred, full_matrices=False)
    found = min(2, len(sizes))
    greatest = np.abs(axes[:found]).argmax(axis=1)
    signs = np.where(axes[np.arange(found), greatest] < 0, -1.0, 1.0)
    points = np.zeros((len(vectors), 2))
    points[:, :found] = left[:, :found] * sizes[:found] * signs
    extent = np.abs(points).max(initial=0.0)
    # What is left of identical vectors is rounding.
    return points / extent if extent > 1e-6 else np.zeros_like(points)
