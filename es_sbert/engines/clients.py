"""The `Engine` for Elasticsearch 8.19 and 9.x, and for OpenSearch 2.19 and 3.x.

Requests go through the transport of Elasticsearch's official client, or through a client of the caller. The clients
themselves are not imported: that takes up to a quarter of a second, for APIs of 500 methods that are not needed here.
"""

from __future__ import annotations

import copy
import logging
import re
import threading
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import replace
from types import SimpleNamespace
from typing import Any, Self
from urllib.parse import quote, urlencode

from elastic_transport import (
    ApiError,
    BaseNode,
    ConnectionTimeout,
    JsonSerializer,
    NodeConfig,
    NodePool,
    SerializationError,
    SerializerCollection,
    TextSerializer,
    Transport,
    TransportApiResponse,
    TransportWarning,
)
from elastic_transport import ConnectionError as TransportConnectionError

from es_sbert.engines.address import Address
from es_sbert.engines.detection import EngineNode
from es_sbert.engines.engine import Engine
from es_sbert.engines.engine_info import EngineInfo, EngineType
from es_sbert.engines.error_mapping import connection_error, not_json
from es_sbert.engines.node_watch import NODE_BACKOFF, NodeWatch
from es_sbert.engines.rest import EngineResponse, Json, QueryParams, parse_json, quote_index_name
from es_sbert.errors import UsageError
from es_sbert.forks import renew_after_fork
from es_sbert.messages import log_event
from es_sbert.version import __version__

_WARNING = re.compile(r'\d{3} \S+ "((?:[^"\\]|\\.)*)"')
# File extensions of Lucene's vectors, quantized vectors and graphs, and of their metadata.
_VECTOR_FILES = frozenset({"vec", "vemf", "veq", "vemq", "vex", "vem"})


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


class _Serializers(SerializerCollection):
    """Reads a response that is neither JSON nor text, such as that of a proxy, as text: it keeps its status."""

    def loads(self, data: bytes, mimetype: str | None = None) -> Any:
        try:
            return super().loads(data, mimetype)
        except SerializationError:  # `_send_once` raises it for a 2xx; the text of an error is its reason
            return data.decode("utf-8", "replace")


# Statuses of a node, or of a proxy in front of it, that cannot answer now.
_DOWN_STATUSES = (502, 503, 504)


class _Node(EngineNode):
    """A node that knows the status of the response to each thread's last request; None if there was none."""

    def __init__(self, config: NodeConfig) -> None:
        super().__init__(config)
        self.last = threading.local()

    def perform_request(self, *args: Any, **kwargs: Any) -> Any:
        self.last.status = None
        response = super().perform_request(*args, **kwargs)
        self.last.status = response.meta.status
        return response


class _NodePool(NodePool):
    """Leaves out a node that is down, but not one that refuses requests (413), is overloaded (429), or fails (500)."""

    def mark_dead(self, node: BaseNode, _now: float | None = None) -> None:
        assert isinstance(node, _Node)
        if node.last.status in (None, *_DOWN_STATUSES):
            super().mark_dead(node, _now)
        else:
            self.mark_live(node)


class _TransportClient:
    """A transport with the interface of a client."""

    def __init__(self, addresses: Sequence[Address], watch: NodeWatch | None) -> None:
        configs = [each.node_config() for each in addresses]
        configs = [replace(each, headers={"user-agent": f"es-sbert/{__version__}", **each.headers}) for each in configs]
        self._transport = Transport(
            configs,
            node_class=_Node,
            node_pool_class=_NodePool,
            serializers=_SERIALIZERS,
            max_retries=0,
            retry_on_timeout=False,
            dead_node_backoff_factor=NODE_BACKOFF.first,
            max_dead_node_backoff=NODE_BACKOFF.ceiling,
        )
        self._transport.serializers = _Serializers(self._transport.serializers.serializers)
        if watch is not None:
            for node in self._transport.node_pool.all():
                assert isinstance(node, EngineNode)
                watch.add(node.config, node.pool)

    def perform_request(
        self, method: str, path: str, /, *, params: Any, headers: Mapping[str, str], body: bytes | None
    ) -> TransportApiResponse:
        target = f"{path}?{urlencode(params, quote_via=quote)}" if params else path
        return self._transport.perform_request(method, target, headers=headers, body=body)

    def close(self) -> None:
        self._transport.close()


class _InheritedClient:
    """In place of a caller's client in a forked process: its sockets are its parent's, who may read the responses."""

    def perform_request(self, *args: Any, **kwargs: Any) -> Any:
        raise UsageError(
            "the client was opened before this process was forked, and both would read each other's responses",
            "Open the client and the SemanticIndex after the fork, or pass an address instead of a client.",
        )

    def close(self) -> None:
        """Leave the connections to the parent."""


def with_exact_json(client: Any) -> Any:
    """Copy a caller's client of Elasticsearch, with the same connections, so that `parse_json` parses responses."""
    copied, transport = copy.copy(client), copy.copy(client.transport)
    serializers = {**transport.serializers.serializers, **_SERIALIZERS}
    transport.serializers = _Serializers(serializers)
    copied._transport = transport
    return copied


def opensearch_with_exact_json(transport: Any) -> Any:
    """Like `with_exact_json`, for the transport of a client of OpenSearch."""
    from opensearchpy.exceptions import SerializationError as ClientSerializationError
    from opensearchpy.serializer import Deserializer, JSONSerializer

    class ExactJson(JSONSerializer):
        def loads(self, s: str) -> Any:
            try:
                return parse_json(s.encode("utf-8", "surrogatepass"))
            except ValueError as error:
                raise ClientSerializationError(s, error) from error

    copied = copy.copy(transport)
    copied.deserializer = Deserializer({ExactJson.mimetype: ExactJson()})
    return copied


