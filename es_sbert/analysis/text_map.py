"""A 2-D map of texts: UMAP if it is installed, else PCA."""

from __future__ import annotations

import importlib
import importlib.util
import warnings

import numpy as np
from numpy.typing import NDArray

from es_sbert.analysis.clusters import normalize_and_sum
from es_sbert.encoder.batching import Vectors
from es_sbert.errors import require_extra

# UMAP builds a graph of neighbors, which fewer texts do not fill, and with a seed it uses one core: of more texts than
# this it takes many minutes.
_UMAP_LEAST, _UMAP_MOST = 32, 50_000
_UMAP_NEIGHBORS = 15
# PCA finds its directions in as many texts, and places all by them.
_PCA_SAMPLE = 50_000
_ROWS = 1 << 16

Points = NDArray[np.float32]


def map_points(vectors: Vectors, starts: NDArray[np.int64] | None = None, *, seed: int = 0) -> tuple[Points, str]:
    """Place texts on a map, by UMAP if it is installed, else by principal component analysis.

    UMAP is used for 32 to 50,000 texts. A text with several vectors (chunks) is placed by the mean of its unit vectors.
    The same vectors and seed give the same map.

    Args:
        vectors: Embeddings, normalised or not. *Shape:* ``(vectors, dimensions)``.
        starts: For texts with several vectors: the row of each text's first vector, ascending from 0. None: one vector
            a text. *Shape:* ``(texts,)``.
        seed: Of the method's random choices.

    Returns:
        The points, and the name of the method. Vectors that are all alike (or one alone) lie at the origin.
        *Shape:* ``(texts, 2)``.

    Raises:
        UsageError: a vector is zero or not finite, or scikit-learn is not installed.
    """
    require_extra("analysis", "sklearn")
    texts = _mean_vectors(vectors, starts)
    if (
        _UMAP_LEAST <= len(texts) <= _UMAP_MOST
        and not _all_equal(texts)
        and importlib.util.find_spec("umap") is not None
    ):
        points = _umap_points(texts, seed)
        # Texts without any neighbor get no place.
        if np.isfinite(points).all():
            return points, "UMAP"
    return _pca_points(texts, seed), "PCA"


def _mean_vectors(vectors: Vectors, starts: NDArray[np.int64] | None) -> Vectors:
    """A unit vector for each text."""
    units, sums = normalize_and_sum(vectors, starts)
    if sums is None:
        return units
    # Opposite vectors have no mean direction: such a text lies at the origin.
    lengths = np.maximum(np.linalg.norm(sums, axis=1, keepdims=True), 1e-6)
    means: Vectors = (sums / lengths).astype(np.float32)
    return means


def _all_equal(texts: Vectors) -> bool:
    return not len(texts) or bool(np.ptp(texts, axis=0).max(initial=0) < 1e-6)


def _umap_points(texts: Vectors, seed: int) -> Points:
    # By name, since no extra brings it: it needs a compiler for numeric code (Numba), half a gigabyte.
    umap = importlib.import_module("umap")
    method = umap.UMAP(
        n_components=2, n_neighbors=min(_UMAP_NEIGHBORS, len(texts) - 1), metric="cosine", random_state=seed, n_jobs=1
    )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        points: Points = np.asarray(method.fit_transform(texts), np.float32)
    return points


def _pca_points(texts: Vectors, seed: int) -> Points:
    from sklearn.decomposition import PCA

    points = np.zeros((len(texts), 2), np.float32)
    if _all_equal(texts):
        return points
    sample = texts
    if len(texts) > _PCA_SAMPLE:
        sample = texts[np.sort(np.random.default_rng(seed).choice(len(texts), _PCA_SAMPLE, replace=False))]
        # A sample may hold one text many times.
        sample = texts if _all_equal(sample) else sample
    axes = min(2, *sample.shape)
    method = PCA(axes, random_state=seed).fit(sample)
    for first in range(0, len(texts), _ROWS):
        points[first : first + _ROWS, :axes] = method.transform(texts[first : first + _ROWS])
    return points
