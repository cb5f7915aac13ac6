"""Embed documents that are already in an index, once or continuously (`--watch`).

Every write to a shard increments its `_seq_no`. A watch reads the documents whose last write has a higher number than
it has seen: it also finds partial updates, which cause stale vectors, and costs as much as the writes, not as
the index.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial

from es_sbert.encoder.encoder import Encoder
from es_sbert.engines.engine import DocumentKey, Json, PointInTimeSlice
from es_sbert.engines.multi_get import batched, multi_get
from es_sbert.errors import EngineError, IndexMismatch
from es_sbert.index.document_vectors import EmbeddingTargets, absent_fields, target_text_fields, target_texts
from es_sbert.index.load_checks import in_place_commands
from es_sbert.index.mapping import has_vector_query, named_vectors_query
from es_sbert.index.text_template import TextFieldError
from es_sbert.index.vector_changes import VectorChange, is_outdated, stored_vectors, vector_change
from es_sbert.ingest.bulk_actions import DocumentAction, bulk_lines
from es_sbert.ingest.change_detection import EmbeddingTask, WindowPlan
from es_sbert.ingest.ledger import DocumentOutcome
from es_sbert.ingest.load_context import LoadContext
from es_sbert.ingest.load_pipeline import LoadPipeline
from es_sbert.ingest.read_documents import Document, cleared_fields
from es_sbert.ingest.records import Origin, RejectedRecord
from es_sbert.io.text_formats import dump_object

SCAN_PAGE = 500
# How often documents that other writers keep changing are read and embedded again.
CONFLICT_ROUNDS = 3


def embed_in_place(
    context: LoadContext, encoder: Encoder, reader: IndexReader, documents: Iterable[Document], tick: Callable[[], None]
) -> None:
    """Embed the documents of an index that have no current vector.

    Args:
        documents: Those documents, as `reader` yields them.
        tick: Called several times a second.

    Raises:
        EsSbertError: a stage failed (never because of a single document).
    """
    pipeline = LoadPipeline(context, encoder, partial(plan_updates, targets=context.targets))
    pipeline.run(documents, tick)
    for _ in range(CONFLICT_ROUNDS):
        conflicts = pipeline.writer.take_conflicts()
        if not conflicts:
            break
        pipeline.run(reader.reread(conflicts), tick)
    for action in pipeline.writer.take_conflicts().values():
        reason = "other writers kept changing it while it was being embedded: run again"
        context.outcomes.record_dead_letter(action.document.rejected(reason))
    pipeline.writer.read_back.check_sample()


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
    """All documents; the named queries of a hit tell which of the targets have a vector (their numbers).

    Args:
        only_lacking: Only documents that lack a vector in one of them.
        only_ids: Only documents of these ids.
    """
    query = named_vectors_query((target.field, target.meta) for target in targets)
    if only_ids is not None:
        query["bool"]["must"] = [{"ids": {"values": list(only_ids)}}]
    if only_lacking:
        complete = [has_vector_query(target.field, target.meta) for target in targets]
        query["bool"]["must_not"] = [{"bool": {"filter": complete}}]
    return query


class IndexReader:
    """Reads the documents of an index that lack a current vector, or that have a vector but no text any more.

    The outcome of all other documents is recorded.

    Args:
        context: The load; it fills all of its targets. If it names an alias, only documents are read that a search
            by the alias sees.
        slice: The part of the index to read; None reads all of it.

    Attributes:
        includes: Fields of `_source` that are read.
    """

    def __init__(self, context: LoadContext, slice: PointInTimeSlice | None = None) -> None:
        self._context = context
        self._engine = context.engine
        self._index = context.plan.settings.index
        self._targets = context.targets
        self._slice = slice
        self._text_fields = target_text_fields(context.targets)
        self._meta_fields = [target.meta_field for target in context.targets]
        self.includes = [*self._text_fields, *self._meta_fields]
        self._outcomes = context.outcomes
        self._control = context.control
        self._origin = Origin(f"index {self._index}")

    def documents(self) -> Iterator[Document]:
        """The documents, from one point in time. If the scan fails, what was read until then is still loaded."""
        for hit in self._hits():
            yield from self._read(hit)

    def count_stale(self) -> tuple[int, int]:
        """Documents that lack a current vector, and those whose text cannot be read; no outcome is recorded."""
        counts = Counter(type(self._examine(hit)) for hit in self._hits())
        return counts[Document], counts[TextFieldError]

    def _hits(self) -> Iterator[Json]:
        settings = self._context.plan.settings
        query = scan_query(self._targets, only_lacking=settings.only_lacking, only_ids=settings.only_ids)
        scan = partial(self._engine.scan, source_includes=self.includes, page=SCAN_PAGE, slice=self._slice)
        try:
            for page in scan(self._index, query=query):
                yield from page
                if self._control.stop.is_set():
                    return
        except EngineError as error:
            self._control.truncate(f"reading the index failed: {error.message}")

    def reread(self, conflicts: Mapping[DocumentKey, DocumentAction]) -> Iterator[Document]:
        """The documents of these actions as they are now; they are not counted as read a second time.

        Documents that cannot be read, because the engine is unreachable or the user stopped the load, are left for the
        next run.
        """
        left, source = len(conflicts), {"includes": self.includes}
        try:
            if not self._control.halted.is_set():
                self._context.retrying(self._engine.refresh, self._index)
            for keys in batched(list(conflicts), SCAN_PAGE):
                if self._control.halted.is_set():
                    break
                ids, query = [document_id for document_id, _ in keys], scan_query(self._targets)
                hits = self._context.retrying(multi_get, self._engine, self._index, ids, query=query, source=source)
                left -= len(keys)
                for key in keys:
                    hit = hits.get(key)
                    if hit is None:
                        self._outcomes.add(DocumentOutcome.DELETED)
                    elif self._was_written_by(conflicts[key], hit):
                        # A request whose answer was lost; the conflict has counted it as not embedded.
                        self._outcomes.ledger.add_embedded(1)
                        self._outcomes.ledger.add_indexed(conflicts[key].lost_tokens, conflicts[key].passages)
                    else:
                        yield from self._stale(hit)
        except EngineError as error:
            if not self._control.halted.is_set():
                self._control.mark_unreachable(f"reading the index failed: {error.message}")
        self._outcomes.add(DocumentOutcome.LEFT, left)

    def _was_written_by(self, action: DocumentAction, hit: Json) -> bool:
        """Whether this action wrote the version that it conflicts with: its answer was lost, and it was sent again."""
        embedded_at = {field.field: field.meta.embedded_at for field in action.fields}
        stored = stored_vectors(hit, self._targets)
        return bool(embedded_at) and all(
            vector_change(target, text, one) is VectorChange.KEEP
            and (one.meta or {}).get("embedded_at") == embedded_at[target.field]
            for target, text, one in zip(self._targets, action.document.texts, stored, strict=True)
            if target.field in embedded_at
        )

    def stale_in(self, hits: Iterable[Json]) -> Iterator[Document]:
        """The documents of a page that lack a current vector; only these are counted as read.

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
        """The document of a hit if it lacks a current vector; the outcome of any other is recorded."""
        result = self._examine(hit)
        if isinstance(result, Document):
            yield result
        elif isinstance(result, TextFieldError):
            fields = self._read_fields(hit)
            letter = RejectedRecord(self._origin, str(result), document=fields, id=hit["_id"], partial=True)
            self._outcomes.record_dead_letter(letter)
        else:
            self._outcomes.add(result)

    def _examine(self, hit: Json) -> Document | TextFieldError | DocumentOutcome:
        """The document to embed, the reason why it cannot be, or the outcome of one that needs nothing.

        Raises:
            IndexMismatch: the hit is of another index, because the alias was moved: its vector would be written to the
                document of that id in the index that the load started with.
        """
        if hit["_index"] != self._context.index.name:
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
        """The part of the document that was read."""
        source: Json = hit.get("_source") or {}
        return dump_object({key: value for key, value in source.items() if key not in self._meta_fields})


