"""An encoder whose vectors are whole numbers, for stores over a vector field of the element type `byte`."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from es_sbert.encoder.encoder import Encoder
from es_sbert.index.byte_vectors import quantize_vectors


class ByteEmbeddings:
    """An embedding object like `Encoder`, with vectors as es-sbert writes them to a field of bytes and searches there.

    Engines refuse numbers with fractions in such a field, even in a query.

    Usage:
        ```python
        with SemanticIndex("docs", client) as index:
            ElasticsearchStore("docs", client=client, embedding=ByteEmbeddings(index.encoder))
        ```

    Args:
        encoder: An open encoder, which the caller closes.
    """

    def __init__(self, encoder: Encoder) -> None:
        self._encoder = encoder

    def embed_documents(self, texts: Sequence[str]) -> list[list[int]]:
        """Embed texts as vectors of numbers from -127 to 127; see `Encoder.embed_documents`."""
        vectors: list[list[int]] = quantize_vectors(self._encoder.encode_details(texts, "document").vectors).tolist()
        return vectors

    def embed_query(self, text: str) -> list[int]:
        """Embed a search text as a vector of numbers from -127 to 127; see `Encoder.embed_query`."""
        vector: list[int] = quantize_vectors(self._encoder.encode(text, "query")).tolist()
        return vector

    async def aembed_documents(self, texts: Sequence[str]) -> list[list[int]]:
        """Run `embed_documents` in a thread."""
        return await asyncio.to_thread(self.embed_documents, texts)

    async def aembed_query(self, text: str) -> list[int]:
        """Run `embed_query` in a thread."""
        return await asyncio.to_thread(self.embed_query, text)
