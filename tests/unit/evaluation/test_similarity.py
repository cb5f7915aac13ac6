"""Paired similarities: hand-worked numbers, and what must not change them."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from numpy.typing import NDArray

from es_sbert.errors import ModelError
from es_sbert.evaluation.pair_metrics import Similarity, paired_similarity

U = np.array([[3.0, 4.0], [1.0, 0.0], [0.0, 0.0]], dtype=np.float32)
V = np.array([[4.0, 3.0], [0.0, -2.0], [1.0, 1.0]], dtype=np.float32)

vectors = arrays(np.float32, (4, 3), elements=st.floats(-10, 10, width=32))


@pytest.mark.parametrize(
    ("similarity", "expected"),
    [
        (Similarity.COSINE, [0.96, 0.0, 0.0]),
        (Similarity.EUCLIDEAN, [-np.sqrt(2), -np.sqrt(5), -np.sqrt(2)]),
        (Similarity.MANHATTAN, [-2.0, -3.0, -2.0]),
        (Similarity.DOT, [24.0, 0.0, 0.0]),
    ],
)
def test_similarities_by_hand(similarity: Similarity, expected: list[float]) -> None:
    result = paired_similarity(similarity, U, V)
    assert result.dtype == np.float64
    np.testing.assert_allclose(result, expected, atol=1e-12)


@settings(deadline=None)
@given(vectors, vectors)
def test_symmetric(u: NDArray[np.float32], v: NDArray[np.float32]) -> None:
    for similarity in Similarity:
        np.testing.assert_allclose(
            paired_similarity(similarity, u, v), paired_similarity(similarity, v, u), rtol=0, atol=1e-12
        )


@settings(deadline=None)
@given(vectors, vectors, st.sampled_from([2.0**-100, 0.5, 4.0, 2.0**100]))
def test_cosine_is_bounded_and_independent_of_length(
    u: NDArray[np.float32], v: NDArray[np.float32], factor: float
) -> None:
    u, v = (np.where(np.abs(each) < 1e-3, 0, each).astype(np.float32) for each in (u, v))
    cosines = paired_similarity(Similarity.COSINE, u, v)
    assert (np.abs(cosines) <= 1 + 1e-12).all()
    scaled = paired_similarity(Similarity.COSINE, (u * np.float32(factor)).astype(np.float32), v)
    np.testing.assert_allclose(scaled, cosines, rtol=0, atol=1e-12)


@settings(deadline=None)
@given(vectors)
def test_a_vector_is_nearest_to_itself(u: NDArray[np.float32]) -> None:
    for similarity in (Similarity.EUCLIDEAN, Similarity.MANHATTAN):
        np.testing.assert_array_equal(paired_similarity(similarity, u, u), np.zeros(len(u)))


@pytest.mark.parametrize("bad", [np.nan, np.inf])
@pytest.mark.parametrize("similarity", Similarity)
def test_non_finite_values_raise_model_error(similarity: Similarity, bad: float) -> None:
    broken = U.copy()
    broken[1, 1] = bad
    with pytest.raises(ModelError, match="NaN or infinite"):
        paired_similarity(similarity, broken, V)


def test_mismatched_row_counts_raise_value_error() -> None:
    with pytest.raises(ValueError, match="do not form pairs"):
        paired_similarity(Similarity.DOT, U, V[:2])
