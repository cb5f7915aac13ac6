"""The `Engine` for OpenSearch 2.19 and 3.x, using the official client."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Any
from urllib.parse import urlencode

from opensearchpy import OpenSearch
from opensearchpy.exceptions import ConnectionError as ClientConnectionError
from opensearchpy.exceptions import SerializationError, TransportError
from opensearchpy.serializer import Deserializer, JSONSerializer

from es_sbert.engines.address import MAX_CONNECTIONS, Address
from es_sbert.engines.engine import Engine
from es_sbert.engines.engine_info import EngineInfo
from es_sbert.engines.error_mapping import connection_error, not_json
from es_sbert.engines.node_watch import FIRST_BACKOFF_SECONDS, NodeWatch
from es_sbert.engines.rest import EngineResponse, Json, QueryParams, parse_json, quote_index_name

# File extensions of Lucene's vectors, quantized vectors and graphs, and of their metadata.
_VECTOR_FILES = frozenset({"vec", "vemf", "veq", "vemq", "vex", "vem"})


def _count_vector_fields(mappings: Json) -> int:
    """Count the vector fields in a mapping, including those inside objects."""
    fields = mappings.get("properties", {}).values()
    return sum((field.get("type") == "knn_vector") + _count_vector_fields(field) for field in fields)


class _OpenSearchJson(JSONSerializer):
    def loads(self, s: str) -> Any:
        try:
            return parse_json(s.encode("utf-8", "surrogatepass"))
        except ValueError as error:
            raise SerializationError(s, error) from error


def with_exact_json(client: Any) -> Any:
    """Copy the transport of a caller's client, with the same connections, so that `parse_json` parses responses."""
    copied = copy.copy(client)
    copied.deserializer = Deserializer({_OpenSearchJson.mimetype: _OpenSearchJson()})
    return copied


class OpenSearchEngine(Engine):
    """OpenSearch, accessed through the transport of a client."""

    @classmethod
    def at(cls, info: EngineInfo, addresses: Sequence[Address]) -> OpenSearchEngine:
        """Create an engine with a new client for one or more nodes."""
        first = addresses[0]
        hosts: list[Json] = [
            {"host": each.host, "port": each.port, "url_prefix": each.path, "use_ssl": each.scheme == "https"}
            for each in addresses
        ]
        options: dict[str, Any] = {"retry_on_timeout": False}
        watch = NodeWatch() if len(addresses) > 1 else None
        if watch is not None:
            options = {
                # The client's default of a minute is too long, and it is doubled up to five times.
                "dead_timeout": FIRST_BACKOFF_SECONDS,
                # With `max_retries=0`, a request that timed out is not sent again, but its node is left out.
                "retry_on_timeout": True,
            }
        client = OpenSearch(
            hosts=hosts,
            ssl_context=next((each.ssl_context for each in addresses if each.ssl_context is not None), None),
            ssl_assert_fingerprint=first.fingerprint,
            headers=first.headers,
            serializer=_OpenSearchJson(),
            timeout=first.timeout,
            pool_maxsize=MAX_CONNECTIONS,
            max_retries=0,
            **options,
        )
        if watch is not None:
            configs = {each.url: each.node_config() for each in addresses}
            for node in client.transport.connection_pool.connections:
                watch.add(configs[f"{node.host}{node.url_prefix}"], node.pool)
        return cls(info, client.transport, first.timeout, watch)

    def _send_once(
        self, method: str, path: str, params: QueryParams, body: bytes | None, *, ndjson: bool
    ) -> EngineResponse:
        headers = {"content-type": "application/x-ndjson" if ndjson else "application/json"}
        params = dict(params or {})
        if "timeout" in params:
            # The client would use it as its own timeout instead of sending it.
            path, params = f"{path}?{urlencode(params)}", {}
        try:
            response = self._client.perform_request(method, path, params=params, headers=headers, body=body)
        except ClientConnectionError as error:
            raise connection_error(self._asked_url, error, self._timeout) from error
        except TransportError as error:
            return EngineResponse(int(error.status_code), {}, error.info)
        except SerializationError as error:
            raise not_json(self._asked_url) from error
        # The client returns only the parsed body of a 2xx response, without headers; any 2xx means success here.
        return EngineResponse(200, {}, response)

    def _open_point_in_time(self, path: str, params: dict[str, str]) -> str:
        # By default, a point in time leaves out shards without an active copy.
        params = params | {"allow_partial_pit_creation": "false"}
        answer = self._request("POST", f"/{path}/_search/point_in_time", params)
        with self._reading("POST /_search/point_in_time"):
            return str(answer["pit_id"])

    def _close_point_in_time(self, pit_id: str) -> None:
        self._request("DELETE", "/_search/point_in_time", body={"pit_id": [pit_id]}, missing_ok=True)

    def vector_size(self, name: str, field: str) -> int | None:
        state = self.get_index(name)
        with self._reading(f"GET /{name}"):
            fields = 0 if state is None else _count_vector_fields(state.mappings)
        if state is None or fields > 1:
            # For several vector fields, the statistics contain only the last file of each kind in a segment.
            return None
        params = {"include_segment_file_sizes": "true"}
        answer = self._request("GET", f"/{quote_index_name(name)}/_stats/segments", params)
        with self._reading("GET /_stats/segments"):
            files = answer["_all"]["primaries"]["segments"]["file_sizes"]
            # Without index.knn, vectors are ordinary doc values, whose share of a file is unknown.
            return sum(int(files[kind]["size_in_bytes"]) for kind in _VECTOR_FILES & files.keys()) or None
