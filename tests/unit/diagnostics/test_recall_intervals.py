"""Confidence intervals of recall: known values, and that they hold."""

from __future__ import annotations

import numpy as np
import pytest

from es_sbert.diagnostics.recall import mean_confidence_interval


def test_independent_trials_give_the_wilson_interval() -> None:
    """Wilson's interval of 81 of 263 (Newcombe 1998, table I): 0.2553 to 0.3662."""
    estimate = mean_confidence_interval([1.0] * 81 + [0.0] * 182, 1)
    assert (estimate.low, estimate.high) == (pytest.approx(0.2553, abs=5e-5), pytest.approx(0.3662, abs=5e-5))


@pytest.mark.parametrize("spread", [0.0, 0.15])
def test_interval_covers_the_truth_in_19_of_20_cases(spread: float) -> None:
    """Also where the queries differ: misses come together."""
    random = np.random.default_rng(1)
    held = 0
    for _ in range(500):
        chance = np.clip(0.85 + spread * random.choice([-1, 1], size=100), 0, 1)  # (queries,)
        estimate = mean_confidence_interval(list(random.binomial(10, chance) / 10), 10)
        held += estimate.low <= 0.85 <= estimate.high
    assert held >= 460
