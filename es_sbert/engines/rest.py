"""The `Engine` requests that are the same on both engines: documents, searches, and index administration.

The subclasses in `elasticsearch` and `opensearch` add the client, and the requests that differ.
"""

from __future__ import annotations

import logging
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote

import orjson

from es_sbert.engines.error_mapping import SEARCH_CONTEXT_MISSING, point_in_time_lost, response_error, root_cause
from es_sbert.engines.protocol import BulkItemResult, EngineInfo, IndexState, Json, PointInTimeSlice, SequenceNumbers
from es_sbert.errors import (
    AccessDenied,
    EngineError,
    EngineUnreachable,
    EsSbertError,
    IndexMismatch,
    RequestFailed,
    UsageError,
)


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


def quote_index_names(names: str | Sequence[str]) -> str:
    """One name or several as a part of a path.

    Raises:
        UsageError: see `quote_index_name`.
    """
    return quote_index_name(names) if isinstance(names, str) else ",".join(map(quote_index_name, names))


def quote_index_name(name: str) -> str:
    """An index or alias name as a path segment.

    Raises:
        UsageError: a pattern, a list of names, an API's own path, or invisible characters.
    """
    if (
        not name.isprintable()
        or not name
        or name in (".", "..")
        or name[0] in "_-+"
        or any(c in '*?,#\\/"<>|: ' for c in name)
    ):
        raise UsageError(f"{name!r} is not the name of one index", "Give one index or alias, without wildcards.")
    return quote(name, safe="")


logger = logging.getLogger(__name__)

# A page of a scan is embedded and loaded before the next one is asked for: minutes on a slow machine.
KEEP_ALIVE = "30m"
# Responses to an API that the engine was built without, or that is disabled.
_UNSUPPORTED_API_STATUSES = frozenset({400, 404, 405})
# Seconds that an engine waits for a shard by default, and the fewest that it is given: it also waits that long for a
# new field of the mapping, which every cluster takes a moment for.
_MAX_ENGINE_WAIT, _MIN_ENGINE_WAIT = 60.0, 1.0
# Part of the client's own limit: the engine is to say what it waited for before the client breaks the request off.
_CLIENT_TIMEOUT_SHARE = 0.8
# What is read of an item of a bulk answer.
_ITEM_FIELDS = ("_id", "_index", "_seq_no", "_primary_term", "status", "result", "error")


