"""Log searches to monthly indices that dashboards read.

Logging is asynchronous: it never blocks or fails a request.
"""

from __future__ import annotations

import asyncio
import logging
import re
import secrets
import time
import zlib
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from enum import StrEnum
from itertools import islice
from typing import Any
from urllib.parse import parse_qsl

import orjson

from es_sbert.engines.error_class import ErrorClass, classify_error
from es_sbert.engines.error_mapping import response_error, root_cause
from es_sbert.engines.rest import Json
from es_sbert.engines.retry import is_transient
from es_sbert.errors import EngineError, EngineUnreachable, EsSbertError
from es_sbert.gateway.proxy.json_bodies import UnreadableJson, parse_object
from es_sbert.gateway.search.semantic_query import SemanticQuery, SemanticSyntax
from es_sbert.gateway.settings import (
    DEFAULT_REPORT_INDEX,
    QueryTextPolicy,
    SearchLogSettings,
    monthly_index,
    monthly_index_pattern,
)
from es_sbert.mappings import read_body
from es_sbert.messages import be, log_event, pluralize


class SearchKind(StrEnum):
    """Kind of a search."""

    LEXICAL = "lexical"
    SEMANTIC = "semantic"
    HYBRID = "hybrid"
    BROWSE = "browse"


@dataclass(frozen=True)
class SearchRecord:
    """A search through the gateway. Each search of an `_msearch` is a record.

    Attributes:
        index: Index expression as the caller wrote it, not percent-encoded.
        api: `_search`, `_msearch`, `_async_search`, ….
        kind: Lexical, semantic, hybrid, or browse for a search without a query. For a refused search, the kind that it
            would have had.
        status: HTTP status of the response to the caller.
        milliseconds: From the request to the end of the response.
        embedding_milliseconds: Time until its semantic queries were replaced; None without semantic queries.
        upstream_milliseconds: Time that the engine took; None if no request was sent.
        texts: Texts of its semantic queries.
        rewrites: Rewritten syntaxes: `virtual_field`, `text_embedding`, `semantic`, `neural`, `match`, ….
        k: Largest `k` of its semantic queries; None without any.
        hits: `hits.total`; None if the response has none.
        returns_hits: False if it only counts or aggregates, as the panels of a dashboard do.
        at: Time of the request.
        id: Id of the document in the log, which makes retries idempotent.
    """

    index: str
    api: str
    kind: SearchKind
    status: int
    milliseconds: float
    embedding_milliseconds: float | None = None
    upstream_milliseconds: float | None = None
    texts: Sequence[str] = ()
    rewrites: Sequence[str] = ()
    k: int | None = None
    hits: int | None = None
    returns_hits: bool = True
    at: datetime = field(default_factory=lambda: datetime.now(UTC))
    id: str = field(default_factory=lambda: secrets.token_hex(10))


def log_document(record: SearchRecord, wording: QueryTextPolicy, gateway: str) -> Json:
    """Convert a search to its log document.

    Args:
        gateway: Name of the gateway.
    """
    times = {
        "total": record.milliseconds,
        "embedding": record.embedding_milliseconds,
        "upstream": record.upstream_milliseconds,
    }
    facts: Json = {
        "@timestamp": record.at.astimezone(UTC).isoformat(timespec="milliseconds"),
        "gateway": gateway,
        "index": record.index,
        "api": record.api,
        "kind": record.kind,
        "rewrites": list(record.rewrites),
        "k": record.k,
        "status": record.status,
        "hits": record.hits,
        "zero_hits": None if record.hits is None else record.hits == 0,
        "returns_hits": record.returns_hits,
        "milliseconds": {name: round(value, 3) for name, value in times.items() if value is not None},
        **wording.of_texts(record.texts),
    }
    return {name: value for name, value in facts.items() if value is not None and value != []}


def bulk_body(records: Sequence[SearchRecord], name: str, wording: QueryTextPolicy, gateway: str) -> bytes:
    """Return the body of a bulk request. The engine rejects a record that is already in the log (409)."""
    lines = []
    for record in records:
        lines.append(orjson.dumps({"create": {"_index": monthly_index(name, record.at), "_id": record.id}}))
        lines.append(orjson.dumps(log_document(record, wording, gateway)))
    return b"\n".join(lines) + b"\n"


