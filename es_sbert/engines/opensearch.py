"""OpenSearch 3.x through the official client."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from opensearchpy import OpenSearch
from opensearchpy.exceptions import ConnectionError as ClientConnectionError
from opensearchpy.exceptions import SerializationError, TransportError

from es_sbert.engines.address import Address
from es_sbert.engines.detect import CONNECTIONS
from es_sbert.engines.failures import unreachable
from es_sbert.engines.protocol import EngineInfo, Json
from es_sbert.engines.rest import KEEP_ALIVE, RestEngine
from es_sbert.engines.upkeep import quoted
from es_sbert.errors import EngineUnreachable, UnsupportedEngine

# `_shard_doc`, the only sort key that is unique in a point in time, came with this version.
OLDEST_FOR_SCAN = (3, 3, 0)


# Lucene's files of vectors, quantised vectors and graphs, with their headers.
_VECTOR_FILES = frozenset({"vec", "vemf", "veq", "vemq", "vex", "vem"})


class OpenSearchEngine(RestEngine):
    """OpenSearch."""

    def __init__(self, info: EngineInfo, address: Address) -> None:
        super().__init__(info)
        self._address = address
        self._client = OpenSearch(
            hosts=[{"host": address.host, "port": address.port, "url_prefix": address.path}],
            use_ssl=address.scheme == "https", ssl_context=address.ssl_context,
            ssl_assert_fingerprint=address.fingerprint, headers=address.headers,
            timeout=address.timeout, pool_maxsize=CONNECTIONS, max_retries=0, retry_on_timeout=False,
        )  # fmt: skip

    def _send(
        self, method: str, path: str, params: Mapping[str, str], body: bytes | None, *, ndjson: bool
    ) -> tuple[int, Any]:
        headers = {"content-type": "application/x-ndjson" if ndjson else "application/json"}
        try:
            answer = self._client.transport.perform_request(
                method, path, params=dict(params), headers=headers, body=body
            )
        except ClientConnectionError as error:
            raise unreachable(self.info.url, error, self._address.timeout) from error
        except TransportError as error:
            return int(error.status_code), error.info
        except SerializationError as error:
            raise EngineUnreachable(
                f"{self.info.url} sent an answer that is not JSON", "Check for a proxy between here and the engine."
            ) from error
        # The client hands back the parsed answer of a 2xx alone; which 2xx it was makes no difference here.
        return 200, answer

    def _open_point_in_time(self, name: str) -> str:
        answer = self._request("POST", f"/{quoted(name)}/_search/point_in_time", {"keep_alive": KEEP_ALIVE})
        return str(answer["pit_id"])

    def _close_point_in_time(self, pit_id: str) -> None:
        self._request("DELETE", "/_search/point_in_time", body={"pit_id": [pit_id]}, missing_ok=True)

    def vector_size(self, name: str, field: str) -> int | None:
        params = {"include_segment_file_sizes": "true"}
        answer = self._request("GET", f"/{quoted(name)}/_stats/segments", params)
        files = answer["_all"]["primaries"]["segments"]["file_sizes"]
        # Without index.knn vectors are doc values like others, whose share of a file nothing tells.
        return sum(int(files[kind]["size_in_bytes"]) for kind in _VECTOR_FILES & files.keys()) or None

    def _scan_sort(self) -> list[Json]:
        if self.info.version < OLDEST_FOR_SCAN:
            raise UnsupportedEngine(
                f"{self.info.label} cannot page through an index without losing or repeating documents",
                "Reading back an index needs OpenSearch 3.3 or newer; loading files and searching work here too.",
            )
        # `_doc` first lets every shard skip what was read; `_shard_doc` alone makes it look at every document.
        return [{"_doc": "asc"}, {"_shard_doc": "asc"}]

    def close(self) -> None:
        self._client.close()
