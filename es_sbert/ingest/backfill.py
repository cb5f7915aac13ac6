"""Embed documents that are already in an index, once or continuously (`--watch`).

Every write to a shard increments its `_seq_no`. A watch reads the documents whose last write has a higher number than
it has seen: it also finds partial updates, which leave stale vectors behind, and costs as much as the writes, not as
the index.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial

from es_sbert.encoder.encoder import Encoder
from es_sbert.engines.multi_get import batched, multi_get
from es_sbert.engines.protocol import DocumentKey, Json, PointInTimeSlice
from es_sbert.errors import EngineError, IndexMismatch
from es_sbert.index.document_vectors import (
    EmbeddingTargets,
    absent_fields,
    is_vector_current,
    raw_document_meta,
    target_text_fields,
    target_texts,
)
from es_sbert.index.load_checks import in_place_commands
from es_sbert.index.mapping import has_vector_query, named_vectors_query
from es_sbert.index.text_template import TextFieldError
from es_sbert.ingest.change_detection import EmbeddingTask, WindowPlan
from es_sbert.ingest.documents import (
    Document,
    DocumentAction,
    cleared_fields,
    document_windows,
    update_action,
)
from es_sbert.ingest.ledger import DocumentOutcome
from es_sbert.ingest.load_context import (
    LoadContext,
    check_index_unchanged,
    index_replaced_error,
    retrying,
)
from es_sbert.ingest.load_pipeline import WINDOW_BYTES, batch_window, build_pipeline
from es_sbert.ingest.read_back import ReadBackCheck
from es_sbert.ingest.records import Origin
from es_sbert.io.json_lines import dump_object

# How often documents that other writers keep changing are read and embedded anew.
CONFLICT_ROUNDS = 3


def embed_in_place(
    context: LoadContext,
    encoder: Encoder,
    reader: IndexReader,
    documents: Callable[[], Iterable[Document]],
    tick: Callable[[], None],
) -> None:
    """Give documents of the index their vectors.

    Args:
        documents: Gives those that lack one, as `reader` finds them.
        tick: Called several times a second.

    Raises:
        EsSbertError: a stage failed (never because of a single document).
    """
    window = batch_window(context, encoder)
    conflicts = ConflictQueue()
    read_back = ReadBackCheck(context)
    loader = build_pipeline(context, encoder, InPlaceChangeDetection(context.targets), conflicts.add, read_back)
    loader.run(document_windows(documents(), window, WINDOW_BYTES), tick)
    for _ in range(CONFLICT_ROUNDS):
        changed = conflicts.take()
        if not changed:
            break
        loader.run(document_windows(reader.again(changed), window, WINDOW_BYTES), tick)
    for action in conflicts.take().values():
        reason = "other writers kept changing it while it was being embedded: run again"
        document = action.document
        context.outcomes.dead(document.origin, reason, document.source, document.id, partial=True)
    read_back.check_sample()


SCAN_PAGE = 500


def scan_query(targets: EmbeddingTargets, *, only_lacking: bool = False, only_ids: Sequence[str] | None = None) -> Json:
    """All documents, each hit saying by named queries which of the targets have a vector (their numbers).

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


class InPlaceChangeDetection:
    """Sorts a window: what has text is embedded; what lost its text loses its vector.

    A search must not find a document by words that it no longer holds.
    """

    def __init__(self, targets: EmbeddingTargets) -> None:
        self._targets = targets

    def __call__(self, documents: list[Document]) -> WindowPlan:
        found = WindowPlan([])
        for document in documents:
            wanted = tuple(number for number in document.stale if document.texts[number])
            if wanted:
                found.embed.append(EmbeddingTask(document, wanted))
            else:
                body = update_action(document, [], cleared_fields(document, self._targets))
                found.actions.append(DocumentAction(document, body, DocumentOutcome.EMPTY, 0, ""))
        return found


