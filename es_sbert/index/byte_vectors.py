"""Quantize float32 vectors to int8, for fields of the element type `byte`.

A cosine does not depend on the lengths of the two vectors, so each vector is scaled separately: its largest component
becomes 127 or -127, and the others are rounded. es-sbert compares by cosine only and maps its fields accordingly.

One scale for all vectors of a field would have to be chosen before the first of them is known. If it is too large,
components are clipped; if it is too small, most of the 255 numbers are never used. It would also have to suit vectors
that are truncated, and every program that writes to the field would need it. With separate scales, no
component is clipped, and loads, searches and indices do not have to agree on a scale.

The only loss is from rounding: at most half a step of largest / 127 per component.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from es_sbert.index.mapping import ElementType
from es_sbert.vectors import Vectors

Bytes = NDArray[np.int8]
# Vectors as they are written: float32 or int8.
StoredVectors = Vectors | Bytes
_LARGEST = 127


def quantize_vectors(vectors: Vectors) -> Bytes:
    """Convert vectors to int8, keeping their directions as closely as possible.

    Args:
        vectors: Finite numbers. *Shape:* ``(…, dimensions)`` float32.

    Returns:
        *Shape:* ``(…, dimensions)`` int8, from -127 to 127; a zero vector stays zero.
    """
    wide = np.asarray(vectors, dtype=np.float64)
    largest = np.abs(wide).max(axis=-1, keepdims=True, initial=0.0)
    scaled = np.divide(wide, largest, out=np.zeros_like(wide), where=largest > 0)
    quantized: Bytes = np.rint(scaled * _LARGEST).astype(np.int8)
    return quantized


def to_element_type(vectors: StoredVectors, element_type: ElementType) -> StoredVectors:
    """Convert vectors to the numbers that a field of this element type takes: int8 for `byte`, otherwise float32.

    Vectors of int8 are returned unchanged, because engines accept them for fields of floats too.

    Args:
        vectors: *Shape:* ``(…, dimensions)``.

    Returns:
        *Shape:* ``(…, dimensions)``.
    """
    if element_type is not ElementType.BYTE or vectors.dtype == np.int8:
        return vectors
    return quantize_vectors(np.asarray(vectors, dtype=np.float32))
