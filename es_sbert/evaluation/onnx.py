"""An ONNX encoder as evaluation sees it."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from es_sbert.bundle.model import PromptKind
from es_sbert.encoder.encoder import Encoder


class OnnxEmbedder:
    """An `Embedder` on onnxruntime: the vectors that ingest and search would use.

    Args:
        encoder: A loaded encoder.
    """

    def __init__(self, encoder: Encoder) -> None:
        self.encoder = encoder

    @property
    def name(self) -> str:
        """The model with its variant: `all-MiniLM-L6-v2 (int8)`."""
        return f"{self.encoder.info.model} ({self.encoder.info.variant})"

    def embed(self, texts: Sequence[str], kind: PromptKind | None = None) -> NDArray[np.float32]:
        """Sentence vectors, *shape* ``(texts, dimensions)``.

        Raises:
            UsageError: a text is not valid Unicode.
        """
        return self.encoder.encode(texts, kind).vectors

    def close(self) -> None:
        """End the encoder's threads."""
        self.encoder.close()
