"""Detect which documents changed: which need a new vector, which keep the one they have, and which stay as they are."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum, auto
from functools import partial
from typing import Any, NamedTuple

from es_sbert.engines.multi_get import batched, multi_get
from es_sbert.engines.protocol import DocumentKey, Engine, IndexState, Json
from es_sbert.engines.retry import Retrier
from es_sbert.index.document_vectors import (
    EmbeddingTargets,
    VectorFieldValue,
    is_vector_current,
    raw_document_meta,
    read_document_meta,
    stored_text,
    to_bulk_value,
)
from es_sbert.index.mapping import is_in_source, named_vectors_query
from es_sbert.index.text_template import MISSING, find_field
from es_sbert.ingest.documents import Document, DocumentAction, document_windows, index_action
from es_sbert.ingest.ledger import DocumentOutcome, OutcomeRecorder


@dataclass(frozen=True, slots=True)
class EmbeddingTask:
    """A document that gets vectors.

    Attributes:
        document: The document.
        wanted: Targets, by number, that get one; at least one of them.
        kept: Vector fields that it keeps, where it is written as a whole.
    """

    document: Document
    wanted: tuple[int, ...]
    kept: tuple[VectorFieldValue, ...] = ()


@dataclass
class WindowPlan:
    """A window after change detection.

    Attributes:
        embed: Documents that get vectors.
        actions: Actions of documents that get none any more.
    """

    embed: list[EmbeddingTask]
    actions: list[DocumentAction] = field(default_factory=list)


class Decision(Enum):
    """What is to be done with a document."""

    WRITE = auto()  # it is new, or has changed
    CLEAR = auto()  # it has no text any more: it takes the place of the one in the index, without vectors
    UNCHANGED = auto()
    SUPERSEDED = auto()  # the index holds a later version
    EMPTY = auto()  # no text, and the index holds no vector of it


class StoredVector(NamedTuple):
    """What the index holds of a document for one vector field.

    Attributes:
        exists: Whether there is a vector. Its metadata does not prove it: on Elasticsearch 9.2 and later `_source`
            hides vectors, so an application that writes back what it has read drops them and keeps the metadata.
        meta: The metadata of the vector as the index holds it, or its `META_MEMBERS`; None where there is none.
        text_changed: Whether the text that the document has in the index is known to differ from the source's.
    """

    exists: bool = False
    meta: Mapping[str, Any] | None = None
    text_changed: bool = False

    def is_current(self, text: str, fingerprint: str) -> bool:
        """Whether it is the vector that a model gives this text."""
        return self.exists and is_vector_current(self.meta, text, fingerprint)

    @property
    def has_stored_data(self) -> bool:
        """Whether anything is left to remove."""
        return self.exists or self.meta is not None


# What is needed of a vector's metadata.
META_MEMBERS = ("fingerprint", "text_hash", "document_hash", "embedded_at")


@dataclass(frozen=True)
class ChangeDecision:
    """A document compared with what the index holds of it.

    Attributes:
        verdict: What is to be done.
        wanted: Targets, by number, that get a new vector.
        kept: Targets whose vector stands for the text that the document has now.
        dropped: Targets that this load does not fill and whose vector stands for another text.
    """

    decision: Decision
    wanted: tuple[int, ...] = ()
    kept: tuple[int, ...] = ()
    dropped: tuple[int, ...] = ()


def detect_changes(document: Document, stored: Sequence[StoredVector], targets: EmbeddingTargets) -> ChangeDecision:
    """Compare a document of the source with what the index holds of it.

    The source wins: a document whose text was changed in the index is written again, with the vectors that belong to
    the text of the source. Other fields that were changed in the index stay as they are until the source changes.

    Args:
        stored: One a target.
    """
    if _is_unchanged(document, stored, targets):
        return _UNCHANGED
    if any(is_superseded(document, one.meta) for one in stored):
        return ChangeDecision(Decision.SUPERSEDED)
    current = [
        one.is_current(text, target.meta.fingerprint)
        for one, text, target in zip(stored, document.texts, targets, strict=True)
    ]
    numbers = range(len(targets))
    filled = [number for number in numbers if targets[number].filled]
    wanted = tuple(number for number in filled if document.texts[number] and not current[number])
    kept = tuple(number for number in numbers if current[number])
    dropped = tuple(
        number
        for number in numbers
        if not targets[number].filled and stored[number].has_stored_data and not current[number]
    )
    if any(document.texts[number] for number in filled):
        return ChangeDecision(Decision.WRITE, wanted, kept, dropped)
    if any(stored[number].has_stored_data for number in filled):
        return ChangeDecision(Decision.CLEAR, (), kept, dropped)
    return ChangeDecision(Decision.EMPTY)


# Most documents of most loads are unchanged.
_UNCHANGED = ChangeDecision(Decision.UNCHANGED)


def _is_unchanged(document: Document, stored: Sequence[StoredVector], targets: EmbeddingTargets) -> bool:
    """Whether the index holds the document with the vectors of its texts, and no others that the load fills."""
    is_known = False
    for one, text, target in zip(stored, document.texts, targets, strict=True):
        if one.text_changed:
            return False
        if not target.filled:
            continue
        if one.has_stored_data if not text else not one.is_current(text, target.meta.fingerprint):
            return False
        if one.meta is not None:
            if one.meta.get("document_hash") != document.document_hash:
                return False
            is_known = True
    return is_known


def is_superseded(document: Document, meta: Mapping[str, Any] | None) -> bool:
    """Whether the index holds a later version than this one, which is not the source's word of now (a dead letter)."""
    if meta is None or document.written is None:
        return False
    embedded_at = meta.get("embedded_at")
    return isinstance(embedded_at, str) and embedded_at > document.written


