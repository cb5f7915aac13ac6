"""Read written documents back and compare them with what was sent.

An ingest pipeline sees every document that is indexed as a whole and may change its text or its vector, and the engine
acknowledges the write all the same. The vector then no longer matches the text, and every later load finds a document
that differs from its source. A load therefore fails as soon as a document differs from what was sent.
"""

from __future__ import annotations

import math
import random
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import numpy as np
import orjson

from es_sbert.engines.index_state import IndexState
from es_sbert.engines.multi_get import multi_get
from es_sbert.engines.rest import Json
from es_sbert.errors import DocumentsAltered, EngineError, IndexMismatch, IndexMissing, VectorIndexError
from es_sbert.index.document_vectors import (
    DocumentMeta,
    EmbeddingTarget,
    EmbeddingTargets,
    read_document_meta,
    read_stored_vectors,
    row_cosines,
    stored_text,
    target_text_fields,
    targets_to_fill,
    vector_members,
)
from es_sbert.index.load_checks import check_texts_come_back
from es_sbert.index.mapping import vector_path
from es_sbert.index.source_mode import (
    check_source_is_whole,
    inexact_text_fields,
    is_in_source,
    unmapped_text_fields,
)
from es_sbert.index.text_template import MISSING, find_field
from es_sbert.index.whole_documents import write_lines
from es_sbert.ingest.bulk_actions import DocumentAction
from es_sbert.ingest.load_context import LoadContext
from es_sbert.ingest.load_threads import StageAborted
from es_sbert.messages import log_event, pluralize
from es_sbert.vectors import Vectors

# Documents read back after the first bulk request, and at the end of a load.
FIRST_REQUEST_DOCUMENTS = 8
SAMPLE_DOCUMENTS = 32
# Larger documents are read back only if there are no others: a response with a thousand chunks takes megabytes.
_MOST_BYTES = 64 << 10
# Quantized storage and normalization by the engine change a vector far less than that.
_LEAST_COSINE = 0.999

PIPELINE_SETTINGS = ("index.default_pipeline", "index.final_pipeline")


# An action that the engine has acknowledged, with `_seq_no` and `_primary_term` of the write.
WrittenAction = tuple[DocumentAction, tuple[int, int]]


@dataclass(frozen=True)
class SentDocument:
    """A document as it was sent.

    Attributes:
        id, routing: Id and routing of the document.
        version: `_seq_no` and `_primary_term` of the write.
        texts: One text per target.
        fields: Vector field → its vectors and their metadata.
        absent: Vector fields that the document must not have.
    """

    id: str
    routing: str | None
    version: tuple[int, int]
    texts: tuple[str, ...]
    fields: Mapping[str, tuple[tuple[Vectors, ...], DocumentMeta]]
    absent: tuple[str, ...]

    @classmethod
    def from_action(cls, action: DocumentAction, version: tuple[int, int], targets: EmbeddingTargets) -> SentDocument:
        document = action.document
        # Copies: a vector of a window is a view that would keep the vectors of the whole window in memory.
        fields = {
            field.field: (tuple(vector.copy() for _, _, vector in read_stored_vectors(field.value, 0)), field.meta)
            for field in action.fields
        }
        # A partial update keeps the vectors that it does not name.
        whole = document.version is None
        absent = tuple(target.field for target in targets if whole and target.field not in fields)
        return cls(document.id, document.routing, version, document.texts, fields, absent)


