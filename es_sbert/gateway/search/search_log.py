"""Log searches as JSON lines, to a file or stdout. A shipper such as Filebeat sends them to the dashboards' indices.

Logging never blocks or fails a request: a thread writes the lines.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
import os
import queue
import re
import secrets
import threading
import time
import zlib
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl

import orjson

from es_sbert.engines.rest import Json
from es_sbert.errors import UsageError
from es_sbert.filesystem import STDOUT_PATH
from es_sbert.gateway.engine_routes import EngineApi
from es_sbert.gateway.incoming_request import UnreadableJson, parse_object
from es_sbert.gateway.search.semantic_query import SemanticQuery, SemanticSyntax
from es_sbert.gateway.settings import DEFAULT_SEARCH_LOG_INDEX, SearchLogSettings
from es_sbert.messages import be, log_event, pluralize

# Lines that are written at once.
_BATCH = 500
_WARNING_INTERVAL_SECONDS = 60.0
_ENDED = "the gateway ended before they were written"


class SearchLog:
    """Writes records of searches as lines of JSON, in a thread.

    A record has the members of its line, and the texts of the semantic queries as `texts`. A line has keyed hashes of
    them, so that equal queries can be counted and texts cannot be guessed. The key is new in each process.

    Attributes:
        dropped: Records lost because too many waited, or because the file could not be written.

    Raises:
        UsageError: the file cannot be opened.
    """

    def __init__(self, settings: SearchLogSettings) -> None:
        self._settings = settings
        self._records: queue.Queue[Json | None] = queue.Queue(settings.buffer)
        self._key = secrets.token_bytes(64)
        self._file = _LineFile(settings.path)
        # A daemon: a pipe that nobody reads must not keep the process from ending.
        self._thread = threading.Thread(target=self._run, name="search-log", daemon=True)
        self._closing = threading.Event()
        self._lock = threading.Lock()  # for the two lines below
        self._last_warning = float("-inf")
        self.dropped = 0

    def start(self) -> None:
        """Start writing."""
        self._thread.start()

    def record(self, search: Json) -> None:
        """Log a search, unless it is internal. Never blocks."""
        if is_internal_search(search["index"]):
            return
        if self._closing.is_set():
            self._drop(1, _ENDED)
            return
        try:
            self._records.put_nowait(search)
        except queue.Full:
            self._drop(1, f"{self._settings.buffer:,} records wait to be written, which is the limit")

    async def close(self) -> None:
        """Write the records that wait within `close_seconds`; drop the rest with a warning."""
        self._closing.set()
        with suppress(queue.Full):  # the thread notices the end after its next batch
            self._records.put_nowait(None)
        deadline = time.monotonic() + self._settings.close_seconds
        while self._thread.is_alive() and time.monotonic() < deadline:
            await asyncio.sleep(0.01)
        if waiting := sum(record is not None for record in self._records.queue):
            self._last_warning = float("-inf")
            self._drop(waiting, _ENDED)

    def _run(self) -> None:
        while not (self._closing.is_set() and self._records.empty()):
            batch = [self._records.get()]
            with suppress(queue.Empty):  # the batch is complete
                while len(batch) < _BATCH:
                    batch.append(self._records.get_nowait())
            lines = [orjson.dumps(self._line(record)) for record in batch if record is not None]
            try:
                self._file.write(b"".join(line + b"\n" for line in lines))
            except OSError as error:
                self._drop(len(lines), f"{self._file.name} cannot be written: {error.strerror or error}")

    def _line(self, record: Json) -> Json:
        texts = record.pop("texts")
        hashes = [self._hash(text) for text in texts]
        wording = {"query_hash": hashes, "query": texts if self._settings.log_queries else []}
        line = {**record, "gateway": self._settings.gateway, **wording}
        return {name: value for name, value in line.items() if value is not None and value != []}

    def _hash(self, text: str) -> str:
        # Queries that differ only in case or spaces are equal.
        normalized = " ".join(text.casefold().split()).encode("utf-8", "surrogatepass")
        return hashlib.blake2b(normalized, digest_size=16, key=self._key).hexdigest()

    def _drop(self, count: int, reason: str) -> None:
        """Count lost records, and warn at most once a minute."""
        with self._lock:
            self.dropped += count
            now = time.monotonic()
            if now < self._last_warning + _WARNING_INTERVAL_SECONDS:
                return
            self._last_warning = now
        message = f"{pluralize(self.dropped, 'record')} {be(self.dropped)} missing from the search log: {reason}"
        log_event("search_log_dropped", message, logging.WARNING, dropped=self.dropped)


class _LineFile:
    """A file or stdout to which whole lines are appended. A file that was renamed or removed is opened again.

    Args:
        path: The file, or `-` for stdout.

    Raises:
        UsageError: the file cannot be opened.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._descriptor: int | None = None
        self._is_line_open = False
        try:
            self._reopen_if_rotated()
        except OSError as error:
            raise UsageError(
                f"the search log {path} cannot be written: {error.strerror}",
                "Set --search-log to a file in a folder that exists and can be written, or to - for stdout.",
            ).about("search_log", path) from error

    @property
    def name(self) -> str:
        return "stdout" if self._path == STDOUT_PATH else str(self._path)

    def write(self, lines: bytes) -> None:
        """Append lines.

        Raises:
            OSError: not all of them could be written.
        """
        descriptor = self._reopen_if_rotated()
        # After an error, the end of a line may be missing: the next line must not be joined to it.
        rest = memoryview(b"\n" + lines if self._is_line_open and lines else lines)
        while rest:
            written = os.write(descriptor, rest)
            self._is_line_open = rest[written - 1] != ord("\n")
            rest = rest[written:]

    def _reopen_if_rotated(self) -> int:
        if self._path == STDOUT_PATH:
            return 1
        if self._descriptor is not None:
            try:
                if os.path.samestat(os.stat(self._path), os.fstat(self._descriptor)):
                    return self._descriptor
            except FileNotFoundError:
                pass  # it was renamed or removed, and is created again
            os.close(self._descriptor)
            self._descriptor, self._is_line_open = None, False
        self._descriptor = os.open(self._path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o666)
        return self._descriptor


