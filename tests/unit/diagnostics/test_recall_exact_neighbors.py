"""Exact neighbors, page by page, against all at once."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from es_sbert.diagnostics.recall import find_exact_neighbors
from tests.engine.vectors import cosines, random_vectors


@given(st.integers(1, 40), st.integers(1, 12), st.integers(1, 17), st.integers(0, 9))
def test_exact_neighbors_equal_numpy_for_any_page_size(count: int, k: int, page: int, seed: int) -> None:
    vectors = random_vectors(count, 8, seed)  # (count, 8)
    queries = np.concatenate([random_vectors(2, 8, seed + 100), vectors[:1]])  # (3, 8)
    own = [None, None, "0"]
    everything = {str(row) for row in range(count)}
    pages = (
        (
            [str(row) for row in range(start, min(start + page, count))],
            range(len(vectors[start : start + page])),
            vectors[start : start + page],
        )
        for start in range(0, count, page)
    )
    truth = find_exact_neighbors(queries, own, [everything] * 3, k, pages)
    assert truth.documents == count
    for number, query in enumerate(queries):
        expected = cosines(query, vectors)
        rows = [row for row in np.argsort(-expected) if str(row) != own[number]]
        best = [str(row) for row in rows[:k]]
        assert truth.found[number] == len(best)
        assert truth.hits(number, best) == len(best)
        assert truth.hits(number, [str(row) for row in rows[k:]]) == 0
        for row in rows:
            assert abs(truth.cosines[number][str(row)] - expected[row]) < 1e-12


def test_hits_count_tied_documents_up_to_k() -> None:
    vectors = np.array([[1, 0], [2, 0], [3, 0], [0, 1]], dtype=np.float32)
    ids = ["a", "b", "c", "d"]
    truth = find_exact_neighbors(vectors[:1], [None], [set(ids)], 2, [(ids, range(4), vectors)])
    assert truth.hits(0, ["b", "c"]) == truth.hits(0, ["a", "c"]) == 2
    assert truth.hits(0, ["a", "b", "c"]) == 2
    assert truth.hits(0, ["a", "d"]) == 1
    assert truth.hits(0, ["gone"]) == 0


def test_document_cosine_is_that_of_the_nearest_chunk() -> None:
    vectors = np.array([[0, 1], [1, 0], [1, 1], [-1, 0]], dtype=np.float32)
    query = np.array([[1, 0]], dtype=np.float32)
    truth = find_exact_neighbors(query, [None], [{"a", "b", "c"}], 1, [(["a", "b", "c"], [0, 2, 3], vectors)])
    assert truth.cosines[0] == {"a": 1.0, "b": pytest.approx(0.5**0.5), "c": -1.0}
    assert (truth.documents, truth.hits(0, ["a"]), truth.hits(0, ["b"])) == (3, 1, 0)
