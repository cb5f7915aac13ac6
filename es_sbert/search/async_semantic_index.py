"""`AsyncSemanticIndex`: the same as `SemanticIndex`, for asyncio."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from types import TracebackType
from typing import TYPE_CHECKING, Any, TypeVar, Unpack

from es_sbert.config import EngineSettings
from es_sbert.encoder.embeddings import Vectors
from es_sbert.encoder.reranker import Reranker
from es_sbert.engines.connect import from_client, is_async_client
from es_sbert.engines.protocol import Engine, Json
from es_sbert.errors import UsageError
from es_sbert.search.hybrid_search import HybridOptions
from es_sbert.search.search_request import OpenOptions, SearchOptions
from es_sbert.search.search_result import HybridResult, SearchResult
from es_sbert.search.semantic_index import SemanticIndex

if TYPE_CHECKING:
    from elasticsearch import AsyncElasticsearch, Elasticsearch
    from opensearchpy import AsyncOpenSearch, OpenSearch


T = TypeVar("T")

CONCURRENCY = 32


class AsyncSemanticIndex:
    """An index with a vector field, and the model that fills it, searched without blocking the event loop.

    Usage:
        async with AsyncSemanticIndex("docs", AsyncElasticsearch(...)) as index:
            result = await index.search("how do vaccines work", k=5)

    Encoding a text computes for milliseconds and loading a model for seconds, so each search runs in a thread of a
    pool; the requests themselves run on the event loop where the client is an asynchronous one. A search that is
    cancelled is not waited for any more, but its request still comes to its end.

    Args:
        index, engine, options: As for `SemanticIndex`; the engine may also be `AsyncElasticsearch` or
            `AsyncOpenSearch`, used with its own settings on the event loop that opens this object, and left open on
            `close`.
        concurrency: Searches that run at the same time; more wait.

    Raises:
        UsageError: a concurrency below 1. What `SemanticIndex` raises comes when it is opened: on `async with`, or on
            the first search.
    """

    def __init__(
        self,
        index: str | Sequence[str],
        engine: AsyncElasticsearch
        | AsyncOpenSearch
        | Elasticsearch
        | OpenSearch
        | Engine
        | EngineSettings
        | str
        | None = None,
        *,
        concurrency: int = CONCURRENCY,
        **options: Unpack[OpenOptions],
    ) -> None:
        if concurrency < 1:
            raise UsageError(f"concurrency is {concurrency}", "Give the number of searches at a time, at least 1.")
        self._index = index
        self._engine = engine
        self._options = options
        self._pool = ThreadPoolExecutor(concurrency, thread_name_prefix="es-sbert-search")
        self._opening = asyncio.Lock()
        self._opened: SemanticIndex | None = None
        self._closed = False

    async def search(
        self,
        text: str,
        k: int = 10,
        *,
        rerank: Reranker | None = None,
        window: int | None = None,
        **options: Unpack[SearchOptions],
    ) -> SearchResult:
        """See `SemanticIndex.search`."""
        return await self._run(lambda index: index.search(text, k, rerank=rerank, window=window, **options))

    async def search_vector(self, vector: Vectors, k: int = 10, **options: Unpack[SearchOptions]) -> SearchResult:
        """See `SemanticIndex.search_vector`."""
        return await self._run(lambda index: index.search_vector(vector, k, **options))

    async def like(
        self, id: str, k: int = 10, *, index: str | None = None, **options: Unpack[SearchOptions]
    ) -> SearchResult:
        """See `SemanticIndex.like`."""
        return await self._run(lambda opened: opened.like(id, k, index=index, **options))

    async def hybrid(
        self,
        text: str,
        k: int = 10,
        *,
        rerank: Reranker | None = None,
        window: int | None = None,
        **options: Unpack[HybridOptions],
    ) -> HybridResult:
        """See `SemanticIndex.hybrid`."""
        return await self._run(lambda index: index.hybrid(text, k, rerank=rerank, window=window, **options))

    async def body(self, text: str, k: int = 10, **options: Unpack[SearchOptions]) -> Json:
        """See `SemanticIndex.body`."""
        return await self._run(lambda index: index.body(text, k, **options))

    async def like_body(
        self, id: str, k: int = 10, *, index: str | None = None, **options: Unpack[SearchOptions]
    ) -> Json:
        """See `SemanticIndex.like_body`."""
        return await self._run(lambda opened: opened.like_body(id, k, index=index, **options))

    async def hybrid_bodies(self, text: str, k: int = 10, **options: Unpack[HybridOptions]) -> tuple[Json, ...]:
        """See `SemanticIndex.hybrid_bodies`."""
        return await self._run(lambda index: index.hybrid_bodies(text, k, **options))

    async def close(self) -> None:
        """Close what this object opened itself, once the searches that run are over."""
        loop = asyncio.get_running_loop()
        async with self._opening:
            self._closed = True
            if self._opened is not None:
                await loop.run_in_executor(self._pool, self._opened.close)
                self._opened = None
        await asyncio.to_thread(self._pool.shutdown)

    async def __aenter__(self) -> AsyncSemanticIndex:
        try:
            await self._run(lambda index: None)
        except BaseException:
            await self.close()
            raise
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def _run(self, work: Callable[[SemanticIndex], T]) -> T:
        loop = asyncio.get_running_loop()
        if self._opened is None:
            async with self._opening:
                if self._closed:
                    raise UsageError(
                        "this index is closed", "Search before close, or open it again: AsyncSemanticIndex(…)."
                    )
                if self._opened is None:
                    self._opened = await loop.run_in_executor(self._pool, self._open, loop)
        return await loop.run_in_executor(self._pool, work, self._opened)

    def _open(self, loop: asyncio.AbstractEventLoop) -> SemanticIndex:
        engine: Any = from_client(self._engine, loop) if is_async_client(self._engine) else self._engine
        return SemanticIndex(self._index, engine, **self._options)
