"""Embedding what other writers add to an index or change in it, as it happens.

Every write to a shard has a number one above the write before (`_seq_no`). A round reads the documents whose last
write has a number that was not looked at yet, so it finds partial updates too, which leave a stale vector behind, and
its cost is that of the writes, not of the index.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

from es_sbert.engines.protocol import Json
from es_sbert.errors import EngineError, IndexMismatch
from es_sbert.ingest.backfill import PAGE, IndexReader, scan_query
from es_sbert.ingest.context import LoadContext, check_index, patiently
from es_sbert.ingest.documents import Document
from es_sbert.ingest.index_fitness import in_place_commands


class Changes:
    """What was written to an index since it was last looked at.

    Args:
        context: The load.
        reader: Tells which documents lack a current vector.

    Raises:
        EngineError: the engine failed.
    """

    def __init__(self, context: LoadContext, reader: IndexReader) -> None:
        self._context = context
        self._reader = reader
        self._index = context.index.name
        self._name = context.plan.settings.index  # an alias leaves out documents that are not its own
        self._backing = self._backing_indices()
        self._query: Json = scan_query(context.targets)
        self._seen = self._checkpoints()
        self._there = dict(self._seen)

    def are_there(self) -> bool:
        """Whether anything was written that was not looked at. An engine that fails ends the watch.

        Raises:
            IndexMismatch: the index was deleted or made anew, its alias points to another one, or the data stream
                that it belongs to has rolled over.
        """
        try:
            # Looked at first, and every time: the numbers of another index may well be the same.
            self._check_stream()
            check_index(self._context)
            self._there = self._checkpoints()
        except EngineError as error:
            self._lost(error)
        return self._there != self._seen

    def documents(self) -> Iterator[Document]:
        """Documents that lack a current vector; the writes up to the last `are_there` count as seen.

        An engine that fails ends the watch: what was read is still embedded.
        """
        try:
            patiently(self._context, lambda: self._context.engine.refresh(self._index))
            for shard, up_to in self._there.items():
                yield from self._of_shard(shard, up_to)
        except EngineError as error:
            self._lost(error)

    def _backing_indices(self) -> set[str]:
        """Names of the backing indices of the data stream that the index belongs to; none where it belongs to none."""
        stream = self._context.index.data_stream
        return (
            set()
            if stream is None
            else set(patiently(self._context, partial(self._context.engine.index_uuids, stream)))
        )

    def _check_stream(self) -> None:
        """New documents of a data stream go to its newest backing index, which this watch would never see."""
        added = sorted(self._backing_indices() - self._backing)
        if added:
            raise IndexMismatch(
                f"the data stream {self._context.index.data_stream} has rolled over: new documents go to "
                f"{', '.join(added)} and no longer to {self._index}",
                f"Embed the last documents of {self._index}: {in_place_commands([self._index])}. Then watch the new "
                f"backing index: `es-sbert ingest --index {added[-1]} --watch`.",
            )

    def _lost(self, error: EngineError) -> None:
        self._context.control.cut(f"reading the index failed: {error.message}")

    def _checkpoints(self) -> dict[int, int]:
        numbers = patiently(self._context, lambda: self._context.engine.sequence_numbers(self._index))
        return {shard: number.everywhere for shard, number in enumerate(numbers)}

    def _of_shard(self, shard: int, up_to: int) -> Iterator[Document]:
        while self._seen.get(shard, -1) < up_to and not self._context.control.stop.is_set():
            ask = partial(
                self._context.engine.written, self._name, shard, self._seen.get(shard, -1), up_to, query=self._query,
                source_includes=self._reader.includes, page=PAGE,
            )  # fmt: skip
            hits = patiently(self._context, ask)
            yield from self._reader.changed(hits)
            self._seen[shard] = hits[-1]["_seq_no"] if len(hits) == PAGE else up_to
