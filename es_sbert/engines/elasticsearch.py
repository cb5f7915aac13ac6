"""Elasticsearch 8.19 and 9.x through the official client, of either major version."""

from __future__ import annotations

import logging
import re
import warnings
from collections.abc import Mapping
from typing import Any

from elastic_transport import ConnectionError as TransportConnectionError
from elastic_transport import ConnectionTimeout
from elasticsearch import ApiError, Elasticsearch, ElasticsearchWarning, SerializationError, UnsupportedProductError

from es_sbert.engines.address import Address
from es_sbert.engines.detect import node_config
from es_sbert.engines.failures import unreachable
from es_sbert.engines.protocol import EngineInfo, Json
from es_sbert.engines.rest import KEEP_ALIVE, RestEngine
from es_sbert.engines.upkeep import quoted
from es_sbert.errors import EngineUnreachable
from es_sbert.events import record

_WARNING = re.compile(r'\d{3} \S+ "((?:[^"\\]|\\.)*)"')


class ElasticsearchEngine(RestEngine):
    """Elasticsearch.

    The client asks in its own major version's dialect (`compatible-with=9`), which an 8.x server refuses with
    400. Every request here names the server's major version instead, so one installed client serves both.
    """

    def __init__(self, info: EngineInfo, address: Address) -> None:
        super().__init__(info)
        self._address = address
        self._client = Elasticsearch([node_config(address)], max_retries=0, retry_on_timeout=False)
        self._dialect = f"compatible-with={info.version[0]}"
        self._warned: set[str] = set()
        # They are logged here, once each; as Python warnings they would show a line of this file.
        warnings.filterwarnings("ignore", category=ElasticsearchWarning, module=re.escape(__name__))

    def _send(
        self, method: str, path: str, params: Mapping[str, str], body: bytes | None, *, ndjson: bool
    ) -> tuple[int, Any]:
        headers = {"accept": f"application/vnd.elasticsearch+json; {self._dialect}"}
        if body is not None:
            headers["content-type"] = (
                f"application/vnd.elasticsearch+{'x-ndjson' if ndjson else 'json'}; {self._dialect}"
            )
        try:
            answer = self._client.perform_request(method, path, params=params, headers=headers, body=body)
        except ApiError as error:
            return error.meta.status, error.body
        except (TransportConnectionError, ConnectionTimeout) as error:
            raise unreachable(self.info.url, error, self._address.timeout) from error
        except UnsupportedProductError as error:
            # A proxy's own page, or an answer that was cut off among its headers: both may pass.
            raise EngineUnreachable(
                f"{self.info.url} answers, but not as Elasticsearch does", "Check what stands behind the address."
            ) from error
        except SerializationError as error:
            raise EngineUnreachable(
                f"{self.info.url} sent an answer that is not JSON", "Check for a proxy between here and the engine."
            ) from error
        self._log_warnings(answer.meta.headers.get("warning") or "")
        return answer.meta.status, answer.body

    def _log_warnings(self, header: str) -> None:
        """What the engine says will not work any more in a later version."""
        for text in _WARNING.findall(header):
            if text not in self._warned:
                self._warned.add(text)
                record("engine_warning", f"{self.info.label} warns: {text}", logging.WARNING)

    def _open_point_in_time(self, name: str) -> str:
        answer = self._request("POST", f"/{quoted(name)}/_pit", {"keep_alive": KEEP_ALIVE})
        return str(answer["id"])

    def _close_point_in_time(self, pit_id: str) -> None:
        self._request("DELETE", "/_pit", body={"id": pit_id}, missing_ok=True)

    def vector_size(self, name: str, field: str) -> int | None:
        # It walks through the index's files: what the numbers of `_stats` leave out in segments of one file each.
        answer = self._request("POST", f"/{quoted(name)}/_disk_usage", {"run_expensive_tasks": "true"})
        fields = next(value["fields"] for key, value in answer.items() if key != "_shards")
        return int(fields.get(field, {}).get("knn_vectors_in_bytes", 0))

    def _scan_sort(self) -> list[Json]:
        return [{"_shard_doc": "asc"}]

    def close(self) -> None:
        self._client.close()
