"""Loading files: records to documents, compared with what the index holds."""

from __future__ import annotations

import threading
from functools import partial

from es_sbert.engines.protocol import Engine, Json
from es_sbert.index.meta import DocumentMeta, document_meta_field
from es_sbert.index.text import MISSING, find_field
from es_sbert.index.vectors import bulk_value, read_vector
from es_sbert.ingest.actions import Action, index_action, plain_action
from es_sbert.ingest.documents import Document
from es_sbert.ingest.ledger import Outcome
from es_sbert.ingest.load import Sorted
from es_sbert.ingest.outcomes import Outcomes
from es_sbert.ingest.retry import RetryPolicy, with_retries
from es_sbert.ingest.triage import Triage, chunks, is_superseded, stored_meta, triage

# Ids of one lookup: each answer holds the object beside the vector, a quarter of a kilobyte.
_LOOKUP = 1000
# Vectors of one lookup: as text they are some kilobytes each.
_VECTOR_LOOKUP = 250


class ChangeDetection:
    """Finds out what of a window the index already has.

    Args:
        fingerprint: The model's.
        empty_index: Whether the index held nothing when the load began, so that nothing need be looked up.
    """

    def __init__(self, engine: Engine, index: str, vector_field: str, fingerprint: str, outcomes: Outcomes, *,
                 policy: RetryPolicy, aborted: threading.Event, empty_index: bool) -> None:  # fmt: skip
        self._engine = engine
        self._index = index
        self._vector_field = vector_field
        self._meta_field = document_meta_field(vector_field)
        self._fingerprint = fingerprint
        self._outcomes = outcomes
        self._policy = policy
        self._aborted = aborted
        self._empty_index = empty_index

    def __call__(self, documents: list[Document]) -> Sorted:
        """Sort a window; unchanged documents are entered as such, and so are those that have no text.

        A document that has lost its text takes the place of the one in the index, without a vector: a search must not
        find it by words that it no longer holds.

        Raises:
            EngineError: the engine cannot be asked, even after retries; nothing was entered then.
        """
        with_text = [document for document in documents if document.text.strip()]
        if self._empty_index:
            self._outcomes.empty(len(documents) - len(with_text))
            return Sorted(with_text)
        stored = {
            key: stored_meta(source, self._meta_field)
            for key, source in self._look_up([document.id for document in documents], self._meta_field).items()
        }
        found = triage(with_text, stored, self._fingerprint)
        cleared = [
            Action(document, plain_action(document), Outcome.EMPTY, 0, "")
            for document in documents
            if not document.text.strip()
            and stored.get(document.id) is not None
            and not is_superseded(document, stored[document.id])
        ]
        if not found.rewrite:
            self._enter(found, len(documents) - len(with_text) - len(cleared))
            return Sorted(found.embed, cleared)
        ids = [document.id for document, _ in found.rewrite]
        sources = self._look_up(ids, self._vector_field, vectors=True)
        result = Sorted(found.embed, list(cleared))
        for document, meta in found.rewrite:
            value = find_field(sources.get(document.id, {}), self._vector_field)
            if value is MISSING or value is None:
                # Deleted or stripped of its vector since the first look.
                result.embed.append(document)
            else:
                result.actions.append(self._rewrite(document, meta, value))
        self._enter(found, len(documents) - len(with_text) - len(cleared))
        return result

    def _enter(self, found: Triage, empty: int) -> None:
        self._outcomes.acknowledged(found.unchanged)
        self._outcomes.unchanged(len(found.unchanged))
        self._outcomes.superseded(found.superseded)
        self._outcomes.empty(empty)

    def _rewrite(self, document: Document, meta: DocumentMeta, value: str | list[float]) -> Action:
        """The document with new fields and the vector it has."""
        renewed = meta.model_copy(update={"document_hash": document.document_hash})
        vector = read_vector(value)  # (dimensions,)
        body = index_action(document, self._vector_field, bulk_value(self._engine.info, vector), renewed)
        return Action(document, body, Outcome.UPDATED, 0, meta.embedded_at)

    def _look_up(self, ids: list[str], field: str, *, vectors: bool = False) -> dict[str, Json]:
        found: dict[str, Json] = {}
        for some in chunks(ids, _VECTOR_LOOKUP if vectors else _LOOKUP):
            ask = partial(self._engine.get_documents, self._index, some, source_includes=[field], vectors=vectors)
            found |= with_retries(ask, self._policy, self._aborted, self._count_retry)
        return found

    def _count_retry(self) -> None:
        self._outcomes.ledger.add_retries(1)
