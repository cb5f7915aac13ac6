"""Values for a minimum cosine against what loops over all cosines say."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from es_sbert.diagnostics import index_calibration
from es_sbert.diagnostics.index_calibration import (
    COSINE_GRID,
    Calibration,
    CosineSample,
    calibration_lines,
    count_unrelated,
    recommend_cosine,
)
from es_sbert.diagnostics.recall import document_cosines
from es_sbert.evaluation.judgement_files import LabeledQuery
from tests.engine.vectors import cosines, random_vectors

# One cosine a query and document, on and beside values of the grid.
COSINE = st.one_of(st.floats(-1, 1), st.integers(-100, 100).map(lambda number: number / 100))
COSINES = st.lists(COSINE, min_size=1, max_size=5)
QUERIES = st.lists(st.tuples(COSINES, COSINES), min_size=1, max_size=8)


def sample_of(queries: Sequence[tuple[list[float], list[float]]]) -> CosineSample:
    """Relevant and unrelated cosines of each query."""
    return CosineSample(
        [np.array(relevant) for relevant, _ in queries],
        np.array([[sum(cosine >= value for cosine in unrelated) for value in COSINE_GRID] for _, unrelated in queries]),
        np.array([len(unrelated) for _, unrelated in queries]),
    )


def share(cosines: Sequence[float], value: float) -> float:
    return sum(cosine >= value for cosine in cosines) / len(cosines)


@given(QUERIES, st.sampled_from([0.5, 0.8, 0.95]))
def test_recommends_the_largest_value_with_enough_recall(
    queries: list[tuple[list[float], list[float]]], keep: float
) -> None:
    _, recommended = recommend_cosine(sample_of(queries), keep)
    enough = [
        value for value in COSINE_GRID if np.mean([share(relevant, value) for relevant, _ in queries]) >= keep - 1e-9
    ]
    assert recommended.row.min_cosine == max(enough)
    assert recommended.row.min_cosine <= recommended.high
    assert recommended.low is None or recommended.low <= recommended.row.min_cosine
    assert recommended.overlaps == (recommended.row.unrelated.mean > 0.05)


@settings(max_examples=30)
@given(QUERIES)
def test_rows_equal_brute_force(queries: list[tuple[list[float], list[float]]]) -> None:
    sample = sample_of(queries)
    rows, recommended = recommend_cosine(sample, 0.8)
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
        patch.setattr(index_calibration, "_BLOCK_COSINES", 2 * len(vectors))  # two queries at a time
        passed, compared = count_unrelated(wanted, vectors, starts, relevant)
    for number, query in enumerate(wanted):
        nearest = [
            max(cosines(query, vectors[start : start + count]))
            for place, (start, count) in enumerate(zip(starts, counts, strict=True))
            if place not in relevant[number]
        ]
        assert compared[number] == len(nearest)
        for place, value in enumerate(COSINE_GRID):
            assert abs(passed[number, place] - sum(cosine >= value for cosine in nearest)) <= sum(
                abs(cosine - value) < 1e-9 for cosine in nearest
            )


def test_document_cosine_is_that_of_the_nearest_chunk() -> None:
    query = np.array([[3.0, 0.0]], dtype=np.float32)
    vectors = np.array([[0, 1], [5, 0], [-1, 0], [1, 1]], dtype=np.float32)
    found = document_cosines(query, vectors, np.array([0, 2, 3]))
    assert found[0].tolist() == [1.0, -1.0, pytest.approx(0.5**0.5)]


def test_interval_narrows_with_more_queries() -> None:
    random = np.random.default_rng(0)

    few, many = (
        recommend_cosine(sample_of([([cosine], [0.0]) for cosine in random.uniform(0.3, 0.9, count)]), 0.95)[1]
        for count in (5, 1000)
    )
    assert few.low is None
    assert many.low is not None
    assert 0.3 <= many.low <= many.row.min_cosine <= many.high <= 0.37


def report_of(queries: Sequence[tuple[list[float], list[float]]], *, labeled: bool) -> Calibration:
    return Calibration(
        index="docs",
        field="embedding",
        model="m",
        documents=20_000,
        sample=100,
        queries=[LabeledQuery("q", ("d",))] * len(queries),
        kinds={} if labeled else {"first sentence": len(queries)},
        left_out={"documents without a vector": 7},
        keep=0.75,
        cosines=sample_of(queries),
        **dict(zip(("rows", "recommended"), recommend_cosine(sample_of(queries), 0.75), strict=True)),
    )


def test_report_ends_with_the_command_to_run() -> None:
    queries = [([0.5], [0.1] * 99 + [0.45])] * 4
    lines = calibration_lines(report_of(queries, labeled=True))
    assert lines[-1] == (
        "Use it for all searches: `es-sbert serve --min-cosine 0.50`, or in one request: "
        '`{"match": {"semantic": {"query": "…", "min_cosine": 0.50}}}`'
    )
    assert lines[0] == "docs.embedding: 20,000 documents with vectors of m"
    assert lines[2] == "left out: 7 documents without a vector"
    assert " ".join(lines[3].split()) == "min_cosine recall 95 % interval unrelated per 100,000"
    [row] = [line.split() for line in lines if line.split()[0] == "0.40"]
    assert row == ["0.40", "1.000", "0.510–1.000", "1.000%", "1,000"]
    assert "for each query" in lines[-2]
    assert "does not separate them" not in "".join(lines)


def test_report_explains_pseudo_queries_and_overlaps() -> None:
    queries = [([0.5], [0.6] * 50 + [0.1] * 50)] * 4
    text = "\n".join(calibration_lines(report_of(queries, labeled=False)))
    assert "4 queries made of documents (first sentence: 4)" in text
    assert "not real queries" in text
    assert "a minimum cosine does not separate them from relevant ones" in text
    assert "about 10,000 of 20,000 for each query" in text


def test_json_has_the_figures_but_no_cosines_of_queries() -> None:
    found = report_of([([0.5], [0.1])] * 4, labeled=True).as_json()
    assert (found["queries"], found["labelled"], "cosines" in found) == (4, True, False)
    assert found["recommended"]["row"] in found["rows"]
