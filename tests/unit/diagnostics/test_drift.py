"""Drift: the energy test against brute force and scipy, its false alarms, and what a report says."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import stats

from es_sbert.diagnostics.drift import (
    Drift,
    DriftSample,
    TokenCounts,
    compare_samples,
    drift_lines,
    energy_test,
)
from es_sbert.errors import IndexMismatch
from es_sbert.vectors import Vectors


def _vectors(count: int, seed: int, *, shift: float = 0.0, spread: float = 1.0) -> Vectors:
    """Unit vectors around one direction, or around another one."""
    found = np.random.default_rng(seed).normal(0, spread, (count, 8))
    found[:, 0] += 2
    found[:, 1] += shift
    return np.asarray(found / np.linalg.norm(found, axis=1, keepdims=True), dtype=np.float32)


def test_energy_distance_equals_brute_force() -> None:
    first, second = _vectors(7, 0), _vectors(11, 1, shift=1)

    def mean(one: Vectors, other: Vectors) -> float:
        return float(np.mean([[np.linalg.norm(a - b) for b in other] for a in one]))

    expected = 2 * mean(first, second) - mean(first, first) - mean(second, second)
    assert energy_test(first, second, permutations=1).distance == pytest.approx(expected, abs=1e-6)


def test_energy_distance_equals_scipy_in_one_dimension() -> None:
    random = np.random.default_rng(2)
    first, second = random.normal(0, 1, 40), random.normal(0.5, 1, 30)
    found = energy_test(first[:, None].astype(np.float32), second[:, None].astype(np.float32), permutations=1)
    assert found.distance == pytest.approx(stats.energy_distance(first, second) ** 2, abs=1e-5)


def test_p_values_of_equal_distributions_are_uniform() -> None:
    found = [
        energy_test(_vectors(25, 2 * run), _vectors(35, 2 * run + 1), seed=run, permutations=99).p_value
        for run in range(200)
    ]
    assert stats.kstest(found, "uniform").pvalue > 0.01
    assert min(found) >= 0.01


def test_different_distributions_are_found() -> None:
    assert energy_test(_vectors(60, 0), _vectors(60, 1, shift=1.0)).p_value == 0.001
    # The same mean, but another spread.
    wide = np.random.default_rng(3).normal(0, 1, (80, 4)).astype(np.float32)
    assert energy_test(wide, wide[::-1] * 0.4).p_value == 0.001


def _sample(vectors: Vectors, name: str) -> DriftSample:
    ids = [f"{name}{number}" for number in range(len(vectors))]
    return DriftSample(ids, [f"text of {id}" for id in ids], vectors, 10 * len(ids))


def test_new_documents_of_the_same_kind_show_no_drift() -> None:
    report = compare_samples("docs", "v", "m", _sample(_vectors(200, 0), "n"), _sample(_vectors(400, 1), "b"))
    assert report.drift is Drift.NONE
    assert report.unlike == pytest.approx(0.05, abs=0.05)
    assert report.nearest_new == pytest.approx(report.nearest_baseline, abs=0.02)
    lines = list(drift_lines(report))
    assert lines[0] == ("docs.v: 200 of 2,000 new documents, 400 of 4,000 of the baseline, vectors of m")
    assert lines[-1].startswith("No drift")


def test_a_new_topic_is_unlike_the_baseline_and_its_documents_are_named() -> None:
    mixed = np.concatenate([_vectors(150, 0, spread=0.3), _vectors(50, 2, shift=-6, spread=0.3)])
    tokens = TokenCounts(1000, 1, 900), TokenCounts(400, 20, 200)
    new = _sample(mixed, "n")
    baseline = _sample(_vectors(400, 1, spread=0.3), "b")
    report = compare_samples("docs", "v", "m", new, baseline, tokens=tokens)
    assert report.drift is Drift.UNLIKE
    assert report.unlike > 0.2
    assert all(int(id.removeprefix("n")) >= 150 for id, _, _ in report.far)
    assert [cosine for _, cosine, _ in report.far] == sorted(cosine for _, cosine, _ in report.far)
    lines = list(drift_lines(report))
    assert any(line.split()[-2:] == ["0.10%", "5.00%"] for line in lines)
    assert any(line.split()[-2:] == ["1.11", "2.00"] for line in lines)
    assert f"text of {report.far[0][0]}" in lines[lines.index("Farthest from the baseline:") + 1]
    assert "es-sbert adapt" in lines[-1]
    assert report.as_json()["drift"] == "unlike"


def test_other_proportions_of_known_topics_are_different_but_not_unlike() -> None:
    one, other = _vectors(700, 5), _vectors(700, 6, shift=4)
    baseline = np.concatenate([one[:300], other[:300]])
    new = np.concatenate([one[300:330], other[300:470]])
    random = np.random.default_rng(0)
    report = compare_samples("docs", "v", "m", _sample(new, "n"), _sample(random.permutation(baseline), "b"))
    assert report.drift is Drift.DIFFERENT
    assert "few of them are far from it" in list(drift_lines(report))[-1]


@pytest.mark.parametrize(("new", "baseline", "what"), [(19, 40, "19 new documents"), (40, 19, "19 documents of the")])
def test_too_few_documents_are_refused(new: int, baseline: int, what: str) -> None:
    with pytest.raises(IndexMismatch, match=f"docs has {what}"):
        compare_samples("docs", "v", "m", _sample(_vectors(new, 0), "n"), _sample(_vectors(baseline, 1), "b"))
