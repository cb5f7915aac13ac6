"""Metrics equal those of ir-measures, and the interval has its coverage."""

from __future__ import annotations

import ir_measures
import numpy as np
import pytest
from ir_measures import R, nDCG

from es_sbert.adaptation.model_comparison import (
    MetricComparison,
    ModelComparison,
    Verdict,
    bootstrap_interval,
    compare_metrics,
    query_metrics,
)


@pytest.mark.parametrize("documents", [4, 60])
def test_metrics_equal_those_of_ir_measures(documents: int) -> None:
    random = np.random.default_rng(0)
    queries, corpus = (random.normal(size=(size, 5)).astype(np.float32) for size in (25, documents))
    relevant = [random.choice(documents, size=random.integers(1, 4), replace=False).tolist() for _ in queries]
    relevant[0] = list(range(min(15, documents)))
    ndcg, recall = query_metrics(queries, corpus, relevant)
    cosines = (queries / np.linalg.norm(queries, axis=1, keepdims=True)) @ (
        corpus / np.linalg.norm(corpus, axis=1, keepdims=True)
    ).T
    run = {
        f"q{number}": {f"d{row}": float(cosine) for row, cosine in enumerate(own)} for number, own in enumerate(cosines)
    }
    judgements = {f"q{number}": dict.fromkeys((f"d{row}" for row in rows), 1) for number, rows in enumerate(relevant)}
    for measure, values in ((nDCG @ 10, ndcg), (R @ 10, recall)):
        expected = {value.query_id: value.value for value in ir_measures.iter_calc([measure], judgements, run)}
        assert values == pytest.approx([expected[f"q{number}"] for number in range(len(queries))])


def test_interval_covers_the_mean_as_often_as_it_says() -> None:
    random = np.random.default_rng(1)
    # Differences as of nDCG: mostly zero, and far from normal.
    draws = [random.choice([0.0, 0.0, 0.0, 1.0, -0.5], size=200) for _ in range(100)]
    covered = sum(low <= 0.1 <= high for low, high in (bootstrap_interval(draw, seed=0) for draw in draws))
    assert 88 <= covered <= 100
    low, high = bootstrap_interval(draws[0], seed=0)
    assert (low, high) == bootstrap_interval(draws[0], seed=0)
    assert high - low == pytest.approx(2 * 1.96 * draws[0].std() / np.sqrt(200), rel=0.1)


def test_equal_models_are_not_distinguishable() -> None:
    metrics = np.linspace(0, 1, 50), np.linspace(0, 1, 50)
    found = compare_metrics(metrics, metrics, documents=7, seed=0)
    assert (found.ndcg.low, found.ndcg.high, found.verdict) == (0, 0, Verdict.NOT_DISTINGUISHABLE)
    assert (found.queries, found.documents, found.ndcg.stock) == (50, 7, 50)
    better = compare_metrics(metrics, (metrics[0] + 0.1, metrics[1]), documents=7, seed=0)
    assert better.verdict is Verdict.BETTER
    assert better.ndcg.difference == pytest.approx(10)


@pytest.mark.parametrize(
    ("ndcg", "recall", "verdict"),
    [
        ((0.1, 2), (-1, 1), Verdict.BETTER),
        ((-0.1, 2), (1, 2), Verdict.NOT_DISTINGUISHABLE),
        ((-2, -0.1), (0.1, 1), Verdict.WORSE),
        # What ranks better at the top but finds less is not better.
        ((0.1, 2), (-2, -0.1), Verdict.WORSE),
    ],
)
def test_verdict(ndcg: tuple[float, float], recall: tuple[float, float], verdict: Verdict) -> None:
    metrics = [MetricComparison(name, 50, 50, *own) for name, own in (("nDCG@10", ndcg), ("recall@10", recall))]
    assert ModelComparison(100, 1000, *metrics).verdict is verdict
