"""Embed documents that are already in an index, once or as a watch.

A watch keeps the vectors current while other writers change the documents. Every write to a shard increments its
`_seq_no`: a watch reads the documents whose last write has a higher number than it has seen. So it also finds partial
updates, which cause stale vectors, and its cost grows with the number of writes, not with the index. Periodically, and
when it ends, it checks that every document it has seen has its vector.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from itertools import chain
from typing import Any

from es_sbert.batched import batched
from es_sbert.encoder.encoder import Encoder
from es_sbert.engines.engine import DocumentKey
from es_sbert.engines.index_scan import IndexSlice, ShardChanges, multi_get, scan_index
from es_sbert.engines.rest import Json
from es_sbert.engines.retry import is_transient
from es_sbert.errors import EngineError, IndexMismatch
from es_sbert.index.document_vectors import (
    EmbeddingTargets,
    VectorChange,
    absent_fields,
    is_outdated,
    stored_vectors,
    target_text_fields,
    target_texts,
    vector_change,
)
from es_sbert.index.load_checks import in_place_command
from es_sbert.index.mapping import has_vector_query, named_vectors_query
from es_sbert.index.text_template import TextFieldError
from es_sbert.index.whole_documents import read_inexact
from es_sbert.ingest.bulk_writer import DocumentAction, bulk_lines
from es_sbert.ingest.change_detection import EmbeddingTask, WindowPlan
from es_sbert.ingest.ledger import DocumentOutcome, hit_version
from es_sbert.ingest.load_pipeline import LoadPipeline
from es_sbert.ingest.load_plan import LoadContext
from es_sbert.ingest.read_documents import Document, cleared_fields
from es_sbert.ingest.sources.document_source import Origin, RejectedRecord
from es_sbert.io.json_text import dump_object
from es_sbert.messages import be, escape_unprintable, log_event, pluralize

SCAN_PAGE = 500
# Maximum number of times that a document which other writers keep changing is read and embedded again.
CONFLICT_ROUNDS = 3


def embed_index(context: LoadContext, encoder: Encoder, reader: IndexReader | None = None) -> None:
    """Embed all documents of an index that have no current vector.

    Args:
        reader: Reads the documents; None creates a reader.

    Raises:
        EsSbertError: a stage failed (never because of a single document).
    """
    reader, ledger = reader or IndexReader(context), context.outcomes.ledger
    # A point in time includes only refreshed documents, and those written a moment ago are to be embedded too.
    context.retrying(context.engine.refresh, context.index.alias)
    total = context.retrying(context.engine.count, context.index.alias)
    tick = context.progress_callback(lambda: min(1.0, ledger.read / total) if total else None)
    embed_in_place(context, encoder, reader, reader.documents(), tick)


def embed_in_place(
    context: LoadContext, encoder: Encoder, reader: IndexReader, documents: Iterable[Document], tick: Callable[[], None]
) -> None:
    """Embed the documents of an index that have no current vector.

    Args:
        documents: The documents, as yielded by `reader`.
        tick: Called several times a second.

    Raises:
        EsSbertError: a stage failed (never because of a single document).
    """
    pipeline = LoadPipeline(context, encoder, partial(_detect_updates, context))
    pipeline.run(documents, tick)
    for _ in range(CONFLICT_ROUNDS):
        conflicts = pipeline.writer.take_conflicts()
        if not conflicts:
            break
        pipeline.run(reader.reread(conflicts), tick)
    for _ in pipeline.writer.take_conflicts():
        # The next check of a watch finds the later version; the end of a load counts it as written by others.
        context.outcomes.add(DocumentOutcome.SUPERSEDED)
    pipeline.writer.read_back.check_sample()


def _detect_updates(context: LoadContext, documents: list[Document]) -> WindowPlan:
    """Plan a window of documents of the index, see `plan_updates`; those that cannot be written are dead letters.

    Raises:
        EngineError: the documents could not be read; no outcome was recorded then.
    """
    hits = [document.hit for document in documents]
    inexact = read_inexact(context.engine, context.index.state, hits, context.retrying)
    window = [document._replace(whole=inexact.get(document.key)) for document in documents] if inexact else documents
    writable = []
    for document in window:
        if document.whole is not None and document.whole.problem:
            context.outcomes.record_dead_letter(document.rejected(document.whole.problem))
        else:
            writable.append(document)
    return plan_updates(writable, context.targets)


def plan_updates(documents: list[Document], targets: EmbeddingTargets) -> WindowPlan:
    """Plan a window of documents of the index: those that lost their text lose their vector.

    A search must not find a document by words that it no longer holds.
    """
    plan = WindowPlan()
    for document in documents:
        to_embed = tuple(number for number in document.stale if document.texts[number])
        if to_embed:
            plan.embed.append(EmbeddingTask(document, to_embed))
        else:
            body = bulk_lines(document, [], cleared_fields(document, targets))
            plan.actions.append(DocumentAction(document, body, DocumentOutcome.EMPTY))
    return plan


def scan_query(targets: EmbeddingTargets, *, only_lacking: bool = False, only_ids: Sequence[str] | None = None) -> Json:
    """Build a query for all documents. Its named queries tell which targets of a hit have a vector, by number.

    Args:
        only_lacking: Match only documents that lack a vector in at least one target.
        only_ids: Match only documents with these ids.
    """
    query = named_vectors_query((target.field, target.meta) for target in targets)
    if only_ids is not None:
        query["bool"]["must"] = [{"ids": {"values": list(only_ids)}}]
    if only_lacking:
        complete = [has_vector_query(target.field, target.meta) for target in targets]
        query["bool"]["must_not"] = [{"bool": {"filter": complete}}]
    return query


# With these types, `exists` finds every document that has a value. Other types may not be indexed, or not if the value
# is long.
_SEARCHABLE_TEXT_TYPES = frozenset({"text", "match_only_text"})


def lacking_text_query(targets: EmbeddingTargets, mappings: Mapping[str, Any]) -> Json:
    """Build a query for documents that lack a vector, without those that certainly have no text.

    Args:
        mappings: The mapping of the index.
    """
    query = scan_query(targets, only_lacking=True)
    fields = target_text_fields(targets)
    if all(_is_searchable_text(mappings.get("properties", {}), field) for field in fields):
        has_text = [{"exists": {"field": field}} for field in fields]
        query["bool"]["filter"] = [{"bool": {"should": has_text, "minimum_should_match": 1}}]
    return query


def _is_searchable_text(properties: Mapping[str, Any], name: str) -> bool:
    first, _, below = name.partition(".")
    field = properties.get(first, {})
    if below:
        return field.get("type") != "nested" and _is_searchable_text(field.get("properties", {}), below)
    return field.get("type") in _SEARCHABLE_TEXT_TYPES and field.get("index", True) is not False


def reading_failed(error: EngineError) -> str:
    """The reason why a load in place ends; with the remedy if the same request would fail again."""
    remedy = f" ({error.remedy.rstrip('.')})" if not is_transient(error) else ""
    return f"reading the index failed: {error.message.rstrip('.')}{remedy}"


class IndexReader:
    """Reads the documents of an index that lack a current vector, or that have a vector but no text any more.

    The outcome of all other documents is recorded.

    Args:
        context: The load. All of its targets are filled. If it names an alias, only documents that are visible through
            the alias are read.
        slice: The part of the index to read; None reads all of it.

    Attributes:
        includes: Fields of `_source` that are read.
    """

    def __init__(self, context: LoadContext, slice: IndexSlice | None = None) -> None:
        self._context = context
        self._engine = context.engine
        self._slice = slice
        self._index = context.index.alias
        self._targets = context.targets
        self._text_fields = target_text_fields(context.targets)
        self._meta_fields = [target.meta_field for target in context.targets]
        self.includes = [*self._text_fields, *self._meta_fields]
        self._outcomes = context.outcomes
        self._control = context.control
        self._origin = Origin(f"index {self._index}")

    def documents(self) -> Iterator[Document]:
        """Yield the documents, as `scan_index` reads them. If reading fails, the documents so far are still loaded."""
        try:
            for page in scan_index(
                self._engine,
                self._index,
                query=self._query(),
                source_includes=self.includes,
                page=SCAN_PAGE,
                slice=self._slice,
                retrying=self._context.retrying,
            ):
                # Most documents of a page that was rewritten were read and written by this load.
                yield from (
                    self.stale_in(page.hits) if page.is_rewritten else chain.from_iterable(map(self._read, page.hits))
                )
                if self._control.stop_reading.is_set():
                    return
        except EngineError as error:
            self._control.end_early(reading_failed(error))

    def _query(self) -> Json:
        settings = self._context.plan.settings
        return scan_query(self._targets, only_lacking=settings.only_lacking, only_ids=settings.only_ids)

    def _look_up(self, keys: Sequence[DocumentKey], query: Json) -> dict[DocumentKey, Json]:
        ids, source = [document_id for document_id, _ in keys], {"includes": self.includes}
        return self._context.retrying(multi_get, self._engine, self._index, ids, query=query, source=source)

    def find_stale(self, keys: Sequence[DocumentKey]) -> set[DocumentKey]:
        """Return the keys of the documents that a load would embed now; no outcome is recorded.

        Raises:
            IndexMismatch: the alias was moved to another index.
            EngineError: the engine failed.
        """
        stale: set[DocumentKey] = set()
        for page_keys in batched(keys, SCAN_PAGE):
            hits = self._look_up(page_keys, self._query())
            stale.update(key for key in page_keys if key in hits and self.stale_document(hits[key]) is not None)
        return stale

    def reread(self, conflicts: Mapping[DocumentKey, DocumentAction]) -> Iterator[Document]:
        """Read the documents of these actions again; they are not counted as read a second time.

        Documents that cannot be read, because the engine is unreachable or the user stopped the load, are left for the
        next run.
        """
        left = dict.fromkeys(conflicts)
        try:
            if not self._control.stop_embedding.is_set():
                self._context.retrying(self._engine.refresh, self._index)
            for keys in batched(list(conflicts), SCAN_PAGE):
                if self._control.stop_embedding.is_set():
                    break
                hits = self._look_up(keys, scan_query(self._targets))
                for key in keys:
                    del left[key]
                    hit = hits.get(key)
                    if hit is None:
                        self._outcomes.add(DocumentOutcome.DELETED)
                    elif self._was_written_by(conflicts[key], hit):
                        # The response to this update was lost, and its conflict was counted as not embedded.
                        self._outcomes.ledger.add(embedded=1)
                        self._outcomes.ledger.add_indexed([(conflicts[key].lost_tokens, conflicts[key].chunks)])
                        self._outcomes.record_in_index([(key, hit_version(hit))], writes=1)
                    else:
                        yield from self._stale(hit)
        except EngineError as error:
            if not self._control.stop_embedding.is_set():
                self._control.stop_sending(reading_failed(error))
        self._outcomes.leave(list(left))

    def _was_written_by(self, action: DocumentAction, hit: Json) -> bool:
        """Whether this action wrote the version it conflicts with: its response was lost, so it was sent again."""
        embedded_at = {field.field: field.meta.embedded_at for field in action.fields}
        stored = stored_vectors(hit, self._targets)
        return bool(embedded_at) and all(
            vector_change(target, text, one) is VectorChange.KEEP
            and one.meta is not None
            and one.meta.embedded_at == embedded_at[target.field]
            for target, text, one in zip(self._targets, action.document.texts, stored, strict=True)
            if target.field in embedded_at
        )

    def stale_document(self, hit: Json) -> Document | None:
        """Return the document of a hit if it lacks a current vector and can be embedded; it is not counted."""
        result = self._examine(hit)
        return result if isinstance(result, Document) else None

    def stale_in(self, hits: Iterable[Json]) -> Iterator[Document]:
        """Yield the documents of a page that lack a current vector; only these are counted as read.

        The page of a watcher also holds the watcher's own writes, which are current.
        """
        for hit in hits:
            if not isinstance(self._examine(hit), DocumentOutcome):
                yield from self._read(hit)

    def _read(self, hit: Json) -> Iterator[Document]:
        """Count the document of a hit as read; see `_stale`."""
        self._outcomes.record_read()
        self._outcomes.ledger.add_missing_fields(absent_fields(hit.get("_source") or {}, self._text_fields))
        return self._stale(hit)

    def _stale(self, hit: Json) -> Iterator[Document]:
        """Yield the document of a hit if it lacks a current vector; record the outcome of any other."""
        result = self._examine(hit)
        if isinstance(result, Document):
            yield result
        elif isinstance(result, TextFieldError):
            fields = self._read_fields(hit)
            key = {"id": hit["_id"], "routing": hit.get("_routing")}
            letter = RejectedRecord(self._origin, str(result), document=fields, partial=True, **key)
            self._outcomes.record_dead_letter(letter)
        else:
            self._outcomes.add(result)

    def _examine(self, hit: Json) -> Document | TextFieldError | DocumentOutcome:
        """Return the document to embed, the reason why it cannot be embedded, or its outcome if there is nothing to do.

        Raises:
            IndexMismatch: the alias was moved, so the hit is of a different index: its vector would be written to the
                document with the same id in the index that the load started with.
        """
        if hit["_index"] != self._context.index.concrete:
            raise self._context.index_replaced_error()
        try:
            texts = target_texts(hit.get("_source") or {}, self._targets)
        except TextFieldError as error:
            return error
        compared = zip(self._targets, texts, stored_vectors(hit, self._targets), strict=True)
        stale = tuple(number for number, each in enumerate(compared) if is_outdated(*each))
        if stale:
            version = (hit["_seq_no"], hit["_primary_term"])
            fields, routing = self._read_fields(hit), hit.get("_routing")
            return Document(self._origin, hit["_id"], texts, fields, None, version, stale=stale, routing=routing)
        return DocumentOutcome.UNCHANGED if any(texts) else DocumentOutcome.EMPTY

    def _read_fields(self, hit: Json) -> bytes:
        """Serialize the part of the document that was read."""
        source: Json = hit.get("_source") or {}
        return dump_object({key: value for key, value in source.items() if key not in self._meta_fields})


def watch_index(context: LoadContext, encoder: Encoder, seconds: float) -> None:
    """Embed all documents of an index that have no current vector, then those that change, until the load is stopped.

    Args:
        seconds: Seconds between two checks of the index.

    Raises:
        EsSbertError: a stage failed (never because of a single document).
    """
    reader, stop, index = IndexReader(context), context.control.stop_reading, context.index.alias
    shown = escape_unprintable(index)
    # Create the watcher before the whole index is read, so that no write in between is missed.
    watcher = IndexWatcher(context, reader)
    embed_index(context, encoder, reader)
    caught_up = not stop.is_set()
    if caught_up:
        message = f"Watching {shown} for changes every {seconds:g} s; Ctrl-C ends the command."
        log_event("watching", message, text=message, index=index, seconds=seconds)
    idle = True
    tick = context.progress_callback(lambda: None, watching=lambda: idle)
    tick()
    while not stop.wait(seconds):
        if watcher.has_changes():
            idle = False
            embed_in_place(context, encoder, reader, watcher.documents(), tick)
            idle = True
        if not stop.is_set() and watcher.is_check_due():
            try:
                missed = watcher.missed_documents()
            except EngineError as error:
                context.control.end_early(reading_failed(error))
                continue
            if missed:
                count, were = len(missed), be(len(missed), past=True)
                message = f"{pluralize(count, 'document')} of {shown} {were} missed and {be(count)} embedded now"
                log_event("watch_missed", message, logging.WARNING, index=index, documents=count)
                context.outcomes.ledger.add(read=len(missed))
                embed_in_place(context, encoder, reader, missed, tick)
        tick()
    _count_lacking(context, watcher, caught_up=caught_up)


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
    except EngineError as error:
        context.control.end_early(f"whether documents lack a vector could not be checked: {error.message}")
        return
    # Documents that were left or not read may have the vector of an earlier text: they do not count as missed then.
    keys = context.outcomes.left.union(document.key for document in [*missed, *(unread or ())])
    context.outcomes.lacking = len(keys)
    if not caught_up:
        context.control.end_early("interrupted before every document was compared with its vector")
    elif unread is None:
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
        # Shard → its history, and the last sequence number of it that was seen.
        self._seen = {shard: (state.history, state.global_checkpoint) for shard, state in self._latest.items()}
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
            self._context.control.end_early(reading_failed(error))
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
            self._context.control.end_early(reading_failed(error))

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

    def unread_documents(self) -> list[Document] | None:
        """Find the documents without a current vector among the writes until now that the watch has not read; None if
        there are too many writes to read. Most may be the watch's own.

        Raises:
            EngineError: the engine failed.
        """
        documents: list[Document] = []
        self._latest = self._changes.make_visible()
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
        history, seq_no = self._seen.get(shard, ("", -1))
        return seq_no if history == self._latest[shard].history else -1

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
                self._seen[shard] = (state.history, seen)


# Seconds between two searches of a watch for documents that it has missed.
CHECK_SECONDS = 300.0
# Writes that are read after a watch was stopped, to count what it leaves: some seconds.
_LAST_WRITES = 10_000
