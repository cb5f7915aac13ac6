"""Word vectors trained by gensim, for languages and machines without a table at hand."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Literal

import numpy as np

from es_sbert.errors import SourceError
from es_sbert.evaluation.baselines.vectors_file import WordVectors
from es_sbert.evaluation.baselines.words import tokenize
from es_sbert.extras import require

Method = Literal["word2vec", "fasttext"]


class _Sentences:
    """The words of each text, lower-cased, cut anew on every pass: gensim reads them once an epoch and once before."""

    def __init__(self, texts: Sequence[str]) -> None:
        self._texts = texts

    def __iter__(self) -> Iterator[list[str]]:
        return (tokenize(text.lower()) for text in self._texts)


def train_word_vectors(
    texts: Sequence[str],
    *,
    method: Method = "word2vec",
    dimensions: int = 300,
    epochs: int = 5,
    window: int = 5,
    min_count: int = 5,
    seed: int = 1,
    threads: int = 1,
) -> WordVectors:
    """Train skip-gram vectors with 5 negative samples; the words most frequent come first.

    word2vec: Mikolov et al. 2013, arXiv 1310.4546. fastText, whose vectors are sums over character n-grams:
    Bojanowski et al. 2017, arXiv 1607.04606 (the table holds the words of the corpus only, not the n-grams).

    Args:
        texts: The corpus; words are lower-cased.
        method: Which of the two.
        dimensions: Length of a vector.
        epochs: Passes over the corpus.
        window: Words to each side that a word is to foretell.
        min_count: Rarer words get no vector.
        seed: The same one gives the same vectors with one thread.
        threads: Worker threads.

    Raises:
        SourceError: no word stands often enough in the corpus.
        UsageError: gensim is not installed.
    """
    require("train", "gensim")
    from gensim.models import FastText, Word2Vec

    model: Any = (FastText if method == "fasttext" else Word2Vec)(
        sg=1, negative=5, vector_size=dimensions, window=window, min_count=min_count, seed=seed, workers=threads
    )
    sentences = _Sentences(texts)
    model.build_vocab(sentences)
    if not len(model.wv):
        raise SourceError(
            f"no word stands {min_count} times in the corpus", "Give a larger corpus or a lower minimum count."
        )
    model.train(sentences, total_examples=model.corpus_count, epochs=epochs)
    return WordVectors(dict(model.wv.key_to_index), np.asarray(model.wv.vectors, dtype=np.float32))
