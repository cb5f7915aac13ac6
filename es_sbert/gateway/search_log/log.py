"""The gateway's log of searches: an index that dashboards read. It never slows a search, and never makes one fail."""

from __future__ import annotations

import asyncio
import logging
import time
from collections import deque
from dataclasses import dataclass
from itertools import islice

from es_sbert.errors import EsSbertError
from es_sbert.events import record
from es_sbert.gateway.search_log.record import DEFAULT_INDEX, SearchRecord, Wording, check_index_name
from es_sbert.gateway.search_log.writer import Ask, SearchWriter, is_lasting

_SAY_AGAIN_SECONDS = 60.0
_LONGEST_PAUSE = 60.0


@dataclass(frozen=True)
class SearchLogSettings:
    """How searches are remembered.

    Attributes:
        index: Name of the log; each month is an index of its own.
        wording: What is written of the texts.
        gateway: Which gateway this is.
        buffer: Records that may wait; beyond it new ones are dropped and counted.
        batch: Most records of one bulk request.
        flush_seconds: How long a record waits for others.
        close_seconds: How long the end of the gateway waits for the last ones.
    """

    wording: Wording
    gateway: str
    index: str = DEFAULT_INDEX
    buffer: int = 10_000
    batch: int = 500
    flush_seconds: float = 5.0
    close_seconds: float = 5.0

    def __post_init__(self) -> None:
        check_index_name(self.index)


class SearchLog:
    """Takes records and writes them when there is time.

    Args:
        settings: How.
        ask: Speaks to the engine by the gateway's own credentials, never by a caller's.

    Attributes:
        written: Records that are in the log.
        dropped: Records that are lost: the buffer was full, or the engine refused them.
    """

    def __init__(self, settings: SearchLogSettings, ask: Ask) -> None:
        self._settings = settings
        self._index = SearchWriter(settings.index, settings.wording, settings.gateway, ask)
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
            self._say(f"{self._settings.buffer:,} searches wait to be written already")
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
            self._say("the gateway ended before they were written")

    async def _write(self) -> None:
        await self._begin()
        pause = 0.0
        while await self._gather():
            batch = list(islice(self._waiting, self._settings.batch))
            again = await self._send(batch)
            for _ in batch:
                self._waiting.popleft()
            self._waiting.extendleft(reversed(again))
            pause = min(_LONGEST_PAUSE, max(1.0, 2 * pause)) if again else 0.0
            await self._rest(pause)

    async def _begin(self) -> None:
        """Say at the start, not at the first search, what stands in the way."""
        try:
            await self.prepare()
        except EsSbertError as error:
            self._say(f"{error.message}. {error.remedy}", lost=False)

    async def _send(self, batch: list[SearchRecord]) -> list[SearchRecord]:
        """Write a batch; what must be sent again."""
        try:
            result = await self._index.write(batch)
        except EsSbertError as error:
            lasting = is_lasting(error)
            self.dropped += len(batch) if lasting else 0
            self._say(f"{error.message}. {error.remedy}", lost=lasting)
            return [] if lasting else batch
        self.written += result.written
        if result.refused:
            self.dropped += result.refused
            self._say(result.reason)
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

    def _say(self, why: str, *, lost: bool = True) -> None:
        """Tell the operator, once a minute at most."""
        now = time.monotonic()
        if now < self._said + _SAY_AGAIN_SECONDS:
            return
        self._said = now
        if lost:
            message = f"{self.dropped:,} searches are missing in the search log: {why}"
            record("search_log_dropped", message, logging.WARNING, dropped=self.dropped, waiting=self.waiting)
        else:
            record(
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
        record(
            "search_log_failed", f"the search log has ended: {type(error).__name__}: {error}", logging.ERROR,
            error=type(error).__name__,
        )  # fmt: skip
