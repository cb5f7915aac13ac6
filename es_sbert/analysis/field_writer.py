"""Write the results of an analysis into a field of the analyzed documents, with partial updates.

A document is updated only if it is still the analyzed version. If another writer has changed it, it is read again,
and skipped if its text has changed. Every update has exactly one outcome.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from itertools import islice

from es_sbert.analysis.text_collection import (
    DocumentVersion,
    TextCollection,
    TextCollectionBuilder,
    document_version,
    pick_fields,
)
from es_sbert.batched import batched
from es_sbert.engines.bulk_request import BulkItemResult, BulkOutcome
from es_sbert.engines.engine import DocumentKey, Engine, document_key
from es_sbert.engines.index_scan import multi_get, scan_index
from es_sbert.engines.index_state import IndexState
from es_sbert.engines.rest import Json
from es_sbert.engines.retry import RetryPolicy, make_retrier
from es_sbert.errors import IndexMismatch, UsageError
from es_sbert.index.index_meta import update_mapping
from es_sbert.index.mapping import and_query, document_meta_field, read_meta_entry, with_meta_entry
from es_sbert.index.text_template import TextTemplate
from es_sbert.index.vector_field import VectorField, require_index, vector_field_from_state
from es_sbert.index.versioned_updates import VersionedUpdates
from es_sbert.index.whole_documents import WholeDocument, read_inexact, write_lines
from es_sbert.messages import have, pluralize

_WRITTEN = "written_fields"  # a key of `_meta.es_sbert`
# Number of documents to read again in one request.
_PAGE = 500
# Maximum number of updates in memory, because those of all documents of an index may not fit.
_BATCH = 5000
# Maximum number of attempts to update a document that other writers keep changing.
_MAX_ATTEMPTS = 10


@dataclass(frozen=True)
class FieldUpdate:
    """An update of a field in one document.

    Attributes:
        field: Name of the field.
        id: Id of the document.
        text: The analyzed text; a document whose text has changed is skipped.
        version: The version that was analyzed.
        value: The new value; None removes the field.
        whole: The whole document, if a partial update would change other fields of it, or cannot set this one.
    """

    field: str
    id: str
    text: str
    version: DocumentVersion
    value: str | None
    whole: WholeDocument | None = None

    @property
    def hit(self) -> Json:
        """Id, routing and version, as a hit of a search has them."""
        routing, sequence, term = self.version
        return {"_id": self.id, "_routing": routing, "_seq_no": sequence, "_primary_term": term}

    @property
    def key(self) -> DocumentKey:
        return self.id, self.version.routing

    @cached_property
    def body(self) -> bytes:
        """Format the lines of the update in a bulk request."""
        return write_lines(self.hit, {self.field: self.value}, self.whole)


@dataclass
class FieldUpdateCounts:
    """The outcomes of updates.

    Attributes:
        written: Number of documents that got a value.
        removed: Number of documents whose old value was removed.
        deleted: Number of documents that were deleted after the analysis.
        changed: Ids of documents whose text was changed by another writer after the analysis.
        refused: Id and routing → reason why the document was not updated.
    """

    written: int = 0
    removed: int = 0
    deleted: int = 0
    changed: list[str] = field(default_factory=list)
    refused: dict[DocumentKey, str] = field(default_factory=dict)

    def add_written(self, update: FieldUpdate) -> None:
        if update.value is None:
            self.removed += 1
        else:
            self.written += 1

    def add(self, update: FieldUpdate, result: BulkItemResult) -> bool:
        """Count the outcome of an update; False if the update conflicted and therefore has no outcome yet."""
        if result.ok:
            self.add_written(update)
        elif result.outcome is BulkOutcome.MISSING:
            self.deleted += 1
        elif result.outcome is BulkOutcome.REFUSED:
            self.refused[update.key] = f"({result.status}) {result.reason}"
        return result.outcome is not BulkOutcome.CONFLICT


class FieldWriter:
    """Writes a field in documents of an index.

    Args:
        engine: The engine to use.
        index: Index or alias.
        vector_field: Field whose vectors were analyzed.
        name: The field to write, of type keyword.
        policy: Time limits for retrying transient failures.
        on_wait: Called with the reason when a request is retried.

    Raises:
        UsageError: the field belongs to es-sbert or to the text, or its name is not valid.
        IndexMissing: the index does not exist.
        IndexMismatch: the vector field does not exist, the field has another type, or an update would lose fields that
            `_source` lacks.
        EngineError: the engine failed.
    """

    def __init__(
        self,
        engine: Engine,
        index: str,
        vector_field: str,
        name: str,
        *,
        policy: RetryPolicy,
        on_wait: Callable[[str], None] = lambda reason: None,
    ) -> None:
        self._engine = engine
        self._retrying = make_retrier(policy, on_wait)
        self.name = name
        self._state = state = self._retrying(partial(require_index, engine, index))
        self._updates = VersionedUpdates(engine, state, policy, on_wait, source=state)
        self._alias_filter = state.alias(index).get("filter")
        self._vector = vector_field_from_state(engine, state, vector_field)
        is_field_missing(state, name, [self._vector])

    def check_owner(self) -> None:
        """Check that no values of other writers would be overwritten.

        Raises:
            IndexMismatch: documents have the field, but an analysis has not written it.
            EngineError: the engine failed.
        """
        if self.name in written_fields(self._state):
            return
        count = self._retrying(partial(self._engine.count, self._state.name, {"exists": {"field": self.name}}))
        if count:
            raise IndexMismatch(
                f"{pluralize(count, 'document')} of {self._state.name} {have(count)} values in {self.name} "
                "that would be overwritten, although no analysis wrote them according to the mapping",
                "Use a new field, or remove the values from the documents first (docs/commands/duplicates.md).",
            )

    def plan(
        self, texts: TextCollection, values: Mapping[int, str], filter: Json | None = None, *, own_ids: bool = False
    ) -> Iterator[FieldUpdate]:
        """Plan an update of each document of the index that does not have its value yet.

        Args:
            texts: Texts that were read from the index together with the field.
            values: Position in `texts` → value of the field.
            filter: Query for the documents that were analyzed; others are skipped.
            own_ids: Whether all other documents get their own id; otherwise they lose the field, which an earlier
                analysis may have written.

        Raises:
            EngineError: the engine failed.
        """
        for place, value in values.items():
            if texts.values[place].get(self.name) != value:
                yield FieldUpdate(self.name, texts.ids[place], texts.texts[place], texts.versions[place], value)
        keys = texts.keys
        assigned = {keys[place] for place in values}
        reader = TextCollectionBuilder(self._vector)
        query: Json = {"match_all": {}} if own_ids else {"exists": {"field": self.name}}
        pages = scan_index(
            self._engine,
            self._state.name,
            query=and_query(query, filter, self._alias_filter),
            source_includes=[*reader.text_fields, self.name],
            page=min(_PAGE, self._state.result_window),
            retrying=self._retrying,
        )
        for hit in (hit for page in pages for hit in page.hits):
            wanted = hit["_id"] if own_ids else None
            written = pick_fields(hit.get("_source") or {}, [self.name]).get(self.name)
            if document_key(hit) not in assigned and written != wanted:
                yield FieldUpdate(self.name, hit["_id"], reader.text_of(hit), document_version(hit), wanted)

    def write(self, updates: Iterable[FieldUpdate]) -> FieldUpdateCounts:
        """Update documents and return the outcomes of all updates. The last of several updates of a document counts.

        The field is added to the mapping, which records that analyses write it.

        Raises:
            IndexMismatch: the index was deleted or replaced.
            EngineError: the engine has not accepted an update within the policy's budget. Acknowledged updates remain.
        """
        self._add_to_mapping()
        counts, given = FieldUpdateCounts(), iter(updates)
        # Key updates by document: one that was written again while the index was read may come twice.
        while batch := {update.key: update for update in islice(given, _BATCH)}:
            self._write_batch([*batch.values()], counts)
        self._retrying(partial(self._engine.refresh, self._state.name))
        if counts.written:
            # Record the field in the mapping again: another machine may have erased it.
            self._add_to_mapping()
        return counts

    def _add_to_mapping(self) -> None:
        def plan(state: IndexState) -> Json | None:
            return plan_written_field(state, self.name, [self._vector])

        self._state = self._retrying(partial(update_mapping, self._engine, self._state, plan))

    def _write_batch(self, updates: list[FieldUpdate], counts: FieldUpdateCounts) -> None:
        waiting = updates
        for _ in range(_MAX_ATTEMPTS):
            hits = [update.hit for update in waiting]
            inexact = read_inexact(self._engine, self._state, hits, self._retrying)
            waiting = [replace(update, whole=inexact.get(update.key)) for update in waiting]
            problems = {update.key: update.whole.problem for update in waiting if update.whole is not None}
            counts.refused |= {key: problem for key, problem in problems.items() if problem}
            waiting = [update for update in waiting if not problems.get(update.key)]
            conflicts = [update for update, result in self._updates.send(waiting) if not counts.add(update, result)]
            waiting = list(self._retry_conflicts(conflicts, counts))
            if not waiting:
                return
        reason = f"other writers changed it in each of {_MAX_ATTEMPTS} attempts: run the command again"
        counts.refused |= {update.key: reason for update in waiting}

    def _retry_conflicts(self, conflicts: Sequence[FieldUpdate], counts: FieldUpdateCounts) -> Iterator[FieldUpdate]:
        """Prepare conflicting updates for another attempt, with the documents' current versions."""
        if not conflicts:
            return
        self._retrying(partial(self._engine.refresh, self._state.name))
        reader = TextCollectionBuilder(self._vector)
        source = {"includes": [*reader.text_fields, self.name]}
        # A multi-get must have fewer ids than a search may return hits.
        page = max(1, min(_PAGE, self._state.result_window - 1))
        for some in batched(conflicts, page):
            ids, window = [update.id for update in some], self._state.result_window
            find = partial(multi_get, self._engine, self._state.name, ids, source=source, result_window=window)
            found = self._retrying(find)
            for update in some:
                hit = found.get(update.key)
                if hit is None:
                    counts.deleted += 1
                elif not reader.text_fields or reader.text_of(hit) != update.text:
                    # If the mapping does not say which text was embedded, any change may be a change of the text.
                    counts.changed.append(update.id)
                elif pick_fields(hit.get("_source") or {}, [self.name]).get(self.name) == update.value:
                    # Written by a request whose response was lost.
                    counts.add_written(update)
                else:
                    yield replace(update, version=document_version(hit))


