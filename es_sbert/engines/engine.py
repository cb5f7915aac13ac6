"""`Engine`: the requests that es-sbert sends to Elasticsearch or OpenSearch.

The subclasses in `clients` add the client, and the requests that differ.
"""

from __future__ import annotations

import logging
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, suppress
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar
from urllib.parse import quote

from es_sbert.engines.bulk_request import BulkItemResult
from es_sbert.engines.complete_answer import HEALTH_REMEDY, check_complete, reading_response
from es_sbert.engines.engine_info import EngineInfo, EngineType, without_search_pipeline
from es_sbert.engines.error_mapping import MISSING_API_STATUSES, PERMANENT_TYPES, response_error, root_cause
from es_sbert.engines.index_state import DEFAULT_RESULT_WINDOW, IndexState, SettingValue, ShardState, read_aliases
from es_sbert.engines.rest import (
    KEEP_ALIVE,
    EngineResponse,
    Json,
    QueryParams,
    encode_json,
    limit_engine_wait,
    quote_index_expression,
    quote_index_name,
    quote_index_names,
    shard_preference,
)
from es_sbert.errors import (
    AccessDenied,
    EngineError,
    EngineUnreachable,
    EsSbertError,
    IndexMismatch,
    IndexMissing,
    RequestFailed,
)

if TYPE_CHECKING:
    from es_sbert.engines.node_watch import NodeWatch

_ALIAS_ALONE_REMEDY = "Search each alias that has a routing by its own name, alone."


# JSON, or lines of JSON that are encoded already.
RequestBody = Json | bytes | None
T = TypeVar("T")

logger = logging.getLogger(__name__)

# Status of the error about a response that is not an engine's: a proxy may be at fault, for a moment.
_BAD_GATEWAY = 502
# Path of the API of points in time, and the member of requests and responses that holds the id.
_POINT_IN_TIME = {
    EngineType.ELASTICSEARCH: ("/_pit", "id"),
    EngineType.OPENSEARCH: ("/_search/point_in_time", "pit_id"),
}
# Maximum characters of index names in the path of a request; engines refuse request lines of more than 4096 bytes.
_MAX_NAMES_IN_PATH = 3000
# Fields that are read from each item of a bulk response.
_ITEM_FIELDS = ("_id", "_index", "_seq_no", "_primary_term", "status", "result", "error")
# Type of an error about a missing privilege, also of one item of a bulk or multi-get request.
_DENIED = "security_exception"


def seq_no_range_body(query: Json, after: int, up_to: int, page: int, source: Json | bool) -> Json:
    """Build the body of a search for the first documents whose last write has a `_seq_no` in (after, up_to], in that
    order.
    """
    return {
        "query": {"bool": {"must": [query], "filter": [{"range": {"_seq_no": {"gt": after, "lte": up_to}}}]}},
        "sort": [{"_seq_no": "asc"}],
        "size": page,
        "_source": source,
        "seq_no_primary_term": True,
        "track_total_hits": False,
    }


DocumentKey = tuple[str, str | None]


def document_key(hit: Json) -> DocumentKey:
    """Id and routing, which identify a document: ids are unique within a routing only."""
    return hit["_id"], hit.get("_routing")