class RestEngine(ABC):
    """`Engine` over REST.

    Args:
        info: What answers at the address.
        timeout: Seconds that the client waits for an answer; None where it alone knows.
    """

    def __init__(self, info: EngineInfo, timeout: float | None) -> None:
        self._info = info
        self._timeout = timeout

    @property
    def info(self) -> EngineInfo:
        return self._info

    @abstractmethod
    def send(
        self,
        method: str,
        path: str,
        params: Mapping[str, str] | None = None,
        body: bytes | None = None,
        *,
        ndjson: bool = False,
    ) -> EngineResponse:
        """Send one request, without retries; every status is returned.

        Raises:
            EngineUnreachable: no response, or none in JSON.
        """

    @abstractmethod
    def open_point_in_time(self, name: str, *, shard: int | None = None) -> str: ...

    @abstractmethod
    def _close_point_in_time(self, pit_id: str) -> None: ...

    @abstractmethod
    def _scan_sort(self) -> list[Json]:
        """A total order over a point in time."""

    @abstractmethod
    def close(self) -> None: ...

    def _request(
        self,
        method: str,
        path: str,
        params: Mapping[str, str] | None = None,
        body: Json | bytes | None = None,
        *,
        missing_ok: bool = False,
    ) -> Any:
        """A request whose answer must be 2xx (or 404 where `missing_ok`, which gives None)."""
        ndjson = isinstance(body, bytes)
        encoded = _encode_json(body) if isinstance(body, dict) else body
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
        states = self.get_indices(name)
        if len(states) > 1:
            raise IndexMismatch(
                f"{name!r} points to {len(states)} indices: {', '.join(state.name for state in states[:5])}",
                "Name one of them: a vector field belongs to one index.",
            )
        return states[0] if states else None

    def get_indices(self, name: str) -> list[IndexState]:
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
        path = quote_index_names(name)
        lines = b"".join(b"{}\n" + _encode_json(body) + b"\n" for body in bodies)
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
        source = self._source(source_includes, vectors=vectors)
        body: Json = {"query": query, "size": page, "sort": self._scan_sort(), "_source": source}
        if slice is not None:
            body["slice"] = {"id": slice.number, "max": slice.count}
        return self._pages(name, body, slice)

    def _pages(self, name: str, body: Json, slice: PointInTimeSlice | None) -> Iterator[list[Json]]:
        """Hits of a search with a total order, from one point in time; the caller closes one that it opened."""
        pit_id = self.open_point_in_time(name) if slice is None else slice.point_in_time
        body = body | {"seq_no_primary_term": True, "track_total_hits": False}
        try:
            while True:
                answer = self._request(
                    "POST", "/_search", body=body | {"pit": {"id": pit_id, "keep_alive": KEEP_ALIVE}}
                )
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

    def request_api(self, path: str, params: Mapping[str, str] | None = None, body: Json | None = None) -> Json | None:
        method = "GET" if body is None else "POST"
        response = self.send(method, path, params, None if body is None else _encode_json(body))
        if response.status in _UNSUPPORTED_API_STATUSES:
            return None
        if not 200 <= response.status < 300 or not isinstance(response.body, dict):
            raise self._response_error(response.status, response.body, f"{method} {path}")
        return response.body

    def close_point_in_time(self, pit_id: str) -> None:
        try:
            self._close_point_in_time(pit_id)
        except EngineError as error:
            # Nothing is lost, it expires by itself; and an error here must not hide the one that ended the scan.
            logger.info("point in time left to expire after %s: %s", KEEP_ALIVE, error.message)

    def create_index(self, name: str, body: Json) -> None:
        self._request("PUT", f"/{quote_index_name(name)}", body=body)

    def delete_index(self, name: str) -> None:
        self._request("DELETE", f"/{quote_index_name(name)}", missing_ok=True)

    def put_mapping(self, name: str, body: Json) -> None:
        self._request("PUT", f"/{quote_index_name(name)}/_mapping", body=body)

    def put_settings(self, name: str, settings: Mapping[str, str | None]) -> None:
        self._request("PUT", f"/{quote_index_name(name)}/_settings", body=dict(settings))

    def block_writes(self, name: str) -> None:
        answer = self._request("PUT", f"/{quote_index_name(name)}/_block/write")
        if not (answer.get("acknowledged") and answer.get("shards_acknowledged")):
            raise RequestFailed(
                f"{self.info.label} cannot say that writes to {name} have ended: a request in flight takes too long, "
                "or a node does not answer",
                "Look at `GET _tasks?actions=*write*&detailed` and `GET _cluster/health`, and run the command again.",
            )

    def flush(self, name: str) -> None:
        self._check_shards(self._request("POST", f"/{quote_index_name(name)}/_flush"), name, "flushed")

    def refresh(self, name: str) -> None:
        self._check_shards(self._request("POST", f"/{quote_index_name(name)}/_refresh"), name, "refreshed")

    def get_aliases(self, name: str) -> dict[str, dict[str, Json]]:
        answer = self._request("GET", f"/{quote_index_name(name)}/_alias", missing_ok=True) or {}
        return {index: state.get("aliases", {}) for index, state in answer.items()}

    def update_aliases(self, actions: Sequence[Json]) -> None:
        self._request("POST", "/_aliases", body={"actions": list(actions)})

    def count_segments(self, name: str) -> list[int]:
        answer = self._request("GET", f"/{quote_index_name(name)}/_segments")
        return [
            sum(bool(segment["search"]) for segment in copy["segments"].values())
            for shards in answer["indices"].values()
            for _, copies in sorted(shards["shards"].items(), key=lambda item: int(item[0]))
            for copy in copies
            if copy["routing"]["primary"]
        ]

    def start_force_merge(self, name: str) -> str:
        params = {"max_num_segments": "1", "wait_for_completion": "false"}
        return str(self._request("POST", f"/{quote_index_name(name)}/_forcemerge", params)["task"])

    def is_task_done(self, task: str) -> bool:
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
        answer = self._request("GET", f"/{quote_index_name(name)}/_stats", {"level": "shards"})
        [index] = answer["indices"].values()
        return [
            SequenceNumbers(int(copy["seq_no"]["max_seq_no"]), int(copy["seq_no"]["global_checkpoint"]))
            for _, copies in sorted(index["shards"].items(), key=lambda item: int(item[0]))
            for copy in copies
            if copy["routing"]["primary"]
        ]

    def index_uuids(self, name: str) -> dict[str, str]:
        params = {"filter_path": "*.settings.index.uuid"}
        answer = self._request("GET", f"/{quote_index_name(name)}", params, missing_ok=True) or {}
        return {index: state["settings"]["index"]["uuid"] for index, state in answer.items()}

    def primary_terms(self, name: str) -> dict[int, int] | None:
        params = {"filter_path": "metadata.indices.*.primary_terms"}
        try:
            answer = self._request("GET", f"/_cluster/state/metadata/{quote_index_name(name)}", params)
        except AccessDenied:
            return None
        terms = answer.get("metadata", {}).get("indices", {}).get(name, {}).get("primary_terms")
        return None if terms is None else {int(shard): int(term) for shard, term in terms.items()}

    def store_size(self, name: str) -> int:
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


def limit_engine_wait(asked: float, client: float | None) -> float:
    """Seconds that an engine may wait for what a request needs.

    Args:
        asked: Seconds that the caller would wait.
        client: Seconds after which the client breaks the request off; None where it alone knows.
    """
    most = _MAX_ENGINE_WAIT if client is None else min(_MAX_ENGINE_WAIT, _CLIENT_TIMEOUT_SHARE * client)
    return min(most, max(_MIN_ENGINE_WAIT, asked))


def point_in_time_params(shard: int | None) -> dict[str, str]:
    """Parameters of the request that opens a point in time, of one shard or of all of them."""
    params = {"keep_alive": KEEP_ALIVE}
    return params if shard is None else params | {"preference": f"_shards:{shard}"}


def _encode_json(body: Json) -> bytes:
    """A request's body as JSON.

    Raises:
        UsageError: something in it, such as a filter or an id, is not to be written.
    """
    try:
        return orjson.dumps(body, option=orjson.OPT_SERIALIZE_NUMPY)
    except orjson.JSONEncodeError as error:
        raise UsageError(
            f"the request cannot be written as JSON: {error}",
            "Give texts in valid Unicode, integers of at most 64 bits, and of other values what JSON has.",
        ) from error


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
