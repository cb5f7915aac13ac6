"""Result types of an encoder."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Vectors = NDArray[np.float32]


@dataclass(frozen=True)
class EncodeResult:
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
