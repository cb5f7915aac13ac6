"""Detect the engine and its version at one or more addresses, and find the addresses of its nodes."""

from __future__ import annotations

import queue
import re
import threading
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import orjson
from elastic_transport import ConnectionError as TransportConnectionError
from elastic_transport import ConnectionTimeout, HttpHeaders, NodeConfig, Urllib3HttpNode

from es_sbert.engines.address import Address
from es_sbert.engines.engine_info import EngineInfo, EngineType
from es_sbert.engines.error_mapping import CREDENTIALS_REMEDY, access_denied, connection_error, root_cause
from es_sbert.engines.rest import EngineResponse, Json
from es_sbert.engines.retry import is_transient
from es_sbert.errors import (
    AccessDenied,
    EngineError,
    EngineTooOld,
    EngineUnreachable,
    EsSbertError,
    HostUnknown,
    RequestFailed,
    TlsFailed,
    UnsupportedEngine,
    UsageError,
)

MIN_VERSIONS = {EngineType.ELASTICSEARCH: (8, 19, 0), EngineType.OPENSEARCH: (2, 19, 0)}
_VERSION_PATH = "/_nodes/_local?filter_path=nodes.*.version"
# Seconds to wait for the other addresses once one has answered.
_OTHERS_SECONDS = 5.0


class EngineNode(Urllib3HttpNode):
    """One node of an engine, which trusts the authorities of its SSL context only."""

    def __init__(self, config: NodeConfig) -> None:
        super().__init__(config)
        if config.ssl_context is not None:
            # The base class would add the public authorities to the context: any server with a public certificate for
            # the host name would get the credentials.
            self.pool.ca_certs = None  # type: ignore[attr-defined]  # a pool of HTTPS


def detect_cluster(addresses: Sequence[Address]) -> tuple[EngineInfo, dict[Address, EsSbertError]]:
    """Detect the cluster at these addresses. An address that does not answer is not an error if another one does.

    Returns:
        The engine, with the oldest version that answered, and the errors of the addresses that did not answer.

    Raises:
        UsageError: the addresses belong to different clusters.
        EngineUnreachable, RequestFailed: no address answers; the message has the reason of each.
        AccessDenied, TlsFailed, UnsupportedEngine: an address refuses the credentials or is not an engine.
    """
    if len(addresses) == 1:
        return _identify(addresses[0]), {}
    found, failures = _identify_all(addresses)
    for failure in failures.values():
        # Others come from a node that is not running or not ready.
        if not isinstance(failure, EngineError) or isinstance(failure, TlsFailed) or not is_transient(failure):
            raise failure
    if not found:
        # Callers do not retry an unknown host, but an engine on a known host may be starting.
        error = min(failures.values(), key=lambda each: isinstance(each, HostUnknown))
        reasons = "; ".join(failure.message for failure in failures.values())
        error.message = f"none of the {len(addresses)} addresses answers: {reasons}"
        raise error
    _check_same_cluster(found)
    return min(found.values(), key=lambda info: info.version), failures


def _identify_all(
    addresses: Sequence[Address],
) -> tuple[dict[Address, EngineInfo], dict[Address, EsSbertError]]:
    """Query all addresses at once, so that one that hangs costs little time.

    Returns:
        What was found at each address that answered, and the error for each of the others, in the order of addresses.
    """
    answers: queue.SimpleQueue[tuple[Address, EngineInfo | Exception]] = queue.SimpleQueue()

    def ask(address: Address) -> None:
        try:
            answers.put((address, _identify(address)))
        except Exception as error:
            answers.put((address, error))

    for address in addresses:  # in threads that do not keep the process from exiting
        threading.Thread(target=ask, args=(address,), name="detect-engine", daemon=True).start()
    silent = f"did not answer within {_OTHERS_SECONDS:g} seconds"
    failures: dict[Address, EsSbertError] = {
        each: EngineUnreachable(f"{each.url} {silent}", "Check its process and its log.") for each in addresses
    }
    found: dict[Address, EngineInfo] = {}
    for _ in addresses:
        try:
            address, answer = answers.get(timeout=_OTHERS_SECONDS if found else None)
        except queue.Empty:  # the others did not answer
            break
        if isinstance(answer, EsSbertError):
            failures[address] = answer
        elif isinstance(answer, Exception):
            raise answer
        else:
            found[address] = answer
            del failures[address]
    return {address: found[address] for address in addresses if address in found}, failures


def _check_same_cluster(found: Mapping[Address, EngineInfo]) -> None:
    """Refuse addresses of different engines or clusters: documents would be spread over them.

    Raises:
        UsageError: the engines or the clusters differ.
    """
    remedy = "Use only addresses of nodes of one cluster."
    first, first_info = next(iter(found.items()))
    clusters: dict[str, Address] = {}
    for address, info in found.items():
        if info.engine_type is not first_info.engine_type:
            raise UsageError(
                f"{first_info.label} answers at {first.url}, but {info.label} at {address.url}", remedy
            ).about("url")
        if info.cluster is not None:
            clusters.setdefault(info.cluster, address)
    if len(clusters) > 1:
        one, other, *_ = [address.url for address in clusters.values()]
        raise UsageError(f"{one} and {other} belong to different clusters", remedy).about("url")


def _identify(address: Address) -> EngineInfo:
    node = EngineNode(address.node_config())
    try:
        return identify_engine(partial(_get, node), address.url)
    except (TransportConnectionError, ConnectionTimeout) as error:
        raise connection_error(address.url, error, address.timeout) from error
    finally:
        node.close()


