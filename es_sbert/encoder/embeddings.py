"""Result types of an encoder, and the embedding interface of LangChain and elasticsearch-py."""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from es_sbert.bundle.sentence_model import PromptKind
from es_sbert.errors import UsageError

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


class EmbeddingModel(ABC):
    """What `encode` gives, as LangChain's `Embeddings` and elasticsearch-py's `EmbeddingService` name it.

    Documents get the model's document prompt and queries its query prompt, as `es-sbert ingest` and `search` do, so an
    index may be filled by one and searched by the other.
    """

    @abstractmethod
    def encode(self, texts: Sequence[str], kind: PromptKind | None = None) -> EncodeResult:
        """Sentence vectors of texts; see `Encoder.encode`."""

    def embed_documents(self, texts: Sequence[str]) -> list[list[float]]:
        """One vector a text, in their order.

        Raises:
            UsageError: a single string in place of a sequence, or a text that is not valid Unicode.
        """
        vectors: list[list[float]] = self.encode(texts, "document").vectors.tolist()
        return vectors

    def embed_query(self, text: str) -> list[float]:
        """The vector of a text to search for.

        Raises:
            UsageError: not a string, or not valid Unicode.
        """
        if not isinstance(text, str):
            raise UsageError(f"the query is a {type(text).__name__}, not a string", "Give one string to embed_query.")
        vector: list[float] = self.encode([text], "query").vectors[0].tolist()
        return vector

    async def aembed_documents(self, texts: Sequence[str]) -> list[list[float]]:
        """As `embed_documents`, in a thread beside the event loop."""
        return await asyncio.to_thread(self.embed_documents, texts)

    async def aembed_query(self, text: str) -> list[float]:
        """As `embed_query`, in a thread beside the event loop."""
        return await asyncio.to_thread(self.embed_query, text)
