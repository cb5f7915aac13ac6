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


def test_interval_equals_scipy() -> None:
    random = np.random.default_rng(2)
    first, second = random.beta(2, 2, 80), random.beta(2, 3, 80)
    expected = stats.bootstrap(
        (first - second,), np.mean, method="percentile", n_resamples=20_000, rng=random
    ).confidence_interval
    found = paired_difference(first, second)
    assert (found.low, found.high) == (pytest.approx(expected.low, abs=0.01), pytest.approx(expected.high, abs=0.01))


def test_every_group_counts_the_same() -> None:
    # Mean differences of 1 in the small group and 0 in the large one.
    first, second = [1.0, 1.0, *[0.5] * 8], [0.0, 0.0, *[0.5] * 8]
    found = paired_difference(first, second, groups=[0, 0, *[1] * 8])
    assert found.difference == pytest.approx(0.5)
    assert (found.low, found.high) == (0.5, 0.5)  # resampled within groups, nothing varies
    assert paired_difference(first, second).difference == pytest.approx(0.2)


@pytest.mark.parametrize(("first", "message"), [([1.0], "cannot be compared"), ([1.0, np.nan], "not a finite number")])
def test_scores_that_do_not_form_pairs_are_refused(first: list[float], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        paired_difference(first, [0.5, 0.5])
