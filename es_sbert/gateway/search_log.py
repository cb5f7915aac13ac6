"""Log searches to monthly indices that dashboards read.

Logging is asynchronous: it never blocks a request and never makes one fail.
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

import orjson

from es_sbert.engines.error_mapping import response_error, root_cause
from es_sbert.engines.protocol import Json
from es_sbert.errors import EngineUnreachable, EsSbertError, RequestFailed
from es_sbert.gateway.search.search_rewriter import RewriteResult
from es_sbert.gateway.search.semantic_query import SemanticSyntax
from es_sbert.gateway.settings import QueryTextPolicy, SearchLogSettings, monthly_index
from es_sbert.mappings import read_body
from es_sbert.messages import log_event


class SearchKind(StrEnum):
    """How a search found its documents."""

    LEXICAL = "lexical"
    SEMANTIC = "semantic"
    HYBRID = "hybrid"


@dataclass(frozen=True)
class SearchRecord:
    """One search that came through the gateway; of `_msearch`, one of its searches.

    Attributes:
        index: Index expression as the caller wrote it.
        api: `_search`, `_msearch`, `_async_search`, ….
        kind: How its documents were found.
        status: HTTP status of the answer to the caller.
        milliseconds: From the request's arrival to the end of the answer.
        embedding_milliseconds: Of these, until the vectors of its texts were there; None where it had none.
        upstream_milliseconds: Of these, until the engine had answered; None where it was not asked.
        texts: The texts that were searched by meaning.
        rewrites: What was rewritten: `virtual_field`, `text_embedding`, `semantic`, `neural`, `match`, ….
        k: Nearest documents that were asked for; None where that has no meaning.
        hits: Documents found (`hits.total`); None where the answer does not tell.
        at: When it came.
        id: Of the document in the log, so that it may be sent twice.
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
    at: datetime = field(default_factory=lambda: datetime.now(UTC))
    id: str = field(default_factory=lambda: secrets.token_hex(10))


