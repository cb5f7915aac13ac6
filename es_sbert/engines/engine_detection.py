"""Detect whether Elasticsearch or OpenSearch runs at an address, and in which version."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import orjson
from elastic_transport import ConnectionError as TransportConnectionError
from elastic_transport import ConnectionTimeout, HttpHeaders, NodeConfig, Urllib3HttpNode

from es_sbert.engines.address import Address
from es_sbert.engines.error_mapping import CREDENTIALS_REMEDY, connection_error, privilege_remedy, root_cause
from es_sbert.engines.protocol import EngineInfo, EngineType
from es_sbert.errors import AccessDenied, RequestFailed, UnsupportedEngine

MIN_VERSIONS = {EngineType.ELASTICSEARCH: (8, 19, 0), EngineType.OPENSEARCH: (3, 0, 0)}
MAX_CONNECTIONS = 16

_VERSION_PATH = "/_nodes/_local?filter_path=nodes.*.version"


@dataclass(frozen=True)
class EngineResponse:
    """What a server answers.

    Attributes:
        status: HTTP status.
        headers: By lower-case names.
        body: Parsed where it is JSON.
    """

    status: int
    headers: Mapping[str, str]
    body: Any


def node_config(address: Address) -> NodeConfig:
    """The address for elastic-transport.

    Requests are not compressed: vectors barely shrink, and gzip would cost a core that the encoder can use.
    """
    return NodeConfig(
        scheme=address.scheme,
        host=address.host,
        port=address.port,
        path_prefix=address.path,
        headers=address.headers,
        ssl_context=address.ssl_context,
        ssl_assert_fingerprint=address.fingerprint,
        request_timeout=address.timeout,
        connections_per_node=MAX_CONNECTIONS,
    )


def detect_engine(address: Address) -> EngineInfo:
    """Ask the server what it is, as `identify` does."""
    node = Urllib3HttpNode(node_config(address))
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