class ReadBackCheck:
    """Compares documents of a load with what the engine stores of them. Thread-safe.

    Args:
        context: The load.
    """

    def __init__(self, context: LoadContext) -> None:
        self._context = context
        self._state = context.index.state
        # Texts from the index itself are those that it returns.
        names = [name for target in context.targets for name in target.template.fields] if context.plan.sources else []
        self._unmapped = unmapped_text_fields(names, self._state)
        self._gate = threading.Lock()
        self._first_checked = False
        self._failed = False
        self._lock = threading.Lock()
        self._sample: list[SentDocument] = []
        self._seen = 0
        self._next_sampled = 0
        self._threshold = 1.0
        self._chance = random.Random()

    @contextmanager
    def exclusive_first_request(self) -> Iterator[None]:
        """Hold back the second request until documents of the first one were read back.

        Raises:
            StageAborted: documents of the first request differ; another thread has raised the error.
        """
        if self._first_checked:
            yield
            return
        with self._gate:
            if self._failed:
                raise StageAborted
            yield

    def check_first_request(self, taken: Sequence[WrittenAction]) -> None:
        """Read back a few documents of the first bulk request in which the engine accepted any.

        If one differs, the vectors of all documents of the request are removed: these count as not embedded.

        Args:
            taken: Actions that the engine acknowledged; those of later requests are candidates for the sample.

        Raises:
            VectorIndexError: the engine has mapped a text field in a way that changes its values.
            DocumentsAltered: a document differs from what was sent.
        """
        self._add_to_sample(taken)
        if taken and self._unmapped:
            self._check_dynamic_mapping()
        if self._first_checked or not taken:
            return
        fit = [pair for pair in taken if len(pair[0].body) <= _MOST_BYTES]
        fit = fit or [min(taken, key=lambda pair: len(pair[0].body))]
        chosen = fit[:: max(1, len(fit) // FIRST_REQUEST_DOCUMENTS)][:FIRST_REQUEST_DOCUMENTS]
        try:
            self._check([SentDocument.from_action(*pair, self._context.targets) for pair in chosen])
        except DocumentsAltered:
            self._failed = True
            self._remove_vectors(taken)
            raise
        except EngineError:
            return  # the next request is checked instead, and fails too if the engine still does
        self._first_checked = True

    def _check_dynamic_mapping(self) -> None:
        """Look at the mapping again until it has all text fields: it may make a date of one that it lacked.

        Raises:
            VectorIndexError: the index returns a text that the load embeds in another form.
        """
        context, unmapped = self._context, self._unmapped
        try:
            state = context.engine.get_index(context.index.concrete)
        except EngineError:
            return  # looked at again after the next request
        if state is None or state.uuid != context.index.state.uuid:
            return  # the next request says what happened to the index
        embedded = target_text_fields(context.targets)
        try:
            mapped_now = [name for name in unmapped if name in embedded]
            check_texts_come_back(state, context.index.alias, mapped_now, by_load=True)
        except VectorIndexError:
            self._failed = True
            raise
        self._state, self._unmapped = state, unmapped_text_fields(unmapped, state)

    def check_sample(self) -> None:
        """Read back documents from all over the load, unless its engine is lost.

        Raises:
            DocumentsAltered: a document differs from what was sent.
        """
        if self._context.control.engine_lost:
            return
        try:
            self._context.retrying(self._check, self._sample)
        except EngineError as error:
            self._context.control.end_early(f"written documents could not be read back: {error.message}")

    def _add_to_sample(self, taken: Sequence[WrittenAction]) -> None:
        """Add documents to the sample, by reservoir sampling: each document of the load has the same chance."""
        fit = [pair for pair in taken if len(pair[0].body) <= _MOST_BYTES]
        with self._lock:
            first, self._seen = self._seen, self._seen + len(fit)
            while self._next_sampled < self._seen:
                sent = SentDocument.from_action(*fit[self._next_sampled - first], self._context.targets)
                if len(self._sample) < SAMPLE_DOCUMENTS:
                    self._sample.append(sent)
                else:
                    self._sample[self._chance.randrange(SAMPLE_DOCUMENTS)] = sent
                self._next_sampled += 1 + self._draw_skipped()

    def _draw_skipped(self) -> int:
        """Draw the number of documents to skip before the next one of the sample.

        Algorithm L (Li 1994): the number of random draws grows only with the logarithm of the number of documents.
        """
        if len(self._sample) < SAMPLE_DOCUMENTS:
            return 0
        # The largest key of the sample, if each document had a random key and the sample were those of the smallest.
        self._threshold *= (1.0 - self._chance.random()) ** (1 / SAMPLE_DOCUMENTS)
        return int(math.log(1.0 - self._chance.random()) / math.log1p(-self._threshold))

    def _check(self, sent: Sequence[SentDocument]) -> None:
        try:
            self._compare(sent)
        except IndexMissing:
            # The index was deleted after the documents were acknowledged.
            raise self._context.index_replaced_error() from None

    def _compare(self, sent: Sequence[SentDocument]) -> None:
        context = self._context
        name = context.index.concrete
        names = [
            name for target in context.targets for name in (*target.template.fields, target.field, target.meta_field)
        ]
        keys = [(document.id, document.routing) for document in sent]
        stored = context.engine.mget(name, keys, source_includes=list(dict.fromkeys(names)))
        missing = [document for document, found in zip(sent, stored, strict=True) if found is None]
        for document, found in (*zip(sent, stored, strict=True), *self._find_misrouted(missing)):
            # A document that is missing or was written again is skipped: another writer changed it after this write.
            if found is None or (found["_seq_no"], found["_primary_term"]) != document.version:
                continue
            differences = _differences(document, found, context.targets, self._state)
            if differences:
                raise self._altered_error(document, differences)

    def _find_misrouted(self, missing: Sequence[SentDocument]) -> list[tuple[SentDocument, Json]]:
        """Search for documents that a lookup by id and routing does not find, because another shard holds them."""
        if not missing:
            return []
        context = self._context
        name = context.index.concrete
        context.engine.refresh(name)
        ids = [document.id for document in missing]
        hits = multi_get(context.engine, name, ids, source=context.engine.info.source_with_vectors())
        return [(document, hit) for document in missing for hit in hits.values() if hit["_id"] == document.id]

    def _altered_error(self, document: SentDocument, differences: Sequence[str]) -> DocumentsAltered:
        context = self._context
        name = context.index.concrete
        index = context.engine.get_index(name)
        change = (
            f"{name} stores documents that differ from what was sent: in the document {document.id!r}, "
            f"{'; '.join(differences)}"
        )
        again = "run the same command again: it embeds again what it wrote"
        if not context.plan.sources and self._first_checked:
            # Other documents of the index may be altered too; there is no record of them.
            again = "embed the documents into a different `vector_field`"
        values = {} if index is None else {setting: index.setting(setting) for setting in PIPELINE_SETTINGS}
        pipelines = {name: value for name, value in values.items() if value not in (None, "_none")}
        if pipelines:
            named = " and ".join(f"{setting} is {pipeline!r}" for setting, pipeline in pipelines.items())
            unset = orjson.dumps(dict.fromkeys(pipelines, "_none")).decode()
            return DocumentsAltered(
                f"{change}. {named}: an ingest pipeline sees every document that is written",
                "Remove the processor that does this from the pipeline, or switch the pipeline off "
                f"(`PUT {name}/_settings` with {unset}), and {again}.",
            )
        return DocumentsAltered(
            f"{change}. The index has no ingest pipeline: a plugin of the engine, or a proxy in front of it, did this",
            f"Look at `GET _cat/plugins` and `GET {name}/_settings`. Once the cause is removed, {again}.",
        )

    def _remove_vectors(self, taken: Sequence[WrittenAction]) -> None:
        """Remove vectors that may differ from what was sent, by partial updates, which pipelines do not see."""
        lines = []
        for action, version in taken:
            if action.fields:
                hit = action.document._replace(version=version).hit
                change = vector_members((), [field.field for field in action.fields])
                lines.append(write_lines(hit, change, action.document.whole))
        filled = [target.field for target in targets_to_fill(self._context.targets)]
        try:
            if lines:
                # A load from files may write documents of which `_source` lacks other fields.
                check_source_is_whole(self._context.index.state, filled if len(filled) == 1 else ())
                self._context.engine.bulk(self._context.index.concrete, b"".join(lines))
        except (EngineError, IndexMismatch) as error:
            log_event("vectors_left", f"the vectors of {len(lines)} documents remain: {error.message}")


def _differences(sent: SentDocument, found: Json, targets: EmbeddingTargets, state: IndexState) -> list[str]:
    """Compare a stored document with the sent one, and return the differences."""
    source: Json = found.get("_source") or {}
    differences = []
    if found.get("_routing") != sent.routing:
        differences.append(f"the routing is {found.get('_routing')!r} and not {sent.routing!r}")
    for target, text in zip(targets, sent.texts, strict=True):
        names = target.template.fields
        # Documents of a source may have a vector field of an earlier load in place, whose text comes back differently.
        is_exact = target.filled or not inexact_text_fields(names, state)
        if is_exact and all(is_in_source(name, state) for name in names) and stored_text(source, target) != text:
            differences.append(f"the text {target.template.template!r} is different")
        if is_in_source(vector_path(target.field, target.meta), state):
            differences += _vector_differences(sent, source, target)
        expected = sent.fields.get(target.field)
        meta_is_kept = is_in_source(target.meta_field, state)
        if expected is not None and meta_is_kept and read_document_meta(source, target.meta_field) != expected[1]:
            differences.append(f"{target.meta_field} differs")
    return differences


def _vector_differences(sent: SentDocument, source: Json, target: EmbeddingTarget) -> list[str]:
    field, sent_value = target.field, sent.fields.get(target.field)
    value = find_field(source, field)
    has_vector = value is not MISSING and value is not None
    if sent_value is None:
        return [f"{field} has a vector that was not sent"] if has_vector and field in sent.absent else []
    if not has_vector:
        return [f"the vector in {field} is missing"]
    try:
        stored = [vector for _, _, vector in read_stored_vectors(value, 0, target.meta.element_type)]
        if len(stored) != len(sent_value[0]):
            return [f"{field} has {pluralize(len(stored), 'passage')} and not {len(sent_value[0])}"]
        cosine = float(row_cosines(np.stack(stored), np.stack(sent_value[0])).min())
    except (ValueError, TypeError, KeyError):
        return [f"{field} does not have a vector of the form that was sent"]
    return [] if cosine >= _LEAST_COSINE else [f"the vector in {field} has the cosine {cosine:.3f} with the one sent"]
