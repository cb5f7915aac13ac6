"""Paired bootstrap and randomization test: by hand, against scipy, and with a known rate of false alarms."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from es_sbert.errors import UsageError
from es_sbert.evaluation import significance
from es_sbert.evaluation.significance import (
    PairedDifference,
    Verdict,
    difference_line,
    paired_difference,
    shown_difference,
)


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


@pytest.mark.parametrize("block", [7, 1 << 20])
def test_verdicts_hold_for_blocks_of_any_size(block: int, monkeypatch: pytest.MonkeyPatch) -> None:
    random = np.random.default_rng(3)
    first, second = random.normal(1, 1, 40), random.normal(0, 1, 40)
    monkeypatch.setattr(significance, "_BLOCK_VALUES", block)
    found = paired_difference(first, second, resamples=2000)
    assert found.verdict is Verdict.BETTER
    assert found.low < found.difference < found.high
    assert paired_difference(second, first, resamples=2000).verdict is Verdict.WORSE


def test_equal_systems_are_rarely_distinguished() -> None:
    random = np.random.default_rng(4)
    verdicts = [paired_difference(*random.normal(0, 1, (2, 30)), seed=run, resamples=400).verdict for run in range(400)]
    alarms = sum(verdict is not Verdict.NOT_DISTINGUISHABLE for verdict in verdicts)
    assert 4 <= alarms <= 36  # 5 % of 400 are 20, with a standard deviation of 4.4


def test_equal_scores_have_a_p_value_of_one() -> None:
    found = paired_difference([0.5] * 20, [0.5] * 20)
    assert (found.difference, found.low, found.high, found.p_value) == (0, 0, 0, 1)
    assert found.verdict is Verdict.NOT_DISTINGUISHABLE


def test_same_seed_gives_the_same_result() -> None:
    random = np.random.default_rng(6)
    first, second = random.normal(0, 1, (2, 50))
    assert paired_difference(first, second, seed=1) == paired_difference(first, second, seed=1)
    assert paired_difference(first, second, seed=1) != paired_difference(first, second, seed=2)


@pytest.mark.parametrize(
    ("first", "second"),
    [([], []), ([1.0], [1.0, 2.0]), ([float("nan")], [1.0])],
)
def test_scores_that_do_not_pair_are_refused(first: list[float], second: list[float]) -> None:
    with pytest.raises(UsageError):
        paired_difference(first, second)


def test_line_says_which_is_better() -> None:
    found = PairedDifference(112, 41.2, 40.0, 1.2, 0.3, 2.1, 0.0084)
    assert difference_line(found, "new", "old", "nDCG@10") == (
        "new is better than old: nDCG@10 +1.20 (95 % interval +0.30 to +2.10, p = 0.008, 112 queries)"
    )
    equal = PairedDifference(1, 0.0, 0.0, 0.0, -1.0, 1.0, 0.0002)
    assert difference_line(equal, "new", "old", "MRR@10") == (
        "new and old are not distinguishable: MRR@10 +0.00 (95 % interval -1.00 to +1.00, p < 0.001, 1 query)"
    )


def test_shown_difference_is_that_of_the_shown_scores() -> None:
    # 61.335 − 61.005 = 0.33, but 61.34 and 61.00 are shown.
    assert shown_difference(61.3351, 61.0049) == 0.34
    found = PairedDifference(
        first=61.3351, second=61.0049, difference=0.3302, low=0.1, high=0.6, confidence=0.95, p_value=0.01, queries=3
    )
    assert "nDCG@10 +0.34 (" in difference_line(found, "a", "b", "nDCG@10")
    assert f"{shown_difference(1.0, 1.001):+.2f}" == "+0.00"
