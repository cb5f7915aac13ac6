"""What evaluation measures."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from es_sbert.bundle.model import PromptKind


@runtime_checkable
class Embedder(Protocol):
    """Gives one vector a text: sentence encoders in torch and ONNX, and the baselines.

    Attributes:
        name: For tables: what was measured, with precision or backend where that matters.
    """

    @property
    def name(self) -> str: ...

    def embed(self, texts: Sequence[str], kind: PromptKind | None = None) -> NDArray[np.float32]:
        """Sentence vectors, *shape* ``(texts, dimensions)``, in the order of the texts, not necessarily of unit length.

        Args:
            texts: Any number of texts.
            kind: `query` or `document` where a model has prompts for them (retrieval).
        """


@runtime_checkable
class PairScorer(Protocol):
    """Gives one score a pair: cross-encoders and poly-encoders. The higher, the more alike.

    Attributes:
        name: For tables.
    """

    @property
    def name(self) -> str: ...

    def score(self, first: Sequence[str], second: Sequence[str]) -> NDArray[np.float32]:
        """Scores of pairs, *shape* ``(pairs,)``; `first` and `second` are of equal length."""
