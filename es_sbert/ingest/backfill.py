"""Embedding where the documents stand: those of an index that lack a current vector."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import partial

from es_sbert.engines.hits import Key
from es_sbert.engines.look_up import look_up
from es_sbert.engines.protocol import Json, Slice
from es_sbert.errors import EngineError
from es_sbert.index.layout import has_vector, vectors_by_name
from es_sbert.index.meta import is_current, meta_object
from es_sbert.index.targets import Targets, lacking_fields, text_fields, texts_of
from es_sbert.index.text import NoText
from es_sbert.ingest.actions import Action, update_action
from es_sbert.ingest.context import LoadContext, patiently, replaced
from es_sbert.ingest.documents import Document
from es_sbert.ingest.ledger import Outcome
from es_sbert.ingest.load import Sorted, Task, cleared_fields
from es_sbert.ingest.records import Origin
from es_sbert.ingest.triage import chunks
from es_sbert.streams.json_lines import object_bytes

PAGE = 500


def scan_query(targets: Targets, *, only_lacking: bool = False, only_ids: Sequence[str] | None = None) -> Json:
    """All documents, each hit saying by named queries which of the targets have a vector (their numbers).

    Args:
        only_lacking: Only documents that lack a vector in one of them.
        only_ids: Only documents of these ids.
    """
    query = vectors_by_name((target.field, target.meta) for target in targets)
    if only_ids is not None:
        query["bool"]["must"] = [{"ids": {"values": list(only_ids)}}]
    if only_lacking:
        complete = [has_vector(target.field, target.meta) for target in targets]
        query["bool"]["must_not"] = [{"bool": {"filter": complete}}]
    return query


class Clearing:
    """Sorts a window: what has text is embedded; what lost its text loses its vector.

    A search must not find a document by words that it no longer holds.
    """

    def __init__(self, targets: Targets) -> None:
        self._targets = targets

    def __call__(self, documents: list[Document]) -> Sorted:
        found = Sorted([])
        for document in documents:
            wanted = tuple(number for number in document.stale if document.texts[number])
            if wanted:
                found.embed.append(Task(document, wanted))
            else:
                body = update_action(document, [], cleared_fields(document, self._targets))
                found.actions.append(Action(document, body, Outcome.EMPTY, 0, ""))
        return found


class Conflicts:
    """Documents that were written between our reading and our writing. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._actions: dict[Key, Action] = {}

    def add(self, action: Action) -> None:
        with self._lock:
            self._actions[action.document.id, action.document.routing] = action

    def take(self) -> dict[Key, Action]:
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

    def __init__(self, context: LoadContext, slice: Slice | None = None) -> None:
        self._context = context
        self._engine = context.engine
        self._index = context.plan.settings.index
        self._targets = context.targets
        self._only_lacking = context.plan.settings.only_lacking
        self._only_ids = context.plan.settings.only_ids
        self._slice = slice
        self._text_fields = text_fields(context.targets)
        self._meta_fields = [target.meta_field for target in context.targets]
        self._outcomes = context.outcomes
        self._control = context.control
        self._origin = Origin(f"index {self._index}")

    def documents(self) -> Iterator[Document]:
        """From one point in time. A scan that fails ends early: what was read is still loaded."""
        query = scan_query(self._targets, only_lacking=self._only_lacking, only_ids=self._only_ids)
        pages = self._engine.scan(self._index, query=query, source_includes=self.includes, page=PAGE, slice=self._slice)
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

    def again(self, conflicts: Mapping[Key, Action]) -> Iterator[Document]:
        """The documents of these actions as they are now; they are not counted as read a second time.

        What cannot be read, since the engine is lost or the user stopped the load, is left for the next run.
        """
        left, source = len(conflicts), {"includes": self.includes}
        try:
            if not self._control.halted.is_set():
                patiently(self._context, partial(self._engine.refresh, self._index))
            for keys in chunks(list(conflicts), PAGE):
                if self._control.halted.is_set():
                    break
                look = partial(
                    look_up, self._engine, self._index, [document_id for document_id, _ in keys],
                    query=scan_query(self._targets), source=source,
                )  # fmt: skip
                hits = patiently(self._context, look)
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
                self._control.lose(f"reading the index failed: {error.message}")
        self._outcomes.left(left)

    @property
    def includes(self) -> list[str]:
        """Fields of a hit that are needed."""
        fields = [field for target in self._targets for field in target.template.fields]
        return list(dict.fromkeys([*fields, *self._meta_fields]))

    def _is_ours(self, hit: Json, action: Action) -> bool:
        """Whether the version that stood in the way was written by this very action: its answer got lost."""
        document, metas = action.document, self._metas(hit)
        wanted = [number for number in document.stale if document.texts[number]]

        def wrote(number: int) -> bool:
            meta = metas[number]
            written = meta is not None and meta.get("embedded_at") == action.embedded_at
            return written and self._is_current(number, document.texts[number], hit, meta)

        return bool(wanted) and all(map(wrote, wanted))

    def _metas(self, hit: Json) -> list[Json | None]:
        return [meta_object(hit.get("_source") or {}, field) for field in self._meta_fields]

    def _is_current(self, number: int, text: str, hit: Json, meta: Json | None) -> bool:
        """Whether the hit has the vector that the text would get now."""
        there = str(number) in hit.get("matched_queries", [])
        return there and is_current(meta, text, self._targets[number].meta.fingerprint)

    def changed(self, hits: Iterable[Json]) -> Iterator[Document]:
        """Those of a page that lack a current vector; they alone are counted as read.

        A watcher meets its own writes here, which are as they should be.
        """
        for hit in hits:
            found = self._examined(hit)
            if not isinstance(found, Outcome):
                self._outcomes.read()
                self._count_lacking(hit)
                yield from self._entered(hit, found)

    def _count_lacking(self, hit: Json) -> None:
        self._outcomes.lacking(lacking_fields(hit.get("_source") or {}, self._text_fields))

    def _lacking(self, hit: Json) -> Iterator[Document]:
        yield from self._entered(hit, self._examined(hit))

    def _entered(self, hit: Json, found: Document | NoText | Outcome) -> Iterator[Document]:
        """A document that lacks a vector is handed on; the end of any other is entered."""
        if isinstance(found, Document):
            yield found
        elif isinstance(found, NoText):
            self._outcomes.dead(self._origin, str(found), self._plain(hit), hit["_id"], partial=True)
        else:
            self._outcomes.ledger.enter(found)

    def _examined(self, hit: Json) -> Document | NoText | Outcome:
        """What is to be done: embed the document, put it aside, or nothing.

        Raises:
            IndexMismatch: the hit is another index's, to which the alias has gone over: what is made of it would be
                written to the document of that id in the index that the load began with.
        """
        if hit["_index"] != self._context.index.name:
            raise replaced(self._context)
        try:
            texts = texts_of(hit.get("_source") or {}, self._targets)
        except NoText as error:
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
                self._origin, hit["_id"], texts, self._plain(hit), None, version, stale=stale,
                routing=hit.get("_routing"),
            )  # fmt: skip
        return Outcome.UNCHANGED if any(texts) else Outcome.EMPTY

    def _plain(self, hit: Json) -> bytes:
        """The part of the document that was read."""
        source: Json = hit.get("_source") or {}
        return object_bytes({key: value for key, value in source.items() if key not in self._meta_fields})
