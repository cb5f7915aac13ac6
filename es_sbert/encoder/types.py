"""Values that pass between the stages of the encoder and out of it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Vectors = NDArray[np.float32]


@dataclass(frozen=True)
class TokenizedTexts:
    """Texts as token ids, ready for the model.

    Attributes:
        ids: One int64 array of shape (tokens,) a text, special tokens included, cut to the model's maximum.
        tokens: *Shape:* ``(texts,)`` int64, tokens of each text before any cut, special tokens included; an estimate
            for a text of more than 100,000 characters, above `max_tokens` where the text was cut.
        max_tokens: The model's maximum.
    """

    ids: list[NDArray[np.int64]]
    tokens: NDArray[np.int64]
    max_tokens: int

    def __len__(self) -> int:
        return len(self.ids)

    @classmethod
    def joined(cls, parts: Sequence[TokenizedTexts], max_tokens: int) -> TokenizedTexts:
        """The texts of all parts, one part after another."""
        tokens = np.concatenate([np.empty(0, dtype=np.int64), *(part.tokens for part in parts)])  # (texts,)
        return cls([row for part in parts for row in part.ids], tokens, max_tokens)

    @property
    def truncated(self) -> NDArray[np.bool_]:
        """*Shape:* ``(texts,)``, True where the text was longer than the model reads."""
        return self.tokens > self.max_tokens


@dataclass(frozen=True)
class Encoded:
    """Sentence vectors in the order of the texts.

    Attributes:
        vectors: *Shape:* ``(texts, dimensions)`` float32.
        tokens: *Shape:* ``(texts,)`` int64, tokens before any cut, as in `TokenizedTexts`.
        truncated: *Shape:* ``(texts,)`` bool.
    """

    vectors: Vectors
    tokens: NDArray[np.int64]
    truncated: NDArray[np.bool_]


@dataclass(frozen=True)
class EncoderInfo:
    """What really runs, for summaries.

    Attributes:
        model, fingerprint, dimensions, max_tokens: Of the model.
        variant: ONNX variant that was loaded (`int8`, `fp16`, …).
        precision: Its number format.
        provider: onnxruntime's execution provider as the session reports it.
        device: `cpu` or `cuda:N`, with the device's name where known.
        threads: CPU threads, 0 on CUDA.
        warnings: What every summary must repeat (a variant written below its bar, …).
    """

    model: str
    fingerprint: str
    dimensions: int
    max_tokens: int
    variant: str
    precision: str
    provider: str
    device: str
    threads: int
    warnings: tuple[str, ...] = ()
