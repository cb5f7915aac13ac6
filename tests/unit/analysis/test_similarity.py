"""The most similar pairs are those of brute force for every block size, in a stated order."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from sklearn.metrics.pairwise import cosine_similarity

from es_sbert.analysis import most_similar_pairs, pairs_above
from es_sbert.analysis.similarity import SimilarPair
from es_sbert.errors import UsageError
from tests.raised import raises

Floats = NDArray[np.float32]


def brute_force(first: Floats, second: Floats, groups: tuple[list[int], list[int]], *, same: bool) -> list[SimilarPair]:
    """All pairs by scikit-learn's cosines, sorted; `groups` are the texts that the vectors belong to."""
    if not len(first) or not len(second):
        return []
    cosines = cosine_similarity(first.astype(np.float64), second.astype(np.float64))
    one, two = map(np.array, groups)
    best = np.full((one.max() + 1, two.max() + 1), -2.0)
    np.maximum.at(best, (one[:, None], two[None, :]), cosines)
    rows, columns = np.triu_indices(len(best), k=1) if same else np.indices(best.shape).reshape(2, -1)
    cosine = np.clip(best[rows, columns], -1, 1)
    of_texts = zip(rows.tolist(), columns.tolist(), cosine.tolist(), strict=True)
    pairs = [SimilarPair(i, j, round(value, 5) + 0.0) for i, j, value in of_texts]
    return sorted(pairs, key=lambda pair: (-pair.cosine, pair.first, pair.second))


@st.composite
def collections(draw: st.DrawFn, dimensions: int = 3) -> tuple[Floats, list[int]]:
    """Vectors, many of them equal or parallel, and the text that each belongs to."""
    counts = draw(st.lists(st.integers(1, 3), max_size=12))
    rows = sum(counts)
    values = st.lists(st.integers(-2, 2), min_size=dimensions, max_size=dimensions).filter(any)
    vectors = draw(st.lists(values, min_size=rows, max_size=rows))
    texts = [text for text, count in enumerate(counts) for _ in range(count)]
    return np.array(vectors, np.float32).reshape(rows, dimensions), texts


def starts_of(texts: list[int]) -> NDArray[np.int64]:
    return np.flatnonzero(np.diff([-1, *texts]))


@given(collections(), st.integers(1, 80), st.integers(1, 7), st.sampled_from([-1.0, 0.0, 0.5, 1.0]))
def test_pairs_in_one_collection_equal_brute_force(
    collection: tuple[Floats, list[int]], k: int, block: int, min_cosine: float
) -> None:
    vectors, texts = collection
    found = most_similar_pairs(vectors, k, min_cosine=min_cosine, starts=starts_of(texts), block=block)
    pairs = brute_force(vectors, vectors, (texts, texts), same=True)
    assert found == [pair for pair in pairs if pair.cosine >= min_cosine][:k]


@settings(max_examples=60)
@given(
    st.integers(0, 2**32 - 1),
    st.sampled_from([8, 40]),
    st.sampled_from([1, 2, 8]),
    st.sampled_from([1, 30]),
    st.sampled_from([-1.0, 0.5, 0.9, 0.99999, 1.0]),
    st.booleans(),
)
def test_bounds_skip_no_pair(seed: int, dimensions: int, rank: int, k: int, min_cosine: float, chunks: bool) -> None:
    random = np.random.default_rng(seed)
    wide = random.normal(size=(90, rank)) @ random.normal(size=(rank, dimensions))
    wide[60:] = wide[:30] * 3 + random.normal(scale=10.0 ** random.integers(-7, 0), size=(30, dimensions))
    vectors = wide.astype(np.float32)
    texts = np.repeat(np.arange(30), random.permutation([1, 2, 6] * 10)).tolist() if chunks else list(range(90))
    expected = brute_force(vectors, vectors, (texts, texts), same=True)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("es_sbert.analysis.similarity._BOUNDED_TEXTS", 2)
        patch.setattr("es_sbert.analysis.similarity._BOUNDED_DIMENSIONS", 8)
        found = most_similar_pairs(vectors, k, min_cosine=min_cosine, starts=starts_of(texts), block=16)
        above = [
            SimilarPair(int(one), int(two), float(cosine))
            for first, second, cosines in pairs_above(vectors, 0.8, starts=starts_of(texts), block=16)
            for one, two, cosine in zip(first, second, cosines, strict=True)
        ]
    assert found == [pair for pair in expected if pair.cosine >= min_cosine][:k]
    assert sorted(above) == sorted(pair for pair in expected if pair.cosine >= 0.8)


@pytest.mark.parametrize(
    "change",
    [
        {"k": 0},
        {"k": "5"},
        {"vectors": [[1.0, 0.0]]},
        {"block": 0},
        {"vectors": np.ones(3, np.float32)},
        {"min_cosine": 1.1},
        {"starts": np.array([0, 2, 2])},
        {"vectors": np.array([[1, 1], [0, 0]], np.float32)},
        {"vectors": np.array([[np.inf, 1], [1, 0]], np.float32)},
    ],
)
def test_invalid_arguments_are_rejected(change: dict[str, Any]) -> None:
    arguments = {"vectors": np.ones((3, 2), np.float32)} | change
    with raises(UsageError, next(iter(change))):
        most_similar_pairs(**arguments)
