"""An encoder under the names by which other libraries call an embedding model, with lists of floats for arrays."""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Sequence

from es_sbert.bundle.model import PromptKind
from es_sbert.encoder.types import Encoded
from es_sbert.errors import UsageError


class EmbedsTexts(ABC):
    """What `encode` gives, as LangChain's `Embeddings` and elasticsearch-py's `EmbeddingService` name it.

    Documents get the model's document prompt and queries its query prompt, as `es-sbert ingest` and `search` do, so an
    index may be filled by one and searched by the other.
    """

    @abstractmethod
    def encode(self, texts: Sequence[str], kind: PromptKind | None = None) -> Encoded:
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