# Method, path, body, content type → status and parsed body, sent with the gateway's own credentials.
EngineCall = Callable[[str, str, bytes, str], Awaitable[tuple[int, Any]]]

_JSON, _NDJSON = "application/json", "application/x-ndjson"
# If a monthly index is deleted, the next bulk request recreates it without its mapping, so it is checked regularly.
_INDEX_CHECK_SECONDS = 60.0
_REQUEST_TIMEOUT_SECONDS = 30.0
_LABEL = "the engine of the search log"
_WARNING_INTERVAL_SECONDS = 60.0
_MAX_BACKOFF_SECONDS = 60.0


class SearchLog:
    """Buffers records of searches, and writes them in bulk requests.

    Args:
        settings: Settings of the log.
        call: Sends a request to the engine with the gateway's own credentials.

    Attributes:
        written: Records in the log.
        dropped: Records lost because the buffer was full or the engine rejected them.
    """

    def __init__(self, settings: SearchLogSettings, call: EngineCall) -> None:
        self._settings = settings
        self._call = call
        self._ensured_at: dict[str, float] = {}
        self._buffer: deque[SearchRecord] = deque()
        self._has_records = asyncio.Event()
        self._closing = asyncio.Event()
        self._writer: asyncio.Task[None] | None = None
        self._last_warning = float("-inf")
        self.written = 0
        self.dropped = 0

    @property
    def waiting(self) -> int:
        """Records in the buffer."""
        return len(self._buffer)

    def record(self, search: SearchRecord) -> None:
        """Log a search, unless it is internal. Never blocks. Call it in the event loop's thread."""
        if not is_internal_search(search.index, self._settings.index):
            self._append(search)

    def _append(self, record: SearchRecord) -> bool:
        if self._closing.is_set() or len(self._buffer) >= self._settings.buffer:
            self.dropped += 1
            self._warn(f"{self._settings.buffer:,} records wait to be written, which is the limit")
            return False
        self._buffer.append(record)
        self._has_records.set()
        return True

    def start(self) -> None:
        """Start writing, in the event loop that calls `record`."""
        self._writer = asyncio.create_task(self._run(), name="search log")
        self._writer.add_done_callback(_report_failure)

    async def prepare(self) -> None:
        """Create the index of this month, so that dashboards work before the first search.

        Raises:
            AccessDenied: the gateway's own credentials lack privileges.
            EngineError: the engine did not respond, or rejected the request.
        """
        await self._ensure_index(monthly_index(self._settings.index, datetime.now(UTC)))

    async def close(self) -> None:
        """Write the buffered records within `close_seconds`; drop the rest with a warning."""
        self._closing.set()
        self._has_records.set()
        if self._writer is not None:
            await asyncio.wait({self._writer}, timeout=self._settings.close_seconds)
            self._writer.cancel()
            await asyncio.wait({self._writer})
        if self._buffer:
            self.dropped += len(self._buffer)
            self._buffer.clear()
            self._last_warning = float("-inf")
            self._warn("the gateway ended before they were written")

    async def _run(self) -> None:
        try:
            await self.prepare()
        except EsSbertError as error:
            self._warn(f"{error.message}. {error.remedy}", lost=False)
        backoff = 0.0
        while await self._wait_for_batch():
            batch = list(islice(self._buffer, self._settings.batch))
            retry = await self._write_batch(batch)
            for _ in batch:
                self._buffer.popleft()
            self._buffer.extendleft(reversed(retry))
            backoff = min(_MAX_BACKOFF_SECONDS, max(1.0, 2 * backoff)) if retry else 0.0
            await self._sleep(backoff)

    async def _wait_for_batch(self) -> bool:
        """Wait for a full batch, or `flush_seconds` after the first record; False after the last batch."""
        while not self._buffer:
            if self._closing.is_set():
                return False
            self._has_records.clear()
            await self._has_records.wait()
        if len(self._buffer) < self._settings.batch:
            await self._sleep(self._settings.flush_seconds)
        return True

    async def _write_batch(self, batch: list[SearchRecord]) -> list[SearchRecord]:
        """Write a batch and count the result; returns the records to retry."""
        try:
            results = await self._send_bulk(batch)
        except EsSbertError as error:
            lost = not (isinstance(error, EngineError) and is_transient(error))
            self.dropped += len(batch) if lost else 0
            self._warn(f"{error.message}. {error.remedy}", lost=lost)
            return [] if lost else batch
        retry, rejected = [], []
        for record, result in zip(batch, results, strict=True):
            kind, reason = root_cause({"error": result.get("error")})
            if classify_error(result["status"], kind, reason) is ErrorClass.TRANSIENT:
                retry.append(record)
            elif result["status"] < 300 or result["status"] == 409:  # 409: written before, and the response was lost
                self.written += 1
            else:
                rejected.append(reason)
        if rejected:
            self.dropped += len(rejected)
            self._warn(rejected[-1])
        return retry

    async def _send_bulk(self, batch: Sequence[SearchRecord]) -> list[dict[str, Any]]:
        """Send one bulk request; returns the result of each item."""
        settings = self._settings
        for index in {monthly_index(settings.index, record.at) for record in batch}:
            await self._ensure_index(index)
        body = bulk_body(batch, settings.index, settings.wording, settings.gateway)
        status, answer = await self._request("POST", "/_bulk?filter_path=items.*.status,items.*.error", body, _NDJSON)
        if not 200 <= status < 300:
            raise response_error(status, answer, label=_LABEL, action="POST /_bulk")
        items = answer.get("items", []) if isinstance(answer, dict) else []
        if len(items) != len(batch):
            raise EngineUnreachable(
                f"{_LABEL} ended its response early", "Check the network, and any proxy in between."
            )
        return [item["create"] for item in items]

    async def _ensure_index(self, index: str) -> None:
        """Create an index unless it exists."""
        if time.monotonic() < self._ensured_at.get(index, float("-inf")) + _INDEX_CHECK_SECONDS:
            return
        status, answer = await self._request("PUT", f"/{index}", orjson.dumps(read_body("common/searches")), _JSON)
        if not 200 <= status < 300 and root_cause(answer)[0] != "resource_already_exists_exception":
            raise response_error(status, answer, label=_LABEL, action=f"PUT /{index}")
        self._ensured_at[index] = time.monotonic()

    async def _request(self, method: str, path: str, body: bytes, content_type: str) -> tuple[int, Any]:
        try:
            async with asyncio.timeout(_REQUEST_TIMEOUT_SECONDS):
                return await self._call(method, path, body, content_type)
        except TimeoutError:
            raise EngineUnreachable(
                f"{_LABEL} did not respond within {_REQUEST_TIMEOUT_SECONDS:g} seconds",
                "Check its load: `GET _nodes/hot_threads`.",
            ) from None

    async def _sleep(self, seconds: float) -> None:
        """Sleep; once the log is closing, only for a moment."""
        try:
            await asyncio.wait_for(self._closing.wait(), seconds)
        except TimeoutError:  # the time is over
            return
        await asyncio.sleep(min(seconds, 0.1))

    def _warn(self, reason: str, *, lost: bool = True) -> None:
        """Log a warning, at most once a minute."""
        now = time.monotonic()
        if now < self._last_warning + _WARNING_INTERVAL_SECONDS:
            return
        self._last_warning = now
        dropped, waiting = self.dropped, self.waiting
        if lost:
            message = f"{pluralize(dropped, 'record')} {be(dropped)} missing from the search log: {reason}"
            log_event("search_log_dropped", message, logging.WARNING, dropped=dropped, waiting=waiting)
        else:
            message = f"the search log cannot be written: {reason}"
            log_event("search_log_waits", message, logging.WARNING, dropped=dropped, waiting=waiting)


