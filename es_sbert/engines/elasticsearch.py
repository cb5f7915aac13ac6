"""The `Engine` for Elasticsearch 8.19 and 9.x, over the official client of either major version."""

from __future__ import annotations

import logging
import re
import warnings
from collections.abc import Mapping
from typing import Any, Protocol

from elastic_transport import ConnectionError as TransportConnectionError
from elastic_transport import ConnectionTimeout
from elasticsearch import ApiError, Elasticsearch, ElasticsearchWarning, SerializationError, UnsupportedProductError

from es_sbert.engines.address import Address
from es_sbert.engines.error_mapping import connection_error
from es_sbert.engines.protocol import EngineInfo, Json
from es_sbert.engines.rest import EngineResponse, RestEngine, point_in_time_params, quote_index_name
from es_sbert.errors import EngineUnreachable
from es_sbert.messages import log_event

_WARNING = re.compile(r'\d{3} \S+ "((?:[^"\\]|\\.)*)"')


class ElasticsearchClient(Protocol):
    """What is used of the official client, of either major version."""

    def perform_request(
        self, method: str, path: str, *, params: Mapping[str, str], headers: Mapping[str, str], body: bytes | None
    ) -> Any: ...

    def close(self) -> None: ...


def send_request(
    client: ElasticsearchClient,
    method: str,
    path: str,
    *,
    version: int,
    url: str,
    timeout: float | None,
    params: Mapping[str, str] | None = None,
    body: bytes | None = None,
    ndjson: bool = False,
) -> EngineResponse:
    """One request and its answer, whatever the status.

    Args:
        version: The major version whose dialect is spoken: the server's own, or the one before. The client asks in
            that of its own major version otherwise, which an older server refuses with 400.
        url: Address without credentials.
        timeout: Seconds that the client allows; None where it alone knows.

    Raises:
        EngineUnreachable: no answer came, or one of something else than Elasticsearch.
    """
    headers = {"accept": f"application/vnd.elasticsearch+json; compatible-with={version}"}
    if body is not None:
        kind = "x-ndjson" if ndjson else "json"
        headers["content-type"] = f"application/vnd.elasticsearch+{kind}; compatible-with={version}"
    try:
        answer = client.perform_request(method, path, params=params or {}, headers=headers, body=body)
    except ApiError as error:
        return EngineResponse(error.meta.status, error.meta.headers, error.body)
    except (TransportConnectionError, ConnectionTimeout) as error:
        raise connection_error(url, error, timeout) from error
    except UnsupportedProductError as error:
        # A proxy's own page, or an answer that was cut off among its headers: both may pass.
        raise EngineUnreachable(
            f"{url} answers, but not as Elasticsearch does", "Check what stands behind the address."
        ) from error
    except SerializationError as error:
        raise EngineUnreachable(
            f"{url} sent an answer that is not JSON", "Check for a proxy between here and the engine."
        ) from error
    return EngineResponse(answer.meta.status, answer.meta.headers, answer.body)


class ElasticsearchEngine(RestEngine):
    """Elasticsearch.

    Args:
        info: What answers at the address.
        client: Used with its own settings; `close` closes it.
        timeout: Seconds that it allows; None where it alone knows.
    """

    def __init__(self, info: EngineInfo, client: ElasticsearchClient, timeout: float | None) -> None:
        super().__init__(info, timeout)
        self._client = client
        self._warned: set[str] = set()
        # They are logged here, once each; as Python warnings they would show a line of this file.
        warnings.filterwarnings("ignore", category=ElasticsearchWarning, module=re.escape(__name__))

    @classmethod
    def at(cls, info: EngineInfo, address: Address) -> ElasticsearchEngine:
        """With a client of its own."""
        client = Elasticsearch([address.node_config()], max_retries=0, retry_on_timeout=False)
        return cls(info, client, address.timeout)

    def _send(
        self, method: str, path: str, params: Mapping[str, str], body: bytes | None, *, ndjson: bool
    ) -> tuple[int, Any]:
        answer = send_request(
            self._client,
            method,
            path,
            version=self.info.version[0],
            url=self.info.url,
            timeout=self._timeout,
            params=params,
            body=body,
            ndjson=ndjson,
        )
        self._log_warnings(answer.headers.get("warning") or "")
        return answer.status, answer.body

    def _log_warnings(self, header: str) -> None:
        """What the engine says will not work any more in a later version."""
        for text in _WARNING.findall(header):
            if text not in self._warned:
                self._warned.add(text)
                log_event("engine_warning", f"{self.info.label} warns: {text}", logging.WARNING)

    def open_point_in_time(self, name: str, *, shard: int | None = None) -> str:
        answer = self._request("POST", f"/{quote_index_name(name)}/_pit", point_in_time_params(shard))
        return str(answer["id"])

    def _close_point_in_time(self, pit_id: str) -> None:
        self._request("DELETE", "/_pit", body={"id": pit_id}, missing_ok=True)

    def vector_size(self, name: str, field: str) -> int | None:
        # It walks through the index's files: what the numbers of `_stats` leave out in segments of one file each.
        answer = self._request("POST", f"/{quote_index_name(name)}/_disk_usage", {"run_expensive_tasks": "true"})
        fields = next(value["fields"] for key, value in answer.items() if key != "_shards")
        return int(fields.get(field, {}).get("knn_vectors_in_bytes", 0))

    def _scan_sort(self) -> list[Json]:
        return [{"_shard_doc": "asc"}]

    def close(self) -> None:
        self._client.close()
