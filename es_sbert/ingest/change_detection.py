"""Detect which documents changed: which need a new vector, which keep their vector, and which are unchanged."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import Enum, auto
from functools import partial
from typing import NamedTuple

from es_sbert.batched import batched
from es_sbert.engines.engine import DocumentKey
from es_sbert.engines.index_scan import multi_get
from es_sbert.engines.rest import Json
from es_sbert.index.document_vectors import (
    DocumentMeta,
    EmbeddingTargets,
    StoredVector,
    VectorChange,
    VectorFieldValue,
    doc_value_request,
    read_document_meta,
    stored_text,
    stored_value,
    stored_vectors,
    to_bulk_value,
    vector_change,
)
from es_sbert.index.mapping import named_vectors_query
from es_sbert.index.source_mode import is_in_source
from es_sbert.index.vector_field import VectorField
from es_sbert.ingest.bulk_writer import DocumentAction, bulk_lines
from es_sbert.ingest.ledger import DocumentOutcome, hit_version
from es_sbert.ingest.load_plan import LoadContext
from es_sbert.ingest.read_documents import Document, document_windows


# Named tuples: one of each is made per document, and a frozen dataclass takes three times as long to make.
class EmbeddingTask(NamedTuple):
    """A document that gets vectors.

    Attributes:
        document: The document.
        to_embed: Numbers of the targets that get a new vector; at least one.
        reused_fields: Vector fields that the document keeps, if it is written as a whole.
    """

    document: Document
    to_embed: tuple[int, ...]
    reused_fields: tuple[VectorFieldValue, ...] = ()


@dataclass
class WindowPlan:
    """A window after change detection.

    Attributes:
        embed: Documents that get vectors.
        actions: Actions of documents that are written without a new vector.
    """

    embed: list[EmbeddingTask] = field(default_factory=list)
    actions: list[DocumentAction] = field(default_factory=list)

    @property
    def keys(self) -> list[DocumentKey]:
        """The keys of its documents."""
        return [task.document.key for task in self.embed] + [action.document.key for action in self.actions]


class Decision(Enum):
    """The action of a load for a document."""

    WRITE = auto()  # it is new, or has changed
    CLEAR = auto()  # its text is gone: it replaces the document in the index, without vectors
    UNCHANGED = auto()
    SUPERSEDED = auto()  # the index holds a newer version
    EMPTY = auto()  # no text, and no vector in the index


# Members of a vector's metadata that change detection reads.
META_MEMBERS = ("fingerprint", "text_hash", "document_hash", "embedded_at")


class ChangeDecision(NamedTuple):
    """A document compared with what the index holds of it.

    Attributes:
        decision: Action of the load for it.
        to_embed: Numbers of the targets that get a new vector.
        reused: Numbers of the targets whose vector is current.
        discarded: Numbers of the targets that this load does not fill and whose vector is of an outdated text.
    """

    decision: Decision
    to_embed: tuple[int, ...] = ()
    reused: tuple[int, ...] = ()
    discarded: tuple[int, ...] = ()


def detect_changes(document: Document, stored: Sequence[StoredVector], targets: EmbeddingTargets) -> ChangeDecision:
    """Compare a document of the source with what the index holds of it.

    The source wins: a document whose text was changed in the index is written again, with the vectors of the source's
    text. Other fields that were changed in the index are left alone until the source changes.

    Args:
        stored: The stored vector of each target.
    """
    to_embed: list[int] = []
    reused: list[int] = []
    discarded: list[int] = []
    has_text = has_meta = loses_vector = text_changed = superseded = False
    same_document = True
    # One pass without closures: this runs for every document of a load.
    for number, (target, text, earlier) in enumerate(zip(targets, document.texts, stored, strict=True)):
        change = vector_change(target, text, earlier)
        text_changed |= earlier.text_changed
        if change is VectorChange.EMBED:
            to_embed.append(number)
        elif change is VectorChange.KEEP:
            reused.append(number)
        elif change is VectorChange.REMOVE and not target.filled:
            discarded.append(number)
        elif change is VectorChange.REMOVE:
            loses_vector = True
        if earlier.meta is not None:
            superseded = superseded or is_superseded(document, earlier.meta)
        if target.filled:
            has_text = has_text or text != ""
            if earlier.meta is not None:
                has_meta = True
                same_document &= earlier.meta.document_hash == document.document_hash
    if has_meta and same_document and not (text_changed or to_embed or loses_vector):
        return _UNCHANGED
    if superseded:
        return ChangeDecision(Decision.SUPERSEDED)
    if has_text:
        return ChangeDecision(Decision.WRITE, tuple(to_embed), tuple(reused), tuple(discarded))
    if loses_vector:
        return ChangeDecision(Decision.CLEAR, (), tuple(reused), tuple(discarded))
    return _EMPTY


# Created once, because most documents of most loads are unchanged.
_UNCHANGED = ChangeDecision(Decision.UNCHANGED)
_EMPTY = ChangeDecision(Decision.EMPTY)


def is_superseded(document: Document, meta: DocumentMeta | None) -> bool:
    """Whether the index holds a newer version of a dead letter that is retried."""
    if meta is None or document.written is None:
        return False
    return meta.embedded_at is not None and meta.embedded_at > document.written


# Documents per lookup. The response holds their texts and the metadata of their vectors.
_LOOKUP = 2000
_LOOKUP_BYTES = 4 << 20
_HIT_FIELDS = ("_source", "matched_queries", "_seq_no", "_primary_term", "_index")
# Vectors per lookup: as text they are some kilobytes each.
_VECTOR_LOOKUP = 250


class ChangeDetection:
    """Compares the documents of a window with the index.

    Args:
        context: The load.
        empty_index: Whether the index was empty when the load started, so that nothing needs to be looked up.
    """

    def __init__(self, context: LoadContext, *, empty_index: bool) -> None:
        self._context = context
        self._engine = context.engine
        self._index = context.index.concrete
        self._targets = context.targets
        self._outcomes = context.outcomes
        self._empty_index = empty_index
        texts = [field for target in self._targets for field in target.template.fields]
        metas = [f"{target.meta_field}.{member}" for target in self._targets for member in META_MEMBERS]
        self._compared_fields = list(dict.fromkeys([*texts, *metas]))
        # If vectors of the index may differ from what was sent, all documents are embedded again.
        self._untrusted = context.checkpoint is not None and context.checkpoint.is_untrusted()
        # Texts that can be compared with those of the index.
        self._comparable = tuple(
            all(is_in_source(field, context.index.state) for field in target.template.fields)
            for target in self._targets
        )

    def __call__(self, documents: list[Document]) -> WindowPlan:
        """Plan a window; the outcome of documents that need no write is recorded.

        A document that has lost its text replaces the one in the index, without vectors: a search must not find it by
        words that it no longer holds.

        Raises:
            EngineError: the lookup failed, even after retries; no outcome was recorded then.
            EmbeddingStopped: the load was stopped before a lookup.
        """
        plan = WindowPlan()
        hits = {} if self._empty_index else self._look_up(documents)
        decisions = [
            detect_changes(document, self._stored_vectors(document, hits.get(document.key)), self._targets)
            for document in documents
        ]
        writes = [
            (document, decision)
            for document, decision in zip(documents, decisions, strict=True)
            if decision.decision in (Decision.WRITE, Decision.CLEAR)
        ]
        vectors = self._look_up_vectors(writes)
        for document, decision in writes:
            self._add_write(document, decision, vectors.get(document.key, {}), plan)
            for number in decision.discarded:
                self._outcomes.ledger.dropped[self._targets[number].field] += 1
        kinds = [made.decision for made in decisions]
        unchanged = [each.key for each, kind in zip(documents, kinds, strict=True) if kind is Decision.UNCHANGED]
        self._outcomes.record_in_index([(key, hit_version(hits[key])) for key in unchanged])
        for unwritten in (Decision.UNCHANGED, Decision.SUPERSEDED, Decision.EMPTY):
            self._outcomes.add(DocumentOutcome[unwritten.name], kinds.count(unwritten))
        return plan

    def _look_up(self, documents: list[Document]) -> dict[DocumentKey, Json]:
        """Look up the versions of the documents that the index holds."""
        if self._context.plan.settings.retry is not None:
            # Refreshed, because newer versions win over dead letters, even versions written a moment ago.
            self._context.control.check()
            self._context.retrying(self._engine.refresh, self._index)
        # A search, not a lookup by id: only a search shows whether there is a vector without returning it.
        query = named_vectors_query((target.field, target.meta) for target in self._targets)
        source, window = {"includes": self._compared_fields}, self._context.index.state.result_window
        look_up = partial(multi_get, query=query, source=source, result_window=window, hit_fields=_HIT_FIELDS)
        hits: dict[DocumentKey, Json] = {}
        for group in document_windows(documents, max(1, min(_LOOKUP, window // 2)), _LOOKUP_BYTES):
            self._context.control.check()
            ids = [document.id for document in group]
            hits |= self._context.retrying(look_up, self._engine, self._index, ids)
        found_ids = {document_id for document_id, _ in hits}
        for document in documents:
            if document.id in found_ids and document.key not in hits and any(document.texts):
                self._outcomes.ledger.rerouted += 1
        return hits

    def _stored_vectors(self, document: Document, hit: Json | None) -> list[StoredVector]:
        if hit is None:
            return [StoredVector()] * len(self._targets)
        source = hit.get("_source") or {}
        # For each target, whether the text in the index is known to differ from the source's.
        changed = [
            comparable and stored_text(source, target) != text
            for comparable, target, text in zip(self._comparable, self._targets, document.texts, strict=True)
        ]
        return [
            StoredVector(stored.exists and not self._untrusted, stored.meta, text_changed)
            for stored, text_changed in zip(stored_vectors(hit, self._targets), changed, strict=True)
        ]

    def _look_up_vectors(self, writes: Sequence[tuple[Document, ChangeDecision]]) -> dict[DocumentKey, Json]:
        """Look up id and routing → vector fields, with their metadata, of the documents that keep a vector."""
        reused = {document.key: decision.reused for document, decision in writes if decision.reused}
        numbers = sorted({number for numbers in reused.values() for number in numbers})
        targets = tuple(self._targets[number] for number in numbers)
        fields = [name for target in targets for name in (target.field, target.meta_field)]
        single = [VectorField(self._index, each.field, each.meta) for each in targets if each.meta.passages is None]
        doc_values = doc_value_request(self._engine.info.engine_type, single)
        vectors: dict[DocumentKey, Json] = {}
        for keys in batched(list(reused), _VECTOR_LOOKUP):
            self._context.control.check()
            if not doc_values:
                found = self._context.retrying(self._engine.mget, self._index, keys, source_includes=fields)
                hits = {key: hit for key, hit in zip(keys, found, strict=True) if hit is not None}
                vectors |= {key: hit.get("_source") or {} for key, hit in hits.items()}
                continue
            # `_source` lacks some of the vectors, which only a search returns.
            source, window = self._engine.info.source_with_vectors(fields), self._context.index.state.result_window
            find = partial(multi_get, source=source, extra=doc_values, result_window=window)
            hits = self._context.retrying(find, self._engine, self._index, [document_id for document_id, _ in keys])
            for key, hit in hits.items():
                values = {target.field: stored_value(hit, target.field) for target in targets}
                vectors[key] = (hit.get("_source") or {}) | values
        return vectors

    def _add_write(self, document: Document, decision: ChangeDecision, source: Json, plan: WindowPlan) -> None:
        """Plan the write of a document with the vectors that it keeps.

        Args:
            source: The current vectors in the index, with their metadata.
        """
        to_embed, reused = list(decision.to_embed), []
        for number in decision.reused:
            target = self._targets[number]
            meta = read_document_meta(source, target.meta_field)
            change = vector_change(target, document.texts[number], StoredVector.from_fields(source, target))
            if meta is not None and change is VectorChange.KEEP:
                renewed = meta._replace(document_hash=document.document_hash)
                value = to_bulk_value(self._engine.info, source[target.field])
                reused.append(VectorFieldValue(target.field, value, renewed))
            elif target.filled:
                to_embed.append(number)  # the document or its vector was removed since the first lookup
            else:
                self._outcomes.ledger.dropped[target.field] += 1  # not in _source, so it cannot be written again
        if to_embed:
            plan.embed.append(EmbeddingTask(document, tuple(to_embed), tuple(reused)))
            return
        outcome = DocumentOutcome.UPDATED if decision.decision is Decision.WRITE else DocumentOutcome.EMPTY
        plan.actions.append(DocumentAction(document, bulk_lines(document, reused), outcome, tuple(reused)))
