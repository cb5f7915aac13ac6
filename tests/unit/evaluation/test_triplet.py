"""Triplet accuracy: hand-worked, ties, and equal to sentence-transformers' evaluator."""

import numpy as np
import pytest
from sentence_transformers.sentence_transformer.evaluation import TripletEvaluator

from es_sbert.errors import ModelError
from es_sbert.evaluation.pair_metrics import Similarity, triplet_accuracy
from tests.unit.evaluation.support import ReferenceModel, random_embedder


def test_triplet_accuracy_by_hand() -> None:
    anchors = np.array([[1, 0], [1, 0], [1, 0]], dtype=np.float32)
    # By direction the positive is closer in the first two; by Euclidean and Manhattan distance in the last two.
    positives = np.array([[9, 0], [1, 0.1], [1, 1]], dtype=np.float32)
    negatives = np.array([[1, 1], [0, 1], [3, 0.1]], dtype=np.float32)
    result = triplet_accuracy(anchors, positives, negatives)
    assert result == {
        Similarity.COSINE: pytest.approx(200 / 3),
        Similarity.EUCLIDEAN: pytest.approx(200 / 3),
        Similarity.MANHATTAN: pytest.approx(200 / 3),
    }


def test_tie_counts_as_failure() -> None:
    same = np.ones((4, 2), dtype=np.float32)
    assert set(triplet_accuracy(same, same, same).values()) == {0.0}


def test_equals_sentence_transformers() -> None:
    columns = [[f"{name}{i}" for i in range(80)] for name in "apn"]
    embedder = random_embedder([text for column in columns for text in column])
    names = ["cosine", "euclidean", "manhattan"]
    evaluator = TripletEvaluator(*columns, similarity_fn_names=names, write_csv=False)  # type: ignore[arg-type]
    expected = evaluator(ReferenceModel(embedder))  # type: ignore[arg-type]
    result = triplet_accuracy(*(embedder.embed(column) for column in columns))
    assert {f"{name}_accuracy": value / 100 for name, value in result.items()} == {
        f"{name}_accuracy": pytest.approx(expected[f"{name}_accuracy"], abs=1e-4) for name in names
    }


def test_non_finite_vectors_raise_model_error() -> None:
    good, bad = np.ones((1, 2), dtype=np.float32), np.array([[1, np.nan]], dtype=np.float32)
    with pytest.raises(ModelError, match="NaN or infinite"):
        triplet_accuracy(good, good, bad)
