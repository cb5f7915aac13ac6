"""An encoder that returns vectors computed before, so that a load is reading, bulk requests and the engine's work."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

from es_sbert.encoder.text_pipeline import EncoderInfo
from es_sbert.runtime.chunker import Chunker
from es_sbert.runtime.tokenizer import TokenizedTexts
from es_sbert.vectors import Vectors

_TOKENS = 16  # reported for each text


class ReadyEncoder:
    """In place of `Encoder`: a text's only token is the number of its vector.

    Args:
        texts: All different.
        vectors: *Shape:* ``(texts, dimensions)``.
        info: Of the encoder that made the vectors.
    """

    window = 2_048  # as `Encoder` on a CPU

    def __init__(self, texts: Sequence[str], vectors: Vectors, info: EncoderInfo | None = None) -> None:
        self.pipeline, self._vectors = self, vectors
        self._rows = {text: np.array([number], np.int64) for number, text in enumerate(texts)}
        self.info = info or EncoderInfo("ready", "0" * 16, vectors.shape[1], 256, "none", "fp32", "none", "cpu", 1)

    def input_limit(self, kind: str) -> int:
        """Tokens that it reads."""
        return self.info.max_tokens

    def make_chunker(self, tokens: int, overlap: int, kind: str) -> Chunker:
        """Not called: the index has no passages."""
        raise NotImplementedError

    def tokenize(self, texts: Sequence[str], kind: str) -> TokenizedTexts:
        """The numbers of the vectors.

        Raises:
            KeyError: a text whose vector is not ready.
        """
        tokens = [self._rows[text] for text in texts]
        return TokenizedTexts(tokens, np.full(len(texts), _TOKENS), self.info.max_tokens)

    def embed_until(
        self, texts: TokenizedTexts, stop: threading.Event, progress: Callable[[float], None]
    ) -> tuple[Vectors, NDArray[np.bool_]]:
        """The vectors of these texts."""
        progress(1.0)
        return self._vectors[np.concatenate(texts.ids)], np.ones(len(texts), dtype=np.bool_)
