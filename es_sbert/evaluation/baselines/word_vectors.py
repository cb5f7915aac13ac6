"""Averaged word vectors: the paper's GloVe and fastText baselines."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from es_sbert.bundle.model import PromptKind
from es_sbert.evaluation.baselines.vectors_file import WordVectors
from es_sbert.evaluation.baselines.words import tokenize


class AveragedWordVectors:
    """The mean of the vectors of a text's words, stop words included (an `Embedder`).

    Words that the table lacks are left out; a text of such words alone gives the zero vector.

    Args:
        table: The word vectors.
        name: For tables.
    """

    def __init__(self, table: WordVectors, name: str) -> None:
        self._table = table
        self.name = name

    def embed(self, texts: Sequence[str], kind: PromptKind | None = None) -> NDArray[np.float32]:
        """Sentence vectors, *shape* ``(texts, dimensions)``; `kind` makes no difference."""
        vectors = np.zeros((len(texts), self._table.dimensions), dtype=np.float32)  # (texts, dimensions)
        for number, text in enumerate(texts):
            rows = self._table.rows(tokenize(text))  # (known words,)
            if len(rows):
                self._table.vectors[rows].mean(axis=0, out=vectors[number])
        return vectors
