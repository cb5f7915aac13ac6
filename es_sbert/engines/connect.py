"""Connect to an engine: from settings, from a URL, or from an elasticsearch-py or opensearch-py client.

`detect_engine` finds out whether Elasticsearch or OpenSearch answers, and in which version.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Mapping
from typing import Any

import orjson
from elastic_transport import ConnectionError as TransportConnectionError
from elastic_transport import ConnectionTimeout, HttpHeaders, Urllib3HttpNode

from es_sbert.config import EngineSettings
from es_sbert.engines.address import Address, parse_address
from es_sbert.engines.error_mapping import CREDENTIALS_REMEDY, connection_error, privilege_remedy, root_cause
from es_sbert.engines.protocol import Engine, EngineInfo, EngineType
from es_sbert.engines.rest import EngineResponse
from es_sbert.errors import AccessDenied, RequestFailed, UnsupportedEngine, UsageError

MIN_VERSIONS = {EngineType.ELASTICSEARCH: (8, 19, 0), EngineType.OPENSEARCH: (3, 0, 0)}

_VERSION_PATH = "/_nodes/_local?filter_path=nodes.*.version"


def detect_engine(address: Address) -> EngineInfo:
    """Ask the server what it is, as `identify` does."""
    node = Urllib3HttpNode(address.node_config())
    try:
        return identify_engine(lambda path: _get(node, path), address.url)
    except (TransportConnectionError, ConnectionTimeout) as error:
        raise connection_error(address.url, error, address.timeout) from error
    finally:
        node.close()


def identify_engine(get: Callable[[str], EngineResponse], url: str) -> EngineInfo:
    """What a server is.

    Elasticsearch signs every answer with `X-Elastic-Product`, OpenSearch names itself in `GET /`. Where
    `GET /` is missing (distributions without the rest-root module), the node's own description has the version.

    Args:
        get: Answers a GET of a path.
        url: Address without credentials.

    Raises:
        EngineUnreachable: nothing answers.
        AccessDenied: 401 or 403.
        RequestFailed: an engine answers, but is not ready.
        UnsupportedEngine: another web server, or a version that is too old.
    """
    return _check_version(_identify_product(lambda path: _check_access(get(path), path, url), url))


def _identify_product(get: Callable[[str], EngineResponse], url: str) -> EngineInfo:
    answer = get("/")
    elastic = answer.headers.get("x-elastic-product", "") == "Elasticsearch"
    if answer.status == 200 and isinstance(answer.body, dict):
        described = answer.body.get("version")
        version = _parse_version(described.get("number")) if isinstance(described, dict) else None
        if version is not None and isinstance(described, dict):
            if described.get("distribution") == "opensearch":
                return EngineInfo(EngineType.OPENSEARCH, version, url)
            # Elasticsearch before 7.14 does not sign its answers; the tagline is enough to call it too old.
            if elastic or answer.body.get("tagline") == "You Know, for Search":
                return EngineInfo(EngineType.ELASTICSEARCH, version, url)
    if elastic:
        nodes = get(_VERSION_PATH)
        found = nodes.body.get("nodes", {}) if isinstance(nodes.body, dict) else {}
        for described in found.values():
            version = _parse_version(described.get("version"))
            if version is not None:
                return EngineInfo(EngineType.ELASTICSEARCH, version, url)
        raise RequestFailed(
            f"Elasticsearch at {url} does not tell its version: {root_cause(nodes.body)[1]}",
            "Give the user or API key the cluster privilege monitor, or wait until the server is ready.",
            nodes.status,
        )
    if answer.status == 429 or answer.status >= 500:
        # A proxy whose engine is away, or an engine that is not ready to say what it is.
        raise RequestFailed(
            f"{url} is not ready: GET / gave {answer.status}",
            "Wait until the engine has started; if there is a proxy in front of it, check its log.",
            answer.status,
        )
    raise UnsupportedEngine(
        f"what answers at {url} is neither Elasticsearch nor OpenSearch (GET / gave {answer.status})",
        "Check host, port and path of the address; Kibana and Dashboards (5601) are not the engine (9200).",
    )


def _get(node: Urllib3HttpNode, target: str) -> EngineResponse:
    meta, raw = node.perform_request("GET", target, headers=HttpHeaders({"accept": "application/json"}))
    try:
        body = orjson.loads(raw)
    except orjson.JSONDecodeError:
        body = raw.decode("utf-8", "replace")
    return EngineResponse(meta.status, meta.headers, body)


def _check_access(answer: EngineResponse, target: str, url: str) -> EngineResponse:
    """An answer that is no refusal."""
    if answer.status == 401:
        raise AccessDenied(f"{url} refused the credentials (401)", CREDENTIALS_REMEDY)
    if answer.status == 403:
        reason = root_cause(answer.body)[1]
        raise AccessDenied(
            f"{url} does not allow GET {target.partition('?')[0]} (403): {reason}", privilege_remedy(reason)
        )
    return answer


def _parse_version(text: object) -> tuple[int, int, int] | None:
    """`9.5.0` or `9.0.0-SNAPSHOT` as numbers; None where it is no version."""
    numbers = str(text).partition("-")[0].split(".")
    if len(numbers) < 3 or not all(number.isdigit() for number in numbers[:3]):
        return None
    return int(numbers[0]), int(numbers[1]), int(numbers[2])


def _check_version(info: EngineInfo) -> EngineInfo:
    oldest = MIN_VERSIONS[info.engine_type]
    if info.version < oldest:
        wanted = EngineInfo(info.engine_type, oldest, info.url).label
        raise UnsupportedEngine(
            f"{info.label} at {info.url} is too old",
            f"es-sbert needs {wanted} or newer: upgrade the server, or try `es-sbert engine up` beside it.",
        )
    return info


def connect(settings: EngineSettings) -> Engine:
    """Find out what answers at the address and open a client for it; close it with `close()`.

    Raises:
        UsageError: an address that is not a URL, or contradictory credentials.
        EngineUnreachable, AccessDenied, UnsupportedEngine, RequestFailed: see `detect`.
    """
    address = parse_address(settings)
    info = detect_engine(address)
    # Each client package takes a tenth of a second and more to import: only the one in use is.
    if info.engine_type is EngineType.ELASTICSEARCH:
        from es_sbert.engines.elasticsearch import ElasticsearchEngine

        return ElasticsearchEngine.at(info, address)
    from es_sbert.engines.opensearch import OpenSearchEngine

    return OpenSearchEngine.at(info, address)


# A dialect that every server speaks which es-sbert supports.
_COMPATIBLE_VERSION = 8


class AsyncClientAdapter:
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


def is_engine_client(value: object) -> bool:
    """Whether this is a client of elasticsearch-py or opensearch-py, synchronous or not."""
    return _client_package(value) is not None and hasattr(value, "transport")


def is_async_client(value: object) -> bool:
    """Whether this is `AsyncElasticsearch` or `AsyncOpenSearch`."""
    return is_engine_client(value) and any(cls.__name__.startswith("Async") for cls in type(value).__mro__)


def from_client(client: Any, loop: asyncio.AbstractEventLoop | None = None) -> Engine:
    """An engine on top of a client, which stays the caller's: do not close the engine.

    Args:
        client: `Elasticsearch` (8 or 9), `OpenSearch`, or their asynchronous twins.
        loop: Event loop of an asynchronous client; the engine is then used from other threads.

    Raises:
        UsageError: something else, or an asynchronous client without its loop.
        EngineUnreachable, AccessDenied, RequestFailed, UnsupportedEngine: see `identify`; also a client of the one
            engine that leads to the other.
    """
    if not is_engine_client(client):
        raise UsageError(
            f"{type(client).__name__} is no client of an engine",
            "Give an address, or an Elasticsearch, AsyncElasticsearch, OpenSearch or AsyncOpenSearch object.",
        )
    asynchronous = is_async_client(client)
    if asynchronous and loop is None:
        raise UsageError(
            f"{type(client).__name__} is asynchronous", "Use AsyncSemanticIndex with it, or give a synchronous client."
        )
    if _client_package(client) == "elasticsearch":
        return _from_elasticsearch_client(
            AsyncClientAdapter(client.perform_request, loop) if asynchronous and loop else client, client
        )
    perform = client.transport.perform_request
    return _from_opensearch_client(
        AsyncClientAdapter(perform, loop) if asynchronous and loop else client.transport, client
    )


def _from_elasticsearch_client(sender: Any, client: Any) -> Engine:
    from es_sbert.engines.elasticsearch import ElasticsearchEngine, send_request

    url = str(next(iter(client.transport.node_pool.all())).base_url)

    def get(path: str) -> EngineResponse:
        return send_request(sender, "GET", path, version=_COMPATIBLE_VERSION, url=url, timeout=None)

    return ElasticsearchEngine(_check_engine_type(identify_engine(get, url), EngineType.ELASTICSEARCH), sender, None)


def _from_opensearch_client(sender: Any, client: Any) -> Engine:
    from es_sbert.engines.opensearch import OpenSearchEngine, send_request

    url = _opensearch_url(client.transport.hosts[0])

    def get(path: str) -> EngineResponse:
        return send_request(sender, "GET", path, url=url, timeout=None)

    return OpenSearchEngine(_check_engine_type(identify_engine(get, url), EngineType.OPENSEARCH), sender, None)


def _opensearch_url(host: Mapping[str, Any]) -> str:
    """Address of a host as the client keeps it, without credentials."""
    scheme = "https" if host.get("use_ssl") else host.get("scheme", "http")
    path = str(host.get("url_prefix") or "").strip("/")
    return f"{scheme}://{host.get('host', 'localhost')}:{host.get('port', 9200)}{f'/{path}' if path else ''}"


def _check_engine_type(info: EngineInfo, engine_type: EngineType) -> EngineInfo:
    if info.engine_type is not engine_type:
        raise UnsupportedEngine(
            f"the client is one of {engine_type.value}, but {info.label} answers at {info.url}",
            "Give the client of that engine.",
        )
    return info


def _client_package(client: object) -> str | None:
    packages = {cls.__module__.partition(".")[0] for cls in type(client).__mro__}
    return next((name for name in ("elasticsearch", "opensearchpy") if name in packages), None)


def open_engine(engine: Any) -> Engine:
    """Connect, or use what is open already.

    Args:
        engine: None for the settings of the environment; else an address, settings, a client of elasticsearch-py or
            opensearch-py, or an engine.

    Raises:
        UsageError: an asynchronous client, or none of these.
        EngineError: the engine cannot be used.
    """
    if engine is None or isinstance(engine, str):
        return connect(EngineSettings() if engine is None else EngineSettings(url=engine))
    if isinstance(engine, EngineSettings):
        return connect(engine)
    if not hasattr(engine, "get_indices"):  # an engine is whatever has the methods of one
        return from_client(engine)
    opened: Engine = engine
    return opened