def _report_failure(writer: asyncio.Task[None]) -> None:
    """Log an unexpected end of the writer."""
    error = None if writer.cancelled() else writer.exception()
    if error is not None:
        message = f"the search log has ended: {type(error).__name__}: {error}"
        log_event("search_log_failed", message, logging.ERROR, error=type(error).__name__)


def is_internal_search(expression: str, log: str) -> bool:
    """Whether a search is internal to Kibana or OpenSearch Dashboards, or reads the data of es-sbert's dashboards.

    Both programs search their system indices all the time; the names of system indices begin with a dot.

    Args:
        expression: Index expression, not percent-encoded.
        log: Name of the search log, without the month.
    """
    shown = (monthly_index_pattern(log).removesuffix("*"), DEFAULT_REPORT_INDEX)
    names = [name for name in expression.split(",") if name and not name.startswith("-")]
    return bool(names) and all(name.startswith((".", *shown)) for name in names)


# A member `size` of 0 anywhere in a body.
_SIZE_ZERO = re.compile(rb'"size"\s*:\s*0\s*[,}]')
_MAX_BODY_READ = 1024 * 1024


def requests_hits(body: bytes, query: bytes = b"") -> bool:
    """Whether a search asks for documents, and not only for counts or aggregations.

    Args:
        body: JSON, uncompressed.
        query: Parameters of the request.
    """
    size = dict(parse_qsl(query.decode("latin-1"))).get("size")
    if size is not None:
        return size != "0"
    if len(body) > _MAX_BODY_READ or not _SIZE_ZERO.search(body):
        return True
    try:
        return parse_object(body).get("size") != 0
    except UnreadableJson:
        return True


