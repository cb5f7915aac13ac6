"""Adopt the vectors of a known model without embedding the documents again (`es-sbert index adopt`).

A sample of the vectors is compared with the model. If it passes, the mapping gets the field's metadata. Each document
gets the metadata of its vector by a partial update that changes nothing else.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import NamedTuple, cast

import numpy as np

from es_sbert import clock
from es_sbert.batched import batched
from es_sbert.encoder.encoder import Encoder
from es_sbert.engines.engine import DocumentKey, Engine, document_key
from es_sbert.engines.index_scan import scan_index
from es_sbert.engines.index_state import IndexState
from es_sbert.engines.multi_get import multi_get
from es_sbert.engines.rest import Json
from es_sbert.engines.retry import Retrier, RetryingEngine, RetryPolicy, make_retrier
from es_sbert.errors import IndexMismatch
from es_sbert.index.adopt_field import AdoptableField
from es_sbert.index.adopt_report import AdoptionReport, ComparedDocument, MetadataCounts, SampleCheck, TextCounts
from es_sbert.index.derived_fields import derived_fields
from es_sbert.index.document_sample import random_hits
from es_sbert.index.document_vectors import (
    UNKNOWN_FINGERPRINT,
    DocumentMeta,
    read_document_meta,
    read_vector,
    row_cosines,
    text_hash,
)
from es_sbert.index.hidden_documents import require_all_visible
from es_sbert.index.index_meta import update_mapping
from es_sbert.index.mapping import VectorFieldMeta, document_meta_field, vector_fields
from es_sbert.index.text_template import TextFieldError, TextTemplate, fields_hint, find_field, mapping_field_names
from es_sbert.index.vector_field import VectorField, check_field_model
from es_sbert.index.versioned_updates import CONFLICT, VersionedUpdates, is_deleted
from es_sbert.index.whole_documents import read_inexact, write_lines
from es_sbert.messages import pluralize
from es_sbert.vectors import Vectors

# Number of documents to read in one request.
PAGE = 500


def adopt_vectors(
    engine: Engine,
    adoptable: AdoptableField,
    encoder: Encoder,
    *,
    sample: int = 300,
    min_cosine: float = 0.999,
    dry_run: bool = False,
    retry_seconds: float = 300.0,
    report: Callable[[str], None] = lambda message: None,
) -> AdoptionReport:
    """Check a sample of the vectors and adopt the field if it passes.

    Later loads detect changed texts by the metadata. The index should not be written to during the adoption.

    Args:
        sample: Number of documents that are embedded and compared before anything is written.
        min_cosine: Lowest cosine at which a vector counts as the model's.
        dry_run: Whether to check the sample without writing anything.
        retry_seconds: Seconds for which transient failures are retried.
        report: Called with progress messages.

    Returns:
        The results of the check and, if anything was written, of the adoption.

    Raises:
        IndexMismatch: the dimensions or the model differ, or the field has no vector to adopt or no text.
        EngineError: the engine failed. Updates written before that are kept, and the same command resumes.
    """

    def on_wait(reason: str) -> None:
        report(f"waiting for the engine: {reason}")

    info, policy, name = encoder.info, RetryPolicy(retry_seconds), adoptable.state.name
    adoptable.check_model(info.fingerprint, info.model, info.dimensions)
    retrying = make_retrier(policy, on_wait)
    # This engine is for reads only. Each change is retried as a whole and uses the plain engine.
    reads = cast(Engine, RetryingEngine(engine, retrying))
    reads.refresh_if_allowed(name)
    require_all_visible(engine, name, retrying)
    has_vector: Json = {"exists": {"field": adoptable.name}}
    has_metadata: Json = {"exists": {"field": f"{document_meta_field(adoptable.name)}.fingerprint"}}
    without_metadata: Json = {"bool": {"filter": [has_vector], "must_not": [has_metadata]}}
    documents, with_vector = reads.count(name), reads.count(name, has_vector)
    waiting = reads.count(name, without_metadata)
    if not waiting and (adoptable.is_known or not with_vector):
        raise _nothing_to_adopt_error(adoptable, with_vector)
    compared = waiting or with_vector
    report(f"comparing {min(sample, compared):,} of {pluralize(compared, 'vector')} with those of {info.model}")
    # If all documents have metadata, only the field's entry in `_meta` is missing: another program replaced `_meta`.
    check = SampleCheck(min_cosine=min_cosine, max_tokens=encoder.input_limit("document"))
    _compare_sample(reads, adoptable, without_metadata if waiting else has_vector, encoder, sample, check)
    meta = adoptable.meta(info.fingerprint, info.model)
    found = AdoptionReport(name, adoptable.name, meta, documents, with_vector, waiting, check)
    if dry_run or not check.is_accepted:
        return found
    retrying(partial(put_adopted_field, engine, adoptable, meta))
    report(f"writing the metadata of {pluralize(waiting, 'vector')}")
    updates = VersionedUpdates(engine, adoptable.state, policy, on_wait, source=adoptable.state)
    failing = {one.key: one for one in check.failing}
    writer = _MetadataWriter(engine, adoptable, meta, encoder, retrying, updates, failing, report)
    written = writer.write(without_metadata, waiting)
    # Check the entry again: another machine may have erased it in the meantime.
    retrying(partial(put_adopted_field, engine, adoptable, meta))
    return replace(found, written=written)


def put_adopted_field(engine: Engine, adoptable: AdoptableField, meta: VectorFieldMeta) -> None:
    """Record in the mapping that es-sbert fills the field.

    Raises:
        IndexMismatch: another process has adopted the field with another model in the meantime.
        IndexMissing, EngineError: see `update_mapping`.
    """

    def plan(state: IndexState) -> Json | None:
        stored = vector_fields(state.mappings, state.name).get(adoptable.name)
        if stored == meta:
            return None
        if stored is not None:
            check_field_model(VectorField(state.name, adoptable.name, stored), meta.fingerprint, meta.model)
        return adoptable.mapping_change(engine.info, meta, state.mappings.get("_meta", {}))

    update_mapping(engine, adoptable.state, plan)


def _nothing_to_adopt_error(adoptable: AdoptableField, with_vector: int) -> IndexMismatch:
    name = adoptable.state.name
    if with_vector:
        return IndexMismatch(
            f"es-sbert already fills {name}.{adoptable.name}: all {with_vector:,} vectors in it have metadata",
            f"`es-sbert index show {name}` shows the model; `es-sbert ingest --index {name}` embeds what is outdated.",
        )
    # A load refuses a field that another program fills.
    other = "" if adoptable.is_known else " --vector-field OTHER"
    return IndexMismatch(
        f"no document of {name} has a vector in {adoptable.name}",
        f"Embed the documents: `es-sbert ingest --index {name}{other} --text-field FIELD`.",
    )


def _read_texts(hits: Iterable[Json], template: TextTemplate, counts: TextCounts) -> Iterator[tuple[Json, str]]:
    """Yield the hits that have a text, with the text; the others are counted."""
    for hit in hits:
        try:
            text = template.text_of(hit.get("_source") or {})
        except TextFieldError:
            counts.unreadable += 1
            continue
        if text and not text.isspace():
            yield hit, text
        else:
            counts.without_text += 1


def _compare_sample(
    engine: Engine, adoptable: AdoptableField, query: Json, encoder: Encoder, size: int, check: SampleCheck
) -> None:
    """Compare the vectors of a random sample of documents with the model.

    Args:
        query: Query for the documents to choose from; each has a vector.
        check: Gets the results.

    Raises:
        IndexMismatch: none of the sampled documents has a text, or the engine does not return a vector.
        EngineError: the engine failed.
    """
    state, template = adoptable.state, adoptable.template
    source = engine.info.source_with_vectors([adoptable.name, *template.fields])
    hits = random_hits(engine, state.name, query, min(size, state.result_window), 0, source=source)
    documents = list(_read_texts(hits, template, check))
    if not documents:
        names = mapping_field_names(state.mappings.get("properties", {}))
        missing = [field for field in template.fields if field not in names]
        own = [field for field in names if field.partition(".")[0] != adoptable.name]
        raise IndexMismatch(
            f"none of the sampled documents of {state.name} has a text for {template.template!r}: "
            f"{check.without_text:,} have no text, and {check.unreadable:,} have a value that is not a string",
            "Set `text_fields` or `text_template` to what it was when the vectors were made. "
            + fields_hint(missing, own, "The index has", derived_fields(state.mappings)),
        )
    encoded = encoder.encode_details([text for _, text in documents], "document")
    stored = np.stack([_stored_vector(hit, adoptable.name) for hit, _ in documents])
    cosines, truncated = row_cosines(stored, encoded.vectors).tolist(), encoded.truncated.tolist()
    check.documents = list(map(ComparedDocument, [document_key(hit) for hit, _ in documents], cosines, truncated))


def _stored_vector(hit: Json, vector_field: str) -> Vectors:
    value = find_field(hit["_source"], vector_field)
    if isinstance(value, str | list):
        return read_vector(value)
    raise IndexMismatch(
        f"the document {hit['_id']!r} of {hit['_index']} has a vector in {vector_field} that is missing from "
        "`_source`, so it cannot be compared",
        f"Embed the documents into another field: `es-sbert ingest --index {hit['_index']} --vector-field OTHER "
        "--text-field FIELD`.",
    )


class _MetadataUpdate(NamedTuple):
    """The metadata of one document, as lines of a bulk request."""

    key: DocumentKey
    is_adopted: bool
    body: bytes


@dataclass
class _MetadataWriter:
    """Writes metadata for the vectors of a field that lack it.

    A document is updated only if it has not been written since it was read. If the command is stopped, its updates are
    kept, and the next run resumes with the other documents.

    Attributes:
        meta: The field's metadata in the mapping.
        failing: Sampled documents whose vector is not the model's.
        report: Called with the progress.
        counts: The results so far.
        conflicts: Updates that were rejected because the document has a newer version.
    """

    engine: Engine
    adoptable: AdoptableField
    meta: VectorFieldMeta
    encoder: Encoder
    retrying: Retrier
    updates: VersionedUpdates
    failing: dict[DocumentKey, ComparedDocument]
    report: Callable[[str], None]
    counts: MetadataCounts = field(default_factory=MetadataCounts)
    conflicts: list[_MetadataUpdate] = field(default_factory=list)

    def write(self, query: Json, total: int) -> MetadataCounts:
        """Write metadata to the documents that have a vector but no metadata.

        Args:
            query: Query for these documents.
            total: Their number.

        Raises:
            IndexMismatch: the index was deleted or replaced.
            EngineError: the engine failed. Updates written before that are kept.
        """
        if self.failing:
            # They come first: if this run is interrupted, the sample of the next one may miss them.
            ids = {"ids": {"values": [document_id for document_id, _ in self.failing]}}
            self._write_matching({"bool": {"filter": [query, ids]}}, total)
        self._write_matching(query, total)
        self._count_conflicts()
        # A failing document whose first update was rejected is read twice.
        self.counts.failing = sorted(set(self.counts.failing), key=lambda one: one.cosine)
        return self.counts

    def _write_matching(self, query: Json, total: int) -> None:
        state, read = self.adoptable.state, 0
        for _, hits, _ in scan_index(
            self.engine,
            state.name,
            query=query,
            source_includes=self.adoptable.template.fields,
            page=min(PAGE, state.result_window),
            retrying=self.retrying,
        ):
            for update, result in self.updates.send(list(self._plan_updates(hits))):
                if result.ok:
                    self.counts.adopted += update.is_adopted
                elif result.status == CONFLICT:
                    self.conflicts.append(update)
                elif is_deleted(result):
                    self.counts.deleted += 1
                else:
                    self.counts.refused[update.key[0]] = f"({result.status}) {result.reason}"
            read += len(hits)
            if read < total and 10 * read // total > 10 * (read - len(hits)) // total:
                self.report(f"{read:,} of {total:,}")
        self.retrying(partial(self.engine.refresh, state.name))

    def _plan_updates(self, hits: Sequence[Json]) -> Iterator[_MetadataUpdate]:
        documents = list(_read_texts(hits, self.adoptable.template, self.counts))
        if not documents:
            return
        inexact = read_inexact(self.engine, self.adoptable.state, [hit for hit, _ in documents], self.retrying)
        tokenized = self.encoder.tokenize([text for _, text in documents], "document")
        at = clock.current_timestamp()
        for (hit, text), tokens, truncated in zip(
            documents, tokenized.tokens.tolist(), tokenized.truncated.tolist(), strict=True
        ):
            key = document_key(hit)
            whole, failed = inexact.get(key), self.failing.get(key)
            if whole is not None and whole.problem:
                self.counts.refused[key[0]] = whole.problem
                continue
            if failed is not None:
                self.counts.failing.append(failed)
            fingerprint = self.meta.fingerprint if failed is None else UNKNOWN_FINGERPRINT
            meta = DocumentMeta(fingerprint, text_hash(text), None, tokens, truncated, at)
            change = {document_meta_field(self.adoptable.name): meta.as_json()}
            yield _MetadataUpdate(key, failed is None, write_lines(hit, change, whole))

    def _count_conflicts(self) -> None:
        """Another writer wrote the newer version, or this one did and the response was lost."""
        state, meta_field = self.adoptable.state, document_meta_field(self.adoptable.name)
        for some in batched(self.conflicts, max(1, min(PAGE, state.result_window - 1))):
            ids, source = [update.key[0] for update in some], {"includes": [meta_field]}
            find = partial(multi_get, self.engine, state.name, ids, source=source, result_window=state.result_window)
            found = self.retrying(find)
            for key, is_adopted, _ in some:
                meta = read_document_meta(found[key].get("_source") or {}, meta_field) if key in found else None
                if key not in found:
                    self.counts.deleted += 1
                elif meta is not None and meta.fingerprint is not None:
                    self.counts.adopted += is_adopted
                else:
                    self.counts.changed.append(key[0])
