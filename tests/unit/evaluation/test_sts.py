"""Correlations: hand-worked, invariant where they should be, and equal to sentence-transformers' evaluator."""

from random import Random

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sentence_transformers.sentence_transformer.evaluation import EmbeddingSimilarityEvaluator

from es_sbert.errors import ModelError, SourceError
from es_sbert.evaluation.pair_metrics import Correlation, Similarity, correlate, sts_correlations, subset_rows
from tests.unit.evaluation.support import ReferenceModel, random_embedder

distinct = st.lists(st.integers(-1000, 1000), min_size=3, max_size=20, unique=True)


def test_correlate_by_hand() -> None:
    # Ranks 1, 2, 3, 4 against 1, 2, 4, 3: ρ = 1 − 6 · 2 / (4 · 15) = 0.8.
    result = correlate(np.array([0.0, 1.0, 2.0, 10.0]), np.array([1.0, 2.0, 4.0, 3.0]))
    assert result.spearman == pytest.approx(80.0)
    # Deviations −3.25, −2.25, −1.25, 6.75 and −1.5, −0.5, 1.5, 0.5: r = 7.5 / √(62.75 · 5).
    assert result.pearson == pytest.approx(100 * 7.5 / np.sqrt(62.75 * 5))


def test_ties_get_the_mean_rank() -> None:
    # Ranks 1, 2.5, 2.5, 4 and 1, 2, 3, 4: covariance 4.5, variances 4.5 and 5.
    result = correlate(np.array([0.0, 5.0, 5.0, 9.0]), np.array([1.0, 2.0, 3.0, 4.0]))
    assert result.spearman == pytest.approx(100 * 4.5 / np.sqrt(4.5 * 5))


@settings(deadline=None)
@given(distinct, st.randoms(use_true_random=False))
def test_spearman_depends_only_on_the_order(gold: list[int], random: Random) -> None:
    scores = np.array(random.sample(gold, len(gold)), dtype=np.float64)
    wanted = np.array(gold, dtype=np.float64)
    before = correlate(scores, wanted).spearman
    assert correlate(np.exp(scores / 500) + 3, wanted).spearman == pytest.approx(before, abs=1e-9)
    assert correlate(-scores, wanted).spearman == pytest.approx(-before, abs=1e-9)
    assert correlate(wanted, scores).spearman == pytest.approx(before, abs=1e-9)


@settings(deadline=None)
@given(distinct, st.floats(0.01, 100), st.floats(-100, 100))
def test_pearson_is_invariant_to_scale_and_shift(gold: list[int], scale: float, shift: float) -> None:
    wanted = np.array(gold, dtype=np.float64)
    scores = wanted**2 + wanted
    if len(set(scores.tolist())) > 1:
        before = correlate(scores, wanted).pearson
        assert correlate(scores * scale + shift, wanted).pearson == pytest.approx(before, abs=1e-6)


def test_equals_sentence_transformers() -> None:
    first, second = [f"a{i}" for i in range(60)], [f"b{i}" for i in range(60)]
    gold = np.random.default_rng(1).integers(0, 6, size=60) / 1.0
    embedder = random_embedder([*first, *second])
    evaluator = EmbeddingSimilarityEvaluator(
        first, second, gold.tolist(), similarity_fn_names=["cosine", "euclidean", "manhattan", "dot"], write_csv=False
    )
    expected = evaluator(ReferenceModel(embedder))  # type: ignore[arg-type]
    result = sts_correlations(embedder.embed(first), embedder.embed(second), gold)
    assert set(result) == set(Similarity)
    for similarity, correlation in result.items():
        assert correlation.spearman / 100 == pytest.approx(expected[f"spearman_{similarity}"], abs=1e-4)
        assert correlation.pearson / 100 == pytest.approx(expected[f"pearson_{similarity}"], abs=1e-4)


def test_equal_scores_correlate_zero() -> None:
    assert correlate(np.ones(3, dtype=np.float32), np.array([1.0, 2.0, 3.0])) == Correlation(0.0, 0.0)


@pytest.mark.parametrize("gold", [[], [1.0], [2.0, 2.0, 2.0]])
def test_constant_gold_scores_are_rejected(gold: list[float]) -> None:
    with pytest.raises(SourceError, match="cannot be ranked"):
        correlate(np.arange(len(gold), dtype=np.float64), np.array(gold))


def test_non_finite_scores_raise_model_error() -> None:
    with pytest.raises(ModelError, match="NaN or infinite"):
        correlate(np.array([0.0, np.nan]), np.array([1.0, 2.0]))


def test_scores_of_wrong_length_raise_value_error() -> None:
    with pytest.raises(ValueError, match="do not match gold scores"):
        correlate(np.zeros(3), np.zeros(4))


def test_subset_rows() -> None:
    gold = np.array([1.0, 2.0, 3.0, 4.0, 5.0])
    found = subset_rows(["x", "y", "x", "y", "z"], gold)
    # One pair cannot be ranked.
    assert {name: rows.tolist() for name, rows in found.items()} == {"all": [0, 1, 2, 3, 4], "x": [0, 2], "y": [1, 3]}
    assert list(subset_rows(["x"] * 5, gold)) == ["all"]
    assert list(subset_rows(None, gold)) == ["all"]