class Engine(ABC):
    """A connection to Elasticsearch or OpenSearch, as `SemanticIndex.engine`. Thread-safe.

    Usage:
        ```python
        found = index.engine.search("docs", {"query": {"match_all": {}}, "size": 1})
        print(found["hits"]["total"]["value"])
        ```

    Raises:
        EngineError: a request failed.
    """

    def __init__(self, info: EngineInfo, client: Any, timeout: float | None, watch: NodeWatch | None = None) -> None:
        """Wrap a client.

        Args:
            info: The engine at the address.
            client: Has the methods of elastic-transport; used with its own settings, and `close` closes it.
            timeout: Seconds that the client waits for a response; None if only the client knows.
            watch: Watches the client's nodes; None with one address.
        """
        self.info = info
        self._client = client
        self._timeout = timeout
        self._watch = watch

    def send(
        self, method: str, path: str, params: QueryParams = None, body: bytes | None = None, *, ndjson: bool = False
    ) -> EngineResponse:
        """Send one request and return its response, with any status. The request is retried on other nodes only.

        Raises:
            EngineUnreachable: there is no response, or it is not JSON.
        """
        call = partial(self._send_once, method, path, params, body, ndjson=ndjson)
        return call() if self._watch is None else self._watch.send(call, method, path)

    @abstractmethod
    def _send_once(
        self, method: str, path: str, params: QueryParams, body: bytes | None, *, ndjson: bool
    ) -> EngineResponse: ...

    @property
    def _last_url(self) -> str:
        """Address of the node to which this thread sent its last request."""
        return self.info.url if self._watch is None else self._watch.last_url

    def open_point_in_time(self, name: str, *, shard: int, node: str = "") -> str:
        """Open a point in time and return its id.

        It expires half an hour after the last page was read from it.

        Args:
            shard: The only shard that it contains.
            node: Id of the node whose copy is read; empty for any copy.
        """
        api, key = _POINT_IN_TIME[self.info.engine_type]
        params = {"preference": shard_preference(shard, node), "keep_alive": KEEP_ALIVE}
        if self.info.engine_type is EngineType.OPENSEARCH:
            # By default, a point in time leaves out shards without an active copy.
            params["allow_partial_pit_creation"] = "false"
        answer = self._request("POST", f"/{quote_index_name(name)}{api}", params)
        with self._reading(f"POST {api}"):
            return str(answer[key])

    @abstractmethod
    def vector_size(self, name: str, field: str) -> int | None:
        """Bytes on disk of a field's vectors, quantized copies and graph in the primary shards, without `_source`.

        None if unknown: on OpenSearch, if the index has several vector fields, or no graphs.
        """

    def close(self) -> None:
        """End the connection."""
        self._client.close()
        if self._watch is not None:
            self._watch.close()

    def _request(
        self,
        method: str,
        path: str,
        params: QueryParams = None,
        body: RequestBody = None,
        *,
        missing_ok: bool = False,
        partial_ok: bool = False,
    ) -> Any:
        """Send a request and return the body of its response, which must be 2xx and complete.

        Args:
            missing_ok: Return None for a 404.
            partial_ok: Also return a partial response; see `check_complete`.
        """
        ndjson = isinstance(body, bytes)
        encoded = encode_json(body) if isinstance(body, dict) else body
        response = self.send(method, path, params, encoded, ndjson=ndjson)
        if missing_ok and response.status == 404:
            return None
        if not 200 <= response.status < 300:
            raise self._response_error(response.status, response.body, f"{method} {path}")
        if not isinstance(response.body, dict):
            # A connection that is cut off in the middle of the headers looks like a response without a body.
            raise EngineUnreachable(
                f"{self.info.url} broke off its response to {method} {path}",
                "Check the network, and any proxy in between.",
            )
        if not partial_ok:
            self._check_complete(response.body, f"{method} {path}")
        return response.body

    @property
    def _label(self) -> str:
        """The engine and its address, for messages."""
        return f"{self.info.label} at {self.info.url}"

    def _reading(self, action: str) -> AbstractContextManager[None]:
        """Raise `RequestFailed` for an exception in a block that reads a response of another form; it must only read.

        Args:
            action: The request, for the message.
        """
        return reading_response(lambda error: self._malformed_response(action, error))

    def _malformed_response(self, action: str, error: Exception) -> RequestFailed:
        return RequestFailed(
            f"{self.info.url} sent a response to {action} that is not in the format of {self.info.label} "
            f"({type(error).__name__}: {error})",
            "Check the address, and any proxy in between: it must forward all paths to the engine.",
            _BAD_GATEWAY,
        )

    def _check_complete(self, answer: Json, action: str) -> None:
        with self._reading(action):
            check_complete(answer, self._label, action)

    def _partial_error(self, problem: str) -> RequestFailed:
        """The error about shards that are missing now."""
        return RequestFailed(f"{self._label} {problem}", HEALTH_REMEDY, 503)

    def _check_search(self, answer: Json, action: str) -> Json:
        """Return the response to a search, if it is one."""
        # Without hits, `filter_path` leaves `hits` out.
        if not isinstance(answer.get("hits", answer.get("_shards")), dict):
            raise self._malformed_response(action, KeyError("hits"))
        return answer

    def _response_error(self, status: int, body: Any, action: str) -> EsSbertError:
        return response_error(status, body, label=self._label, action=action)

    def get_index(self, name: str) -> IndexState | None:
        """The index, or the one index of an alias; None if there is none.

        Raises:
            IndexMismatch: the alias points to several indices.
        """
        states = {state.name: state for state in self.get_indices(name)}
        return _only_index(name, states) if states else None

    def get_indices(self, name: str) -> list[IndexState]:
        """The index, or all indices of an alias; empty if there is no such name."""
        return self._get_indices(quote_index_name(name))

    def index_missing(self, expression: str, message: str, remedy: str) -> IndexMissing:
        """Return the error for a name that no index has, with the engine's response to it."""
        path = f"/{quote_index_expression(expression)}"
        error = IndexMissing(message, remedy).about("index", expression)
        error.request = f"GET {path}"
        with suppress(EsSbertError):  # this error matters more
            response = self.send("GET", path)
            error.body = response.body if response.status == error.status else None  # no index matches `logs-*`: 200
        return error

    def resolve_indices(self, expression: str) -> list[IndexState]:
        """The indices that a search of this expression covers, sorted by name; empty if there are none.

        Args:
            expression: An index, an alias or a data stream; several of them (`a,b`); a pattern (`logs-*`, `*,-old-*`).
        """
        return self._get_indices(quote_index_expression(expression))

    def visible_names(self) -> list[str]:
        """Names of all indices, aliases and data streams that this user may see, without hidden ones."""
        answer = self._request("GET", "/_resolve/index/*")
        with self._reading("GET /_resolve/index"):
            return [entry["name"] for kind in ("indices", "aliases", "data_streams") for entry in answer.get(kind, ())]

    def alias_terms(self, expression: str, states: Sequence[IndexState]) -> tuple[dict[str, Json | None], str | None]:
        """What the engine adds to a search of this expression because of its aliases.

        Args:
            states: The result of `resolve_indices`.

        Returns:
            Concrete index → filter, or None; and the routing that selects the shards of all these indices, None for all
            shards.

        Raises:
            IndexMismatch: no single search of these indices covers the same shards, because of an alias's routing.
        """
        if all(expression in (state.name, state.data_stream, *state.aliases) for state in states):
            routings = {state.alias(expression).get("search_routing") for state in states}
            if len(routings) > 1:
                raise IndexMismatch(
                    f"the indices of {expression} have different routings (`search_routing`)", _ALIAS_ALONE_REMEDY
                )
            return {state.name: state.alias(expression).get("filter") for state in states}, routings.pop()
        filters: dict[str, Json | None] = dict.fromkeys([state.name for state in states])
        aliases = [alias for state in states for alias in state.aliases.values()]
        if any("filter" in alias or "search_routing" in alias for alias in aliases):
            # The expression may match an index by its own name and by several of its aliases.
            path = f"/{quote_index_expression(expression)}/_search_shards"
            answer = self._request("GET", path)
            with self._reading(f"GET {path}"):
                found = answer["indices"]
                filters |= {index: state.get("filter") for index, state in found.items() if index in filters}
                searched = Counter(copies[0]["index"] for copies in answer["shards"] if copies)
                lacking = [state.name for state in states if searched[state.name] < state.shards]
            if lacking:
                raise IndexMismatch(
                    f"{expression} does not cover all shards of {lacking[0]}: an alias has a routing "
                    "(`search_routing`), or a shard has no active copy",
                    _ALIAS_ALONE_REMEDY,
                )
        return filters, None

    def _get_indices(self, path: str) -> list[IndexState]:
        answer = self._request("GET", f"/{path}", {"flat_settings": "true"}, missing_ok=True) or {}
        with self._reading(f"GET /{path}"):
            streams = sorted({state["data_stream"] for state in answer.values() if "data_stream" in state})
        has_shared = bool(streams) and self.info.engine_type is EngineType.ELASTICSEARCH
        shared = self._request("GET", f"/{quote_index_names(streams)}/_alias") if has_shared else {}
        with self._reading(f"GET /{path}"):
            return [
                IndexState(
                    name=concrete,
                    mappings=dict(state.get("mappings", {})),
                    settings=dict(state.get("settings", {})),
                    aliases=read_aliases(state, shared),
                    data_stream=state.get("data_stream"),
                )
                for concrete, state in sorted(answer.items())
            ]

    def count(self, name: str | Sequence[str], query: Json | None = None, *, routing: str | None = None) -> int:
        """Count the documents that match a query; arguments as for `search`."""
        # Not `_count`: on OpenSearch, it cannot go around the index's search pipeline.
        body = {"query": query or {"match_all": {}}, "size": 0, "track_total_hits": True}
        answer = self.search(name, body, routing=routing)
        with self._reading(f"POST /{quote_index_names(name)}/_search"):
            return int(answer["hits"]["total"]["value"])

    def bulk(
        self, name: str, body: bytes, *, actions: int | None = None, timeout: float | None = None
    ) -> list[BulkItemResult]:
        """Send newline-delimited actions, already encoded; results are in the order of the actions.

        Args:
            actions: Number of actions in the body, with which the number of results is compared; None for a body whose
                results are not assigned to actions.
            timeout: Seconds that the engine waits for a shard that is not active, limited by the client's timeout; None
                for the engine's default of a minute.

        Raises:
            RequestFailed: the whole request was refused (`status` 413, 429, 503, …).
            EngineUnreachable: the connection broke. It is unknown whether the engine carried out the actions; ids make
                sending them again harmless.
        """
        params = {"filter_path": ",".join(f"items.*.{key}" for key in _ITEM_FIELDS)}
        if timeout is not None:
            params["timeout"] = f"{limit_engine_wait(timeout, self._timeout) * 1000:.0f}ms"
        path = f"/{quote_index_name(name)}/_bulk"
        answer = self._request("POST", path, params, body)
        with self._reading(f"POST {path}"):
            items = [BulkItemResult.from_item(item) for item in answer.get("items", [])]
        if actions is not None and len(items) != actions:
            raise self._item_count_error(f"POST {path}", len(items), actions)
        return items

    def mget(
        self,
        name: str,
        keys: Sequence[tuple[str, str | None]],
        *,
        source_includes: Sequence[str] | None = None,
        whole: bool = False,
    ) -> list[Json | None]:
        """Get documents in real time, including their vectors.

        Args:
            keys: Id and routing of each document.
            source_includes: Fields to read; None reads no `_source`.
            whole: Read all of `_source`, unfiltered; see `exact_numbers`.

        Returns:
            `_source`, `_seq_no`, `_primary_term` and, if it has one, `_routing` of each document, in the order of the
            keys; None for a document that does not exist.
        """
        if not keys:
            return []
        # Fields are left out of the parameters if a name contains a comma, which would be read as two names.
        named = source_includes is not None and not any("," in field for field in source_includes)
        params = {"_source_includes": ",".join(source_includes or ())} if named else {}
        if source_includes is None and not whole:
            params = {"_source": "false", "stored_fields": "_routing"}
        elif self.info.excludes_vectors_from_source:
            params["_source_exclude_vectors"] = "false"
        docs = [{"_id": key} if routing is None else {"_id": key, "routing": routing} for key, routing in keys]
        documents = self._multi_get(name, params, {"docs": docs}, len(docs))
        return [document if document.get("found") else None for document in documents]

    def _multi_get(self, name: str, params: QueryParams, body: Json, count: int) -> list[Json]:
        """Send an `_mget` and return its documents, one for each that was requested.

        Raises:
            IndexMissing: the index does not exist.
            AccessDenied: the user may not look up documents.
            RequestFailed: the engine could not look up a document, so it is not known whether the document exists.
        """
        path = f"/{quote_index_name(name)}/_mget"
        answer = self._request("POST", path, params, body)
        with self._reading(f"POST {path}"):
            documents: list[Json] = answer["docs"]
            for document in documents:
                # An error takes the place of a document whose shard is not available.
                if document.get("error"):
                    kind, _ = root_cause(document)
                    # Most other errors are a shard that is not available.
                    others = 400 if kind in PERMANENT_TYPES else 503
                    status = {_DENIED: 403, "index_not_found_exception": 404}.get(kind, others)
                    raise self._response_error(status, document, f"POST {path}")
        if len(documents) != count:
            raise self._item_count_error(f"POST {path}", len(documents), count)
        return documents

    def _item_count_error(self, action: str, received: int, sent: int) -> RequestFailed:
        return RequestFailed(
            f"{self.info.url} answered {action} with {received:,} items, but {sent:,} were sent",
            "Check for a proxy in front of the engine that changes its responses.",
        )

    def search(
        self,
        name: str | Sequence[str],
        body: Json,
        *,
        preference: str | None = None,
        hit_fields: Sequence[str] = (),
        allow_partial: bool = False,
        default_pipeline: bool = False,
        routing: str | None = None,
    ) -> Json:
        """Send a search and return the engine's response.

        Args:
            name: Index or alias, or several.
            preference: The engine's parameter that selects copies of the shards, such as `_shards:0`.
            hit_fields: Return only these members of the hits (`_id`), and nothing else of the response.
            allow_partial: Also return a response that lacks shards.
            default_pipeline: Apply the index's default search pipeline, as a search of the user expects.
            routing: Search only the shards of these routing values.
        """
        path = quote_index_names(name)
        given = {"preference": preference, "routing": routing}
        params = {key: value for key, value in given.items() if value is not None}
        if len(path) > _MAX_NAMES_IN_PATH:
            return self.multi_search(
                name, [body], allow_partial=allow_partial, default_pipeline=default_pipeline, **params
            )[0]
        if not default_pipeline:
            body = without_search_pipeline(self.info.engine_type, body)
        if allow_partial:
            # A cluster can disallow partial results by default (`search.default_allow_partial_results`).
            params["allow_partial_search_results"] = "true"
        if hit_fields:
            params["filter_path"] = ",".join(["_shards", "timed_out", *(f"hits.hits.{name}" for name in hit_fields)])
        answer = self._request("POST", f"/{path}/_search", params, body, partial_ok=allow_partial)
        return self._check_search(answer, f"POST /{path}/_search")

    def multi_search(
        self,
        name: str | Sequence[str],
        bodies: Sequence[Json],
        *,
        allow_partial: bool = False,
        default_pipeline: bool = False,
        **given: str | None,
    ) -> list[Json]:
        """Send several searches in one request (`_msearch`) and return the responses, each as `search` returns it.

        Names that are too long for the path go into the body.

        Args:
            given: Parameters of each search: `preference`, `routing`.
        """
        options: Json = {key: value for key, value in given.items() if value is not None}
        path = f"/{quote_index_names(name)}/_msearch"
        if len(path) > _MAX_NAMES_IN_PATH:
            path, options = "/_msearch", options | {"index": [name] if isinstance(name, str) else list(name)}
        if allow_partial:
            options = options | {"allow_partial_search_results": True}
        if not default_pipeline:
            bodies = [without_search_pipeline(self.info.engine_type, body) for body in bodies]
        header = encode_json(options)
        lines = b"".join(header + b"\n" + encode_json(body) + b"\n" for body in bodies)
        response = self._request("POST", path, None, lines)
        with self._reading(f"POST {path}"):
            answers: list[Json] = response["responses"]
            for answer in answers:
                if "error" in answer:
                    raise self._response_error(answer.get("status", 500), answer, f"POST {path}")
                if not allow_partial:
                    self._check_complete(answer, f"POST {path}")
        if len(answers) != len(bodies):
            raise self._item_count_error(f"POST {path}", len(answers), len(bodies))
        return answers

    def search_point_in_time(self, pit_id: str, body: Json) -> Json:
        """Search a point in time, which stays open as long as after `open_point_in_time`, and return the response.

        Raises:
            PointInTimeLost: the point in time has expired, or its node is gone.
        """
        body = without_search_pipeline(self.info.engine_type, body)
        body = body | {"pit": {"id": pit_id, "keep_alive": KEEP_ALIVE}}
        return self._check_search(self._request("POST", "/_search", body=body), "POST /_search")

    def hit_source(self, includes: Sequence[str], *, vectors: bool) -> Json | bool:
        """The `_source` parameter of a search that returns these fields; False if there are none.

        Args:
            vectors: Also return vectors on engines that leave them out of `_source`.
        """
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
        source_includes: Sequence[str] = (),
        page: int = 500,
        vectors: bool = False,
        extra: Json | None = None,
        whole: bool = False,
        node: str = "",
    ) -> list[Json]:
        """Read the hits of a query in one shard, in the order of their last writes.

        Only hits whose last write has a `_seq_no` in (after, up_to] are returned, at most `page` of them. Hits have
        `_seq_no` and `_primary_term`. Deleted documents are left out, and only refreshed writes are visible.

        Args:
            vectors: Also return vectors on engines that leave them out of `_source`.
            extra: Further members of the search body.
            whole: Return all of `_source`, unfiltered, with vectors; see `exact_numbers`.
            node: Id of the node whose copy is read; empty for any copy.
        """
        source = self.info.source_with_vectors() if whole else self.hit_source(source_includes, vectors=vectors)
        body = seq_no_range_body(query, after, up_to, page, source) | (extra or {})
        answer = self.search_shard(name, shard, body, node)
        with self._reading(f"POST /{name}/_search"):
            hits: list[Json] = answer["hits"]["hits"]
        return hits

    def searched_shards(self, name: str) -> list[int]:
        """Numbers of the shards that a search of this name covers, which the routing of an alias may limit.

        Args:
            name: An index, or an alias of one.

        Raises:
            IndexMissing: there is no such name.
            RequestFailed: a shard has no active copy.
        """
        state = self.get_index(name)
        if state is None:
            remedy = "Check the name: `GET _cat/indices` lists them."
            raise self.index_missing(name, f"there is no index {name} ({self._label})", remedy)
        if state.alias(name).get("search_routing") is None:
            with self._reading(f"GET /{name}"):
                return list(range(state.shards))
        path = f"/{quote_index_name(name)}/_search_shards"
        answer = self._request("GET", path)
        with self._reading(f"GET {path}"):
            groups = answer["shards"]
            if not all(groups):
                part = f"{groups.count([])} of {len(groups)} shards of {name}"
                raise self._partial_error(f"has no active copy of {part}")
            return sorted({int(copies[0]["shard"]) for copies in groups})

    def search_shard(self, name: str, shard: int, body: Json, node: str = "") -> Json:
        """Search one shard and return the response.

        Args:
            node: Id of the node whose copy is read; empty for any copy.

        Raises:
            RequestFailed: as for `search`; or the node no longer has a copy of the shard (503).
        """
        try:
            return self.search(name, body, preference=shard_preference(shard, node))
        except RequestFailed as error:
            if node and error.status == 400 and self.shard_states(name)[shard].node != node:
                raise RequestFailed(
                    f"shard {shard} of {name} is no longer on the node {node}",
                    "Look at `GET _cat/shards`, and run the command again.",
                    503,
                ) from error
            raise

    def request_api(
        self, path: str, params: QueryParams = None, body: Json | None = None, method: str = "GET"
    ) -> Json | None:
        """Call one of the engine's own APIs; None if the engine lacks the API.

        Args:
            path: With names quoted.
        """
        response = self.send(method, path, params, None if body is None else encode_json(body))
        if response.status in MISSING_API_STATUSES:
            return None
        if not 200 <= response.status < 300 or not isinstance(response.body, dict):
            raise self._response_error(response.status, response.body, f"{method} {path}")
        self._check_complete(response.body, f"{method} {path}")
        return response.body

    def close_point_in_time(self, pit_id: str) -> None:
        """Close a point in time. Never fails: one that cannot be closed expires."""
        api, key = _POINT_IN_TIME[self.info.engine_type]
        try:
            self._request("DELETE", api, body={key: pit_id if key == "id" else [pit_id]}, missing_ok=True)
        except EngineError as error:
            # Only log the error: the point in time expires, and the error that ended the scan must not be hidden.
            logger.info("point in time left to expire after %s: %s", KEEP_ALIVE, error.message)

    def create_index(self, name: str, body: Json) -> None:
        # Accept a partial response: the index exists, even if not all nodes know it or its shards have not started yet.
        self._request("PUT", f"/{quote_index_name(name)}", body=body, partial_ok=True)

    def delete_index(self, name: str) -> None:
        """Delete an index; a missing one is not an error. An alias is refused."""
        self._request("DELETE", f"/{quote_index_name(name)}", missing_ok=True)

    def put_mapping(self, name: str, body: Json) -> None:
        self._request("PUT", f"/{quote_index_name(name)}/_mapping", body=body)

    def put_settings(self, name: str, settings: Mapping[str, SettingValue]) -> None:
        """Change settings by their flat names; None restores the engine's default."""
        self._request("PUT", f"/{quote_index_name(name)}/_settings", body=dict(settings))

    def block_writes(self, name: str, timeout: float) -> None:
        """Block writes to an index, and wait until the writes in flight have ended.

        To remove the block, reset the setting `index.blocks.write`.

        Args:
            timeout: Seconds that the engine waits for the writes in flight.

        Raises:
            RequestFailed: the writes in flight did not end in time; the block may be set nevertheless.
        """
        limit = f"{limit_engine_wait(timeout, self._timeout) * 1000:.0f}ms"
        params = {"timeout": limit, "master_timeout": limit}
        if self.info.engine_type is EngineType.OPENSEARCH:
            params["cluster_manager_timeout"] = params.pop("master_timeout")
        answer = self._request("PUT", f"/{quote_index_name(name)}/_block/write", params, partial_ok=True)
        if not (answer.get("acknowledged") and answer.get("shards_acknowledged")):
            raise RequestFailed(
                f"{self.info.label} cannot confirm that writes to {name} have ended: a request in flight takes too "
                "long, or a node does not answer",
                "Look at `GET _tasks?actions=*write*&detailed` and `GET _cluster/health`, and run the command again.",
                503,
            )

    def flush(self, name: str) -> None:
        """Write an index to disk, so that its sequence numbers are final.

        Raises:
            RequestFailed: a shard could not be flushed.
        """
        self._broadcast(name, "_flush")

    def refresh(self, name: str) -> None:
        """Make all writes visible to searches.

        Raises:
            RequestFailed: a shard was not refreshed, so searches would miss its documents.
        """
        self._broadcast(name, "_refresh")

    def refresh_if_allowed(self, name: str) -> None:
        """Like `refresh`, but without an error if the user may not refresh; searches then see only the last refresh."""
        with suppress(AccessDenied):
            self.refresh(name)

    def _broadcast(self, name: str, operation: str) -> None:
        """Run an operation on all copies of all shards.

        The response does not report a shard without an active primary or an unassigned copy as failed. So if
        `successful` is less than `total`, it is compared with the number of started copies.

        Raises:
            RequestFailed: a started copy did not respond.
        """
        path = f"/{quote_index_name(name)}/{operation}"
        # Try twice: a copy may have started between the two requests.
        for _ in range(2):
            answer = self._request("POST", path)
            with self._reading(f"POST {path}"):
                done, total = int(answer["_shards"]["successful"]), int(answer["_shards"]["total"])
            if done == total:
                return
            started = self._count_started_copies(name)
            if done >= started:
                return
        raise self._partial_error(f"answered POST {path} for only {done} of {started} copies of the shards")

    def _count_started_copies(self, name: str) -> int:
        """Count the started copies of all shards; without the privilege monitor, assume one for each shard."""
        try:
            states = self._all_shard_states(name)
        except AccessDenied:
            return sum(self._shard_counts(name).values())
        return sum(shard.copies for shards in states.values() for shard in shards.values())

    def get_aliases(self, name: str) -> dict[str, dict[str, Json]]:
        """Concrete index → alias → its properties, for an index or all indices of an alias."""
        answer = self._request("GET", f"/{quote_index_name(name)}/_alias", missing_ok=True) or {}
        with self._reading(f"GET /{name}/_alias"):
            return {index: state.get("aliases", {}) for index, state in answer.items()}

    def update_aliases(self, actions: Sequence[Json]) -> None:
        """Add and remove aliases, and remove indices, in one atomic step."""
        self._request("POST", "/_aliases", body={"actions": list(actions)})

    def start_force_merge(self, name: str) -> str:
        """Start merging every shard into one segment, and return the task's name for `is_task_done`."""
        params = {"max_num_segments": "1", "wait_for_completion": "false"}
        answer = self._request("POST", f"/{quote_index_name(name)}/_forcemerge", params)
        with self._reading(f"POST /{name}/_forcemerge"):
            return str(answer["task"])

    def is_task_done(self, task: str) -> bool:
        """Whether a task has ended.

        Raises:
            RequestFailed: the task failed.
        """
        answer = self._request("GET", f"/_tasks/{quote(task, safe=':')}")
        with self._reading(f"GET /_tasks/{task}"):
            failures = answer.get("response", {}).get("_shards", {}).get("failures")
            error = answer.get("error") or (failures[0].get("reason", failures[0]) if failures else None)
            if error:
                raise RequestFailed(
                    f"{self.info.label} could not finish the task {task}: {root_cause({'error': error})[1]}",
                    "Look at the engine's log and its free disk space, and try again.",
                )
            return bool(answer["completed"])

    def shard_states(self, name: str) -> dict[int, ShardState]:
        """Number of each primary shard → the state of its writes.

        Args:
            name: An index, or an alias of one.

        Raises:
            RequestFailed: a shard has no active primary, or its node does not respond (503).
        """
        return _only_index(name, self._all_shard_states(name))

    def _all_shard_states(self, name: str) -> dict[str, dict[int, ShardState]]:
        """Index → primary shard → its state."""
        path = f"/{quote_index_name(name)}/_stats"
        # Sequence numbers and commits have no metric of their own: they are in every response with the level `shards`.
        answer = self._request("GET", f"{path}/docs", {"level": "shards"})
        with self._reading(f"GET {path}"):
            return {
                index: {number: _parse_shard_state(copies) for number, copies in shards.items()}
                for index, shards in self._primary_shards(name, path, answer).items()
            }

    def _primary_shards(self, name: str, path: str, answer: Json) -> dict[str, dict[int, list[Json]]]:
        """Index → shard → its copies, the primary first.

        A response leaves out shards whose primary is not active or whose node does not respond, so it is complete only
        if it has as many shards as the index.

        Raises:
            RequestFailed: a shard is missing.
        """
        found: dict[str, dict[int, list[Json]]] = {}
        for index, count in self._shard_counts(name).items():
            with self._reading(f"GET {path}"):
                shards = answer.get("indices", {}).get(index, {}).get("shards", {})
                copies = {int(number): _started_copies(listed) for number, listed in shards.items()}
            active = {number: started for number, started in sorted(copies.items()) if started}
            missing = [number for number in range(count) if number not in active]
            if missing:
                lacking = ", ".join(map(str, missing[:10]))
                part = f"only {len(active)} of {count} shards of {index}; without an active primary: {lacking}"
                raise self._partial_error(f"answered GET {path} for {part}")
            found[index] = active
        return found

    def _shard_counts(self, name: str) -> dict[str, int]:
        """Index → number of its primary shards, for an index or all indices of an alias.

        Raises:
            IndexMissing: there is no such name.
        """
        counts = self._index_setting(name, "number_of_shards", missing_ok=False)
        if not counts:
            raise self._malformed_response(f"GET /{name}", KeyError("number_of_shards"))
        with self._reading(f"GET /{name}"):
            return {index: int(count) for index, count in counts.items()}

    def _index_setting(self, name: str, setting: str, *, missing_ok: bool = True) -> dict[str, str]:
        """Concrete index → a setting, unless it is the default; empty if there is no such name and `missing_ok`."""
        params = {"filter_path": f"*.settings.index.{setting}"}
        answer = self._request("GET", f"/{quote_index_name(name)}", params, missing_ok=missing_ok) or {}
        with self._reading(f"GET /{name}"):
            return {index: state["settings"]["index"][setting] for index, state in answer.items()}

    def index_uuids(self, name: str) -> dict[str, str]:
        """Concrete index → UUID, which a new index of the same name does not share; empty if there is no such name.

        Args:
            name: An index, an alias or a data stream.
        """
        return self._index_setting(name, "uuid")

    def result_window(self, name: str) -> int:
        """Number of hits that a search of an index, or an alias of one, may return; see `IndexState.result_window`."""
        windows = self._index_setting(name, "max_result_window")
        with self._reading(f"GET /{name}"):
            return min(map(int, windows.values()), default=DEFAULT_RESULT_WINDOW)

    def primary_terms(self, name: str) -> dict[int, int] | None:
        """Shard → its primary term, which grows when the shard fails over or is recovered after its node was lost.

        None if this user may not read it.
        """
        terms = self._cluster_state(name, "primary_terms")
        return None if terms is None else {int(shard): int(term) for shard, term in terms.items()}

    def routing_shards(self, name: str) -> int | None:
        """The index's `number_of_routing_shards`, from which follows the shard of a document.

        None if this user may not read it. Elasticsearch does not return it with the other settings.
        """
        count = self._cluster_state(name, "routing_num_shards")
        return None if count is None else int(count)

    def _cluster_state(self, name: str, member: str) -> Any:
        """A member of an index's entry in the cluster state; None if it has none, or if this user may not read it."""
        params = {"filter_path": f"metadata.indices.*.{member}"}
        try:
            answer = self._request("GET", f"/_cluster/state/metadata/{quote_index_name(name)}", params)
        except AccessDenied:
            return None
        with self._reading("GET /_cluster/state"):
            return answer.get("metadata", {}).get("indices", {}).get(name, {}).get(member)

    def store_size(self, name: str) -> int:
        """Bytes of the primary shards on disk."""
        answer = self._request("GET", f"/{quote_index_name(name)}/_stats/store")
        with self._reading(f"GET /{name}/_stats/store"):
            return int(answer["_all"]["primaries"]["store"]["size_in_bytes"])


