"""Margin scoring equals the formula of Artetxe and Schwenk, written out pair by pair."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from sklearn.metrics.pairwise import cosine_similarity

from es_sbert.analysis import AlignedPair, margin_pairs
from es_sbert.errors import UsageError


def by_the_formula(first: NDArray[np.float32], second: NDArray[np.float32], neighbors: int) -> list[AlignedPair]:
    cosines = cosine_similarity(first.astype(np.float64), second.astype(np.float64))

    def mean(values: NDArray[np.float64]) -> float:
        return float(np.mean(sorted(values)[-neighbors:]))

    def margin(i: int, j: int) -> float:
        nearness = (mean(cosines[i]) + mean(cosines[:, j])) / 2
        return round(float(cosines[i, j] / nearness), 5) if nearness > 0 else 0.0

    def nearest(values: NDArray[np.float64]) -> list[int]:
        return sorted(range(len(values)), key=lambda place: -values[place])[:neighbors]

    candidates = {
        *((i, max(nearest(cosines[i]), key=lambda j: (margin(i, j), -j))) for i in range(len(first))),
        *((max(nearest(cosines[:, j]), key=lambda i: (margin(i, j), -i)), j) for j in range(len(second))),
    }
    taken: list[AlignedPair] = []
    for i, j in sorted(candidates, key=lambda pair: (-margin(*pair), *pair)):
        if margin(i, j) >= 0 and all(i != pair.first and j != pair.second for pair in taken):
            taken.append(AlignedPair(i, j, margin(i, j), round(float(cosines[i, j]), 5) + 0.0))
    return taken


@settings(max_examples=60)
@given(
    st.integers(0, 2**32 - 1), st.integers(1, 20), st.integers(1, 20), st.integers(1, 6), st.sampled_from([1, 3, 64])
)
def test_margin_pairs_equal_the_formula(seed: int, one: int, two: int, neighbors: int, block: int) -> None:
    random = np.random.default_rng(seed)
    first = random.normal(size=(one, 8)).astype(np.float32)
    second = random.normal(size=(two, 8)).astype(np.float32)
    expected = by_the_formula(first, second, neighbors)
    assert margin_pairs(first, second, neighbors=neighbors, block=block) == expected
    assert margin_pairs(first, second, 3, neighbors=neighbors, block=block) == expected[:3]
    assert margin_pairs(first, second, neighbors=neighbors, min_margin=1.0) == [
        pair for pair in expected if pair.margin >= 1
    ]


def test_translation_beats_a_hub_text() -> None:
    """By the cosine alone, the second text would be paired with the third."""
    angles = np.array([[0.0], [1.0], [1.6]]), np.array([[0.35], [1.2], [1.25], [1.3]])
    first, second = (np.hstack([np.cos(angle), np.sin(angle)]).astype(np.float32) for angle in angles)
    pairs = margin_pairs(first, second, neighbors=2)
    assert pairs[0][:2] == (0, 0)
    assert len({pair.first for pair in pairs}) == len({pair.second for pair in pairs}) == len(pairs) == 3


def test_empty_input_has_no_pairs() -> None:
    assert margin_pairs(np.empty((0, 4), np.float32), np.ones((2, 4), np.float32)) == []


@pytest.mark.parametrize("change", [{"neighbors": 0}, {"k": 0}, {"block": 0}, {"min_cosine": -1.5}])
def test_invalid_arguments_are_rejected(change: dict[str, Any]) -> None:
    with pytest.raises(UsageError):
        margin_pairs(np.ones((2, 2), np.float32), np.ones((2, 2), np.float32), **change)