def lacks_query(body: bytes, parameters: bytes = b"") -> bool:
    """Whether a search matches all documents, or all of a time range, as Discover does before anything is typed.

    Args:
        body: JSON, uncompressed.
        parameters: Parameters of the request.
    """
    if len(body) > _MAX_BODY_READ or not dict(parse_qsl(parameters.decode("latin-1"))).keys().isdisjoint(_QUERY_PARAMS):
        return False
    try:
        search = parse_object(body)
    except UnreadableJson:
        return False
    query = search.get("query")
    if not isinstance(query, dict) or not search.keys().isdisjoint(_QUERY_MEMBERS):
        return False
    occurrences = query.get("bool") if len(query) == 1 else None
    if not isinstance(occurrences, dict):
        return query.keys() == {"match_all"}
    clauses: list[Any] = []
    for occurrence, found in occurrences.items():
        listed = found if isinstance(found, list) else [found]
        if listed and occurrence not in ("must", "filter"):
            return False
        clauses += listed
    return all(isinstance(each, dict) and len(each) == 1 and each.keys() <= _UNTYPED_CLAUSES for each in clauses)


# Queries outside the member `query`: in parameters of the URL, and in other members of the body.
_QUERY_PARAMS = frozenset({"q", "source"})
_QUERY_MEMBERS = frozenset({"knn", "post_filter", "rescore", "suggest"})
# Clauses that the query bar and the time picker send if nothing is typed.
_UNTYPED_CLAUSES = frozenset({"match_all", "range"})


def read_trace(body: bytes, parameters: bytes = b"", index: str | None = None) -> SearchTrace:
    """Create the log entry of a search, before the search is handled.

    Args:
        body: JSON, uncompressed.
        parameters: Parameters of the request.
        index: The search's own index expression, not percent-encoded; None for that of the request.
    """
    returns_hits = requests_hits(body, parameters)
    return SearchTrace(index, returns_hits=returns_hits, lacks_query=returns_hits and lacks_query(body, parameters))


@dataclass
class SearchTrace:
    """The log entry of one search of a request; filled in while the search is handled.

    Attributes:
        index: Its own index expression, not percent-encoded; None for that of the request.
        returns_hits: Whether it asks for documents.
        lacks_query: Whether it matches all documents.
        is_semantic: Whether it has a semantic query, even an invalid one.
        queries: Its semantic queries; empty if it was refused before they were known.
        seconds: Time until its semantic queries were replaced by native queries.
        status: Status of its part of the response, if the gateway itself responded; None for that of the response.
    """

    index: str | None = None
    returns_hits: bool = True
    lacks_query: bool = False
    is_semantic: bool = False
    queries: tuple[SemanticQuery, ...] = ()
    seconds: float | None = None
    status: int | None = None

    @property
    def kind(self) -> SearchKind:
        if any(query.syntax is SemanticSyntax.HYBRID for query in self.queries):
            return SearchKind.HYBRID
        if self.queries or self.is_semantic:
            return SearchKind.SEMANTIC
        return SearchKind.BROWSE if self.lacks_query else SearchKind.LEXICAL


