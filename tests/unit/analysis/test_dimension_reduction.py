"""A rotation changes no cosine of whole vectors, and its first dimensions hold the most."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.typing import NDArray

from es_sbert.analysis.dimension_reduction import cut_recall, fit_rotation, principal_axes
from es_sbert.errors import SourceError

DIMENSIONS = 24


def hidden_structure(count: int, seed: int = 0) -> NDArray[np.float32]:
    """Vectors that lie almost in a space of four dimensions, along no axis."""
    random = np.random.default_rng(seed)
    turn, _ = np.linalg.qr(np.random.default_rng(99).normal(size=(DIMENSIONS, DIMENSIONS)))
    lengths = np.r_[np.full(4, 1.0), np.full(DIMENSIONS - 4, 0.02)]
    return np.asarray((random.normal(size=(count, DIMENSIONS)) * lengths) @ turn, np.float32)


def test_axes_are_orthonormal_and_keep_cosines() -> None:
    vectors = hidden_structure(200)
    axes = principal_axes(vectors)
    np.testing.assert_allclose(axes @ axes.T, np.eye(DIMENSIONS), atol=1e-6)
    np.testing.assert_allclose((vectors @ axes.T) @ (vectors @ axes.T).T, vectors @ vectors.T, atol=1e-4)


def test_axes_are_those_of_the_singular_value_decomposition() -> None:
    vectors = hidden_structure(500)
    unit = vectors / np.linalg.norm(vectors, axis=1, keepdims=True)
    expected = np.linalg.svd(unit.astype(np.float64), full_matrices=False)[2]
    axes = principal_axes(vectors)
    # Up to the sign; the first four have distinct lengths.
    np.testing.assert_allclose(np.abs((axes[:4] * expected[:4]).sum(axis=1)), 1, atol=1e-4)
    lengths = ((unit @ axes.T) ** 2).sum(axis=0)
    assert (np.diff(lengths) <= 1e-3).all()


def test_length_of_vectors_does_not_matter() -> None:
    vectors = hidden_structure(300)
    factors = np.random.default_rng(1).uniform(0.1, 10, size=(300, 1)).astype(np.float32)
    np.testing.assert_allclose(principal_axes(vectors * factors)[:4], principal_axes(vectors)[:4], atol=1e-3)


def test_cut_recall_counts_neighbors_that_are_kept() -> None:
    # Of the first text, the whole vectors put text 1 first, the first value alone puts text 2 first.
    vectors = np.array([[1, 1, 0], [0.9, 1, 0], [1, 0, 0.1], [-1, 0, 1]], np.float32)
    assert cut_recall(vectors, [3], k=1) == [1.0]
    cosines = (vectors / np.linalg.norm(vectors, axis=1, keepdims=True)) @ (
        vectors / np.linalg.norm(vectors, axis=1, keepdims=True)
    ).T
    np.fill_diagonal(cosines, -2)
    flat = vectors[:, ::2] / np.linalg.norm(vectors[:, ::2], axis=1, keepdims=True)
    cut = flat @ flat.T
    np.fill_diagonal(cut, -2)
    expected = float((cosines.argmax(axis=1) == cut.argmax(axis=1)).mean())
    assert 0 < expected < 1
    assert cut_recall(vectors[:, [0, 2, 1]], [2], k=1) == [expected]


def test_rotated_vectors_lose_less_when_cut() -> None:
    found = fit_rotation(hidden_structure(1_000), lengths=[4, 12])
    assert (found.texts, found.held_out) == (1_000, 250)
    [short, long] = found.quality
    assert (short.dimensions, long.dimensions) == (4, 12)
    assert short.recall < 0.5
    assert short.rotated_recall > 0.85
    assert long.rotated_recall > long.recall


def test_lengths_that_the_model_does_not_have_are_not_measured() -> None:
    found = fit_rotation(hidden_structure(100), lengths=[8, DIMENSIONS, 100])
    assert [one.dimensions for one in found.quality] == [8]


def test_too_few_texts_for_the_dimensions_are_refused() -> None:
    with pytest.raises(SourceError, match="31 distinct texts are too few to find 24 axes") as caught:
        fit_rotation(hidden_structure(31))
    assert "at least 33 texts" in caught.value.remedy
    assert fit_rotation(hidden_structure(33)).axes.shape == (DIMENSIONS, DIMENSIONS)


def test_seed_decides_which_texts_are_held_out() -> None:
    vectors = hidden_structure(200)
    assert fit_rotation(vectors, 1).quality == fit_rotation(vectors, 1).quality
    assert fit_rotation(vectors, 1, [6]).quality != fit_rotation(vectors, 2, [6]).quality
    np.testing.assert_array_equal(fit_rotation(vectors, 1).axes, principal_axes(vectors))
