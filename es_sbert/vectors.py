"""`Vectors`: the type of embeddings. Docstrings give their shapes."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Vectors = NDArray[np.float32]


def unit_vectors(vectors: Vectors) -> Vectors:
    """Scale rows to unit length, *shape* ``(rows, dimensions)``; rows of zeros do not change."""
    lengths = np.linalg.norm(vectors, axis=1, keepdims=True)
    return np.asarray(vectors / np.where(lengths == 0, 1, lengths), dtype=np.float32)
