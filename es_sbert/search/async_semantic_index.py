"""`AsyncSemanticIndex`: the same as `SemanticIndex`, for asyncio."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import wraps
from threading import Lock
from typing import TYPE_CHECKING, Any, Concatenate, ParamSpec, TypeVar, Unpack

from es_sbert.arguments import check_arguments, other_names, spell_out
from es_sbert.engines.connect import EngineOrClient
from es_sbert.errors import UsageError
from es_sbert.forks import renew_after_fork
from es_sbert.search.search_scope import OpenOptions
from es_sbert.search.semantic_index import INDEX_NAMES, CreateOptions, SemanticIndex
from es_sbert.settings import Count

T = TypeVar("T")
P = ParamSpec("P")


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

    Each call runs in a thread of a pool, since embedding a text takes milliseconds and loading a model seconds. A
    cancelled call returns at once, but its requests are still completed, those of `add` and `embed_missing` included.

    Args:
        index, engine, options: As for `SemanticIndex`.
        concurrency: Maximum number of calls that run at the same time; further calls wait.

    Raises:
        UsageError: `concurrency` is below 1. Errors of `SemanticIndex` are raised when the index is opened: on `async
            with`, or on the first call.
    """

    @check_arguments
    @spell_out(OpenOptions)
    def __init__(
        self,
        index: str | Sequence[str],
        engine: EngineOrClient = None,
        *,
        concurrency: Count = 32,
        **options: Unpack[OpenOptions],
    ) -> None:
        self._open: Callable[[Any], SemanticIndex] = lambda connection: SemanticIndex(index, connection, **options)
        self._engine = engine
        self._concurrency = concurrency
        self._start_pool()
        renew_after_fork(self, AsyncSemanticIndex._start_pool)
        self._opened: SemanticIndex | None = None
        self._closed = False

    def _start_pool(self) -> None:
        self._pool = ThreadPoolExecutor(self._concurrency, thread_name_prefix="es-sbert-search")
        self._opening = Lock()

    @classmethod
    @check_arguments
    @spell_out(CreateOptions)
    async def create(
        cls,
        name: str,
        engine: EngineOrClient = None,
        *,
        concurrency: Count = 32,
        **options: Unpack[CreateOptions],
    ) -> AsyncSemanticIndex:
        """See `SemanticIndex.create`; use it as `async with await AsyncSemanticIndex.create(…) as index:`."""
        index = cls(name, engine, concurrency=concurrency)
        index._open = lambda connection: SemanticIndex.create(name, connection, **options)
        return await index.__aenter__()

    add = _in_pool(SemanticIndex.add)
    embed_missing = _in_pool(SemanticIndex.embed_missing)
    delete = _in_pool(SemanticIndex.delete)
    search = _in_pool(SemanticIndex.search)
    search_many = _in_pool(SemanticIndex.search_many)
    search_vector = _in_pool(SemanticIndex.search_vector)
    count = _in_pool(SemanticIndex.count)
    exists = _in_pool(SemanticIndex.exists)
    get = _in_pool(SemanticIndex.get)
    similar_to = _in_pool(SemanticIndex.similar_to)
    hybrid = _in_pool(SemanticIndex.hybrid)
    body = _in_pool(SemanticIndex.body)
    clause = _in_pool(SemanticIndex.clause)
    similar_body = _in_pool(SemanticIndex.similar_body)
    hybrid_bodies = _in_pool(SemanticIndex.hybrid_bodies)

    if not TYPE_CHECKING:
        __getattr__ = other_names(INDEX_NAMES)

    async def close(self) -> None:
        """Close what this object opened itself, after the running calls have ended."""
        self._closed = True
        await asyncio.to_thread(self._pool.shutdown)
        if self._opened is not None:
            await asyncio.to_thread(self._opened.close)

    async def __aenter__(self) -> AsyncSemanticIndex:
        try:
            await self._run(lambda index: None)
        except BaseException:
            await self.close()
            raise
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def _run(self, work: Callable[[SemanticIndex], T]) -> T:
        if self._closed:
            raise UsageError(
                "this AsyncSemanticIndex is closed", "Search before close, or open another: AsyncSemanticIndex(…)."
            )

        def call() -> T:
            with self._opening:
                if self._opened is None:
                    self._opened = self._open(self._engine)
            return work(self._opened)

        return await asyncio.get_running_loop().run_in_executor(self._pool, call)
