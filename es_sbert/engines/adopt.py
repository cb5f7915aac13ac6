"""From a caller's own client to an engine: its authentication, TLS, retries and time limits stay as they are."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Mapping
from typing import Any

from es_sbert.engines.detect import Answer, identify
from es_sbert.engines.protocol import Engine, EngineInfo, Flavour
from es_sbert.errors import UnsupportedEngine, UsageError

# A dialect that every server speaks which es-sbert supports.
_COMMON_DIALECT = 8


class FromThreads:
    """An asynchronous client as engines want one: called from other threads than that of its event loop.

    Args:
        perform: Its coroutine function `perform_request`.
        loop: Where it runs; it must be running.
    """

    def __init__(self, perform: Callable[..., Coroutine[Any, Any, Any]], loop: asyncio.AbstractEventLoop) -> None:
        self._perform = perform
        self._loop = loop

    def perform_request(self, *args: Any, **kwargs: Any) -> Any:
        return asyncio.run_coroutine_threadsafe(self._perform(*args, **kwargs), self._loop).result()

    def close(self) -> None:
        """The client is the caller's."""


def is_client(value: object) -> bool:
    """Whether this is a client of elasticsearch-py or opensearch-py, synchronous or not."""
    return _package(value) is not None and hasattr(value, "transport")


def is_async_client(value: object) -> bool:
    """Whether this is `AsyncElasticsearch` or `AsyncOpenSearch`."""
    return is_client(value) and any(cls.__name__.startswith("Async") for cls in type(value).__mro__)


def adopt(client: Any, loop: asyncio.AbstractEventLoop | None = None) -> Engine:
    """An engine on top of a client, which stays the caller's: do not close the engine.

    Args:
        client: `Elasticsearch` (8 or 9), `OpenSearch`, or their asynchronous twins.
        loop: Event loop of an asynchronous client; the engine is then used from other threads.

    Raises:
        UsageError: something else, or an asynchronous client without its loop.
        EngineUnreachable, AccessDenied, RequestFailed, UnsupportedEngine: see `identify`; also a client of the one
            engine that leads to the other.
    """
    if not is_client(client):
        raise UsageError(
            f"{type(client).__name__} is no client of an engine",
            "Give an address, or an Elasticsearch, AsyncElasticsearch, OpenSearch or AsyncOpenSearch object.",
        )
    asynchronous = is_async_client(client)
    if asynchronous and loop is None:
        raise UsageError(
            f"{type(client).__name__} is asynchronous", "Use AsyncSemanticIndex with it, or give a synchronous client."
        )
    if _package(client) == "elasticsearch":
        return _elasticsearch(FromThreads(client.perform_request, loop) if asynchronous and loop else client, client)
    perform = client.transport.perform_request
    return _opensearch(FromThreads(perform, loop) if asynchronous and loop else client.transport, client)


def _elasticsearch(sender: Any, client: Any) -> Engine:
    from es_sbert.engines.elasticsearch import ElasticsearchEngine, exchange

    url = str(next(iter(client.transport.node_pool.all())).base_url)

    def get(path: str) -> Answer:
        return exchange(sender, "GET", path, version=_COMMON_DIALECT, url=url, timeout=None)

    return ElasticsearchEngine(_expected(identify(get, url), Flavour.ELASTICSEARCH), sender, None)


def _opensearch(sender: Any, client: Any) -> Engine:
    from es_sbert.engines.opensearch import OpenSearchEngine, exchange

    url = _opensearch_url(client.transport.hosts[0])

    def get(path: str) -> Answer:
        return exchange(sender, "GET", path, url=url, timeout=None)

    return OpenSearchEngine(_expected(identify(get, url), Flavour.OPENSEARCH), sender, None)


def _opensearch_url(host: Mapping[str, Any]) -> str:
    """Address of a host as the client keeps it, without credentials."""
    scheme = "https" if host.get("use_ssl") else host.get("scheme", "http")
    path = str(host.get("url_prefix") or "").strip("/")
    return f"{scheme}://{host.get('host', 'localhost')}:{host.get('port', 9200)}{f'/{path}' if path else ''}"


def _expected(info: EngineInfo, flavour: Flavour) -> EngineInfo:
    if info.flavour is not flavour:
        raise UnsupportedEngine(
            f"the client is one of {flavour.value}, but {info.label} answers at {info.url}",
            "Give the client of that engine.",
        )
    return info


def _package(client: object) -> str | None:
    packages = {cls.__module__.partition(".")[0] for cls in type(client).__mro__}
    return next((name for name in ("elasticsearch", "opensearchpy") if name in packages), None)