# `hits.total` of a response, an object or (rest_total_hits_as_int) a number; it precedes the hits themselves.
_TOTAL_HITS = re.compile(rb'"hits":\{(?:"[a-z_]+":[^{}\[\]]*?,)?"total":(?:\{"value":)?(\d+)')
# Enough of a response to contain its total; of an `_msearch`, the total of each search.
_PARSED_BYTES = 16 * 1024
_PARSED_BYTES_MSEARCH = 4 * 1024 * 1024
_GZIP = 16 + zlib.MAX_WBITS


@dataclass
class SearchRecorder:
    """Collects the log records of one request to a search API.

    Attributes:
        index: Index expression as the caller wrote it, not percent-encoded.
        api: `search`, `msearch`, ….
        searches: The searches of the request. An empty list means one search without any details.
        status: HTTP status of the response; 499 if the client disconnected before it.
        is_logged: Whether the records are written; if not, nothing needs to be read for them.
    """

    index: str
    api: str
    searches: list[SearchTrace] = field(default_factory=list)
    status: int = 499
    total_hits: TotalHitsParser | None = None
    is_logged: bool = True
    _received_at: datetime = field(default_factory=lambda: datetime.now(UTC))
    _start: float = field(default_factory=time.perf_counter)
    _sent: float | None = None

    def watch(self) -> TotalHitsParser:
        """Start the engine's time; returns the parser for its response."""
        self._sent = time.perf_counter()
        self.total_hits = TotalHitsParser(_PARSED_BYTES if len(self.searches) < 2 else _PARSED_BYTES_MSEARCH)
        return self.total_hits

    def records(self) -> list[SearchRecord]:
        """Return the records of all searches. Call it once the response has been sent."""
        searches = self.searches or [SearchTrace()]
        totals = [] if self.total_hits is None else self.total_hits.totals()
        # If some searches of an `_msearch` failed, it is unknown which search a total belongs to.
        hits: list[int | None] = list(totals) if len(totals) == len(searches) else [None] * len(searches)
        end = time.perf_counter()
        records = []
        for search, total_hits in zip(searches, hits, strict=True):
            record = SearchRecord(
                index=self.index if search.index is None else search.index,
                api=f"_{self.api}",
                kind=search.kind,
                status=self.status if search.status is None else search.status,
                milliseconds=1000 * (end - self._start),
                embedding_milliseconds=None if search.seconds is None else 1000 * search.seconds,
                upstream_milliseconds=None if self._sent is None else 1000 * (end - self._sent),
                texts=tuple(dict.fromkeys(query.text for query in search.queries)),
                rewrites=tuple(sorted({query.syntax for query in search.queries})),
                k=max((query.k for query in search.queries), default=None),
                hits=total_hits,
                returns_hits=search.returns_hits,
                at=self._received_at,
            )
            records.append(record)
        return records


class TotalHitsParser:
    """Reads the numbers of hits from the beginning of a response.

    Args:
        limit: Bytes to keep.
    """

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._beginning = bytearray()

    def part(self, chunk: bytes) -> None:
        """Add a chunk of the response, as the engine sent it."""
        if len(self._beginning) < self._limit:
            self._beginning += chunk[: self._limit - len(self._beginning)]

    def totals(self) -> list[int]:
        """The total hits of each search; fewer if the response does not contain them, or contains them too late."""
        beginning = bytes(self._beginning)
        if beginning.startswith(b"\x1f\x8b"):
            try:
                beginning = zlib.decompressobj(_GZIP).decompress(beginning, self._limit)
            except zlib.error:
                return []  # the client will notice that it is damaged
        return [int(total) for total in _TOTAL_HITS.findall(beginning)]