class OpenSearchTransport:
    """The transport of a caller's client of OpenSearch, with the responses and errors of elastic-transport.

    Args:
        transport: The client's transport.
    """

    def __init__(self, transport: Any) -> None:
        self._transport = transport

    def perform_request(
        self, method: str, path: str, /, *, params: Any, headers: Mapping[str, str], body: bytes | None
    ) -> Any:
        from opensearchpy import exceptions

        if "timeout" in params:
            # The client would use it as its own timeout instead of sending it.
            path, params = f"{path}?{urlencode(params)}", {}
        # The client returns only the parsed body of a 2xx response, without headers; any 2xx means success here.
        status = 200
        try:
            answer = self._transport.perform_request(method, path, params=dict(params), headers=headers, body=body)
        except exceptions.ConnectionError as error:
            raise TransportConnectionError(str(error)) from error
        except exceptions.TransportError as error:
            status, answer = int(error.status_code), error.info
        except exceptions.SerializationError as error:
            raise SerializationError(str(error)) from error
        return SimpleNamespace(meta=SimpleNamespace(status=status, headers={}), body=answer)

    def close(self) -> None:
        self._transport.close()


class TransportEngine(Engine):
    """An engine whose client returns responses and raises errors of elastic-transport."""

    def __init__(self, info: EngineInfo, client: Any, timeout: float | None, watch: NodeWatch | None = None) -> None:
        super().__init__(info, client, timeout, watch)
        self._warned: set[str] = set()
        # A caller's client turns warnings into Python warnings, which would point to this file. They are logged below.
        warnings.filterwarnings("ignore", category=TransportWarning, module=re.escape(__name__))

    @classmethod
    def at(cls, info: EngineInfo, addresses: Sequence[Address]) -> Self:
        """Create an engine with a client for one or more nodes, and with another one in a forked process."""

        def connect(engine: Self) -> None:
            engine._watch = NodeWatch() if len(addresses) > 1 else None
            engine._client = _TransportClient(addresses, engine._watch)

        engine = cls(info, None, addresses[0].timeout)
        connect(engine)
        renew_after_fork(engine, connect)
        return engine

    @classmethod
    def by_client(cls, info: EngineInfo, client: Any) -> Self:
        """Create an engine that sends requests by a caller's client."""
        engine = cls(info, client, None)
        renew_after_fork(engine, lambda inherited: vars(inherited).update(_client=_InheritedClient()))
        return engine

    def _send_once(
        self, method: str, path: str, params: QueryParams, body: bytes | None, *, ndjson: bool
    ) -> EngineResponse:
        """Send a request, and log the engine's deprecation warnings, each once."""
        headers = {"accept": self._media_type("json")}
        if body is not None:
            headers["content-type"] = self._media_type("x-ndjson" if ndjson else "json")
        try:
            response = self._client.perform_request(method, path, params=params or {}, headers=headers, body=body)
        except ApiError as error:
            response = error  # raised by a caller's client; it has the attributes of a response
        except (TransportConnectionError, ConnectionTimeout) as error:
            raise connection_error(self._last_url, error, self._timeout) from error
        except SerializationError as error:
            raise not_json(self._last_url) from error
        if 200 <= response.meta.status < 300 and isinstance(response.body, str):
            raise not_json(self._last_url)
        for text in _WARNING.findall(response.meta.headers.get("warning") or ""):
            if text not in self._warned:
                self._warned.add(text)
                log_event("engine_warning", f"{self.info.label} warns: {text}", logging.WARNING)
        return EngineResponse(response.meta.status, response.meta.headers, response.body)

    def _media_type(self, kind: str) -> str:
        """The media type of a body.

        Args:
            kind: `json` or `x-ndjson`.
        """
        if self.info.engine_type is EngineType.OPENSEARCH:
            return f"application/{kind}"
        # Use the media type of the server's major version. The client would use that of its own version, which an older
        # server rejects with 400.
        return f"application/vnd.elasticsearch+{kind}; compatible-with={self.info.version[0]}"

    def vector_size(self, name: str, field: str) -> int | None:
        if self.info.engine_type is EngineType.ELASTICSEARCH:
            # Use an API that reads the index's files: `_stats` misses segments that consist of one file.
            answer = self._request("POST", f"/{quote_index_name(name)}/_disk_usage", {"run_expensive_tasks": "true"})
            with self._reading("POST /_disk_usage"):
                [fields] = [value["fields"] for key, value in answer.items() if key != "_shards"]
                return int(fields.get(field, {}).get("knn_vectors_in_bytes", 0))
        state = self.get_index(name)
        with self._reading(f"GET /{name}"):
            count = 0 if state is None else _count_vector_fields(state.mappings)
        if state is None or count > 1:
            # For several vector fields, the statistics contain only the last file of each kind in a segment.
            return None
        params = {"include_segment_file_sizes": "true"}
        answer = self._request("GET", f"/{quote_index_name(name)}/_stats/segments", params)
        with self._reading("GET /_stats/segments"):
            files = answer["_all"]["primaries"]["segments"]["file_sizes"]
            # Without index.knn, vectors are ordinary doc values, whose share of a file is unknown.
            return sum(int(files[kind]["size_in_bytes"]) for kind in _VECTOR_FILES & files.keys()) or None


def _count_vector_fields(mappings: Json) -> int:
    """Count the vector fields in a mapping, including those inside objects."""
    fields = mappings.get("properties", {}).values()
    return sum((field.get("type") == "knn_vector") + _count_vector_fields(field) for field in fields)