def log_document(record: SearchRecord, wording: QueryTextPolicy, gateway: str) -> Json:
    """The document of a search.

    Args:
        gateway: Which gateway it is, where there are several.
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
        "milliseconds": {name: round(value, 3) for name, value in times.items() if value is not None},
        **wording.of_texts(record.texts),
    }
    return {name: value for name, value in facts.items() if value is not None and value != []}


def bulk_body(records: Sequence[SearchRecord], name: str, wording: QueryTextPolicy, gateway: str) -> bytes:
    """Body of a bulk request. A record that is in the log already is refused there (409), not written twice."""
    lines = []
    for record in records:
        lines.append(orjson.dumps({"create": {"_index": monthly_index(name, record.at), "_id": record.id}}))
        lines.append(orjson.dumps(log_document(record, wording, gateway)))
    return b"\n".join(lines) + b"\n"


# Method, path, body, content type → status and parsed answer, by the gateway's own credentials. Raises EsSbertError
# where no answer comes.
EngineCall = Callable[[str, str, bytes, str], Awaitable[tuple[int, Any]]]

_JSON, _NDJSON = "application/json", "application/x-ndjson"
_RETRYABLE_STATUSES = frozenset({429, 502, 503, 504})
# A month's index that somebody deletes would come back by itself, without its mapping: it is made sure of again.
_INDEX_CHECK_SECONDS = 60.0
# Nobody waits for these requests: an engine that takes longer is asked again later.
_REQUEST_TIMEOUT_SECONDS = 30.0
_LABEL = "the engine of the search log"


@dataclass(frozen=True)
class LogWriteResult:
    """What became of a batch.

    Attributes:
        written: Records that are in the log.
        refused: Records that will never be.
        reason: The engine's, for the last of them.
        again: Records that the engine was too busy for.
    """

    written: int
    refused: int
    reason: str
    again: list[SearchRecord]


class SearchLogWriter:
    """The indices of a log.

    Args:
        name: Their name without the month.
        wording: What is written of texts.
        gateway: Which gateway it is.
        ask: Speaks to the engine.
    """

    def __init__(self, name: str, wording: QueryTextPolicy, gateway: str, ask: EngineCall) -> None:
        self._name = name
        self._wording = wording
        self._gateway = gateway
        self._ask = ask
        self._ensured_at: dict[str, float] = {}

    async def prepare(self) -> None:
        """Make the index of this month.

        Raises:
            EsSbertError: no answer, or a refusal.
        """
        await self._ensure_index(monthly_index(self._name, datetime.now(UTC)))

    async def write(self, batch: Sequence[SearchRecord]) -> LogWriteResult:
        """One bulk request.

        Raises:
            EsSbertError: it failed as a whole.
        """
        for index in dict.fromkeys(monthly_index(self._name, search.at) for search in batch):
            await self._ensure_index(index)
        body = bulk_body(batch, self._name, self._wording, self._gateway)
        status, answer = await self._asked("POST", "/_bulk?filter_path=items.*.status,items.*.error", body, _NDJSON)
        if not 200 <= status < 300:
            raise response_error(status, answer, label=_LABEL, action="POST /_bulk")
        items = answer.get("items", []) if isinstance(answer, dict) else []
        if len(items) != len(batch):
            raise EngineUnreachable(f"{_LABEL} broke off its answer", "Check the network, and any proxy in between.")
        return _write_result(batch, [item["create"] for item in items])

    async def _asked(self, method: str, path: str, body: bytes, content_type: str) -> tuple[int, Any]:
        try:
            async with asyncio.timeout(_REQUEST_TIMEOUT_SECONDS):
                return await self._ask(method, path, body, content_type)
        except TimeoutError:
            raise EngineUnreachable(
                f"{_LABEL} did not answer within {_REQUEST_TIMEOUT_SECONDS:g} seconds",
                "Look at its load: `GET _nodes/hot_threads`.",
            ) from None

    async def _ensure_index(self, index: str) -> None:
        """Make an index unless it is there."""
        if time.monotonic() < self._ensured_at.get(index, float("-inf")) + _INDEX_CHECK_SECONDS:
            return
        status, answer = await self._asked("PUT", f"/{index}", orjson.dumps(read_body("common/searches")), _JSON)
        if not 200 <= status < 300 and root_cause(answer)[0] != "resource_already_exists_exception":
            raise response_error(status, answer, label=_LABEL, action=f"PUT /{index}")
        self._ensured_at[index] = time.monotonic()


def is_permanent_failure(error: EsSbertError) -> bool:
    """Whether sending the same again is of no use."""
    if isinstance(error, EngineUnreachable):
        return False
    return not (isinstance(error, RequestFailed) and (error.status in _RETRYABLE_STATUSES or error.status >= 500))


def _write_result(batch: Sequence[SearchRecord], results: Sequence[dict[str, Any]]) -> LogWriteResult:
    written, refused, reason, again = 0, 0, "", []
    for search, result in zip(batch, results, strict=True):
        status = result["status"]
        if status in _RETRYABLE_STATUSES:
            again.append(search)
        elif status < 300 or status == 409:  # 409: written the first time, and the answer got lost
            written += 1
        else:
            refused += 1
            reason = root_cause({"error": result.get("error")})[1]
    return LogWriteResult(written, refused, reason, again)


_WARNING_INTERVAL_SECONDS = 60.0
_MAX_BACKOFF_SECONDS = 60.0


class SearchLog:
    """Takes records and writes them when there is time.

    Args:
        settings: How.
        ask: Speaks to the engine by the gateway's own credentials, never by a caller's.

    Attributes:
        written: Records that are in the log.
        dropped: Records that are lost: the buffer was full, or the engine refused them.
    """

    def __init__(self, settings: SearchLogSettings, ask: EngineCall) -> None:
        self._settings = settings
        self._index = SearchLogWriter(settings.index, settings.wording, settings.gateway, ask)
        self._waiting: deque[SearchRecord] = deque()
        self._arrived = asyncio.Event()
        self._closing = asyncio.Event()
        self._writer: asyncio.Task[None] | None = None
        self._said = float("-inf")
        self.written = 0
        self.dropped = 0

    @property
    def waiting(self) -> int:
        """Records that are not written yet."""
        return len(self._waiting)

    def record(self, search: SearchRecord) -> None:
        """Remember a search. Comes back at once, whatever the engine does; called in the event loop's thread."""
        if self._closing.is_set() or len(self._waiting) >= self._settings.buffer:
            self.dropped += 1
            self._warn(f"{self._settings.buffer:,} searches wait to be written already")
            return
        self._waiting.append(search)
        self._arrived.set()

    async def prepare(self) -> None:
        """Make the index of this month, so that dashboards have something to look at before the first search.

        Raises:
            AccessDenied: the gateway's own credentials do not suffice.
            EngineError: no answer, or another refusal.
        """
        await self._index.prepare()

    def start(self) -> None:
        """Begin to write, inside the event loop that calls `record`."""
        self._writer = asyncio.create_task(self._write(), name="search log")
        self._writer.add_done_callback(_report_failure)

    async def close(self) -> None:
        """Write what waits, for `close_seconds` at most; the rest is dropped, and said to be."""
        self._closing.set()
        self._arrived.set()
        if self._writer is not None:
            await asyncio.wait({self._writer}, timeout=self._settings.close_seconds)
            self._writer.cancel()
            await asyncio.wait({self._writer})
        if self._waiting:
            self.dropped += len(self._waiting)
            self._waiting.clear()
            self._said = float("-inf")
            self._warn("the gateway ended before they were written")

    async def _write(self) -> None:
        await self._begin()
        pause = 0.0
        while await self._gather():
            batch = list(islice(self._waiting, self._settings.batch))
            again = await self._send(batch)
            for _ in batch:
                self._waiting.popleft()
            self._waiting.extendleft(reversed(again))
            pause = min(_MAX_BACKOFF_SECONDS, max(1.0, 2 * pause)) if again else 0.0
            await self._rest(pause)

    async def _begin(self) -> None:
        """Say at the start, not at the first search, what stands in the way."""
        try:
            await self.prepare()
        except EsSbertError as error:
            self._warn(f"{error.message}. {error.remedy}", lost=False)

    async def _send(self, batch: list[SearchRecord]) -> list[SearchRecord]:
        """Write a batch; what must be sent again."""
        try:
            result = await self._index.write(batch)
        except EsSbertError as error:
            lasting = is_permanent_failure(error)
            self.dropped += len(batch) if lasting else 0
            self._warn(f"{error.message}. {error.remedy}", lost=lasting)
            return [] if lasting else batch
        self.written += result.written
        if result.refused:
            self.dropped += result.refused
            self._warn(result.reason)
        return result.again

    async def _gather(self) -> bool:
        """Wait for records, and then for others to go with them; False once all are written and no more will come."""
        while not self._waiting:
            if self._closing.is_set():
                return False
            self._arrived.clear()
            await self._arrived.wait()
        if len(self._waiting) < self._settings.batch:
            await self._rest(self._settings.flush_seconds)
        return True

    async def _rest(self, seconds: float) -> None:
        """Sleep, but for a moment only once the log is to close."""
        try:
            await asyncio.wait_for(self._closing.wait(), seconds)
        except TimeoutError:
            return
        await asyncio.sleep(min(seconds, 0.1))

    def _warn(self, why: str, *, lost: bool = True) -> None:
        """Tell the operator, once a minute at most."""
        now = time.monotonic()
        if now < self._said + _WARNING_INTERVAL_SECONDS:
            return
        self._said = now
        if lost:
            message = f"{self.dropped:,} searches are missing in the search log: {why}"
            log_event("search_log_dropped", message, logging.WARNING, dropped=self.dropped, waiting=self.waiting)
        else:
            log_event(
                "search_log_waits",
                f"the search log cannot be written: {why}",
                logging.WARNING,
                dropped=self.dropped,
                waiting=self.waiting,
            )


