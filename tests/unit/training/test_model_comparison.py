"""Metrics equal those of ir-measures, and a model that is worse by one of them is not better."""

from __future__ import annotations

import numpy as np
import pytest

from es_sbert.evaluation.significance import Verdict
from es_sbert.training.adapt import compare_metrics


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
