"""Averages of word vectors, worked by hand."""

import numpy as np

from benchmarks.baselines.word_vectors import AveragedWordVectors, WordVectors
from es_sbert.evaluation.evaluated_models import SentenceEmbedder

TABLE = WordVectors({"a": 0, "cat": 1, "Cat": 2, "n't": 3}, np.float32([[1, 0, 0], [0, 2, 0], [0, 0, 4], [-1, -1, -1]]))
MODEL = AveragedWordVectors(TABLE, "words averaged")


def test_mean_of_the_known_words_by_hand() -> None:
    vectors = MODEL.embed(["a cat", "A unicorn cat cat", "can't a"])
    np.testing.assert_allclose(vectors, [[0.5, 1, 0], [1 / 3, 4 / 3, 0], [0, -0.5, -0.5]], rtol=1e-6)


def test_exact_case_then_lower_case() -> None:
    np.testing.assert_array_equal(MODEL.embed(["Cat", "CAT", "cat"]), [[0, 0, 4], [0, 2, 0], [0, 2, 0]])


def test_unknown_words_give_zero() -> None:
    vectors = MODEL.embed(["", "unicorn"])
    assert vectors.dtype == np.float32
    np.testing.assert_array_equal(vectors, np.zeros((2, 3)))


def test_no_texts_give_no_vectors() -> None:
    assert MODEL.embed([]).shape == (0, 3)


def test_is_an_embedder() -> None:
    assert isinstance(MODEL, SentenceEmbedder)
