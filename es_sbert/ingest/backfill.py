"""Embedding where the documents stand: those of an index that lack a current vector."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping

import orjson

from es_sbert.engines.protocol import Engine, Json
from es_sbert.errors import EngineError
from es_sbert.index.meta import document_meta_field, text_hash
from es_sbert.index.text import NoText, TextTemplate
from es_sbert.ingest.actions import Action, clear_action
from es_sbert.ingest.control import Control
from es_sbert.ingest.documents import Document
from es_sbert.ingest.ledger import Outcome
from es_sbert.ingest.load import Sorted
from es_sbert.ingest.outcomes import Outcomes
from es_sbert.ingest.records import Origin
from es_sbert.ingest.triage import chunks, is_current, stored_meta

PAGE = 500
HAS_VECTOR = "has_vector"


def scan_query(vector_field: str) -> Json:
    """All documents, each hit saying by a named query whether it has a vector."""
    has_vector: Json = {"exists": {"field": vector_field, "_name": HAS_VECTOR}}
    return {"bool": {"must": [{"match_all": {}}], "should": [has_vector]}}


class Clearing:
    """Sorts a window: what has text is embedded; what lost its text loses its vector.

    A search must not find a document by words that it no longer holds.
    """

    def __init__(self, vector_field: str) -> None:
        self._vector_field = vector_field

    def __call__(self, documents: list[Document]) -> Sorted:
        found = Sorted([])
        for document in documents:
            if document.text:
                found.embed.append(document)
            else:
                body = clear_action(document, self._vector_field)
                found.actions.append(Action(document, body, Outcome.EMPTY, 0, ""))
        return found


class Conflicts:
    """Documents that were written between our reading and our writing. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._actions: dict[str, Action] = {}

    def add(self, action: Action) -> None:
        with self._lock:
            self._actions[action.document.id] = action

    def take(self) -> dict[str, Action]:
        """All of them, by id; none are left."""
        with self._lock:
            taken, self._actions = self._actions, {}
        return taken


class IndexReader:
    """Documents of an index that lack a current vector; all others are entered in `outcomes`.

    Those that have a vector but no text any more come too, with an empty text.
    """

    def __init__(self, engine: Engine, index: str, vector_field: str, template: TextTemplate, fingerprint: str,
                 outcomes: Outcomes, control: Control) -> None:  # fmt: skip
        self._engine = engine
        self._index = index
        self._vector_field = vector_field
        self._meta_field = document_meta_field(vector_field)
        self._template = template
        self._fingerprint = fingerprint
        self._outcomes = outcomes
        self._control = control
        self._origin = Origin(f"index {index}")

    def documents(self) -> Iterator[Document]:
        """From one point in time. A scan that fails ends early: what was read is still loaded."""
        pages = self._engine.scan(
            self._index, query=scan_query(self._vector_field), source_includes=self._includes, page=PAGE
        )
        try:
            for page in pages:
                for hit in page:
                    self._outcomes.read()
                    yield from self._lacking(hit)
                if self._control.stop.is_set():
                    return
        except EngineError as error:
            self._control.cut(f"reading the index failed: {error.message}")

    def again(self, conflicts: Mapping[str, Action]) -> Iterator[Document]:
        """The documents of these actions as they are now; they are not counted as read a second time.

        Raises:
            EngineError: the engine failed.
        """
        self._engine.refresh(self._index)
        for ids in chunks(list(conflicts), PAGE):
            query = scan_query(self._vector_field)
            query["bool"]["filter"] = [{"ids": {"values": list(ids)}}]
            body: Json = {
                "query": query, "_source": {"includes": self._includes}, "size": len(ids), "seq_no_primary_term": True,
            }  # fmt: skip
            hits = {hit["_id"]: hit for hit in self._engine.search(self._index, body)["hits"]["hits"]}
            for document_id in ids:
                hit = hits.get(document_id)
                if hit is None:
                    self._outcomes.deleted()
                elif self._is_ours(hit, conflicts[document_id]):
                    self._outcomes.indexed(conflicts[document_id].lost_tokens)
                else:
                    yield from self._lacking(hit)

    @property
    def _includes(self) -> list[str]:
        return [*self._template.fields, self._meta_field]

    def _is_ours(self, hit: Json, action: Action) -> bool:
        """Whether the version that stood in the way was written by this very action: its answer got lost."""
        meta = stored_meta(hit.get("_source", {}), self._meta_field)
        return (
            is_current(meta, action.document.text_hash, self._fingerprint)
            and meta is not None
            and meta.embedded_at == action.embedded_at
            and HAS_VECTOR in hit.get("matched_queries", [])
        )

    def _lacking(self, hit: Json) -> Iterator[Document]:
        source: Json = hit.get("_source") or {}
        plain = {key: value for key, value in source.items() if key != self._meta_field}
        raw = orjson.dumps(plain)
        try:
            text = self._template.render(source)
        except NoText as error:
            self._outcomes.dead(self._origin, str(error), raw, hit["_id"], partial=True)
            return
        has_vector = HAS_VECTOR in hit.get("matched_queries", [])
        if not text.strip():
            if not has_vector:
                self._outcomes.empty()
                return
            text = ""
        hashed = text_hash(text)
        if text and has_vector and is_current(stored_meta(source, self._meta_field), hashed, self._fingerprint):
            self._outcomes.unchanged()
            return
        yield Document(self._origin, hit["_id"], text, hashed, raw, None, (hit["_seq_no"], hit["_primary_term"]))
