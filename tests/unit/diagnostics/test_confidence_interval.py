"""Confidence intervals contain the true mean in 93 to 97 % of samples."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from scipy import stats

from es_sbert.diagnostics.confidence_interval import mean_confidence_interval
from es_sbert.diagnostics.min_cosine import COSINE_GRID, CosineSample, PassCounts, recommend_cosine

Draw = Callable[[np.random.Generator, int], np.ndarray]


@pytest.mark.parametrize(("hits", "queries"), [(81, 263), (199, 200), (200, 200), (0, 50)])
def test_shares_of_0_and_1_have_the_jeffreys_interval(hits: int, queries: int) -> None:
    """Brown, Cai and DasGupta 2001, equation 8: quantiles of a beta distribution."""
    found = mean_confidence_interval([1.0] * hits + [0.0] * (queries - hits))
    low, high = stats.beta(hits + 0.5, queries - hits + 0.5).ppf([0.025, 0.975])
    assert found.low == pytest.approx(0.0 if hits == 0 else low, abs=3e-3)
    assert found.high == pytest.approx(1.0 if hits == queries else high, abs=3e-3)


def failing(share: float, recall: float) -> Draw:
    """Shares of 10 hits, of which whole queries find nothing."""
    return lambda random, queries: (random.random(queries) >= share) * random.binomial(10, recall, queries) / 10


def clustered(random: np.random.Generator, queries: int) -> np.ndarray:
    """Shares of 10 hits with a mean of 0.9, where misses come together."""
    return random.binomial(10, random.beta(2.1, 0.7 / 3, queries)) / 10


@pytest.mark.parametrize("queries", [20, 200])
@pytest.mark.parametrize(
    ("draw", "mean"),
    [
        (failing(0, 0.8), 0.8),
        (failing(0, 0.99), 0.99),
        (failing(0.02, 0.99), 0.98 * 0.99),
        (failing(0.05, 0.9), 0.95 * 0.9),
        (clustered, 0.9),
    ],
)
def test_95_percent_intervals_hold_also_where_whole_queries_fail(draw: Draw, mean: float, queries: int) -> None:
    random = np.random.default_rng(1)
    found = [mean_confidence_interval(list(draw(random, queries))) for _ in range(300)]
    # Three standard errors of 300 samples below 95 %.
    assert np.mean([each.low <= mean <= each.high for each in found]) >= 0.912
    assert np.mean([each.low > mean for each in found]) <= 0.05


def test_recall_is_not_claimed_where_unseen_queries_may_fail() -> None:
    """Of 200 queries, 1 in 7 samples has none of the 1 % that fail."""
    random = np.random.default_rng(2)
    found = [mean_confidence_interval(list(failing(0.01, 1)(random, 200))) for _ in range(100)]
    assert any(each.mean == 1 for each in found)
    assert not any(each.low >= 0.99 for each in found)


def half_reached(reaches: np.ndarray, axis: int) -> PassCounts:
    """Counts of comparisons, of which only those that reach 0.5 are known."""
    counts = np.zeros((reaches.shape[1 - axis], len(COSINE_GRID)), dtype=np.int64)
    counts[:, COSINE_GRID <= 0.5] = reaches.sum(axis=axis)[:, None]
    return PassCounts(counts, np.full(len(counts), reaches.shape[axis]))


@pytest.mark.parametrize("is_made_of_documents", [False, True])
def test_interval_of_unrelated_documents_holds_though_queries_share_them(is_made_of_documents: bool) -> None:
    random, size, held = np.random.default_rng(3), 100, []
    relevant, made_of = [np.ones(1)] * size, list(range(size)) if is_made_of_documents else None
    for _ in range(60):
        of_queries, of_documents = random.normal(size=(2, size))
        if is_made_of_documents:  # the query of a document resembles it
            of_queries = of_documents
        cosines = 0.3 * of_queries[:, None] + 0.6 * of_documents + random.normal(size=(size, size))
        mean = stats.norm.sf(1.5 / np.sqrt(0.3**2 + 0.6**2 + 1))
        counts = [half_reached(cosines >= 1.5, axis) for axis in (1, 0)]
        rows, _ = recommend_cosine(CosineSample(relevant, *counts, made_of), 0.95, 0.05)
        [unrelated] = [row.unrelated for row in rows if row.min_cosine == 0.5]
        held.append(unrelated.low <= mean <= unrelated.high)
    assert np.mean(held) > 0.87  # from the queries alone, the share is about 0.8