def cluster_uuid(root: Any) -> str | None:
    """Read the UUID of the cluster from the parsed response to `GET /`; None if it has none."""
    uuid = root.get("cluster_uuid") if isinstance(root, dict) else None
    # A node that has not joined a cluster yet returns `_na_`.
    return uuid if isinstance(uuid, str) and uuid != "_na_" else None


def _get(node: EngineNode, path: str) -> EngineResponse:
    meta, raw = node.perform_request("GET", path, headers=HttpHeaders({"accept": "application/json"}))
    try:
        body = orjson.loads(raw)
    except orjson.JSONDecodeError:
        body = raw.decode("utf-8", "replace")
    return EngineResponse(meta.status, meta.headers, body)


def identify_engine(get: Callable[[str], EngineResponse], url: str) -> EngineInfo:
    """Identify the engine and its version by its responses.

    Every response of Elasticsearch has the header `X-Elastic-Product`. OpenSearch is named in the response to `GET /`.
    If `GET /` is missing (distributions without the rest-root module), the version comes from the nodes API.

    Args:
        get: Sends a GET request for a path.
        url: Address without credentials.

    Raises:
        EngineUnreachable: there is no response.
        AccessDenied: the status is 401 or 403.
        RequestFailed: an engine responds, but is not ready.
        UnsupportedEngine: another web server responds.
        EngineTooOld: the version is not supported.
    """
    root = get("/")
    _check_access(root, "/", url)
    is_elasticsearch = root.headers.get("x-elastic-product", "") == "Elasticsearch"
    info = parse_root(root, url, is_elasticsearch=is_elasticsearch)
    if info is None and is_elasticsearch:
        nodes = get(_VERSION_PATH)
        _check_access(nodes, _VERSION_PATH, url)
        info = _parse_nodes(nodes, url)
    if info is None and (root.status == 429 or root.status >= 500):
        # This is a proxy whose engine is down, or an engine that is starting.
        raise RequestFailed(
            f"{url} is not ready: GET / returned {root.status}",
            "Wait until the engine has started; if there is a proxy in front of it, check its log.",
            root.status,
        )
    if info is None:
        raise UnsupportedEngine(
            f"{url} is neither Elasticsearch nor OpenSearch (GET / returned {root.status})",
            "Check host, port and path of the address; Kibana and Dashboards (5601) are not the engine (9200).",
        )
    check_version(info)
    return info


def check_version(info: EngineInfo) -> None:
    """Refuse a version that es-sbert does not support.

    Raises:
        EngineTooOld: the version is older than `MIN_VERSIONS`.
    """
    oldest = MIN_VERSIONS[info.engine_type]
    if info.version < oldest:
        raise EngineTooOld(
            f"{info.label} at {info.url} is too old",
            f"es-sbert needs {EngineInfo(info.engine_type, oldest, info.url).label} or newer: upgrade the server, or "
            "start another one with `es-sbert engine up`.",
        )


def check_nodes(addresses: Sequence[Address]) -> None:
    """Check the nodes that answer at these addresses now. Responses of other programs, or none, are not an error.

    Raises:
        EngineTooOld: the version of a node is older than `MIN_VERSIONS`.
        UsageError: the addresses belong to different clusters.
    """
    found, failures = _identify_all(addresses)
    for failure in failures.values():
        if isinstance(failure, EngineTooOld):
            raise failure
    if found:
        _check_same_cluster(found)


def _check_access(response: EngineResponse, path: str, url: str) -> None:
    if response.status == 401:
        raise AccessDenied(f"{url} refused the credentials (401)", CREDENTIALS_REMEDY)
    if response.status == 403:
        raise access_denied(url, f"GET {path.partition('?')[0]} (403)", root_cause(response.body)[1])


def parse_root(response: EngineResponse, url: str, *, is_elasticsearch: bool) -> EngineInfo | None:
    """Read the engine from a response to `GET /`; None if the response does not describe one."""
    body: Json = response.body if response.status == 200 and isinstance(response.body, dict) else {}
    described: Any = body.get("version")
    version = _parse_version(described.get("number")) if isinstance(described, dict) else None
    if version is None:
        return None
    if described.get("distribution") == "opensearch":
        return EngineInfo(EngineType.OPENSEARCH, version, url, cluster_uuid(body))
    # Elasticsearch before 7.14 does not send the product header; the tagline is enough to refuse it as too old.
    if is_elasticsearch or body.get("tagline") == "You Know, for Search":
        return EngineInfo(EngineType.ELASTICSEARCH, version, url, cluster_uuid(body))
    return None


def _parse_nodes(response: EngineResponse, url: str) -> EngineInfo:
    """Read the version of Elasticsearch from a response of its nodes API."""
    nodes = response.body.get("nodes", {}) if isinstance(response.body, dict) else {}
    for node in nodes.values():
        version = _parse_version(node.get("version"))
        if version is not None:
            return EngineInfo(EngineType.ELASTICSEARCH, version, url)
    raise RequestFailed(
        f"Elasticsearch at {url} does not return its version: {root_cause(response.body)[1]}",
        "Give the user or API key the cluster privilege monitor, or wait until the server is ready.",
        response.status,
    )


def _parse_version(text: object) -> tuple[int, int, int] | None:
    """Parse a version such as `9.5.0` or `9.0.0-SNAPSHOT`; None for other texts."""
    found = re.match(r"(\d+)\.(\d+)\.(\d+)", str(text))
    return (int(found[1]), int(found[2]), int(found[3])) if found else None
