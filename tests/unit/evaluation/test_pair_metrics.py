"""Metrics of pairs and triplets equal those of sentence-transformers' evaluators, also where these are undefined."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from sentence_transformers.sentence_transformer.evaluation import (
    BinaryClassificationEvaluator,
    EmbeddingSimilarityEvaluator,
    TripletEvaluator,
)

from es_sbert.errors import ModelError, SourceError
from es_sbert.evaluation.pair_metrics import (
    Similarity,
    correlate,
    duplicates,
    paired_similarity,
    sts_correlations,
    triplet_accuracy,
)
from tests.raised import raises_as_recorded
from tests.unit.evaluation.support import ReferenceModel, random_embedder

U = np.array([[3.0, 4.0], [1.0, 0.0], [0.0, 0.0]], dtype=np.float32)
V = np.array([[4.0, 3.0], [0.0, -2.0], [1.0, 1.0]], dtype=np.float32)
FIRST, SECOND, THIRD = ([f"{name}{number}" for number in range(70)] for name in "abc")
EMBEDDER = random_embedder([*FIRST, *SECOND, *THIRD])


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


@pytest.mark.parametrize("similarity", Similarity)
def test_values_that_are_not_finite_or_no_pairs_are_refused(similarity: Similarity) -> None:
    with raises_as_recorded(ModelError):
        paired_similarity(similarity, np.full_like(U, np.nan), V)
    with raises_as_recorded(ModelError):
        correlate(np.array([0.0, np.nan]), np.array([1.0, 2.0]))
    with raises_as_recorded(SourceError):
        correlate(np.arange(3.0), np.array([2.0, 2.0, 2.0]))
    with raises_as_recorded(SourceError):
        duplicates(np.zeros(2), np.array([0, 0]))
    for metric in (correlate, duplicates):
        with pytest.raises(ValueError, match=r"scores of the shape \(2, 1\) do not match"):
            metric(np.zeros((2, 1)), np.array([0, 1]))
    with pytest.raises(ValueError, match="do not form pairs"):
        paired_similarity(similarity, U, V[:1])