def _report_failure(writer: asyncio.Task[None]) -> None:
    """Say that the writer broke, which no answer of an engine should make it do."""
    error = None if writer.cancelled() else writer.exception()
    if error is not None:
        log_event(
            "search_log_failed",
            f"the search log has ended: {type(error).__name__}: {error}",
            logging.ERROR,
            error=type(error).__name__,
        )


# `hits.total` of an answer, as an object or (rest_total_hits_as_int) as a number; it stands before the hits themselves.
_TOTAL_HITS = re.compile(rb'"hits":\{(?:"[a-z_]+":[^{}\[\]]*?,)?"total":(?:\{"value":)?(\d+)')
# Enough of an answer to find its total; of several searches, for the total of each.
_PARSED_BYTES = 16 * 1024
_PARSED_BYTES_MSEARCH = 4 * 1024 * 1024
_GZIP = 16 + zlib.MAX_WBITS

RecordSink = Callable[[SearchRecord], None]


@dataclass
class SearchRecorder:
    """One request to a search API.

    Attributes:
        index: Expression of indices as the caller wrote it.
        api: `search`, `msearch`, ….
        searches: Result of rewriting each search; None for one that is forwarded unchanged.
        status: HTTP status of the response; 499 if the client disconnected before it.
    """

    index: str
    api: str
    searches: list[RewriteResult | None] = field(default_factory=list)
    at: datetime = field(default_factory=lambda: datetime.now(UTC))
    start: float = field(default_factory=time.perf_counter)
    sent: float | None = None
    total_hits: TotalHitsParser | None = None
    status: int = 499

    def asked(self, understood: RewriteResult | None) -> None:
        """Note a search."""
        self.searches.append(understood)

    def watch(self) -> TotalHitsParser:
        """Looks at the answer, which begins to be waited for now."""
        self.sent = time.perf_counter()
        self.total_hits = TotalHitsParser(_PARSED_BYTES if len(self.searches) < 2 else _PARSED_BYTES_MSEARCH)
        return self.total_hits

    def records(self) -> list[SearchRecord]:
        """What is remembered, once the answer is given."""
        searches = self.searches or [None]
        totals = [] if self.total_hits is None else self.total_hits.totals()
        # Answers of several searches, some of which failed, have fewer totals than searches: nobody knows whose.
        hits: list[int | None] = list(totals) if len(totals) == len(searches) else [None] * len(searches)
        end = time.perf_counter()
        waited = None if self.sent is None else 1000 * (end - self.sent)
        return [
            _search_record(self, understood, found, self.status, 1000 * (end - self.start), waited)
            for understood, found in zip(searches, hits, strict=True)
        ]


