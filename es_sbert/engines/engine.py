"""`Engine`: the requests that es-sbert sends to Elasticsearch or OpenSearch, and the types of their answers.

The subclasses in `elasticsearch` and `opensearch` add the client, and the requests that differ.
"""

from __future__ import annotations

import logging
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Protocol
from urllib.parse import quote

from es_sbert.engines.error_mapping import SEARCH_CONTEXT_MISSING, point_in_time_lost, response_error, root_cause
from es_sbert.engines.rest import (
    KEEP_ALIVE,
    EngineResponse,
    QueryParams,
    encode_json,
    limit_engine_wait,
    quote_index_name,
    quote_index_names,
)
from es_sbert.errors import AccessDenied, EngineError, EngineUnreachable, EsSbertError, IndexMismatch, RequestFailed

Json = dict[str, Any]
# JSON, or lines of JSON that are encoded already.
RequestBody = Json | bytes | None

logger = logging.getLogger(__name__)

# Responses to an API that the engine was built without, or that is disabled.
_UNSUPPORTED_API_STATUSES = frozenset({400, 404, 405})
# What is read of an item of a bulk answer.
_ITEM_FIELDS = ("_id", "_index", "_seq_no", "_primary_term", "status", "result", "error")


class EngineType(StrEnum):
    ELASTICSEARCH = "elasticsearch"
    OPENSEARCH = "opensearch"


@dataclass(frozen=True)
class EngineInfo:
    """What answers at an address.

    Attributes:
        engine_type: Elasticsearch or OpenSearch.
        version: (major, minor, patch).
        url: Address without credentials.
    """

    engine_type: EngineType
    version: tuple[int, int, int]
    url: str

    @property
    def label(self) -> str:
        """`Elasticsearch 9.5.0` or `OpenSearch 3.6.0`."""
        name = "Elasticsearch" if self.engine_type is EngineType.ELASTICSEARCH else "OpenSearch"
        return f"{name} {'.'.join(map(str, self.version))}"

    @property
    def supports_base64_vectors(self) -> bool:
        """Whether a vector may be sent as base64 of big-endian float32 instead of a list of numbers.

        OpenSearch reads another base64 (little-endian) from 3.9 on; this is not tested yet, so lists are sent there.
        """
        return self.engine_type is EngineType.ELASTICSEARCH and self.version >= (9, 3, 0)

    @property
    def excludes_vectors_from_source(self) -> bool:
        """Whether `_source` leaves vectors out unless asked (`_source.exclude_vectors`)."""
        return self.engine_type is EngineType.ELASTICSEARCH and self.version >= (9, 2, 0)

    def source_with_vectors(self, includes: Sequence[str] = ()) -> Json | bool:
        """`_source` of a search that brings these fields, vectors among them.

        Args:
            includes: Names or patterns; none for all fields. OpenSearch returns a placeholder for a vector inside
                passages unless the request names the vector itself.
        """
        source: Json = {"includes": list(includes)} if includes else {}
        if self.excludes_vectors_from_source:
            source["exclude_vectors"] = False
        return source or True


@dataclass(frozen=True)
class IndexState:
    """An index as the engine describes it.

    Attributes:
        name: The concrete index (an alias is resolved to its one index).
        mappings: The whole mapping (`properties`, `_meta`, …).
        settings: Flat settings (`index.knn`, `index.number_of_shards`, …), values as strings.
        aliases: Its aliases with their properties (`index_routing`, `filter`, …).
        data_stream: The data stream whose documents it holds; None for an ordinary index.
    """

    name: str
    mappings: Json
    settings: dict[str, str]
    aliases: dict[str, Json] = field(default_factory=dict)
    data_stream: str | None = None

    @property
    def result_window(self) -> int:
        """Hits that one search may return (`index.max_result_window`)."""
        return int(self.settings.get("index.max_result_window", 10_000))

    def alias_filter(self, name: str) -> Json | None:
        """The filter of this alias; None where it has none, or the name is no alias."""
        filter: Json | None = self.aliases.get(name, {}).get("filter")
        return filter

    def alias_routing(self, alias: str) -> str | None:
        """The routing of all documents that are written by this alias; None where there is none, or it is no alias."""
        routing: str | None = self.aliases.get(alias, {}).get("index_routing")
        return routing


