"""Values for a minimum cosine against what loops over all cosines say."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from es_sbert.diagnostics import min_cosine
from es_sbert.diagnostics.min_cosine import (
    COSINE_GRID,
    CosineSample,
    PassCounts,
    count_unrelated,
    recommend_cosine,
)
from tests.engine.vectors import cosines, random_vectors

# One cosine a query and document, on and beside values of the grid.
COSINE = st.one_of(st.floats(-1, 1), st.integers(-100, 100).map(lambda number: number / 100))
COSINES = st.lists(COSINE, min_size=1, max_size=5)
QUERIES = st.lists(st.tuples(COSINES, COSINES), min_size=1, max_size=8)


def sample_of(queries: Sequence[tuple[list[float], list[float]]]) -> CosineSample:
    """Relevant and unrelated cosines of each query, all with documents of their own."""
    unrelated = [cosines for _, cosines in queries]
    counts = [
        PassCounts(
            np.array([[sum(cosine >= value for cosine in own) for value in COSINE_GRID] for own in compared]),
            np.array([len(own) for own in compared]),
        )
        for compared in (unrelated, [[cosine] for own in unrelated for cosine in own])
    ]
    return CosineSample([np.array(relevant) for relevant, _ in queries], *counts)


def share(cosines: Sequence[float], value: float) -> float:
    return sum(cosine >= value for cosine in cosines) / len(cosines)


@settings(max_examples=30, deadline=None)
@given(QUERIES, st.sampled_from([0.5, 0.8, 0.95]))
def test_recommends_the_largest_value_with_enough_recall(
    queries: list[tuple[list[float], list[float]]], keep: float
) -> None:
    _, recommended = recommend_cosine(sample_of(queries), keep, 0.05)
    enough = [
        value for value in COSINE_GRID if np.mean([share(relevant, value) for relevant, _ in queries]) >= keep - 1e-9
    ]
    assert recommended.row.min_cosine == max(enough)
    assert recommended.row.min_cosine <= recommended.high
    assert recommended.low is None or recommended.low <= recommended.row.min_cosine
    assert recommended.overlaps == (recommended.row.unrelated.mean > 0.05)


@settings(max_examples=30, deadline=None)
@given(QUERIES)
def test_rows_equal_brute_force(queries: list[tuple[list[float], list[float]]]) -> None:
    sample = sample_of(queries)
    rows, recommended = recommend_cosine(sample, 0.8, 0.05)
    values = [row.min_cosine for row in rows]
    assert values == sorted(set(values))
    assert recommended.row in rows
    for row in rows:
        value = row.min_cosine
        assert row.recall.mean == pytest.approx(np.mean([share(relevant, value) for relevant, _ in queries]))
        assert row.unrelated.mean == pytest.approx(np.mean([share(unrelated, value) for _, unrelated in queries]))


@settings(max_examples=30)
@given(st.integers(1, 6), st.integers(2, 12), st.integers(1, 3), st.integers(0, 9))
def test_unrelated_counts_equal_brute_force(queries: int, documents: int, most_vectors: int, seed: int) -> None:
    random = np.random.default_rng(seed)
    counts = random.integers(1, most_vectors + 1, size=documents)
    starts = np.cumsum([0, *counts[:-1]])
    vectors, wanted = random_vectors(int(counts.sum()), 4, seed), random_vectors(queries, 4, seed + 50)
    relevant = [random.choice(documents, size=random.integers(0, documents), replace=False).tolist() for _ in wanted]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(min_cosine, "_BLOCK_COSINES", 2 * len(vectors))  # two queries at a time
        by_query, by_document = count_unrelated(wanted, vectors, starts, relevant)
    nearest = {
        (number, place): max(cosines(query, vectors[start : start + count]))
        for number, query in enumerate(wanted)
        for place, (start, count) in enumerate(zip(starts, counts, strict=True))
        if place not in relevant[number]
    }
    for found, size, axis in ((by_query, queries, 0), (by_document, documents, 1)):
        for row in range(size):
            compared = [cosine for pair, cosine in nearest.items() if pair[axis] == row]
            assert found.compared[row] == len(compared)
            for place, value in enumerate(COSINE_GRID):
                assert abs(found.passed[row, place] - sum(cosine >= value for cosine in compared)) <= sum(
                    abs(cosine - value) < 1e-9 for cosine in compared
                )
