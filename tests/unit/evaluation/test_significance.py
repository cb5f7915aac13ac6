"""Paired bootstrap and randomization test: by hand and against scipy."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from es_sbert.errors import UsageError
from es_sbert.evaluation.significance import paired_difference
from tests.raised import raises_as_recorded


@settings(deadline=None, max_examples=30)
@given(st.lists(st.integers(-3, 3), min_size=1, max_size=9))
def test_exact_p_value_counts_all_assignments(differences: list[int]) -> None:
    bound = abs(sum(differences))
    signs = list(product((-1, 1), repeat=len(differences)))
    extreme = sum(abs(sum(a * b for a, b in zip(own, differences, strict=True))) >= bound for own in signs)
    found = paired_difference(differences, [0] * len(differences), resamples=10)
    assert found.p_value == pytest.approx(extreme / len(signs))


def test_sampled_p_value_equals_scipy() -> None:
    random = np.random.default_rng(1)
    first, second = random.normal(0.15, 1, 60), random.normal(0, 1, 60)
    expected = stats.permutation_test(
        (first, second), lambda a, b: np.mean(a - b), permutation_type="samples", n_resamples=20_000, rng=random
    )
    assert paired_difference(first, second).p_value == pytest.approx(expected.pvalue, abs=0.02)


def test_interval_equals_that_of_the_t_test() -> None:
    random = np.random.default_rng(2)
    first, second = random.beta(2, 2, 8), random.beta(2, 3, 8)
    expected = stats.ttest_rel(first, second).confidence_interval()
    found = paired_difference(first, second)
    assert (found.low, found.high) == (pytest.approx(expected.low, rel=0.02), pytest.approx(expected.high, rel=0.02))


@pytest.mark.parametrize(("sizes", "least"), [([10], 0.92), ([20], 0.93), ([60], 0.93), ([20, 60], 0.93)])
def test_95_percent_intervals_contain_the_true_difference(sizes: list[int], least: float) -> None:
    """Most differences are 0, and losses are larger than gains, as with nDCG of two similar models."""
    random, groups, held = np.random.default_rng(3), np.repeat(range(len(sizes)), sizes).tolist(), []
    mean = 0.4 * (0.7 * 20 - 0.3 * 30)
    for _ in range(400):
        gains = np.where(random.random(len(groups)) < 0.7, 1, -1.5) * random.uniform(0, 40, len(groups))
        found = paired_difference(
            gains * (random.random(len(groups)) < 0.4), [0] * len(groups), groups=groups, resamples=2
        )
        held.append(found.low <= mean <= found.high)
    assert np.mean(held) >= least


def test_one_query_has_no_interval_and_no_verdict() -> None:
    found = paired_difference([90.0], [10.0])
    assert (found.low, found.high, found.verdict) == (-np.inf, np.inf, "not distinguishable")


def test_every_group_counts_the_same() -> None:
    # Mean differences of 1 in the small group and 0 in the large one.
    first, second = [1.0, 1.0, *[0.5] * 8], [0.0, 0.0, *[0.5] * 8]
    found = paired_difference(first, second, groups=[0, 0, *[1] * 8])
    assert found.difference == pytest.approx(0.5)
    assert (found.low, found.high) == (0.5, 0.5)  # nothing varies within the groups
    assert paired_difference(first, second).difference == pytest.approx(0.2)


@pytest.mark.parametrize("first", [[1.0], [1.0, np.nan]])
def test_scores_that_do_not_form_pairs_are_refused(first: list[float]) -> None:
    with raises_as_recorded(UsageError):
        paired_difference(first, [0.5, 0.5])
