"""tf-idf cosines equal scikit-learn's, worked out densely."""

import math

import numpy as np
import pytest
from sklearn.feature_extraction.text import TfidfVectorizer
from sklearn.metrics.pairwise import paired_cosine_distances

from benchmarks.baselines import tfidf
from benchmarks.baselines.tfidf import Tfidf, TfidfOfPairs
from es_sbert.errors import SourceError
from es_sbert.evaluation.evaluated_models import PairScorer, SentenceEmbedder

CORPUS = ["the cat sleeps", "the dog sleeps on the mat", "a man plays guitar", "guitar music for the cat"]
FIRST = ["the cat sleeps", "a dog plays guitar", "unicorn", "the mat", ""]
SECOND = ["cat on the mat", "guitar for a man", "the cat", "the mat", ""]


def expected_cosines(corpus: list[str]) -> np.ndarray:
    vectorizer = TfidfVectorizer().fit(corpus)
    u, v = vectorizer.transform(FIRST).toarray(), vectorizer.transform(SECOND).toarray()
    cosines: np.ndarray = (u * v).sum(axis=1)
    spoken = (u.any(axis=1)) & (v.any(axis=1))
    np.testing.assert_allclose(cosines[spoken], 1 - paired_cosine_distances(u[spoken], v[spoken]))
    return cosines


def test_cosines_use_corpus_idf() -> None:
    scores = Tfidf(CORPUS).score(FIRST, SECOND)
    assert scores.dtype == np.float32
    np.testing.assert_allclose(scores, expected_cosines(CORPUS), atol=1e-6)
    assert scores[3] == pytest.approx(1)
    assert scores[2] == scores[4] == 0


def test_pair_cosines_use_idf_of_the_pairs() -> None:
    np.testing.assert_allclose(TfidfOfPairs().score(FIRST, SECOND), expected_cosines([*FIRST, *SECOND]), atol=1e-6)


def test_cosine_by_hand() -> None:
    # Two texts, smooth idf ln((1 + n) / (1 + df)) + 1: "cat" stands in both (1), the others in one (ln 1.5 + 1).
    rare = math.log(3 / 2) + 1
    scores = TfidfOfPairs().score(["cat sleeps"], ["cat plays"])
    assert scores[0] == pytest.approx(1 / (1 + rare**2), rel=1e-6)


def test_vectors_are_exact_for_small_vocabularies() -> None:
    model = Tfidf(CORPUS)
    vectors = model.embed(FIRST)
    np.testing.assert_allclose(vectors, TfidfVectorizer().fit(CORPUS).transform(FIRST).toarray(), atol=1e-6)
    assert vectors.dtype == np.float32
    assert model.embed([]).shape == (0, vectors.shape[1])


def test_large_vocabularies_are_projected_preserving_cosines(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tfidf, "DIMENSIONS", 512)
    random = np.random.default_rng(0)
    texts = [" ".join(f"word{number}" for number in random.integers(2000, size=30)) for _ in range(300)]
    first = texts[:150]
    second = [" ".join([*a.split()[:15], *b.split()[:15]]) for a, b in zip(first, texts[150:], strict=True)]
    model = Tfidf(texts)
    u, v = model.embed(first), model.embed(second)
    assert u.shape == (150, 512)
    cosines = (u * v).sum(axis=1) / np.linalg.norm(u, axis=1) / np.linalg.norm(v, axis=1)
    errors = cosines - model.score(first, second)
    assert np.sqrt((errors**2).mean()) < 1 / math.sqrt(512)
    np.testing.assert_array_equal(Tfidf(texts).embed(first), u)  # the same projection in the next process


def test_no_pairs_give_no_scores() -> None:
    assert TfidfOfPairs().score([], []).shape == (0,)
    assert Tfidf(CORPUS).score([], []).shape == (0,)


def test_texts_without_words_are_refused() -> None:
    with pytest.raises(SourceError, match="no words"):
        TfidfOfPairs().score(["?", ""], ["!", "a"])
    with pytest.raises(SourceError, match="no words"):
        Tfidf(["…"])


def test_tfidf_classes_implement_their_protocols() -> None:
    assert isinstance(TfidfOfPairs(), PairScorer)
    assert not isinstance(TfidfOfPairs(), SentenceEmbedder)
    assert isinstance(Tfidf(CORPUS), SentenceEmbedder)
    assert isinstance(Tfidf(CORPUS), PairScorer)
