"""gensim's training, fed with our words."""

import numpy as np
import pytest

from benchmarks.baselines.word_vectors import train_word_vectors
from es_sbert.errors import SourceError

TEXTS = ["The cat didn't sleep.", "The dog didn't sleep!", "A cat sleeps; a dog sleeps."] * 20


@pytest.mark.parametrize("method", ["word2vec", "fasttext"])
def test_word_vectors_are_ordered_by_frequency_and_reproducible(method: str) -> None:
    table = train_word_vectors(TEXTS, method=method, dimensions=8, epochs=2, min_count=20)
    assert table.vectors.shape == (len(table.index), 8)
    assert set(table.index) == {"the", "a", "cat", "dog", "did", "n't", "sleep", "sleeps", ".", "!", ";"}
    assert set(list(table.index)[-2:]) == {"!", ";"}
    again = train_word_vectors(TEXTS, method=method, dimensions=8, epochs=2, min_count=20)
    assert again.index == table.index
    np.testing.assert_array_equal(again.vectors, table.vectors)


def test_similarly_used_words_have_similar_vectors() -> None:
    table = train_word_vectors(TEXTS * 10, dimensions=16, epochs=20, min_count=1)
    unit = table.vectors / np.linalg.norm(table.vectors, axis=1, keepdims=True)
    cat = unit[table.index["cat"]]
    assert cat @ unit[table.index["dog"]] > cat @ unit[table.index["!"]]


def test_corpus_without_frequent_words_is_rejected() -> None:
    with pytest.raises(SourceError, match="no word occurs 5 times"):
        train_word_vectors(["each word once"])
