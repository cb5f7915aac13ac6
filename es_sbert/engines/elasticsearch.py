"""The `Engine` for Elasticsearch 8.19 and 9.x, using the transport of the official client or a client of the caller.

The client itself is not imported: that takes a quarter of a second, for an API of 500 methods that is not needed here.
"""

from __future__ import annotations

import copy
import logging
import re
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any
from urllib.parse import quote, urlencode

from elastic_transport import (
    ApiError,
    ConnectionTimeout,
    JsonSerializer,
    SerializationError,
    SerializerCollection,
    TextSerializer,
    Transport,
    TransportApiResponse,
    TransportWarning,
    Urllib3HttpNode,
)
from elastic_transport import ConnectionError as TransportConnectionError

from es_sbert import __version__
from es_sbert.engines.address import Address
from es_sbert.engines.engine import Engine, EngineClient
from es_sbert.engines.engine_info import EngineInfo
from es_sbert.engines.error_mapping import connection_error, not_json
from es_sbert.engines.node_watch import FIRST_BACKOFF_SECONDS, MAX_BACKOFF_SECONDS, NodeWatch
from es_sbert.engines.rest import EngineResponse, QueryParams, parse_json, quote_index_name
from es_sbert.messages import log_event

_WARNING = re.compile(r'\d{3} \S+ "((?:[^"\\]|\\.)*)"')


class _EngineJson(JsonSerializer):
    """Reads JSON; bodies of requests are encoded already."""

    def json_loads(self, data: bytes) -> Any:
        return parse_json(data)


_SERIALIZERS = {
    "application/json": _EngineJson(),
    "application/vnd.elasticsearch+json": _EngineJson(),
    "application/vnd.elasticsearch+x-ndjson": _EngineJson(),
    "text/*": TextSerializer(),
}


def with_exact_json(client: Any) -> Any:
    """Copy a caller's client, with the same connections, so that responses are parsed by `parse_json`."""
    copied, transport = copy.copy(client), copy.copy(client.transport)
    serializers = {**transport.serializers.serializers, **_SERIALIZERS}
    transport.serializers = SerializerCollection(serializers, default_mimetype="application/json")
    copied._transport = transport
    return copied


class _TransportClient:
    """A transport with the interface of `EngineClient`."""

    def __init__(self, addresses: Sequence[Address], watch: NodeWatch | None) -> None:
        configs = [each.node_config() for each in addresses]
        configs = [replace(each, headers={"user-agent": f"es-sbert/{__version__}", **each.headers}) for each in configs]
        self._transport = Transport(
            configs,
            serializers=_SERIALIZERS,
            max_retries=0,
            retry_on_timeout=False,
            dead_node_backoff_factor=FIRST_BACKOFF_SECONDS,
            max_dead_node_backoff=MAX_BACKOFF_SECONDS,
        )
        if watch is not None:
            for node in self._transport.node_pool.all():
                assert isinstance(node, Urllib3HttpNode)
                watch.add(node.config, node.pool)

    def perform_request(
        self, method: str, path: str, /, *, params: Any, headers: Mapping[str, str], body: bytes | None
    ) -> TransportApiResponse:
        target = f"{path}?{urlencode(params, quote_via=quote)}" if params else path
        return self._transport.perform_request(method, target, headers=headers, body=body)

    def close(self) -> None:
        self._transport.close()


class ElasticsearchEngine(Engine):
    """Elasticsearch, accessed through a client of either major version."""

    def __init__(
        self, info: EngineInfo, client: EngineClient, timeout: float | None, watch: NodeWatch | None = None
    ) -> None:
        super().__init__(info, client, timeout, watch)
        self._warned: set[str] = set()
        # A caller's client turns warnings into Python warnings, which would point to this file. They are logged below.
        warnings.filterwarnings("ignore", category=TransportWarning, module=re.escape(__name__))

    @classmethod
    def at(cls, info: EngineInfo, addresses: Sequence[Address]) -> ElasticsearchEngine:
        """Create an engine with a new client for one or more nodes."""
        watch = NodeWatch() if len(addresses) > 1 else None
        return cls(info, _TransportClient(addresses, watch), addresses[0].timeout, watch)

    def _send_once(
        self, method: str, path: str, params: QueryParams, body: bytes | None, *, ndjson: bool
    ) -> EngineResponse:
        # Use the media type of the server's major version. The client would use that of its own version, which an older
        # server rejects with 400.
        version = self.info.version[0]
        headers = {"accept": f"application/vnd.elasticsearch+json; compatible-with={version}"}
        if body is not None:
            kind = "x-ndjson" if ndjson else "json"
            headers["content-type"] = f"application/vnd.elasticsearch+{kind}; compatible-with={version}"
        try:
            response = self._client.perform_request(method, path, params=params or {}, headers=headers, body=body)
        except ApiError as error:
            response = error  # raised by a caller's client; it has the attributes of a response
        except (TransportConnectionError, ConnectionTimeout) as error:
            raise connection_error(self._asked_url, error, self._timeout) from error
        except SerializationError as error:
            raise not_json(self._asked_url) from error
        self._log_warnings(response.meta.headers.get("warning") or "")
        return EngineResponse(response.meta.status, response.meta.headers, response.body)

    def _log_warnings(self, header: str) -> None:
        """Log the engine's deprecation warnings, each once."""
        for text in _WARNING.findall(header):
            if text not in self._warned:
                self._warned.add(text)
                log_event("engine_warning", f"{self.info.label} warns: {text}", logging.WARNING)

    def _open_point_in_time(self, path: str, params: dict[str, str]) -> str:
        answer = self._request("POST", f"/{path}/_pit", params)
        with self._reading("POST /_pit"):
            return str(answer["id"])

    def _close_point_in_time(self, pit_id: str) -> None:
        self._request("DELETE", "/_pit", body={"id": pit_id}, missing_ok=True)

    def vector_size(self, name: str, field: str) -> int | None:
        # Use an API that reads the index's files: `_stats` misses segments that consist of one file.
        answer = self._request("POST", f"/{quote_index_name(name)}/_disk_usage", {"run_expensive_tasks": "true"})
        with self._reading("POST /_disk_usage"):
            [fields] = [value["fields"] for key, value in answer.items() if key != "_shards"]
            return int(fields.get(field, {}).get("knn_vectors_in_bytes", 0))
