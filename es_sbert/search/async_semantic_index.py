"""`AsyncSemanticIndex`: the same as `SemanticIndex`, for asyncio."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterable, AsyncIterator, Callable, Coroutine, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import wraps
from types import TracebackType
from typing import TYPE_CHECKING, Any, Concatenate, ParamSpec, TypeVar, Unpack

from es_sbert.arguments import check_arguments
from es_sbert.engines.connect import from_client, is_async_client
from es_sbert.errors import UsageError
from es_sbert.option_signature import spell_out
from es_sbert.search.search_scope import OPEN_DEFAULTS, OpenOptions, as_names
from es_sbert.search.semantic_index import ADD_DEFAULTS, CREATE_DEFAULTS, AddOptions, CreateOptions, SemanticIndex

if TYPE_CHECKING:
    from elasticsearch import AsyncElasticsearch
    from opensearchpy import AsyncOpenSearch

    from es_sbert.ingest.load_report import LoadReport
    from es_sbert.search.semantic_index import EngineOrClient


T = TypeVar("T")
P = ParamSpec("P")

CONCURRENCY = 32


def _in_pool(
    method: Callable[Concatenate[SemanticIndex, P], T],
) -> Callable[Concatenate[AsyncSemanticIndex, P], Coroutine[Any, Any, T]]:
    """Turn a method of `SemanticIndex` into a coroutine that runs it in the pool; signature and docstring are kept."""

    @wraps(method)
    async def call(self: AsyncSemanticIndex, /, *args: P.args, **kwargs: P.kwargs) -> T:
        return await self._run(lambda index: method(index, *args, **kwargs))

    return call


class AsyncSemanticIndex:
    """A `SemanticIndex` whose methods do not block the event loop.

    Usage:
        ```python
        async with AsyncSemanticIndex("docs", "http://localhost:9200") as index:
            result = await index.search("how do vaccines work", k=5)
            print(result[0].source["title"])
        ```

    Each call runs in a thread of a pool, since embedding a text takes milliseconds and loading a model seconds. The
    requests of an asynchronous client run on the event loop. A cancelled search returns at once, but its request is
    still completed. A cancelled `add` or `embed_missing` stops after the embeddings that are being written.

    Args:
        index, engine, options: As for `SemanticIndex`; the engine may also be `AsyncElasticsearch` or
            `AsyncOpenSearch`, which is used with its own settings on the event loop that opens this object, and is
            not closed by `close`.
        concurrency: Maximum number of calls that run at the same time; further calls wait.

    Raises:
        UsageError: `concurrency` is below 1. Errors of `SemanticIndex` are raised when the index is opened: on `async
            with`, or on the first search.
    """

    @check_arguments
    @spell_out(OpenOptions, OPEN_DEFAULTS)
    def __init__(
        self,
        index: str | Sequence[str],
        engine: AsyncElasticsearch | AsyncOpenSearch | EngineOrClient = None,
        *,
        concurrency: int = CONCURRENCY,
        **options: Unpack[OpenOptions],
    ) -> None:
        self._index = index
        self._engine = engine
        self._options = options
        self._pool = ThreadPoolExecutor(concurrency, thread_name_prefix="es-sbert-search")
        self._opening = asyncio.Lock()
        self._opened: SemanticIndex | None = None
        self._closed = False

    def __repr__(self) -> str:
        if self._opened is not None:
            return repr(self._opened).replace("<SemanticIndex", "<AsyncSemanticIndex", 1)
        names = ",".join(as_names(self._index))
        return f"<AsyncSemanticIndex {names!r}, {'closed' if self._closed else 'not open yet'}>"

    @classmethod
    @check_arguments
    @spell_out(CreateOptions, CREATE_DEFAULTS)
    async def create(
        cls,
        name: str,
        engine: AsyncElasticsearch | AsyncOpenSearch | EngineOrClient = None,
        *,
        concurrency: int = CONCURRENCY,
        **options: Unpack[CreateOptions],
    ) -> AsyncSemanticIndex:
        """See `SemanticIndex.create`; use it as `async with await AsyncSemanticIndex.create(…) as index:`."""
        index = cls(name, engine, concurrency=concurrency)
        loop = asyncio.get_running_loop()
        try:
            index._opened = await loop.run_in_executor(
                index._pool, lambda: SemanticIndex.create(name, index._connection(loop), **options)
            )
        except BaseException:
            await index.close()
            raise
        return index

    @check_arguments
    @spell_out(AddOptions, ADD_DEFAULTS)
    async def add(
        self,
        documents: Iterable[Mapping[str, Any]] | AsyncIterable[Mapping[str, Any]],
        *,
        id_field: str | None = None,
        routing_field: str | None = None,
        **options: Unpack[AddOptions],
    ) -> LoadReport:
        """See `SemanticIndex.add`; the documents may also come from an asynchronous iterator."""
        if isinstance(documents, AsyncIterable):
            documents = _in_thread(aiter(documents), asyncio.get_running_loop())
        return await self._load(documents, {"id_field": id_field, "routing_field": routing_field}, options)

    @check_arguments
    @spell_out(AddOptions, ADD_DEFAULTS)
    async def embed_missing(self, **options: Unpack[AddOptions]) -> LoadReport:
        """See `SemanticIndex.embed_missing`."""
        return await self._load(None, {}, options)

    delete = _in_pool(SemanticIndex.delete)
    search = _in_pool(SemanticIndex.search)
    search_vector = _in_pool(SemanticIndex.search_vector)
    similar_to = _in_pool(SemanticIndex.similar_to)
    hybrid = _in_pool(SemanticIndex.hybrid)
    body = _in_pool(SemanticIndex.body)
    similar_body = _in_pool(SemanticIndex.similar_body)
    hybrid_bodies = _in_pool(SemanticIndex.hybrid_bodies)

    async def close(self) -> None:
        """Close what this object opened itself, after the running calls have ended."""
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
                        "this AsyncSemanticIndex is closed",
                        "Search before close, or open another: AsyncSemanticIndex(…).",
                    )
                if self._opened is None:
                    self._opened = await loop.run_in_executor(
                        self._pool, lambda: SemanticIndex(self._index, self._connection(loop), **self._options)
                    )
        return await loop.run_in_executor(self._pool, work, self._opened)

    async def _load(
        self, documents: Iterable[Mapping[str, Any]] | None, more: dict[str, Any], options: AddOptions
    ) -> LoadReport:
        from es_sbert.ingest.load_threads import LoadControl

        control = LoadControl()
        try:
            return await self._run(lambda index: index._load(documents, more, options, control))
        except asyncio.CancelledError:
            control.interrupt()
            raise

    def _connection(self, loop: asyncio.AbstractEventLoop) -> Any:
        return from_client(self._engine, loop) if is_async_client(self._engine) else self._engine


def _in_thread(documents: AsyncIterator[T], loop: asyncio.AbstractEventLoop) -> Iterator[T]:
    """Iterate in a thread over an asynchronous iterator of the event loop."""

    async def take() -> list[T]:
        try:
            return [await anext(documents)]
        except StopAsyncIteration:
            return []

    while batch := asyncio.run_coroutine_threadsafe(take(), loop).result():
        yield from batch
