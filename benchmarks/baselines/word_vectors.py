"""Averaged word vectors (GloVe, word2vec, fastText): read, write and train tables of them with gensim."""

from __future__ import annotations

import gzip
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from es_sbert.bundle.modules import PromptKind

# GloVe was trained on Penn Treebank tokens: clitics are separate tokens ("do n't", "man 's"), numbers keep their
# points and commas, every other sign is one token. Hyphens separate words, since few compounds have vectors.
_WORD = re.compile(r"\d+(?:[.,]\d+)*(?!\w)|\w+(?=n't\b)|n't\b|'(?:s|re|ve|ll|d|m)\b|\w+|[^\w\s]", re.IGNORECASE)


def tokenize(text: str) -> list[str]:
    """The words, numbers and signs of a text, in order, with their case unchanged.

    >>> tokenize("The man's dog didn't cost $1,200.50.")
    ['The', 'man', "'s", 'dog', 'did', "n't", 'cost', '$', '1,200.50', '.']
    """
    words: list[str] = _WORD.findall(text.replace("’", "'"))  # typographic apostrophe
    return words


@dataclass(frozen=True)
class WordVectors:
    """A table of word vectors.

    Attributes:
        index: Word → row.
        vectors: ``(words, dimensions)`` float32.
    """

    index: dict[str, int]
    vectors: NDArray[np.float32]

    def rows(self, text: str) -> NDArray[np.int64]:
        """Rows of the known words of a text, as written or else in lower case, *shape* ``(known words,)``."""
        found = (self.index.get(word, self.index.get(word.lower())) for word in tokenize(text))
        return np.array([row for row in found if row is not None], dtype=np.int64)


def read_word_vectors(path: Path) -> WordVectors:
    """Read a table in the text format of GloVe (without a header), word2vec or fastText; .gz or not."""
    index: dict[str, int] = {}
    vectors: list[NDArray[np.float32]] = []
    dimensions = 0
    with gzip.open(path, "rt", encoding="utf-8") if path.suffix == ".gz" else path.open(encoding="utf-8") as file:
        for number, line in enumerate(file):
            parts = line.rstrip().split(" ")
            if number == 0 and len(parts) == 2:  # the header: numbers of words and dimensions
                continue
            dimensions = dimensions or len(parts) - 1
            word = " ".join(parts[:-dimensions])  # some words of GloVe hold spaces
            if word not in index:
                index[word] = len(vectors)
                vectors.append(np.array(parts[-dimensions:], dtype=np.float32))
    return WordVectors(index, np.stack(vectors))


def write_word_vectors(path: Path, table: WordVectors) -> None:
    """Write a table in word2vec's text format, gzip'd where the name ends in .gz."""
    with gzip.open(path, "wt", encoding="utf-8") if path.suffix == ".gz" else path.open("w", encoding="utf-8") as file:
        file.write(f"{len(table.index)} {table.vectors.shape[1]}\n")
        for word, row in table.index.items():
            file.write(f"{word} {' '.join(map(str, table.vectors[row].tolist()))}\n")


class AveragedWordVectors:
    """The mean of a text's word vectors (a `SentenceEmbedder`); zero for a text without known words.

    Args:
        table: The vectors.
        name: For tables.
    """

    def __init__(self, table: WordVectors, name: str) -> None:
        self.name = name
        self._table = table

    def embed(self, texts: Sequence[str], kind: PromptKind | None = None) -> NDArray[np.float32]:
        """Sentence vectors, *shape* ``(texts, dimensions)``; no prompts."""
        vectors = np.zeros((len(texts), self._table.vectors.shape[1]), dtype=np.float32)  # (texts, dimensions)
        for number, text in enumerate(texts):
            rows = self._table.rows(text)
            if len(rows):
                self._table.vectors[rows].mean(axis=0, out=vectors[number])
        return vectors


class _TokenizedTexts:
    """The lower-cased words of each text, tokenized on every pass: gensim reads them once per epoch and once before."""

    def __init__(self, texts: Sequence[str]) -> None:
        self._texts = texts

    def __iter__(self) -> Iterator[list[str]]:
        return (tokenize(text.lower()) for text in self._texts)


def train_word_vectors(
    texts: Sequence[str], *, dimensions: int, epochs: int, min_count: int, threads: int
) -> WordVectors:
    """Train skip-gram vectors with 5 negative samples (Mikolov et al. 2013, arXiv 1310.4546).

    Args:
        texts: The corpus; words are lower-cased.
        dimensions: Length of a vector.
        epochs: Passes over the corpus.
        min_count: Rarer words get no vector.
        threads: With one, the same corpus gives the same vectors.
    """
    from gensim.models import Word2Vec

    model = Word2Vec(sg=1, negative=5, vector_size=dimensions, window=5, min_count=min_count, seed=1, workers=threads)
    sentences = _TokenizedTexts(texts)
    model.build_vocab(sentences)
    model.train(sentences, total_examples=model.corpus_count, epochs=epochs)
    return WordVectors(dict(model.wv.key_to_index), np.asarray(model.wv.vectors, dtype=np.float32))
