"""Duplicates: hand-worked, brute force over thresholds, and equal to sentence-transformers' evaluator."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from sentence_transformers.sentence_transformer.evaluation import BinaryClassificationEvaluator

from es_sbert.errors import ModelError, SourceError
from es_sbert.evaluation.pair_metrics import Similarity, duplicates, paired_similarity
from tests.unit.evaluation.support import ReferenceModel, random_embedder

pairs = st.lists(st.tuples(st.integers(0, 6), st.integers(0, 1)), min_size=2, max_size=25).filter(
    lambda found: len({label for _, label in found}) == 2
)


def test_duplicates_by_hand() -> None:
    result = duplicates(np.array([0.9, 0.8, 0.7, 0.2]), np.array([1, 0, 1, 0]))
    # Precision 1 at recall 1/2, 2/3 at recall 1: AP = 1/2 · 1 + 1/2 · 2/3.
    assert result.average_precision == pytest.approx(100 * (0.5 + 1 / 3))
    # The first three: precision 2/3, recall 1, F1 4/5, between 0.7 and 0.2.
    assert (result.f1, result.precision, result.recall) == (pytest.approx(80), pytest.approx(200 / 3), 100.0)
    assert result.f1_threshold == pytest.approx(0.45)
    # Three of four are right with the first alone, and with the first three: the higher threshold is taken.
    assert (result.accuracy, result.accuracy_threshold) == (75.0, pytest.approx(0.85))


@settings(deadline=None)
@given(pairs)
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


@settings(deadline=None)
@given(pairs)
def test_figures_depend_only_on_the_order(found: list[tuple[int, int]]) -> None:
    scores = np.array([score for score, _ in found], dtype=np.float64)
    labels = np.array([label for _, label in found], dtype=np.int64)
    one, other = duplicates(scores, labels), duplicates(np.exp(scores) - 100, labels)
    for name in ("average_precision", "f1", "precision", "recall", "accuracy"):
        assert getattr(one, name) == pytest.approx(getattr(other, name))


def test_adjacent_floats_are_distinguished() -> None:
    low = np.float64(0.5)
    result = duplicates(np.array([np.nextafter(low, 1), low]), np.array([1, 0]))
    assert result.f1 == result.accuracy == 100.0
    assert result.f1_threshold > low


def test_equals_sentence_transformers() -> None:
    first, second = [f"a{i}" for i in range(70)], [f"b{i}" for i in range(70)]
    labels = np.random.default_rng(2).integers(0, 2, size=70)
    embedder = random_embedder([*first, *second])
    evaluator = BinaryClassificationEvaluator(
        first, second, labels.tolist(), similarity_fn_names=["cosine"], write_csv=False
    )
    expected = evaluator(ReferenceModel(embedder))  # type: ignore[arg-type]
    result = duplicates(paired_similarity(Similarity.COSINE, embedder.embed(first), embedder.embed(second)), labels)
    ours = {
        "ap": result.average_precision,
        "f1": result.f1,
        "precision": result.precision,
        "recall": result.recall,
        "accuracy": result.accuracy,
    }
    for name, value in ours.items():
        assert value / 100 == pytest.approx(expected[f"cosine_{name}"], abs=1e-4), name
    assert result.f1_threshold == pytest.approx(expected["cosine_f1_threshold"], abs=1e-4)
    assert result.accuracy_threshold == pytest.approx(expected["cosine_accuracy_threshold"], abs=1e-4)


@pytest.mark.parametrize("labels", [[0, 0], [1, 1], [0, 2], []])
def test_single_class_labels_are_rejected(labels: list[int]) -> None:
    with pytest.raises(SourceError, match="pairs that are duplicates"):
        duplicates(np.zeros(len(labels)), np.array(labels, dtype=np.int64))


def test_non_finite_scores_raise_model_error() -> None:
    with pytest.raises(ModelError, match="NaN or infinite"):
        duplicates(np.array([np.nan, 0.0]), np.array([0, 1]))


def test_scores_of_wrong_length_raise_value_error() -> None:
    with pytest.raises(ValueError, match="do not match labels"):
        duplicates(np.zeros(3), np.array([0, 1]))
