"""Recall against exact search, page by page, is that of numpy over all vectors at once."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from es_sbert.diagnostics.recall import K, RecallQueries, document_cosines, exact_shares
from tests.engine.vectors import cosines, random_vectors


@given(st.integers(2, 40), st.integers(1, 17), st.integers(0, 9))
def test_recall_equals_numpy_for_any_page_size(count: int, page: int, seed: int) -> None:
    vectors = random_vectors(count, 8, seed)  # (count, 8)
    queries = RecallQueries(np.concatenate([random_vectors(2, 8, seed + 100), vectors[:1]]), [None, None, "0"])
    best, worst = [], []
    for own, query in zip(queries.own, queries.vectors, strict=True):
        ranked = [str(row) for row in np.argsort(-cosines(query, vectors)) if str(row) != own]
        best.append(ranked[:K])
        worst.append(ranked[-K:])
    starts = range(0, count, page)
    ids = [str(row) for row in range(count)]
    pages = ((ids[n : n + page], range(len(ids[n : n + page])), vectors[n : n + page]) for n in starts)
    found, missed = exact_shares(queries, [best, worst], pages)
    assert found == [1.0] * 3
    assert missed == [
        pytest.approx(len(set(good) & set(bad)) / len(good)) for good, bad in zip(best, worst, strict=True)
    ]


def test_tied_documents_count_equally_and_a_chunk_counts_for_its_document() -> None:
    vectors = np.array([[1, 0]] * (K + 2) + [[0, 1]], dtype=np.float32)
    ids = [str(row) for row in range(len(vectors))]
    query = RecallQueries(vectors[:1], [None])
    answers = [[ids[:K]], [ids[2 : K + 2]], [ids[: K + 2]], [[ids[0], ids[-1], "gone"]]]
    assert exact_shares(query, answers, [(ids, range(len(ids)), vectors)]) == [[1.0], [1.0], [1.0], [1 / K]]
    chunks = np.array([[0, 1], [1, 0], [1, 1], [-1, 0]], dtype=np.float32)
    assert document_cosines(query.vectors, chunks, [0, 2, 3])[0].tolist() == [1.0, pytest.approx(0.5**0.5), -1.0]