class ConflictQueue:
    """Documents that were written between our reading and our writing. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._actions: dict[DocumentKey, DocumentAction] = {}

    def add(self, action: DocumentAction) -> None:
        with self._lock:
            self._actions[action.document.id, action.document.routing] = action

    def take(self) -> dict[DocumentKey, DocumentAction]:
        """All of them, by id and routing; none are left."""
        with self._lock:
            taken, self._actions = self._actions, {}
        return taken


class IndexReader:
    """Documents of an index that lack a current vector; the ends of all others are entered.

    Those that have a vector but no text any more come too.

    Args:
        context: The load; it fills all of its targets. Where it names an alias, the documents are those that a search
            by the alias sees.
        slice: The part of the index to read; None reads all of it.
    """

    def __init__(self, context: LoadContext, slice: PointInTimeSlice | None = None) -> None:
        self._context = context
        self._engine = context.engine
        self._index = context.plan.settings.index
        self._targets = context.targets
        self._only_lacking = context.plan.settings.only_lacking
        self._only_ids = context.plan.settings.only_ids
        self._slice = slice
        self._text_fields = target_text_fields(context.targets)
        self._meta_fields = [target.meta_field for target in context.targets]
        self._outcomes = context.outcomes
        self._control = context.control
        self._origin = Origin(f"index {self._index}")

    def documents(self) -> Iterator[Document]:
        """From one point in time. A scan that fails ends early: what was read is still loaded."""
        query = scan_query(self._targets, only_lacking=self._only_lacking, only_ids=self._only_ids)
        pages = self._engine.scan(
            self._index, query=query, source_includes=self.includes, page=SCAN_PAGE, slice=self._slice
        )
        try:
            for page in pages:
                for hit in page:
                    self._outcomes.read()
                    self._count_lacking(hit)
                    yield from self._lacking(hit)
                if self._control.stop.is_set():
                    return
        except EngineError as error:
            self._control.cut(f"reading the index failed: {error.message}")

    def again(self, conflicts: Mapping[DocumentKey, DocumentAction]) -> Iterator[Document]:
        """The documents of these actions as they are now; they are not counted as read a second time.

        What cannot be read, since the engine is lost or the user stopped the load, is left for the next run.
        """
        left, source = len(conflicts), {"includes": self.includes}
        try:
            if not self._control.halted.is_set():
                retrying(self._context, partial(self._engine.refresh, self._index))
            for keys in batched(list(conflicts), SCAN_PAGE):
                if self._control.halted.is_set():
                    break
                look = partial(
                    multi_get,
                    self._engine,
                    self._index,
                    [document_id for document_id, _ in keys],
                    query=scan_query(self._targets),
                    source=source,
                )
                hits = retrying(self._context, look)
                left -= len(keys)
                for key in keys:
                    hit = hits.get(key)
                    if hit is None:
                        self._outcomes.deleted()
                    elif self._is_ours(hit, conflicts[key]):
                        # Written by a request whose answer was lost; the conflict has counted it as not embedded.
                        self._outcomes.ledger.add_embedded(1)
                        self._outcomes.indexed(conflicts[key].lost_tokens, conflicts[key].passages)
                    else:
                        yield from self._lacking(hit)
        except EngineError as error:
            if not self._control.halted.is_set():
                self._control.mark_unreachable(f"reading the index failed: {error.message}")
        self._outcomes.left(left)

    @property
    def includes(self) -> list[str]:
        """Fields of a hit that are needed."""
        fields = [field for target in self._targets for field in target.template.fields]
        return list(dict.fromkeys([*fields, *self._meta_fields]))

    def _is_ours(self, hit: Json, action: DocumentAction) -> bool:
        """Whether the version that stood in the way was written by this very action: its answer got lost."""
        document, metas = action.document, self._metas(hit)
        wanted = [number for number in document.stale if document.texts[number]]

        def wrote(number: int) -> bool:
            meta = metas[number]
            written = meta is not None and meta.get("embedded_at") == action.embedded_at
            return written and self._is_current(number, document.texts[number], hit, meta)

        return bool(wanted) and all(map(wrote, wanted))

    def _metas(self, hit: Json) -> list[Json | None]:
        return [raw_document_meta(hit.get("_source") or {}, field) for field in self._meta_fields]

    def _is_current(self, number: int, text: str, hit: Json, meta: Json | None) -> bool:
        """Whether the hit has the vector that the text would get now."""
        there = str(number) in hit.get("matched_queries", [])
        return there and is_vector_current(meta, text, self._targets[number].meta.fingerprint)

    def changed(self, hits: Iterable[Json]) -> Iterator[Document]:
        """Those of a page that lack a current vector; they alone are counted as read.

        A watcher meets its own writes here, which are as they should be.
        """
        for hit in hits:
            found = self._examined(hit)
            if not isinstance(found, DocumentOutcome):
                self._outcomes.read()
                self._count_lacking(hit)
                yield from self._entered(hit, found)

    def _count_lacking(self, hit: Json) -> None:
        self._outcomes.lacking(absent_fields(hit.get("_source") or {}, self._text_fields))

    def _lacking(self, hit: Json) -> Iterator[Document]:
        yield from self._entered(hit, self._examined(hit))

    def _entered(self, hit: Json, found: Document | TextFieldError | DocumentOutcome) -> Iterator[Document]:
        """A document that lacks a vector is handed on; the end of any other is entered."""
        if isinstance(found, Document):
            yield found
        elif isinstance(found, TextFieldError):
            self._outcomes.dead(self._origin, str(found), self._plain(hit), hit["_id"], partial=True)
        else:
            self._outcomes.ledger.enter(found)

    def _examined(self, hit: Json) -> Document | TextFieldError | DocumentOutcome:
        """What is to be done: embed the document, put it aside, or nothing.

        Raises:
            IndexMismatch: the hit is another index's, to which the alias has gone over: what is made of it would be
                written to the document of that id in the index that the load began with.
        """
        if hit["_index"] != self._context.index.name:
            raise index_replaced_error(self._context)
        try:
            texts = target_texts(hit.get("_source") or {}, self._targets)
        except TextFieldError as error:
            return error
        metas, has = self._metas(hit), hit.get("matched_queries", [])
        stale = tuple(
            number
            for number, text in enumerate(texts)
            if (str(number) in has if not text else not self._is_current(number, text, hit, metas[number]))
        )
        if stale:
            version = (hit["_seq_no"], hit["_primary_term"])
            return Document(
                self._origin,
                hit["_id"],
                texts,
                self._plain(hit),
                None,
                version,
                stale=stale,
                routing=hit.get("_routing"),
            )
        return DocumentOutcome.UNCHANGED if any(texts) else DocumentOutcome.EMPTY

    def _plain(self, hit: Json) -> bytes:
        """The part of the document that was read."""
        source: Json = hit.get("_source") or {}
        return dump_object({key: value for key, value in source.items() if key not in self._meta_fields})


class IndexWatcher:
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

    def has_changes(self) -> bool:
        """Whether anything was written that was not looked at. An engine that fails ends the watch.

        Raises:
            IndexMismatch: the index was deleted or made anew, its alias points to another one, or the data stream
                that it belongs to has rolled over.
        """
        try:
            # Looked at first, and every time: the numbers of another index may well be the same.
            self._check_stream()
            check_index_unchanged(self._context)
            self._there = self._checkpoints()
        except EngineError as error:
            self._lost(error)
        return self._there != self._seen

    def documents(self) -> Iterator[Document]:
        """Documents that lack a current vector; the writes up to the last `has_changes` count as seen.

        An engine that fails ends the watch: what was read is still embedded.
        """
        try:
            retrying(self._context, lambda: self._context.engine.refresh(self._index))
            for shard, up_to in self._there.items():
                yield from self._of_shard(shard, up_to)
        except EngineError as error:
            self._lost(error)

    def _backing_indices(self) -> set[str]:
        """Names of the backing indices of the data stream that the index belongs to; none where it belongs to none."""
        stream = self._context.index.data_stream
        return (
            set() if stream is None else set(retrying(self._context, partial(self._context.engine.index_uuids, stream)))
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
        numbers = retrying(self._context, lambda: self._context.engine.sequence_numbers(self._index))
        return {shard: number.global_checkpoint for shard, number in enumerate(numbers)}

    def _of_shard(self, shard: int, up_to: int) -> Iterator[Document]:
        while self._seen.get(shard, -1) < up_to and not self._context.control.stop.is_set():
            ask = partial(
                self._context.engine.read_changes,
                self._name,
                shard,
                self._seen.get(shard, -1),
                up_to,
                query=self._query,
                source_includes=self._reader.includes,
                page=SCAN_PAGE,
            )
            hits = retrying(self._context, ask)
            yield from self._reader.changed(hits)
            self._seen[shard] = hits[-1]["_seq_no"] if len(hits) == SCAN_PAGE else up_to
