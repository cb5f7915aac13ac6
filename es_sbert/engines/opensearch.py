"""The `Engine` for OpenSearch 3.x, over the official client."""

from __future__ import annotations

from urllib.parse import urlencode

from opensearchpy import OpenSearch
from opensearchpy.exceptions import ConnectionError as ClientConnectionError
from opensearchpy.exceptions import SerializationError, TransportError

from es_sbert.engines.address import MAX_CONNECTIONS, Address
from es_sbert.engines.engine import Engine, EngineInfo, Json
from es_sbert.engines.error_mapping import connection_error, not_json
from es_sbert.engines.rest import EngineResponse, QueryParams, point_in_time_params, quote_index_name

# Lucene's files of vectors, quantized vectors and graphs, with their headers.
_VECTOR_FILES = frozenset({"vec", "vemf", "veq", "vemq", "vex", "vem"})


def _count_vector_fields(mappings: Json) -> int:
    """Vector fields of a mapping, also inside objects."""
    fields = mappings.get("properties", {}).values()
    return sum((field.get("type") == "knn_vector") + _count_vector_fields(field) for field in fields)


class OpenSearchEngine(Engine):
    """OpenSearch, by the transport of a client."""

    @classmethod
    def at(cls, info: EngineInfo, address: Address) -> OpenSearchEngine:
        """Open a client."""
        client = OpenSearch(
            hosts=[{"host": address.host, "port": address.port, "url_prefix": address.path}],
            use_ssl=address.scheme == "https",
            ssl_context=address.ssl_context,
            ssl_assert_fingerprint=address.fingerprint,
            headers=address.headers,
            timeout=address.timeout,
            pool_maxsize=MAX_CONNECTIONS,
            max_retries=0,
            retry_on_timeout=False,
        )
        return cls(info, client.transport, address.timeout)

    def send(
        self, method: str, path: str, params: QueryParams = None, body: bytes | None = None, *, ndjson: bool = False
    ) -> EngineResponse:
        headers = {"content-type": "application/x-ndjson" if ndjson else "application/json"}
        params = dict(params or {})
        if "timeout" in params:
            # The client would use it as its own timeout instead of sending it.
            path, params = f"{path}?{urlencode(params)}", {}
        url = self.info.url
        try:
            response = self._client.perform_request(method, path, params=params, headers=headers, body=body)
        except ClientConnectionError as error:
            raise connection_error(url, error, self._timeout) from error
        except TransportError as error:
            return EngineResponse(int(error.status_code), {}, error.info)
        except SerializationError as error:
            raise not_json(url) from error
        # The client returns only the parsed body of a 2xx response, without headers; any 2xx means success here.
        return EngineResponse(200, {}, response)

    def open_point_in_time(self, name: str, *, shard: int, node: str = "") -> str:
        # By default, shards without an active copy would be left out of it.
        params = point_in_time_params(shard, node) | {"allow_partial_pit_creation": "false"}
        answer = self._request("POST", f"/{quote_index_name(name)}/_search/point_in_time", params)
        return str(answer["pit_id"])

    def _close_point_in_time(self, pit_id: str) -> None:
        self._request("DELETE", "/_search/point_in_time", body={"pit_id": [pit_id]}, missing_ok=True)

    def vector_size(self, name: str, field: str) -> int | None:
        state = self.get_index(name)
        if state is None or _count_vector_fields(state.mappings) > 1:
            # For several vector fields, the statistics contain only the last file of each kind in a segment.
            return None
        params = {"include_segment_file_sizes": "true"}
        answer = self._request("GET", f"/{quote_index_name(name)}/_stats/segments", params)
        files = answer["_all"]["primaries"]["segments"]["file_sizes"]
        # Without index.knn vectors are ordinary doc values, whose share of a file is unknown.
        return sum(int(files[kind]["size_in_bytes"]) for kind in _VECTOR_FILES & files.keys()) or None
