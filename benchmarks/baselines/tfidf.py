"""Cosine of tf-idf vectors (scikit-learn), and reading the corpus that document frequencies come from."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from es_sbert.bundle.sentence_model import PromptKind
from es_sbert.errors import SourceError, require_extra
from es_sbert.io.file_formats import decompress
from es_sbert.io.tables import read_table
from es_sbert.io.text_encoding import to_utf8
from es_sbert.io.text_formats import CorruptStream, split_lines

_CHUNK = 1 << 18
_MAX_LINE = 1 << 30


def read_corpus(path: Path, columns: Sequence[str] = ("text",)) -> list[str]:
    """The texts of a corpus, in order.

    Args:
        path: A .txt file (also .gz or .zst) of one text a line, or anything that `read_table` reads.
        columns: Columns of a table that hold texts; those of one row follow each other.

    Raises:
        SourceError: the file is missing, broken or without texts, or lacks a column.
    """
    if ".txt" in path.suffixes:
        return _read_lines(path)
    table = read_table(path, columns)
    return [text for row in zip(*(table.texts(column) for column in columns), strict=True) for text in row]


def _read_lines(path: Path) -> list[str]:
    """The lines of a file that hold more than white space."""
    texts: list[str] = []
    try:
        with path.open("rb") as file:
            chunks = iter(lambda: file.read(_CHUNK), b"")
            for line in split_lines(to_utf8(decompress(chunks)), _MAX_LINE):
                try:
                    text = line.data.decode().strip()
                except UnicodeDecodeError as error:
                    raise SourceError(
                        f"{path}, line {line.number}: not UTF-8 ({error.reason})", "Convert the file to UTF-8."
                    ) from error
                if text:
                    texts.append(text)
    except CorruptStream as error:
        raise SourceError(f"{path}: {error}", "Mend the file, or fetch it again.") from error
    except OSError as error:
        raise SourceError(f"{path} cannot be read: {error.strerror}", "Check the path.") from error
    if not texts:
        raise SourceError(f"{path} holds no texts", "Name a file with one text a line.")
    return texts


# The most dimensions of a vector given out: as many as InferSent's, and no more memory. Larger vocabularies are
# projected.
DIMENSIONS = 4096


class TfidfOfPairs:
    """Scores pairs by the cosine of their tf-idf vectors; idf comes from the texts of these pairs (a `PairScorer`).

    The texts carry no labels, so nothing of the gold data is seen. The vectors of two calls
    would have different words for dimensions.
    """

    name = "tf-idf"

    def score(self, first: Sequence[str], second: Sequence[str]) -> NDArray[np.float32]:
        """Cosines, *shape* ``(pairs,)``; 0 where a text has no word.

        Raises:
            SourceError: no text has a word of two letters or more.
        """
        if not first:
            return np.empty(0, dtype=np.float32)  # (0,)
        return _cosines(_fit([*first, *second]), first, second)


class Tfidf:
    """tf-idf with idf from a corpus (an `Embedder` and a `PairScorer`).

    Where pairs are to be scored, `score` is exact. `embed` is exact for vocabularies of up to `DIMENSIONS` words;
    larger ones go through a sparse random projection (Li et al. 2006; scikit-learn's), which keeps cosines to within
    about 1/√DIMENSIONS and, unlike a cap on the vocabulary, keeps the rare words that tell documents apart.

    Args:
        corpus: Texts that document frequencies are counted in.
        name: For tables.

    Raises:
        SourceError: no text of the corpus has a word of two letters or more.
        UsageError: scikit-learn is not installed.
    """

    def __init__(self, corpus: Sequence[str], name: str = "tf-idf") -> None:
        self.name = name
        self._vectorizer = _fit(corpus)
        self._words = len(self._vectorizer.vocabulary_)
        self._projection: Any = None
        if self._words > DIMENSIONS:
            from scipy.sparse import csr_matrix
            from sklearn.random_projection import SparseRandomProjection

            # Only the width of the data decides the matrix, so that fitting needs no texts.
            self._projection = SparseRandomProjection(DIMENSIONS, random_state=0)
            self._projection.fit(csr_matrix((1, self._words), dtype=np.float32))

    def score(self, first: Sequence[str], second: Sequence[str]) -> NDArray[np.float32]:
        """Cosines, *shape* ``(pairs,)``; 0 where a text has no word of the corpus."""
        return _cosines(self._vectorizer, first, second) if first else np.empty(0, dtype=np.float32)

    def embed(self, texts: Sequence[str], kind: PromptKind | None = None) -> NDArray[np.float32]:
        """Vectors, *shape* ``(texts, min(words of the corpus, DIMENSIONS))``; `kind` makes no difference."""
        if not texts:
            return np.empty((0, min(self._words, DIMENSIONS)), dtype=np.float32)  # (0, dimensions)
        weights = self._vectorizer.transform(texts)  # sparse (texts, words), rows of unit length
        if self._projection is not None:
            weights = self._projection.transform(weights)  # sparse (texts, DIMENSIONS)
        vectors: NDArray[np.float32] = weights.toarray()
        return vectors


def _fit(corpus: Sequence[str]) -> Any:
    """A TfidfVectorizer with scikit-learn's defaults: lower case, words of two letters or more, smooth idf, L2 norm."""
    require_extra("train", "sklearn")
    from sklearn.feature_extraction.text import TfidfVectorizer

    vectorizer = TfidfVectorizer(dtype=np.float32)
    try:
        return vectorizer.fit(corpus)
    except ValueError as error:  # "empty vocabulary"
        raise SourceError(f"tf-idf finds no words in the texts ({error})", "Give texts with words.") from error


def _cosines(vectorizer: Any, first: Sequence[str], second: Sequence[str]) -> NDArray[np.float32]:
    """Row-wise products of unit vectors, *shape* ``(pairs,)``."""
    u, v = vectorizer.transform(first), vectorizer.transform(second)  # sparse (pairs, words)
    return np.asarray(u.multiply(v).sum(axis=1), dtype=np.float32).ravel()