@dataclass(frozen=True)
class PointInTimeSlice:
    """One of the parts that a point in time is read in; every document of it is in exactly one of them.

    Slices of different points in time do not fit together: Elasticsearch slices by the position of documents in its
    files, and a document that is written again moves.

    Attributes:
        number: From 0.
        count: Of how many, at least 2.
        point_in_time: Its id, the same for all slices.
    """

    number: int
    count: int
    point_in_time: str


@dataclass(frozen=True)
class SequenceNumbers:
    """How far the writes of one shard are. Every write and every deletion takes the next sequence number.

    Attributes:
        max_seq_no: The highest that was assigned; -1 for none.
        global_checkpoint: Up to this one, every write has arrived on all copies: a refresh makes it visible.
    """

    max_seq_no: int
    global_checkpoint: int


@dataclass(frozen=True)
class BulkItemResult:
    """What became of one action of a bulk request.

    Attributes:
        status: HTTP status of the item; 429 and 503 are worth another try.
        id: The document's id; another one than was sent where an ingest pipeline has changed it.
        reason: Why it failed, one line; empty on success.
        index: Where it was written; another index where an ingest pipeline has changed it.
        result: `created`, `updated`, `deleted`, or `noop` if an ingest pipeline dropped the document or an update
            changed nothing; empty on failure.
        version: `_seq_no` and `_primary_term` of the write; None on failure.
    """

    status: int
    id: str
    reason: str
    index: str = ""
    result: str = ""
    version: tuple[int, int] | None = None

    @property
    def ok(self) -> bool:
        return 200 <= self.status < 300


DocumentKey = tuple[str, str | None]


def document_key(hit: Json) -> DocumentKey:
    """Id and routing, which identify a document: ids are unique within a routing only."""
    return hit["_id"], hit.get("_routing")


class EngineClient(Protocol):
    """The part of an official client that is used: of `Elasticsearch`, or of the transport of `OpenSearch`."""

    def perform_request(
        self, method: str, path: str, /, *, params: Any, headers: Mapping[str, str], body: bytes | None
    ) -> Any: ...

    def close(self) -> None: ...


