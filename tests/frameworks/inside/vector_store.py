"""elasticsearch-py's `VectorStore` and `AsyncVectorStore` with an encoder, whatever the version of the client."""

from __future__ import annotations

import asyncio

import pytest
from elasticsearch import AsyncElasticsearch, Elasticsearch
from elasticsearch.helpers.vectorstore import (
    AsyncDenseVectorStrategy,
    AsyncVectorStore,
    DenseVectorStrategy,
    VectorStore,
)

from es_sbert.encoder.encoder import Encoder
from tests.frameworks.articles import ARTICLES, QUESTION, TEXTS


class AsyncEmbeddings:
    """An encoder with the coroutines of an embedding service, as docs/integrations.md shows it."""

    def __init__(self, encoder: Encoder) -> None:
        self.embed_documents, self.embed_query = encoder.aembed_documents, encoder.aembed_query


METADATA = [{"language": language} for language, _ in ARTICLES]
ONLY_XX = [{"term": {"metadata.language.keyword": "xx"}}]


def check_store(url: str, index: str, encoder: Encoder) -> None:
    """A store that makes its index, embeds texts into it and searches it, with and without a filter."""
    with Elasticsearch(url) as client:
        store = VectorStore(client, index=index, retrieval_strategy=DenseVectorStrategy(), embedding_service=encoder)
        store.add_texts(TEXTS, metadatas=METADATA, ids=[str(number) for number in range(len(TEXTS))])
        _check_hits(store.search(query=QUESTION, k=3), encoder, ["0", "2"])
        _check_hits(store.search(query=QUESTION, k=3, filter=ONLY_XX), encoder, ["2"])


def check_async_store(url: str, index: str, encoder: Encoder) -> None:
    """The same by coroutines."""

    async def check() -> None:
        async with AsyncElasticsearch(url) as client:
            store = AsyncVectorStore(
                client,
                index=index,
                retrieval_strategy=AsyncDenseVectorStrategy(),
                embedding_service=AsyncEmbeddings(encoder),  # type: ignore[arg-type]
            )
            await store.add_texts(TEXTS, metadatas=METADATA, ids=[str(number) for number in range(len(TEXTS))])
            _check_hits(await store.search(query=QUESTION, k=3), encoder, ["0", "2"])
            _check_hits(await store.search(query=QUESTION, k=3, filter=ONLY_XX), encoder, ["2"])

    asyncio.run(check())


def _check_hits(hits: list[dict[str, object]], encoder: Encoder, first: list[str]) -> None:
    assert [hit["_id"] for hit in hits][: len(first)] == first
    query, *documents = [encoder.embed_query(QUESTION), *encoder.embed_documents(TEXTS)]
    cosines = [sum(a * b for a, b in zip(query, documents[int(str(hit["_id"]))], strict=True)) for hit in hits]
    # The store leaves the type of index to the engine: quantized, and its scores estimates.
    assert [2 * float(str(hit["_score"])) - 1 for hit in hits] == pytest.approx(cosines, abs=0.08)