def is_internal_search(expression: str) -> bool:
    """Whether a search is internal to Kibana or OpenSearch Dashboards, or reads the search log.

    Both programs search their system indices all the time; the names of system indices begin with a dot.

    Args:
        expression: Index expression, not percent-encoded.
    """
    names = [name for name in expression.split(",") if name and not name.startswith("-")]
    return bool(names) and all(name.startswith((".", f"{DEFAULT_SEARCH_LOG_INDEX}-")) for name in names)


_MAX_BODY_READ = 1024 * 1024
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
    options, search = dict(parse_qsl(parameters.decode("latin-1"))), dict[str, Any]()
    if len(body) <= _MAX_BODY_READ:
        with suppress(UnreadableJson):  # logged as a search with a query
            search = parse_object(body)
    returns_hits = str(options.get("size", search.get("size"))) != "0"
    is_browse = returns_hits and options.keys().isdisjoint(_QUERY_PARAMS) and _lacks_query(search)
    return SearchTrace(index, returns_hits=returns_hits, lacks_query=is_browse)


def _lacks_query(search: Json) -> bool:
    """Whether a search matches all documents, or all of a time range, as Discover does before anything is typed."""
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
    def kind(self) -> str:
        """`lexical`, `semantic`, `hybrid`, or `browse` for a search without a query."""
        if any(query.syntax is SemanticSyntax.HYBRID for query in self.queries):
            return "hybrid"
        if self.queries or self.is_semantic:
            return "semantic"
        return "browse" if self.lacks_query else "lexical"


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
    is_logged: bool = True
    _received_at: datetime = field(default_factory=lambda: datetime.now(UTC))
    _start: float = field(default_factory=time.perf_counter)
    _sent: float | None = None
    _beginning: bytearray = field(default_factory=bytearray)  # of the response, as the engine sent it
    _limit: int = 0  # of the bytes that are kept

    def watch(self) -> Callable[[bytes], None]:
        """Start the engine's time; returns a function that takes the chunks of its response."""
        self._sent, self._beginning = time.perf_counter(), bytearray()
        self._limit = _PARSED_BYTES if len(self.searches) < 2 else _PARSED_BYTES_MSEARCH
        return self._add_part

    def _add_part(self, chunk: bytes) -> None:
        if len(self._beginning) < self._limit:
            self._beginning += chunk[: self._limit - len(self._beginning)]

    def _totals(self) -> list[int]:
        """The total hits of each search; fewer if the response does not contain them, or contains them too late."""
        beginning = bytes(self._beginning)
        if beginning.startswith(b"\x1f\x8b"):
            try:
                beginning = zlib.decompressobj(_GZIP).decompress(beginning, self._limit)
            except zlib.error:
                return []  # the client will notice that it is damaged
        return [int(total) for total in _TOTAL_HITS.findall(beginning)]

    def records(self) -> list[Json]:
        """Return the records of all searches. Call it once the response has been sent."""
        searches = self.searches or [SearchTrace()]
        if self.api == EngineApi.ESQL:  # most of its queries are not searches
            searches = [search for search in searches if search.kind == "semantic"]
        totals = self._totals()
        # If some searches of an `_msearch` failed, it is unknown which search a total belongs to.
        hits: list[int | None] = list(totals) if len(totals) == len(searches) else [None] * len(searches)
        end = time.perf_counter()
        upstream = None if self._sent is None else end - self._sent
        total = end - self._start
        return [
            {
                "@timestamp": self._received_at.isoformat(timespec="milliseconds"),
                "index": self.index if search.index is None else search.index,
                "api": f"_{self.api}",
                "kind": search.kind,
                "rewrites": sorted({query.syntax for query in search.queries}),
                "k": max((query.k for query in search.queries), default=None),
                "status": self.status if search.status is None else search.status,
                "hits": total_hits,
                "zero_hits": None if total_hits is None else total_hits == 0,
                "returns_hits": search.returns_hits,
                "milliseconds": {
                    name: round(1000 * seconds, 3)
                    for name, seconds in (("total", total), ("embedding", search.seconds), ("upstream", upstream))
                    if seconds is not None
                },
                "texts": list(dict.fromkeys(query.text for query in search.queries)),
            }
            for search, total_hits in zip(searches, hits, strict=True)
        ]