class Engine(ABC):
    """A connection to either engine. All methods raise `EngineError` and its kinds.

    Thread-safe: ingest calls `bulk` from several threads.

    Args:
        info: What answers at the address.
        client: Used with its own settings; `close` closes it.
        timeout: Seconds that the client waits for an answer; None where it alone knows.
    """

    def __init__(self, info: EngineInfo, client: EngineClient, timeout: float | None) -> None:
        self.info = info
        self._client = client
        self._timeout = timeout

    @abstractmethod
    def send(
        self, method: str, path: str, params: QueryParams = None, body: bytes | None = None, *, ndjson: bool = False
    ) -> EngineResponse:
        """Send one request, without retries; every status is returned.

        Raises:
            EngineUnreachable: no response, or none in JSON.
        """

    @abstractmethod
    def open_point_in_time(self, name: str, *, shard: int | None = None) -> str:
        """Open a point in time and return its id. It expires half an hour after the last page was read from it.

        Args:
            shard: The only shard to be seen; None for all of them.
        """

    @abstractmethod
    def vector_size(self, name: str, field: str) -> int | None:
        """Bytes on disk of a field's vectors, quantized copies and graph in the primary shards, without `_source`.

        None where the engine does not tell: OpenSearch where the index has several vector fields, or no graphs.
        """

    @abstractmethod
    def _close_point_in_time(self, pit_id: str) -> None: ...

    @abstractmethod
    def _scan_sort(self) -> list[Json]:
        """A total order over a point in time."""

    def close(self) -> None:
        self._client.close()

    def _request(
        self, method: str, path: str, params: QueryParams = None, body: RequestBody = None, *, missing_ok: bool = False
    ) -> Any:
        """A request whose answer must be 2xx (or 404 where `missing_ok`, which gives None)."""
        ndjson = isinstance(body, bytes)
        encoded = encode_json(body) if isinstance(body, dict) else body
        response = self.send(method, path, params, encoded, ndjson=ndjson)
        if missing_ok and response.status == 404:
            return None
        if not 200 <= response.status < 300:
            raise self._response_error(response.status, response.body, f"{method} {path}")
        if not isinstance(response.body, dict):
            # A connection that is cut off among the headers looks like a response without a body.
            raise EngineUnreachable(
                f"{self.info.url} broke off its response to {method} {path}",
                "Check the network, and any proxy in between.",
            )
        return response.body

    def _response_error(self, status: int, body: Any, action: str) -> EsSbertError:
        return response_error(status, body, label=f"{self.info.label} at {self.info.url}", action=action)

    def get_index(self, name: str) -> IndexState | None:
        """The index, or the one index of an alias; None if there is none.

        Raises:
            IndexMismatch: the alias points to several indices.
        """
        states = self.get_indices(name)
        if len(states) > 1:
            raise IndexMismatch(
                f"{name!r} points to {len(states)} indices: {', '.join(state.name for state in states[:5])}",
                "Name one of them: a vector field belongs to one index.",
            )
        return states[0] if states else None

    def get_indices(self, name: str) -> list[IndexState]:
        """The index, or all indices of an alias; empty if there is no such name."""
        answer = self._request("GET", f"/{quote_index_name(name)}", {"flat_settings": "true"}, missing_ok=True) or {}
        return [
            IndexState(
                name=concrete,
                mappings=state.get("mappings", {}),
                settings={key: str(value) for key, value in state.get("settings", {}).items()},
                aliases=state.get("aliases", {}),
                data_stream=state.get("data_stream"),
            )
            for concrete, state in sorted(answer.items())
        ]

    def count(self, name: str, query: Json | None = None) -> int:
        answer = self._request("POST", f"/{quote_index_name(name)}/_count", body={"query": query or {"match_all": {}}})
        self._check_shards(answer, name)
        return int(answer["count"])

    def bulk(self, name: str, body: bytes, *, timeout: float | None = None) -> list[BulkItemResult]:
        """Send newline-delimited actions, already encoded; results are in the order of the actions.

        Args:
            timeout: Seconds that the engine itself waits for a shard that is not active, at most what the client waits
                for the answer; None for the engine's own minute.

        Raises:
            RequestFailed: the whole request was refused (`status` 413, 429, 503, …; 0: the connection broke).
        """
        params = {"filter_path": ",".join(f"items.*.{key}" for key in _ITEM_FIELDS)}
        if timeout is not None:
            params["timeout"] = f"{limit_engine_wait(timeout, self._timeout) * 1000:.0f}ms"
        try:
            answer = self._request("POST", f"/{quote_index_name(name)}/_bulk", params, body)
        except EngineUnreachable as error:
            # Whether the server took the actions is unknown; ids make sending them again harmless.
            raise RequestFailed(error.message, error.remedy, 0) from error
        return [_parse_bulk_item(item) for item in answer.get("items", [])]

    def mget_sources(
        self, name: str, ids: Sequence[str], *, source_includes: Sequence[str], vectors: bool = False
    ) -> dict[str, Json]:
        """Real-time lookup: id → the part of `_source` asked for; ids that do not exist are absent.

        Args:
            vectors: Also bring vectors on engines that leave them out of `_source`.
        """
        if not ids:
            return {}
        params = {"_source_includes": ",".join(source_includes)} if source_includes else {"_source": "false"}
        if vectors and self.info.excludes_vectors_from_source:
            params["_source_exclude_vectors"] = "false"
        answer = self._request("POST", f"/{quote_index_name(name)}/_mget", params, {"ids": list(ids)})
        for document in answer["docs"]:
            if "error" in document:
                raise RequestFailed(
                    f"{self.info.label} cannot look up {document['_id']!r} in {name}: {root_cause(document)[1]}",
                    "Name one index, not an alias of several, and look at `GET _cluster/health`.",
                )
        return {doc["_id"]: doc.get("_source", {}) for doc in answer["docs"] if doc.get("found")}

    def mget(
        self, name: str, keys: Sequence[tuple[str, str | None]], *, source_includes: Sequence[str]
    ) -> list[Json | None]:
        """Real-time lookup with vectors, in the order of the keys; None where there is no such document.

        Args:
            keys: Id and routing of each document.

        Returns:
            `_source`, `_seq_no`, `_primary_term` and, where it has one, `_routing` of each document.
        """
        if not keys:
            return []
        # A name that holds a comma would be read as two.
        named = not any("," in field for field in source_includes)
        params = {"_source_includes": ",".join(source_includes)} if named else {}
        if self.info.excludes_vectors_from_source:
            params["_source_exclude_vectors"] = "false"
        docs = [{"_id": key} if routing is None else {"_id": key, "routing": routing} for key, routing in keys]
        answer = self._request("POST", f"/{quote_index_name(name)}/_mget", params, {"docs": docs})
        # A document whose shard is not available comes with an error in the place of its content.
        return [document if document.get("found") else None for document in answer["docs"]]

    def search(
        self,
        name: str | Sequence[str],
        body: Json,
        *,
        preference: str | None = None,
        named_scores: bool = False,
        hit_fields: Sequence[str] = (),
    ) -> Json:
        """`_search` as the engine answers it.

        Args:
            name: Index or alias, or several.
            preference: Which copies of the shards are asked, in the engine's words (`_shards:0`).
            named_scores: Return the scores of the queries that have a `_name`, not their names alone.
            hit_fields: Return only these members of the hits (`_id`), and nothing else of the answer.
        """
        params = {} if preference is None else {"preference": preference}
        if hit_fields:
            params["filter_path"] = ",".join(["_shards", "timed_out", *(f"hits.hits.{name}" for name in hit_fields)])
        if named_scores:
            params["include_named_queries_score"] = "true"
        path = quote_index_names(name)
        answer: Json = self._request("POST", f"/{path}/_search", params, body)
        self._check_shards(answer, path)
        return answer

    def multi_search(self, name: str | Sequence[str], bodies: Sequence[Json]) -> list[Json]:
        """`_msearch`: several searches in one request, each answered as by `search`."""
        path = quote_index_names(name)
        lines = b"".join(b"{}\n" + encode_json(body) + b"\n" for body in bodies)
        answers: list[Json] = self._request("POST", f"/{path}/_msearch", body=lines)["responses"]
        for answer in answers:
            if "error" in answer:
                raise self._response_error(answer.get("status", 500), answer, f"POST /{path}/_msearch")
            self._check_shards(answer, path)
        return answers

    def scan(
        self,
        name: str,
        *,
        query: Json,
        source_includes: Sequence[str],
        page: int = 500,
        vectors: bool = False,
        slice: PointInTimeSlice | None = None,
    ) -> Iterator[list[Json]]:
        """All hits of a query from one point in time, page by page, with `_seq_no` and `_primary_term`.

        Args:
            vectors: Also bring vectors on engines that leave them out of `_source`.
            slice: The part of a point in time to read; None opens a point in time and reads all of it.
        """
        body: Json = {
            "query": query,
            "size": page,
            "sort": self._scan_sort(),
            "_source": self._source(source_includes, vectors=vectors),
            "seq_no_primary_term": True,
            "track_total_hits": False,
        }
        if slice is not None:
            body["slice"] = {"id": slice.number, "max": slice.count}
        # The caller closes one that it opened.
        pit_id = self.open_point_in_time(name) if slice is None else slice.point_in_time
        try:
            while True:
                body["pit"] = {"id": pit_id, "keep_alive": KEEP_ALIVE}
                answer = self._request("POST", "/_search", body=body)
                self._check_shards(answer, name)
                pit_id = answer.get("pit_id", pit_id)
                hits: list[Json] = answer["hits"]["hits"]
                if not hits:
                    return
                yield hits
                body["search_after"] = hits[-1]["sort"]
        finally:
            if slice is None:
                self.close_point_in_time(pit_id)

    def _source(self, includes: Sequence[str], *, vectors: bool) -> Json | bool:
        if not includes:
            return False
        return self.info.source_with_vectors(includes) if vectors else {"includes": list(includes)}

    def read_changes(
        self,
        name: str,
        shard: int,
        after: int,
        up_to: int,
        *,
        query: Json,
        source_includes: Sequence[str],
        page: int = 500,
        vectors: bool = False,
    ) -> list[Json]:
        """The first hits of a query in a shard whose last write has a `_seq_no` in (after, up_to], in its order.

        Hits carry `_seq_no` and `_primary_term`. Deleted documents are none, and only refreshed writes are seen.

        Args:
            vectors: Also bring vectors on engines that leave them out of `_source`.
        """
        body: Json = {
            "query": {"bool": {"must": [query], "filter": [{"range": {"_seq_no": {"gt": after, "lte": up_to}}}]}},
            "sort": [{"_seq_no": "asc"}],
            "size": page,
            "_source": self._source(source_includes, vectors=vectors),
            "seq_no_primary_term": True,
            "track_total_hits": False,
        }
        hits: list[Json] = self.search(name, body, preference=f"_shards:{shard}")["hits"]["hits"]
        return hits

    def request_api(self, path: str, params: QueryParams = None, body: Json | None = None) -> Json | None:
        """The answer of one of the engine's own APIs (GET; POST with a body); None if the engine lacks it.

        Args:
            path: A constant of this program, never made from user input.
        """
        method = "GET" if body is None else "POST"
        response = self.send(method, path, params, None if body is None else encode_json(body))
        if response.status in _UNSUPPORTED_API_STATUSES:
            return None
        if not 200 <= response.status < 300 or not isinstance(response.body, dict):
            raise self._response_error(response.status, response.body, f"{method} {path}")
        return response.body

    def close_point_in_time(self, pit_id: str) -> None:
        """Close a point in time. Never fails: one that cannot be closed expires."""
        try:
            self._close_point_in_time(pit_id)
        except EngineError as error:
            # Nothing is lost: it expires. An error here must not hide the one that ended the scan.
            logger.info("point in time left to expire after %s: %s", KEEP_ALIVE, error.message)

    def create_index(self, name: str, body: Json) -> None:
        self._request("PUT", f"/{quote_index_name(name)}", body=body)

    def delete_index(self, name: str) -> None:
        """Delete an index; a missing one is no error. An alias is refused."""
        self._request("DELETE", f"/{quote_index_name(name)}", missing_ok=True)

    def put_mapping(self, name: str, body: Json) -> None:
        self._request("PUT", f"/{quote_index_name(name)}/_mapping", body=body)

    def put_settings(self, name: str, settings: Mapping[str, str | None]) -> None:
        """Change settings by their flat names; None restores the engine's default."""
        self._request("PUT", f"/{quote_index_name(name)}/_settings", body=dict(settings))

    def block_writes(self, name: str) -> None:
        """Refuse writes to an index from now on; returns when those in flight have ended.

        The setting `index.blocks.write` takes the block away.

        Raises:
            RequestFailed: they did not end within the engine's own time limit; the block may be there all the same.
        """
        answer = self._request("PUT", f"/{quote_index_name(name)}/_block/write")
        if not (answer.get("acknowledged") and answer.get("shards_acknowledged")):
            raise RequestFailed(
                f"{self.info.label} cannot say that writes to {name} have ended: a request in flight takes too long, "
                "or a node does not answer",
                "Look at `GET _tasks?actions=*write*&detailed` and `GET _cluster/health`, and run the command again.",
            )

    def flush(self, name: str) -> None:
        """Write an index to disk, so that its sequence numbers are final.

        Raises:
            RequestFailed: a shard could not.
        """
        self._check_shards(self._request("POST", f"/{quote_index_name(name)}/_flush"), name, "flushed")

    def refresh(self, name: str) -> None:
        """Make all writes visible to searches.

        Raises:
            RequestFailed: a shard was not refreshed: searches would miss its documents.
        """
        self._check_shards(self._request("POST", f"/{quote_index_name(name)}/_refresh"), name, "refreshed")

    def get_aliases(self, name: str) -> dict[str, dict[str, Json]]:
        """Concrete index → alias → its properties, for an index or all indices of an alias."""
        answer = self._request("GET", f"/{quote_index_name(name)}/_alias", missing_ok=True) or {}
        return {index: state.get("aliases", {}) for index, state in answer.items()}

    def update_aliases(self, actions: Sequence[Json]) -> None:
        """Add and remove aliases, and remove indices, in one step: all of it, or none."""
        self._request("POST", "/_aliases", body={"actions": list(actions)})

    def count_segments(self, name: str) -> list[int]:
        """Segments that searches see in each primary shard, shards in order."""
        primaries = _primary_shards(self._request("GET", f"/{quote_index_name(name)}/_segments"))
        return [sum(bool(segment["search"]) for segment in shard["segments"].values()) for shard in primaries]

    def start_force_merge(self, name: str) -> str:
        """Begin to merge every shard into one segment; the task's name, for `is_task_done`."""
        params = {"max_num_segments": "1", "wait_for_completion": "false"}
        return str(self._request("POST", f"/{quote_index_name(name)}/_forcemerge", params)["task"])

    def is_task_done(self, task: str) -> bool:
        """Whether a task has ended.

        Raises:
            RequestFailed: it failed.
        """
        answer = self._request("GET", f"/_tasks/{quote(task, safe=':')}")
        failures = answer.get("response", {}).get("_shards", {}).get("failures")
        error = answer.get("error") or (failures[0].get("reason", failures[0]) if failures else None)
        if error:
            raise RequestFailed(
                f"{self.info.label} could not finish the task {task}: {root_cause({'error': error})[1]}",
                "Look at the engine's log and its free disk space, and try again.",
            )
        return bool(answer.get("completed"))

    def sequence_numbers(self, name: str) -> list[SequenceNumbers]:
        """How far the writes of each primary shard are, shards in order."""
        primaries = _primary_shards(self._request("GET", f"/{quote_index_name(name)}/_stats", {"level": "shards"}))
        numbers = (shard["seq_no"] for shard in primaries)
        return [SequenceNumbers(int(each["max_seq_no"]), int(each["global_checkpoint"])) for each in numbers]

    def index_uuids(self, name: str) -> dict[str, str]:
        """Concrete index → UUID, which a new index of the same name does not share; empty if there is no such name.

        Args:
            name: Of an index, an alias or a data stream.
        """
        params = {"filter_path": "*.settings.index.uuid"}
        answer = self._request("GET", f"/{quote_index_name(name)}", params, missing_ok=True) or {}
        return {index: state["settings"]["index"]["uuid"] for index, state in answer.items()}

    def primary_terms(self, name: str) -> dict[int, int] | None:
        """Shard → its primary term, which grows when the shard fails over or is recovered after its node was lost.

        None if this user may not read it.
        """
        params = {"filter_path": "metadata.indices.*.primary_terms"}
        try:
            answer = self._request("GET", f"/_cluster/state/metadata/{quote_index_name(name)}", params)
        except AccessDenied:
            return None
        terms = answer.get("metadata", {}).get("indices", {}).get(name, {}).get("primary_terms")
        return None if terms is None else {int(shard): int(term) for shard, term in terms.items()}

    def store_size(self, name: str) -> int:
        """Bytes of the primary shards on disk."""
        answer = self._request("GET", f"/{quote_index_name(name)}/_stats/store")
        return int(answer["_all"]["primaries"]["store"]["size_in_bytes"])

    def _check_shards(self, answer: Json, name: str, done: str = "searched") -> None:
        """Partial results are an error: documents would be missing without a word."""
        shards = answer.get("_shards", {})
        if shards.get("failed") or answer.get("timed_out"):
            kind, reason = root_cause(answer) if shards.get("failures") else ("", "timed out")
            if kind == SEARCH_CONTEXT_MISSING:
                raise point_in_time_lost(self.info.label, reason, 404)
            raise RequestFailed(
                f"{self.info.label} {done} only {shards.get('successful')} of {shards.get('total')} shards "
                f"of {name}: {reason}",
                "If the query is the reason, fix it for each of the indices; else check `GET _cluster/health` "
                "and try again when all shards are active.",
                503,
            )


def _primary_shards(answer: Json) -> Iterable[Json]:
    """The entries of the primary shards in an answer about an index, shards in order."""
    for index in answer["indices"].values():
        for _, copies in sorted(index["shards"].items(), key=lambda item: int(item[0])):
            yield from (copy for copy in copies if copy["routing"]["primary"])


def _parse_bulk_item(item: Json) -> BulkItemResult:
    [result] = item.values()
    reason = ""
    if "error" in result:
        kind, text = root_cause({"error": result["error"]})
        reason = f"{kind}: {text}" if kind else text
    version = None if "_seq_no" not in result else (result["_seq_no"], result["_primary_term"])
    return BulkItemResult(
        status=result["status"],
        id=result.get("_id") or "",
        reason=reason,
        index=result.get("_index", ""),
        result=result.get("result", ""),
        version=version,
    )
