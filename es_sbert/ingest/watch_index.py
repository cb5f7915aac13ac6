"""Keep the vectors of an index current while other writers change its documents.

Every write to a shard increments its `_seq_no`. A watch reads the documents whose last write has a higher number than
it has seen. So it also finds partial updates, which cause stale vectors, and its cost grows with the number of writes,
not with the index. Periodically, and when it ends, it checks that every document it has seen has its vector.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from typing import NamedTuple

from es_sbert.encoder.encoder import Encoder
from es_sbert.engines.index_scan import scan_index
from es_sbert.engines.index_state import ShardState
from es_sbert.engines.rest import Json
from es_sbert.engines.shard_changes import ShardChanges
from es_sbert.errors import EngineError, IndexMismatch
from es_sbert.index.load_checks import in_place_command
from es_sbert.ingest.backfill import (
    SCAN_PAGE,
    IndexReader,
    embed_in_place,
    embed_index,
    lacking_text_query,
    reading_failed,
    scan_query,
)
from es_sbert.ingest.load_context import LoadContext
from es_sbert.ingest.load_report import record_watch, record_watch_check
from es_sbert.ingest.read_documents import Document


def watch_index(context: LoadContext, encoder: Encoder, seconds: float) -> None:
    """Embed all documents of an index that have no current vector, then those that change, until the load is stopped.

    Args:
        seconds: Seconds between two checks of the index.

    Raises:
        EsSbertError: a stage failed (never because of a single document).
    """
    reader, stop = IndexReader(context), context.control.stop_reading
    # Create the watcher before the whole index is read, so that no write in between is missed.
    watcher = IndexWatcher(context, reader)
    embed_index(context, encoder, reader)
    caught_up = not stop.is_set()
    if caught_up:
        record_watch(context, seconds)
    idle = True
    tick = context.progress_callback(lambda: None, watching=lambda: idle)
    tick()
    while not stop.wait(seconds):
        if watcher.has_changes():
            idle = False
            embed_in_place(context, encoder, reader, watcher.documents(), tick)
            idle = True
        if not stop.is_set() and watcher.is_check_due():
            _embed_missed(context, encoder, reader, watcher, tick)
        tick()
    _count_lacking(context, watcher, caught_up=caught_up)


def _embed_missed(
    context: LoadContext, encoder: Encoder, reader: IndexReader, watcher: IndexWatcher, tick: Callable[[], None]
) -> None:
    """Embed the documents that the watch has missed, if any."""
    try:
        missed = watcher.missed_documents()
    except EngineError as error:
        context.control.end_early(reading_failed(error))
        return
    record_watch_check(context, len(missed))
    if missed:
        context.outcomes.ledger.add_read(len(missed))
        embed_in_place(context, encoder, reader, missed, tick)


def _count_lacking(context: LoadContext, watcher: IndexWatcher, *, caught_up: bool) -> None:
    """Count the documents that still lack a current vector at the end of a watch, for the report.

    Args:
        caught_up: Whether the whole index was read once.
    """
    if context.control.reason is not None:
        return  # the engine failed
    try:
        unread = watcher.unread_documents()
        missed = watcher.missed_documents()
        unseen = None if unread is None else watcher.unread_documents(look_again=True)
    except EngineError as error:
        context.control.end_early(f"whether documents lack a vector could not be checked: {error.message}")
        return
    # Documents that were left or not read may have the vector of an earlier text: they do not count as missed then.
    keys = context.outcomes.left.union(document.key for document in [*missed, *(unread or ())])
    context.outcomes.lacking = len(keys)
    context.outcomes.unseen = sum(document.key not in keys for document in unseen or ())
    if not caught_up:
        context.control.end_early("interrupted before every document was compared with its vector")
    elif unseen is None:
        context.control.end_early("interrupted before all of the latest changes were compared with their vectors")


class IndexWatcher:
    """Finds the documents that were written to an index since the last check.

    For each shard, the last sequence number seen is remembered. If the history of a shard changes, these numbers mean
    nothing, and the shard is read again.

    Args:
        context: The load.
        reader: Finds the documents that lack a current vector.

    Raises:
        EngineError: the engine failed.
    """

    def __init__(self, context: LoadContext, reader: IndexReader) -> None:
        self._context = context
        self._reader = reader
        self._index = context.index.concrete
        self._name = context.index.alias  # an alias may have a filter
        self._backing = self._backing_indices()
        self._changes = ShardChanges(context.engine, self._index, context.retrying)
        self._latest = self._changes.states()
        self._seen = {shard: _SeenWrites.from_shard(state) for shard, state in self._latest.items()}
        self._checked = time.monotonic()
        self._retries = 0

    def has_changes(self) -> bool:
        """Whether there are writes that were not seen yet. If the engine fails, the watch ends.

        Raises:
            IndexMismatch: the index was deleted or replaced, its alias was moved, or its data stream has rolled over.
        """
        try:
            # Check this first on every poll: a new index of this name may have the same sequence numbers.
            self._check_stream()
            self._context.check_index_unchanged()
            self._latest = self._changes.states()
        except EngineError as error:
            self._end_watch(error)
        return any(self._seen_of(shard) < state.global_checkpoint for shard, state in self._latest.items())

    def documents(self) -> Iterator[Document]:
        """Yield documents of unseen writes that lack a current vector; the writes count as seen afterwards.

        If the engine fails, the watch ends: documents read until then are still embedded.
        """
        try:
            self._latest = self._changes.make_visible()
            for hits in self._unseen_pages():
                if self._context.control.stop_reading.is_set():
                    return
                yield from self._reader.stale_in(hits)
        except EngineError as error:
            self._end_watch(error)

    def is_check_due(self) -> bool:
        """Whether to look for missed documents, because some time has passed or a request was retried."""
        retries = self._context.outcomes.ledger.retries
        due = retries != self._retries or time.monotonic() - self._checked > CHECK_SECONDS
        if due:
            self._retries, self._checked = retries, time.monotonic()
        return due

    def missed_documents(self) -> list[Document]:
        """Find the documents without a vector whose last write was there at the last look, except rejected documents.

        Raises:
            IndexMismatch: the index was deleted or replaced.
            EngineError: the engine failed.
        """
        context = self._context
        context.retrying(context.engine.refresh, self._index)
        query = lacking_text_query(context.targets, context.check_index_unchanged().mappings)
        missed: list[Document] = []
        for page in scan_index(
            context.engine,
            self._name,
            query=query,
            source_includes=self._reader.includes,
            page=SCAN_PAGE,
            retrying=context.retrying,
        ):
            known = self._latest[page.shard].global_checkpoint
            missed += self._stale_in(hit for hit in page.hits if hit["_seq_no"] <= known)
        return missed

    def unread_documents(self, *, look_again: bool = False) -> list[Document] | None:
        """Find the documents without a current vector among the writes that were there when the watch last looked, and
        that it has not read before it was stopped; None if there are too many writes to read.

        Args:
            look_again: Look at the index again, so that later writes are included. Most may be the watch's own.

        Raises:
            EngineError: the engine failed.
        """
        documents: list[Document] = []
        latest = self._changes.make_visible()
        if look_again:
            self._latest = latest
        read = 0
        for hits in self._unseen_pages():
            read += len(hits)
            if read > _LAST_WRITES:
                return None
            documents += self._stale_in(hits)
        return documents

    def _stale_in(self, hits: Iterable[Json]) -> Iterator[Document]:
        """Yield the documents that lack a current vector, except rejected documents."""
        rejected = self._context.outcomes.rejected_versions
        for hit in hits:
            if (hit["_id"], hit["_seq_no"]) not in rejected:
                document = self._reader.stale_document(hit)
                if document is not None:
                    yield document

    def _seen_of(self, shard: int) -> int:
        """Last sequence number of a shard that was seen; -1 if the history of the shard has changed."""
        seen = self._seen.get(shard)
        return -1 if seen is None or seen.history != self._latest[shard].history else seen.seq_no

    def _backing_indices(self) -> set[str]:
        """Names of the backing indices of the index's data stream; none if the index belongs to no data stream."""
        stream = self._context.index.state.data_stream
        return set() if stream is None else set(self._context.retrying(self._context.engine.index_uuids, stream))

    def _check_stream(self) -> None:
        """Fail if the data stream has rolled over, because its new backing index is not watched."""
        added = sorted(self._backing_indices() - self._backing)
        if added:
            raise IndexMismatch(
                f"the data stream {self._context.index.state.data_stream} has rolled over: new documents go to "
                f"{', '.join(added)} and no longer to {self._index}",
                f"Embed the last documents of {self._index}: {in_place_command(self._index)}. Then watch the new "
                f"backing index: `es-sbert ingest --index {added[-1]} --watch`.",
            )

    def _end_watch(self, error: EngineError) -> None:
        self._context.control.end_early(reading_failed(error))

    def _unseen_pages(self) -> Iterator[list[Json]]:
        """Read the unseen writes of all shards; those of a page count as seen when the next one is requested."""
        query, includes, alias = scan_query(self._context.targets), self._reader.includes, self._name
        page = self._changes.page_size(SCAN_PAGE)
        read = partial(self._changes.read, query=query, source_includes=includes, page=page, alias=alias)
        for shard, state in self._latest.items():
            seen, up_to = self._seen_of(shard), state.global_checkpoint
            while seen < up_to:
                hits = read(shard, seen, up_to)
                yield hits
                seen = hits[-1]["_seq_no"] if len(hits) == page else up_to
                self._seen[shard] = _SeenWrites(state.history, seen)


# Seconds between two searches of a watch for documents that it has missed.
CHECK_SECONDS = 300.0
# Writes that are read after a watch was stopped, to count what it leaves: some seconds.
_LAST_WRITES = 10_000


class _SeenWrites(NamedTuple):
    """The writes to a shard that were seen: all up to a sequence number, within one history of the shard."""

    history: str
    seq_no: int

    @classmethod
    def from_shard(cls, state: ShardState) -> _SeenWrites:
        return cls(state.history, state.global_checkpoint)
