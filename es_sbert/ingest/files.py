"""Loading files: documents compared with what the index holds of them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from functools import partial

from es_sbert.engines.protocol import Engine, Json
from es_sbert.index.filled import FilledField
from es_sbert.index.meta import DocumentMeta, stored_meta
from es_sbert.index.targets import Target, Targets
from es_sbert.index.text import MISSING, find_field
from es_sbert.index.vectors import sent_again
from es_sbert.ingest.actions import Action, index_action
from es_sbert.ingest.documents import Document
from es_sbert.ingest.ledger import Outcome
from es_sbert.ingest.load import Sorted, Task
from es_sbert.ingest.outcomes import Outcomes
from es_sbert.ingest.retry import Patience
from es_sbert.ingest.triage import Sorting, Verdict, chunks, triage

# Ids of one lookup: each answer holds the objects beside the vectors, a quarter of a kilobyte each.
_LOOKUP = 1000
# Vectors of one lookup: as text they are some kilobytes each.
_VECTOR_LOOKUP = 250


class ChangeDetection:
    """Finds out what of a window the index already has.

    Args:
        targets: The load's vector fields.
        patiently: Asks the engine with the load's patience.
        empty_index: Whether the index held nothing when the load began, so that nothing need be looked up.
        distrusted: Whether vectors of the index may be others than were sent, so that all are made anew.
    """

    def __init__(self, engine: Engine, index: str, targets: Targets, outcomes: Outcomes, *, patiently: Patience,
                 empty_index: bool, distrusted: bool = False) -> None:  # fmt: skip
        self._engine = engine
        self._index = index
        self._targets = targets
        self._filled = tuple(number for number, target in enumerate(targets) if target.filled)
        self._outcomes = outcomes
        self._patiently = patiently
        self._empty_index = empty_index
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
        fields = [target.meta_field for target in self._targets]
        stored = self._look_up([document.id for document in documents], fields)
        metas = {key: [self._meta(source, target) for target in self._targets] for key, source in stored.items()}
        none: list[DocumentMeta | None] = [None] * len(fields)
        sortings = [triage(document, metas.get(document.id, none), self._targets) for document in documents]
        vectors = self._kept_vectors(documents, sortings)
        result = Sorted([])
        for document, sorting in zip(documents, sortings, strict=True):
            if sorting.verdict in (Verdict.WRITE, Verdict.CLEAR):
                self._write(document, sorting, metas.get(document.id, none), vectors.get(document.id, {}), result)
                self._outcomes.drop(self._targets[number].field for number in sorting.dropped)
        self._enter(documents, sortings)
        return result

    def _meta(self, source: Json, target: Target) -> DocumentMeta | None:
        meta = stored_meta(source, target.meta_field)
        if meta is not None and self._distrusted:
            return meta.model_copy(update={"fingerprint": ""})  # of no model: the vector is made anew
        return meta

    def _wanted(self, document: Document) -> tuple[int, ...]:
        return tuple(number for number in self._filled if document.texts[number])

    def _write(self, document: Document, sorting: Sorting, metas: Sequence[DocumentMeta | None], source: Json,
               result: Sorted) -> None:  # fmt: skip
        """Add a document that is to be written, with the vectors that it keeps."""
        wanted, kept = list(sorting.wanted), []
        for number in sorting.kept:
            target, meta = self._targets[number], metas[number]
            value = find_field(source, target.field)
            if meta is not None and value is not MISSING and value is not None:
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
        """id → vector fields of the documents that keep one."""
        writing = [
            (document.id, sorting.kept)
            for document, sorting in zip(documents, sortings, strict=True)
            if sorting.verdict in (Verdict.WRITE, Verdict.CLEAR) and sorting.kept
        ]
        fields = sorted({self._targets[number].field for _, kept in writing for number in kept})
        return self._look_up([key for key, _ in writing], fields, vectors=True)

    def _look_up(self, ids: list[str], fields: list[str], *, vectors: bool = False) -> dict[str, Json]:
        found: dict[str, Json] = {}
        for some in chunks(ids, _VECTOR_LOOKUP if vectors else _LOOKUP):
            ask = partial(self._engine.get_documents, self._index, some, source_includes=fields, vectors=vectors)
            found |= self._patiently(ask)
        return found