def _search_record(
    note: SearchRecorder,
    understood: RewriteResult | None,
    hits: int | None,
    status: int,
    total: float,
    waited: float | None,
) -> SearchRecord:
    asked = () if understood is None else understood.asked
    ways = {semantic.way for semantic in asked}
    kind = SearchKind.HYBRID if SemanticSyntax.HYBRID in ways else SearchKind.SEMANTIC if ways else SearchKind.LEXICAL
    return SearchRecord(
        index=note.index,
        api=f"_{note.api}",
        kind=kind,
        status=status,
        milliseconds=total,
        embedding_milliseconds=1000 * understood.seconds if understood is not None and asked else None,
        upstream_milliseconds=waited,
        texts=tuple(dict.fromkeys(semantic.text for semantic in asked)),
        rewrites=tuple(sorted(ways)),
        k=max((semantic.k for semantic in asked), default=None),
        hits=hits,
        at=note.at,
    )


class TotalHitsParser:
    """The beginning of an answer, as it passes.

    Args:
        most: Bytes that are looked at.
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self._seen = bytearray()

    def part(self, part: bytes) -> None:
        """A part of the answer, as the engine sent it."""
        if len(self._seen) < self._most:
            self._seen += part[: self._most - len(self._seen)]

    def totals(self) -> list[int]:
        """The number of hits of each search; fewer where the answer does not tell, or tells it too late."""
        seen = bytes(self._seen)
        if seen.startswith(b"\x1f\x8b"):
            try:
                seen = zlib.decompressobj(_GZIP).decompress(seen, self._most)
            except zlib.error:
                return []  # damaged on its way, which is for the caller to find
        return [int(total) for total in _TOTAL_HITS.findall(seen)]
