"""Metrics of pairs and triplets equal those of sentence-transformers' evaluators, also where these are undefined."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from numpy.typing import NDArray
from sentence_transformers.sentence_transformer.evaluation import (
    BinaryClassificationEvaluator,
    EmbeddingSimilarityEvaluator,
    TripletEvaluator,
)

from es_sbert.errors import ModelError, SourceError
from es_sbert.evaluation.pair_metrics import (
    Correlation,
    Similarity,
    correlate,
    duplicates,
    paired_similarity,
    sts_correlations,
    triplet_accuracy,
)
from tests.unit.evaluation.support import ReferenceModel, random_embedder

U = np.array([[3.0, 4.0], [1.0, 0.0], [0.0, 0.0]], dtype=np.float32)
V = np.array([[4.0, 3.0], [0.0, -2.0], [1.0, 1.0]], dtype=np.float32)
VECTORS = arrays(np.float32, (4, 3), elements=st.floats(-10, 10, width=32))
FIRST, SECOND, THIRD = ([f"{name}{number}" for number in range(70)] for name in "abc")
EMBEDDER = random_embedder([*FIRST, *SECOND, *THIRD])


@pytest.mark.parametrize(
    ("similarity", "expected"),
    [
        (Similarity.COSINE, [0.96, 0.0, 0.0]),
        (Similarity.EUCLIDEAN, [-np.sqrt(2), -np.sqrt(5), -np.sqrt(2)]),
        (Similarity.MANHATTAN, [-2.0, -3.0, -2.0]),
        (Similarity.DOT, [24.0, 0.0, 0.0]),
    ],
)
def test_similarities_by_hand(similarity: Similarity, expected: list[float]) -> None:
    result = paired_similarity(similarity, U, V)
    assert result.dtype == np.float64
    np.testing.assert_allclose(result, expected, atol=1e-12)


@settings(deadline=None)
@given(VECTORS, VECTORS, st.sampled_from([2.0**-100, 0.5, 4.0, 2.0**100]))
def test_cosine_is_bounded_and_independent_of_length(
    u: NDArray[np.float32], v: NDArray[np.float32], factor: float
) -> None:
    u, v = (np.where(np.abs(each) < 1e-3, 0, each).astype(np.float32) for each in (u, v))
    cosines = paired_similarity(Similarity.COSINE, u, v)
    assert (np.abs(cosines) <= 1 + 1e-12).all()
    scaled = paired_similarity(Similarity.COSINE, (u * np.float32(factor)).astype(np.float32), v)
    np.testing.assert_allclose(scaled, cosines, rtol=0, atol=1e-12)


def test_correlations_equal_sentence_transformers() -> None:
    gold = np.random.default_rng(1).integers(0, 6, size=70) / 1.0  # with ties
    names = ["cosine", "euclidean", "manhattan", "dot"]
    evaluator = EmbeddingSimilarityEvaluator(FIRST, SECOND, gold.tolist(), similarity_fn_names=names, write_csv=False)
    expected = evaluator(ReferenceModel(EMBEDDER))  # type: ignore[arg-type]
    result = sts_correlations(EMBEDDER.embed(FIRST), EMBEDDER.embed(SECOND), gold)
    assert set(result) == set(Similarity)
    for similarity, correlation in result.items():
        assert correlation.spearman / 100 == pytest.approx(expected[f"spearman_{similarity}"], abs=1e-4)
        assert correlation.pearson / 100 == pytest.approx(expected[f"pearson_{similarity}"], abs=1e-4)


@settings(deadline=None)
@given(st.lists(st.integers(-1000, 1000), min_size=3, max_size=20, unique=True), st.floats(0.01, 100))
def test_pearson_does_not_depend_on_scale_nor_spearman_on_more_than_the_order(gold: list[int], scale: float) -> None:
    wanted = np.array(gold, dtype=np.float64)
    scores = wanted**2 + wanted
    if len(set(scores.tolist())) > 1:
        before, scaled = correlate(scores, wanted), correlate(scores * scale + 7, wanted)
        assert scaled.pearson == pytest.approx(before.pearson, abs=1e-6)
        assert correlate(scores, np.exp(wanted / 500)).spearman == pytest.approx(before.spearman, abs=1e-9)


def test_equal_scores_correlate_zero() -> None:
    assert correlate(np.ones(3, dtype=np.float32), np.array([1.0, 2.0, 3.0])) == Correlation(0.0, 0.0)


def test_triplet_accuracy_equals_sentence_transformers_and_a_tie_is_a_failure() -> None:
    names = ["cosine", "euclidean", "manhattan"]
    columns = FIRST, SECOND, THIRD
    evaluator = TripletEvaluator(*columns, similarity_fn_names=names, write_csv=False)  # type: ignore[arg-type]
    expected = evaluator(ReferenceModel(EMBEDDER))  # type: ignore[arg-type]
    result = triplet_accuracy(*(EMBEDDER.embed(column) for column in columns))
    assert {f"{name}_accuracy": value / 100 for name, value in result.items()} == {
        f"{name}_accuracy": pytest.approx(expected[f"{name}_accuracy"], abs=1e-4) for name in names
    }
    same = np.ones((4, 2), dtype=np.float32)
    assert set(triplet_accuracy(same, same, same).values()) == {0.0}


def test_duplicates_equal_sentence_transformers() -> None:
    labels = np.random.default_rng(2).integers(0, 2, size=70)
    evaluator = BinaryClassificationEvaluator(
        FIRST, SECOND, labels.tolist(), similarity_fn_names=["cosine"], write_csv=False
    )
    expected = evaluator(ReferenceModel(EMBEDDER))  # type: ignore[arg-type]
    result = duplicates(paired_similarity(Similarity.COSINE, EMBEDDER.embed(FIRST), EMBEDDER.embed(SECOND)), labels)
    assert result.average_precision / 100 == pytest.approx(expected["cosine_ap"], abs=1e-4)
    for name in ("f1", "precision", "recall", "accuracy"):
        assert getattr(result, name) / 100 == pytest.approx(expected[f"cosine_{name}"], abs=1e-4), name
    for name in ("f1_threshold", "accuracy_threshold"):
        assert getattr(result, name) == pytest.approx(expected[f"cosine_{name}"], abs=1e-4)


@settings(deadline=None)
@given(
    st.lists(st.tuples(st.integers(0, 6), st.integers(0, 1)), min_size=2, max_size=25).filter(
        lambda found: len({label for _, label in found}) == 2
    )
)
def test_thresholds_are_optimal(found: list[tuple[int, int]]) -> None:
    scores = np.array([score for score, _ in found], dtype=np.float64)
    labels = np.array([label for _, label in found], dtype=np.int64)
    result = duplicates(scores, labels)

    def f1(cut: NDArray[np.bool_]) -> float:
        return float(2 * (cut & (labels == 1)).sum() / (cut.sum() + labels.sum()))

    def accuracy(cut: NDArray[np.bool_]) -> float:
        return float((cut == (labels == 1)).mean())

    cuts = [scores >= threshold for threshold in np.arange(-0.5, 7.5)]
    assert result.f1 == pytest.approx(100 * max(map(f1, cuts)))
    assert result.accuracy == pytest.approx(100 * max(map(accuracy, cuts)))
    assert f1(scores >= result.f1_threshold) == pytest.approx(result.f1 / 100)
    assert accuracy(scores >= result.accuracy_threshold) == pytest.approx(result.accuracy / 100)


def test_adjacent_floats_are_distinguished_and_of_equal_thresholds_the_higher_is_taken() -> None:
    low = np.float64(0.5)
    result = duplicates(np.array([np.nextafter(low, 1), low]), np.array([1, 0]))
    assert result.f1 == result.accuracy == 100.0
    assert result.f1_threshold > low
    # Three of four are right with the first alone, and with the first three.
    result = duplicates(np.array([0.9, 0.8, 0.7, 0.2]), np.array([1, 0, 1, 0]))
    assert (result.f1_threshold, result.accuracy_threshold) == (pytest.approx(0.45), pytest.approx(0.85))


NAN = np.array([0.0, np.nan])


@pytest.mark.parametrize(
    ("measure", "arguments", "error", "message"),
    [
        *((paired_similarity, (each, np.full_like(U, bad), V), ModelError, "NaN or infinite")
          for each in Similarity for bad in (np.nan, np.inf)),
        (correlate, (NAN, np.array([1.0, 2.0])), ModelError, "NaN or infinite"),
        (duplicates, (NAN, np.array([0, 1])), ModelError, "NaN or infinite"),
        (paired_similarity, (Similarity.DOT, U, V[:2]), ValueError, "do not form pairs"),
        (correlate, (np.zeros(3), np.zeros(4)), ValueError, "do not match gold scores"),
        (duplicates, (np.zeros(3), np.array([0, 1])), ValueError, "do not match labels"),
        *((correlate, (np.arange(len(gold), dtype=np.float64), np.array(gold)), SourceError, "cannot be ranked")
          for gold in ([], [1.0], [2.0, 2.0, 2.0])),
        *((duplicates, (np.zeros(len(labels)), np.array(labels, dtype=np.int64)), SourceError, "pairs that are dup")
          for labels in ([0, 0], [1, 1], [0, 2], [])),
    ],
)  # fmt: skip
def test_what_cannot_be_measured_is_refused(
    measure: Any, arguments: tuple[Any, ...], error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        measure(*arguments)