def written_fields(state: IndexState) -> list[str]:
    """The fields that analyses write according to the mapping."""
    written = read_meta_entry(state.mappings, _WRITTEN)
    return written if isinstance(written, list) else []


def plan_written_field(state: IndexState, name: str, vectors: Iterable[VectorField]) -> Json | None:
    """Build the mapping update that adds a field for analyses, and records that they write it.

    Returns:
        The body of `PUT /index/_mapping`; None if nothing changes.

    Raises:
        UsageError, IndexMismatch: see `is_field_missing`.
    """
    written, is_missing = written_fields(state), is_field_missing(state, name, vectors)
    if not is_missing and name in written:
        return None
    meta = with_meta_entry(state.mappings.get("_meta", {}), _WRITTEN, sorted({*written, name}))
    added: Json = {"properties": {name: {"type": "keyword"}}} if is_missing else {}
    return added | {"_meta": meta}


def is_field_missing(state: IndexState, name: str, vectors: Iterable[VectorField]) -> bool:
    """Whether the mapping lacks a field that an analysis will write.

    Args:
        state: The index.
        name: The field.
        vectors: Vector fields of the index; neither they nor their texts may be overwritten.

    Raises:
        UsageError: the field belongs to one of these vectors or its text, or its name is not valid.
        IndexMismatch: the type of the field is not keyword.
    """
    reserved: set[str] = set()
    for vector in vectors:
        texts = [] if vector.meta.text is None else TextTemplate.parse(vector.meta.text).fields
        reserved |= {vector.name, document_meta_field(vector.name), *texts}
    if not name or "." in name or name.startswith("_"):
        raise UsageError(
            f"{name!r} is not a valid name for the result",
            "Use a field outside of objects, such as duplicate_group. To remove a field of an earlier version, see "
            "docs/commands/duplicates.md.",
        ).about("name", name)
    if name in reserved:
        raise UsageError(f"{name} is the field of vectors or texts", "Use another field.").about("name", name)
    there = state.mappings.get("properties", {}).get(name)
    if there is not None and there.get("type") != "keyword":
        raise IndexMismatch(
            f"the field {name} of {state.name} has the type {there.get('type', 'object')}, which cannot hold the "
            "result",
            "Use another field, of type keyword. A field that does not exist is added.",
        )
    return there is None
