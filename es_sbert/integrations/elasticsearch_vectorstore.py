"""An encoder as the embedding service of elasticsearch-py's `AsyncVectorStore`."""

from __future__ import annotations

from collections.abc import Sequence

from es_sbert.encoder.encoder import Encoder


class AsyncEmbeddingService:
    """Implements `elasticsearch.helpers.vectorstore.AsyncEmbeddingService` without importing it.

    The coroutines have the same names as the functions of the synchronous class, so one object cannot be both. For the
    synchronous `VectorStore`, pass the encoder itself.

    Usage:
        ```python
        AsyncVectorStore(client, index="docs", embedding_service=AsyncEmbeddingService(encoder))
        ```

    Args:
        encoder: An open encoder. The caller closes it.
    """

    def __init__(self, encoder: Encoder) -> None:
        self._encoder = encoder

    async def embed_documents(self, texts: Sequence[str]) -> list[list[float]] | list[list[int]]:
        """Embed texts: one vector per text, in their order; see `Encoder.embed_documents`."""
        return await self._encoder.aembed_documents(texts)

    async def embed_query(self, query: str) -> list[float] | list[int]:
        """Embed a text to search for; see `Encoder.embed_query`."""
        return await self._encoder.aembed_query(query)