# Documents of one lookup. The answer holds their texts and the metadata of their vectors.
_LOOKUP = 2000
_LOOKUP_BYTES = 4 << 20
_HIT_FIELDS = ("_source", "matched_queries")
# Vectors of one lookup: as text they are some kilobytes each.
_VECTOR_LOOKUP = 250


class ChangeDetection:
    """Finds out what of a window the index already has.

    Args:
        index: The index at the beginning of the load.
        name: The name that the load was given; an alias may have a routing.
        targets: The load's vector fields.
        patiently: Asks the engine with the load's patience.
        empty_index: Whether the index held nothing when the load began, so that nothing need be looked up.
        refresh: Whether to refresh the index before each lookup: other processes' writes of a moment ago then count.
        distrusted: Whether vectors of the index may differ from what was sent, so that all are made again.
    """

    def __init__(
        self,
        engine: Engine,
        index: IndexState,
        name: str,
        targets: EmbeddingTargets,
        outcomes: OutcomeRecorder,
        *,
        patiently: Retrier,
        empty_index: bool,
        refresh: bool = False,
        distrusted: bool = False,
    ) -> None:
        self._engine = engine
        self._index = index.name
        self._name = name
        self._targets = targets
        self._filled = tuple(number for number, target in enumerate(targets) if target.filled)
        # Which texts can be compared with those of the index.
        self._comparable = tuple(
            all(is_in_source(field, index.mappings) for field in target.template.fields) for target in targets
        )
        self._result_window = index.result_window
        self._outcomes = outcomes
        self._patiently = patiently
        self._empty_index = empty_index
        self._refresh = refresh
        self._distrusted = distrusted

    def __call__(self, documents: list[Document]) -> WindowPlan:
        """Sort a window; documents to which nothing need be done are entered in the outcomes.

        A document that has lost its text takes the place of the one in the index, without vectors: a search must not
        find it by words that it no longer holds.

        Raises:
            EngineError: the engine cannot be asked, even after retries; nothing was entered then.
        """
        if self._empty_index:
            with_text = [document for document in documents if self._wanted(document)]
            self._outcomes.empty(len(documents) - len(with_text))
            return WindowPlan([EmbeddingTask(document, self._wanted(document)) for document in with_text])
        stored = self._stored(documents)
        sortings = [
            detect_changes(document, stored[number], self._targets) for number, document in enumerate(documents)
        ]
        vectors = self._kept_vectors(documents, sortings)
        result = WindowPlan([])
        for document, sorting in zip(documents, sortings, strict=True):
            if sorting.decision in (Decision.WRITE, Decision.CLEAR):
                self._write(document, sorting, vectors.get(document.id, {}), result)
                self._outcomes.drop(self._targets[number].field for number in sorting.dropped)
        self._enter(documents, sortings)
        return result

    def _wanted(self, document: Document) -> tuple[int, ...]:
        return tuple(number for number in self._filled if document.texts[number])

    def _stored(self, documents: list[Document]) -> list[list[StoredVector]]:
        """What the index holds of each document, one entry a target."""
        if self._refresh:
            self._patiently(partial(self._engine.refresh, self._index))
        # A search, not a lookup by id: it alone tells whether there is a vector without bringing it along.
        query = named_vectors_query((target.field, target.meta) for target in self._targets)
        texts = [field for target in self._targets for field in target.template.fields]
        metas = [f"{target.meta_field}.{member}" for target in self._targets for member in META_MEMBERS]
        includes = list(dict.fromkeys([*texts, *metas]))
        hits: dict[DocumentKey, Json] = {}
        most = max(1, min(_LOOKUP, self._result_window // 2))
        for some in document_windows(documents, most, _LOOKUP_BYTES):
            ask = partial(
                multi_get,
                self._engine,
                self._index,
                [document.id for document in some],
                query=query,
                source={"includes": includes},
                result_window=self._result_window,
                hit_fields=_HIT_FIELDS,
            )
            hits |= self._patiently(ask)
        return [self._stored_vectors(document, hits.get((document.id, document.routing))) for document in documents]

    def _stored_vectors(self, document: Document, hit: Json | None) -> list[StoredVector]:
        if hit is None:
            return [StoredVector()] * len(self._targets)
        source, names = hit.get("_source") or {}, hit.get("matched_queries", [])
        return [
            StoredVector(
                exists=str(number) in names and not self._distrusted,
                meta=raw_document_meta(source, target.meta_field),
                text_changed=self._comparable[number] and stored_text(source, target) != document.texts[number],
            )
            for number, target in enumerate(self._targets)
        ]

    def _write(self, document: Document, sorting: ChangeDecision, source: Json, result: WindowPlan) -> None:
        """Add a document that is to be written, with the vectors that it keeps.

        Args:
            source: The vectors that the index holds, and their metadata, both as they are now.
        """
        wanted, kept = list(sorting.wanted), []
        for number in sorting.kept:
            target = self._targets[number]
            value, meta = find_field(source, target.field), read_document_meta(source, target.meta_field)
            exists = value is not MISSING and value is not None
            stored = StoredVector(exists, raw_document_meta(source, target.meta_field))
            if meta is not None and stored.is_current(document.texts[number], target.meta.fingerprint):
                renewed = meta.model_copy(update={"document_hash": document.document_hash})
                kept.append(VectorFieldValue(target.field, to_bulk_value(self._engine.info, value), renewed))
            elif target.filled:
                wanted.append(number)  # deleted or stripped of its vector since the first look
            else:
                self._outcomes.drop([target.field])  # it is not in _source, so it cannot be written again
        if wanted:
            result.embed.append(EmbeddingTask(document, tuple(wanted), tuple(kept)))
        else:
            outcome = DocumentOutcome.UPDATED if sorting.decision is Decision.WRITE else DocumentOutcome.EMPTY
            embedded_at = max((field.meta.embedded_at for field in kept), default="")
            result.actions.append(
                DocumentAction(document, index_action(document, kept), outcome, 0, embedded_at, tuple(kept))
            )

    def _enter(self, documents: list[Document], sortings: list[ChangeDecision]) -> None:
        counts = Counter(sorting.decision for sorting in sortings)
        pairs = zip(documents, sortings, strict=True)
        self._outcomes.acknowledged([doc.id for doc, sorting in pairs if sorting.decision is Decision.UNCHANGED])
        self._outcomes.unchanged(counts[Decision.UNCHANGED])
        self._outcomes.superseded(counts[Decision.SUPERSEDED])
        self._outcomes.empty(counts[Decision.EMPTY])

    def _kept_vectors(self, documents: list[Document], sortings: list[ChangeDecision]) -> dict[str, Json]:
        """id → vector fields of the documents that keep one, and their metadata."""
        writing = [
            (document.id, sorting.kept)
            for document, sorting in zip(documents, sortings, strict=True)
            if sorting.decision in (Decision.WRITE, Decision.CLEAR) and sorting.kept
        ]
        targets = [self._targets[number] for number in sorted({number for _, kept in writing for number in kept})]
        fields = [name for target in targets for name in (target.field, target.meta_field)]
        found: dict[str, Json] = {}
        for some in batched([key for key, _ in writing], _VECTOR_LOOKUP):
            found |= self._patiently(
                partial(self._engine.mget_sources, self._name, some, source_includes=fields, vectors=True)
            )
        return found
