"""Metrics equal those of ir-measures, and a model that is worse by one of them is not better."""

from __future__ import annotations

import ir_measures
import numpy as np
import pytest
from ir_measures import R, nDCG

from es_sbert.evaluation.significance import Verdict
from es_sbert.training.adapt import compare_metrics, query_metrics


@pytest.mark.parametrize("documents", [4, 60])
def test_metrics_equal_those_of_ir_measures(documents: int) -> None:
    random = np.random.default_rng(0)
    queries, corpus = (random.normal(size=(size, 5)).astype(np.float32) for size in (25, documents))
    relevant = [random.choice(documents, size=random.integers(1, 4), replace=False).tolist() for _ in queries]
    relevant[0] = list(range(min(15, documents)))
    ndcg, recall = query_metrics(queries, corpus, relevant) / 100
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


def test_equal_models_are_not_distinguishable() -> None:
    metrics = np.tile(np.linspace(0, 100, 51), (2, 1))  # (metrics, queries)
    found = compare_metrics(metrics, metrics, documents=7, seed=0)
    assert (found.ndcg.low, found.ndcg.high, found.verdict) == (0, 0, Verdict.NOT_DISTINGUISHABLE)
    assert (found.queries, found.documents, found.ndcg.second) == (51, 7, pytest.approx(50))


@pytest.mark.parametrize(
    ("ndcg", "recall", "verdict"),
    [
        (10, 0, Verdict.BETTER),
        (0, 10, Verdict.NOT_DISTINGUISHABLE),
        (-10, 10, Verdict.WORSE),
        # What ranks better at the top but finds less is not better.
        (10, -10, Verdict.WORSE),
    ],
)
def test_verdict(ndcg: float, recall: float, verdict: Verdict) -> None:
    stock = np.tile(np.linspace(0, 100, 51), (2, 1))
    found = compare_metrics(stock, stock + np.array([[ndcg], [recall]]), documents=1000, seed=0)
    assert found.verdict is verdict
    assert found.ndcg.difference == pytest.approx(ndcg)
