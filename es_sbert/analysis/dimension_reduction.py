"""Rotate the vectors of a model so that the first dimensions hold most of the information (principal components).

A rotation does not change the cosines of whole vectors. The axes are the eigenvectors of the mean outer product of unit
vectors, in the order of their eigenvalues. Of all linear maps to N dimensions, the first N axes preserve dot products
best (Eckart and Young 1936). The mean is not subtracted, because cosines are measured from the origin.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass

import numpy as np
from numpy.typing import NDArray

from es_sbert.engines.rest import Json
from es_sbert.errors import SourceError
from es_sbert.evaluation.exact_search import unit_vectors
from es_sbert.messages import pluralize
from es_sbert.vectors import Vectors

# Lengths that vectors are often truncated to.
_USUAL_LENGTHS = (32, 64, 96, 128, 192, 256, 384, 512, 768, 1024, 1536, 2048)
# Maximum numbers of held-out texts, and of queries among them: a matrix of 20 million cosines.
_MAX_HELD_OUT, _MAX_QUERIES = 20_000, 1_000
_HELD_OUT_SHARE = 0.25
_K = 10


@dataclass(frozen=True)
class ShortVectorQuality:
    """The recall of the first dimensions of vectors.

    Attributes:
        dimensions: Number of dimensions.
        recall: Share of a text's ten nearest texts by full vectors that are among its ten nearest by truncated ones.
        rotated_recall: The same after the rotation.
    """

    dimensions: int
    recall: float
    rotated_recall: float


@dataclass(frozen=True)
class Rotation:
    """A rotation of a model's vectors, and its measured quality.

    Attributes:
        axes: Orthonormal rows, computed from all texts. *Shape:* ``(dimensions, dimensions)``.
        texts: Number of texts.
        held_out: Number of texts that were held out for the measurement.
        quality: For each length, the shortest first: quality on the held-out texts, with axes from the other texts.
    """

    axes: NDArray[np.float32]
    texts: int
    held_out: int
    quality: tuple[ShortVectorQuality, ...]

    def as_json(self) -> Json:
        quality = [asdict(one) for one in self.quality]
        return {"texts": self.texts, "held_out": self.held_out, "k": _K, "quality": quality}


def fit_rotation(vectors: Vectors, seed: int = 0, lengths: Sequence[int] = ()) -> Rotation:
    """Compute the rotation for vectors like these, and measure its quality.

    The quality is measured on a random quarter of the vectors, with axes computed from the others.

    Args:
        vectors: Embeddings of distinct texts, of any length. *Shape:* ``(texts, dimensions)``.
        seed: Seed of the random choice.
        lengths: Numbers of dimensions to measure; by default some common ones.

    Raises:
        SourceError: there are too few texts for the number of dimensions.
    """
    count, dimensions = vectors.shape
    held_out = min(_MAX_HELD_OUT, round(_HELD_OUT_SHARE * count))
    if count - held_out < dimensions:
        needed = int(np.ceil(dimensions / (1 - _HELD_OUT_SHARE))) + 1
        raise SourceError(
            f"{count:,} distinct texts are too few to find {dimensions} axes",
            f"Use at least {pluralize(needed, 'text')} similar to those to be searched; ten thousand are better.",
        )
    order = np.random.default_rng(seed).permutation(count)
    measured = vectors[order[:held_out]]
    rotated = measured @ principal_axes(vectors[order[held_out:]]).T
    chosen = [length for length in lengths or _USUAL_LENGTHS if length < dimensions]
    plain, turned = cut_recall(measured, chosen), cut_recall(rotated, chosen)
    quality = tuple(map(ShortVectorQuality, chosen, plain, turned))
    # Compute the returned axes from all texts: more texts give better axes.
    return Rotation(principal_axes(vectors), count, held_out, quality)


def principal_axes(vectors: Vectors) -> NDArray[np.float32]:
    """Compute the axes along which unit vectors are longest, the longest first.

    Args:
        vectors: Embeddings, normalized or not; none is zero. *Shape:* ``(texts, dimensions)``.

    Returns:
        Orthonormal rows; the largest number of each is positive. *Shape:* ``(dimensions, dimensions)``.
    """
    unit = unit_vectors(vectors).astype(np.float64)
    _, columns = np.linalg.eigh(unit.T @ unit)
    axes = columns.T[::-1]
    largest = np.take_along_axis(axes, np.abs(axes).argmax(axis=1, keepdims=True), axis=1)
    return np.ascontiguousarray(axes * np.sign(largest), np.float32)


def cut_recall(vectors: Vectors, lengths: Sequence[int], k: int = _K) -> list[float]:
    """Measure the mean share of the queries' nearest texts that the vectors' first values find, for each length.

    Args:
        vectors: Vectors of texts; the first ones are the queries. *Shape:* ``(texts, dimensions)``.
        lengths: Numbers of values to keep.
        k: Number of neighbors.
    """
    k = min(k, len(vectors) - 1)
    expected = _neighbors(vectors, k)
    found = [_neighbors(vectors[:, :length], k) for length in lengths]
    return [
        float(np.mean([len(np.intersect1d(*pair)) / k for pair in zip(expected, some, strict=True)])) for some in found
    ]


def _neighbors(vectors: Vectors, k: int) -> NDArray[np.int64]:
    """Find the k nearest other texts of each query, in no particular order. *Shape:* ``(queries, k)``."""
    unit = unit_vectors(vectors)
    queries = min(_MAX_QUERIES, len(unit))
    cosines = unit[:queries] @ unit.T
    np.fill_diagonal(cosines, -np.inf)
    return np.argpartition(-cosines, k - 1, axis=1)[:, :k]
