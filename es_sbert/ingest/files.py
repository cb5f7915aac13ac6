"""Loading files: documents compared with what the index holds of them."""

from __future__ import annotations

from collections import Counter
from functools import partial

from es_sbert.engines.hits import Key
from es_sbert.engines.look_up import look_up
from es_sbert.engines.protocol import Engine, IndexState, Json
from es_sbert.index.filled import FilledField
from es_sbert.index.layout import vectors_by_name
from es_sbert.index.meta import meta_object, stored_meta
from es_sbert.index.schema import is_in_source
from es_sbert.index.targets import Targets, text_in
from es_sbert.index.text import MISSING, find_field
from es_sbert.index.vectors import sent_again
from es_sbert.ingest.actions import Action, index_action
from es_sbert.ingest.documents import Document, windows
from es_sbert.ingest.ledger import Outcome
from es_sbert.ingest.load import Sorted, Task
from es_sbert.ingest.outcomes import Outcomes
from es_sbert.ingest.retry import Patience
from es_sbert.ingest.triage import META_MEMBERS, Sorting, StoredVector, Verdict, chunks, triage

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

    def __init__(self, engine: Engine, index: IndexState, name: str, targets: Targets, outcomes: Outcomes, *,
                 patiently: Patience, empty_index: bool, refresh: bool = False,
                 distrusted: bool = False) -> None:  # fmt: skip
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

    def __call__(self, documents: list[Document]) -> Sorted:
        """Sort a window; documents to which nothing need be done are entered in the outcomes.

        A document that has lost its text takes the place of the one in the index, without vectors: a search must not
        find it by words that it no longer holds.

        Raises:
            EngineError: the engine cannot be asked, even after retries; nothing was entered then.
        """
        if self._empty_index:
            with_text = [document for document in documents if self._wanted(document)]
            self._outcomes.empty(len(documents) - len(with_text))
            return Sorted([Task(document, self._wanted(document)) for document in with_text])
        stored = self._stored(documents)
        sortings = [triage(document, stored[number], self._targets) for number, document in enumerate(documents)]
        vectors = self._kept_vectors(documents, sortings)
        result = Sorted([])
        for document, sorting in zip(documents, sortings, strict=True):
            if sorting.verdict in (Verdict.WRITE, Verdict.CLEAR):
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
        query = vectors_by_name((target.field, target.meta) for target in self._targets)
        texts = [field for target in self._targets for field in target.template.fields]
        metas = [f"{target.meta_field}.{member}" for target in self._targets for member in META_MEMBERS]
        includes = list(dict.fromkeys([*texts, *metas]))
        hits: dict[Key, Json] = {}
        most = max(1, min(_LOOKUP, self._result_window // 2))
        for some in windows(documents, most, _LOOKUP_BYTES):
            ask = partial(
                look_up, self._engine, self._index, [document.id for document in some], query=query,
                source={"includes": includes}, result_window=self._result_window, hit_fields=_HIT_FIELDS,
            )  # fmt: skip
            hits |= self._patiently(ask)
        return [self._stored_vectors(document, hits.get((document.id, document.routing))) for document in documents]

    def _stored_vectors(self, document: Document, hit: Json | None) -> list[StoredVector]:
        if hit is None:
            return [StoredVector()] * len(self._targets)
        source, names = hit.get("_source") or {}, hit.get("matched_queries", [])
        return [
            StoredVector(
                exists=str(number) in names and not self._distrusted,
                meta=meta_object(source, target.meta_field),
                text_changed=self._comparable[number] and text_in(source, target) != document.texts[number],
            )
            for number, target in enumerate(self._targets)
        ]

    def _write(self, document: Document, sorting: Sorting, source: Json, result: Sorted) -> None:
        """Add a document that is to be written, with the vectors that it keeps.

        Args:
            source: The vectors that the index holds, and their metadata, both as they are now.
        """
        wanted, kept = list(sorting.wanted), []
        for number in sorting.kept:
            target = self._targets[number]
            value, meta = find_field(source, target.field), stored_meta(source, target.meta_field)
            exists = value is not MISSING and value is not None
            stored = StoredVector(exists, meta_object(source, target.meta_field))
            if meta is not None and stored.is_current(document.texts[number], target.meta.fingerprint):
                renewed = meta.model_copy(update={"document_hash": document.document_hash})
                kept.append(FilledField(target.field, sent_again(self._engine.info, value), renewed))
            elif target.filled:
                wanted.append(number)  # deleted or stripped of its vector since the first look
            else:
                self._outcomes.drop([target.field])  # it is not in _source, so it cannot be written again
        if wanted:
            result.embed.append(Task(document, tuple(wanted), tuple(kept)))
        else:
            outcome = Outcome.UPDATED if sorting.verdict is Verdict.WRITE else Outcome.EMPTY
            embedded_at = max((field.meta.embedded_at for field in kept), default="")
            result.actions.append(Action(document, index_action(document, kept), outcome, 0, embedded_at, tuple(kept)))

    def _enter(self, documents: list[Document], sortings: list[Sorting]) -> None:
        counts = Counter(sorting.verdict for sorting in sortings)
        pairs = zip(documents, sortings, strict=True)
        self._outcomes.acknowledged([doc.id for doc, sorting in pairs if sorting.verdict is Verdict.UNCHANGED])
        self._outcomes.unchanged(counts[Verdict.UNCHANGED])
        self._outcomes.superseded(counts[Verdict.SUPERSEDED])
        self._outcomes.empty(counts[Verdict.EMPTY])

    def _kept_vectors(self, documents: list[Document], sortings: list[Sorting]) -> dict[str, Json]:
        """id → vector fields of the documents that keep one, and their metadata."""
        writing = [
            (document.id, sorting.kept)
            for document, sorting in zip(documents, sortings, strict=True)
            if sorting.verdict in (Verdict.WRITE, Verdict.CLEAR) and sorting.kept
        ]
        targets = [self._targets[number] for number in sorted({number for _, kept in writing for number in kept})]
        fields = [name for target in targets for name in (target.field, target.meta_field)]
        found: dict[str, Json] = {}
        for some in chunks([key for key, _ in writing], _VECTOR_LOOKUP):
            found |= self._patiently(
                partial(self._engine.get_documents, self._name, some, source_includes=fields, vectors=True)
            )
        return found
