"""Connect to an engine: from settings, from a URL, or from an elasticsearch-py or opensearch-py client.

`es_sbert.engines.detection` detects the engine and its version.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any, TypeAlias

from es_sbert.config import EngineSettings
from es_sbert.engines.address import join_urls, parse_addresses
from es_sbert.engines.clients import OpenSearchTransport, TransportEngine, opensearch_with_exact_json, with_exact_json
from es_sbert.engines.detection import detect_cluster, identify_engine
from es_sbert.engines.engine import Engine
from es_sbert.engines.engine_info import EngineInfo, EngineType
from es_sbert.engines.retry import wait_for_engine
from es_sbert.errors import UnsupportedEngine, UsageError, renamed_setting
from es_sbert.messages import log_event, setting

if TYPE_CHECKING:
    from elasticsearch import Elasticsearch
    from opensearchpy import OpenSearch

    EngineOrClient: TypeAlias = Engine | Elasticsearch | OpenSearch | EngineSettings | str | Sequence[str] | None
else:
    EngineOrClient = Any  # without importing the clients

# Every supported server understands this version's media type.
_COMPATIBLE_VERSION = (8, 0, 0)


def connect(settings: EngineSettings) -> Engine:
    """Detect the engine at an address and open a client for it; close it with `close()`.

    If there are several addresses, at least one has to answer; the others are used once they do.

    Raises:
        UsageError: an address is not a URL, credentials conflict, or the addresses are of different clusters.
        EngineUnreachable, AccessDenied, UnsupportedEngine, RequestFailed: see `identify_engine`.
    """
    addresses = parse_addresses(settings)
    found, failures = detect_cluster(addresses)
    for failed, failure in failures.items():
        message = f"{failed.url} does not answer; the other addresses are used until it does: {failure.message}"
        log_event("address_failed", message, logging.WARNING, url=failed.url, reason=failure.message)
    info = EngineInfo(found.engine_type, found.version, join_urls(addresses))
    return TransportEngine.at(info, addresses)


def open_engine(engine: Any, request_timeout: float | None = None) -> Engine:
    """Connect to an engine, or use an open connection.

    Args:
        engine: None for the settings of the environment; else an address, a list of addresses of one cluster, settings,
            a client of elasticsearch-py or opensearch-py, or an engine.
        request_timeout: Seconds for one request; by default those of the settings.

    Raises:
        UsageError: `engine` is an asynchronous client, or an object of another type; or a timeout is given with an open
            client.
        EngineError: the engine cannot be used.
    """
    if (settings := address_settings(engine)) is not None:
        with renamed_setting("url", "url" if engine in (None, settings) else "engine"):
            return connect(
                settings if request_timeout is None else settings.model_copy(update={"timeout": request_timeout})
            )
    if request_timeout is not None:
        raise UsageError(
            f"{setting('request_timeout')} cannot change an open client",
            "Set it there: Elasticsearch(url, request_timeout=10) or OpenSearch(url, timeout=10).",
        ).about("request_timeout", request_timeout)
    if not hasattr(engine, "get_indices"):  # any object with the methods of `Engine` counts as one
        return from_client(engine)
    opened: Engine = engine
    return opened


@contextmanager
def connected(engine: EngineOrClient, retry_seconds: float = 0) -> Iterator[Engine]:
    """Open an engine as `open_engine` does, until the block ends; an open client or engine stays open.

    Args:
        retry_seconds: Seconds for which to wait for an engine that does not respond yet.
    """
    is_own = address_settings(engine) is not None
    opened = wait_for_engine(partial(open_engine, engine), retry_seconds)
    try:
        yield opened
    finally:
        if is_own:
            opened.close()


def address_settings(engine: object) -> EngineSettings | None:
    """The settings of an engine that is given by None, an address, a list of addresses or settings; else None."""
    if isinstance(engine, EngineSettings):
        return engine
    if engine is None:
        return EngineSettings()
    is_list = isinstance(engine, list | tuple) and bool(engine) and all(isinstance(each, str) for each in engine)
    return EngineSettings(url=engine) if isinstance(engine, str) or is_list else None  # type: ignore[arg-type]


def from_client(client: Any) -> Engine:
    """Create an engine that uses an existing client. The caller must close the client, not the engine.

    Args:
        client: `Elasticsearch` (8 or 9) or `OpenSearch`.

    Raises:
        UsageError: `client` is not a client of one of the engines, or is asynchronous.
        EngineUnreachable, AccessDenied, RequestFailed, UnsupportedEngine: see `identify_engine`; also if the client is
            connected to the other engine.
    """
    engine_type = _client_type(client)
    if engine_type is None or not hasattr(client, "transport"):
        raise UsageError(
            f"{type(client).__name__} is not a synchronous client of Elasticsearch or OpenSearch",
            "Pass an address, or an Elasticsearch or OpenSearch object; AsyncSemanticIndex takes these, too.",
        ).about("engine", client)
    sender: Any
    if engine_type is EngineType.ELASTICSEARCH:
        sender, url = with_exact_json(client), str(next(iter(client.transport.node_pool.all())).base_url)
    else:
        sender = OpenSearchTransport(opensearch_with_exact_json(client.transport))
        url = _opensearch_url(client.transport.hosts[0])
    probe = TransportEngine(EngineInfo(engine_type, _COMPATIBLE_VERSION, url), sender, None)
    info = identify_engine(lambda path: probe.send("GET", path), url)
    if info.engine_type is not engine_type:
        raise UnsupportedEngine(
            f"the client is for {engine_type.value}, but {info.label} answers at {info.url}",
            "Pass a client for that engine.",
        )
    return TransportEngine.by_client(info, sender)


def _client_type(client: object) -> EngineType | None:
    """The engine of a synchronous client; None for any other object."""
    classes = type(client).__mro__
    packages = {cls.__module__.partition(".")[0] for cls in classes}
    if any(cls.__name__.startswith("Async") for cls in classes):
        return None
    if "elasticsearch" in packages:
        return EngineType.ELASTICSEARCH
    return EngineType.OPENSEARCH if "opensearchpy" in packages else None


def _opensearch_url(host: Mapping[str, Any]) -> str:
    """The URL of a host as the client stores it, without credentials."""
    scheme = "https" if host.get("use_ssl") else host.get("scheme", "http")
    path = str(host.get("url_prefix") or "").strip("/")
    return f"{scheme}://{host.get('host', 'localhost')}:{host.get('port', 9200)}{f'/{path}' if path else ''}"