def _only_index(name: str, found: Mapping[str, T]) -> T:
    """Return what was found for the one index of a name.

    Raises:
        IndexMismatch: the name is an alias of several indices.
    """
    if len(found) > 1:
        raise IndexMismatch(
            f"{name!r} points to {len(found)} indices: {', '.join(list(found)[:5])}",
            "Use one of them: a vector field belongs to one index.",
        )
    return next(iter(found.values()))


def _started_copies(copies: Sequence[Json]) -> list[Json]:
    """The started copies of a shard, its primary first; empty if the primary is not one of them.

    A primary that is relocating counts as started: it is active until the move has ended.
    """
    started = [copy for copy in copies if copy["routing"].get("state") in ("STARTED", "RELOCATING")]
    started.sort(key=lambda copy: not copy["routing"]["primary"])
    return started if started and started[0]["routing"]["primary"] else []


def _parse_shard_state(copies: Sequence[Json]) -> ShardState:
    numbers, commit = copies[0]["seq_no"], copies[0].get("commit", {})
    return ShardState(
        max_seq_no=int(numbers["max_seq_no"]),
        global_checkpoint=int(numbers["global_checkpoint"]),
        history=commit.get("user_data", {}).get("history_uuid", ""),
        copies=len(copies),
        node=copies[0]["routing"]["node"],
        documents=int(copies[0]["docs"]["count"]),
    )