class IndexWatcher:
    """Finds the documents that were written to an index since the last check.

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
        self._name = context.plan.settings.index  # an alias may have a filter
        self._backing = self._backing_indices()
        self._seen = self._checkpoints()
        self._latest = dict(self._seen)

    def has_changes(self) -> bool:
        """Whether there are writes that were not seen yet. If the engine fails, the watch ends.

        Raises:
            IndexMismatch: the index was deleted or replaced, its alias was moved, or its data stream has rolled over.
        """
        try:
            # First, and every time: another index may have the same sequence numbers.
            self._check_stream()
            self._context.check_index_unchanged()
            self._latest = self._checkpoints()
        except EngineError as error:
            self._end_watch(error)
        return self._latest != self._seen

    def documents(self) -> Iterator[Document]:
        """Documents that lack a current vector; writes up to the last `has_changes` count as seen.

        If the engine fails, the watch ends: documents read until then are still embedded.
        """
        try:
            self._context.retrying(self._context.engine.refresh, self._index)
            for shard, up_to in self._latest.items():
                yield from self._shard_documents(shard, up_to)
        except EngineError as error:
            self._end_watch(error)

    def _backing_indices(self) -> set[str]:
        """Names of the backing indices of the index's data stream; none if it belongs to none."""
        stream = self._context.index.data_stream
        return set() if stream is None else set(self._context.retrying(self._context.engine.index_uuids, stream))

    def _check_stream(self) -> None:
        """New documents of a data stream go to its newest backing index, which is not watched."""
        added = sorted(self._backing_indices() - self._backing)
        if added:
            raise IndexMismatch(
                f"the data stream {self._context.index.data_stream} has rolled over: new documents go to "
                f"{', '.join(added)} and no longer to {self._index}",
                f"Embed the last documents of {self._index}: {in_place_commands([self._index])}. Then watch the new "
                f"backing index: `es-sbert ingest --index {added[-1]} --watch`.",
            )

    def _end_watch(self, error: EngineError) -> None:
        self._context.control.truncate(f"reading the index failed: {error.message}")

    def _checkpoints(self) -> dict[int, int]:
        numbers = self._context.retrying(self._context.engine.sequence_numbers, self._index)
        return {shard: number.global_checkpoint for shard, number in enumerate(numbers)}

    def _shard_documents(self, shard: int, up_to: int) -> Iterator[Document]:
        context = self._context
        query, includes = scan_query(context.targets), self._reader.includes
        read = partial(context.engine.read_changes, query=query, source_includes=includes, page=SCAN_PAGE)
        while self._seen.get(shard, -1) < up_to and not context.control.stop.is_set():
            hits = context.retrying(read, self._name, shard, self._seen.get(shard, -1), up_to)
            yield from self._reader.stale_in(hits)
            self._seen[shard] = hits[-1]["_seq_no"] if len(hits) == SCAN_PAGE else up_to
