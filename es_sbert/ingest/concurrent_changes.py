"""Report what other writers, or a failing engine, did to the index during a load."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from es_sbert.engines.protocol import IndexState, Json
from es_sbert.index.document_vectors import (
    EmbeddingTargets,
    raw_document_meta,
    read_document_meta,
    target_texts,
    targets_to_fill,
)
from es_sbert.index.mapping import merge_field_meta, vector_fields
from es_sbert.index.text_template import TextFieldError
from es_sbert.index.vector_meta import is_vector_current
from es_sbert.ingest.backfill import SCAN_PAGE, IndexReader, scan_query
from es_sbert.ingest.ledger import DocumentOutcome, Ledger, OutcomeRecorder
from es_sbert.ingest.load_context import LoadContext, retrying
from es_sbert.ingest.records import Origin
from es_sbert.messages import log_event

PrimaryTerms = Mapping[int, int] | None


@dataclass(frozen=True)
class ConcurrentChanges:
    """What other processes, or a failure of the engine, have done to the index during a load.

    Attributes:
        notes: What must be said about it.
        missing: Documents that the engine has acknowledged and that the index does not hold as they were written.
    """

    notes: tuple[str, ...] = ()
    missing: int = 0


def read_primary_terms(context: LoadContext) -> PrimaryTerms:
    """Shard → primary term, for `report_concurrent_changes`; None where this user may not ask.

    Raises:
        EngineError: the engine failed.
    """
    return retrying(context, partial(context.engine.primary_terms, context.index.name))


def report_concurrent_changes(
    context: LoadContext, index: IndexState, began: str, terms: PrimaryTerms
) -> ConcurrentChanges:
    """Restore what can be restored, and report the rest.

    Args:
        index: As it is now, refreshed.
        began: A time before the first vector of this load.
        terms: Primary terms at that time.

    Raises:
        EngineError: the engine failed.
    """
    _restore_meta_entries(context, index)
    if context.control.stop.is_set() or context.plan.settings.watch_seconds is not None:
        return ConcurrentChanges()
    missing = _count_missing_documents(context, began, terms)
    notes = _added_field_notes(context, index)
    return ConcurrentChanges((*notes, *([_missing_documents_note(context, missing)] if missing else [])), missing)


def _restore_meta_entries(context: LoadContext, index: IndexState) -> None:
    """Write what the mapping's `_meta` says about the load's fields again, where it says nothing any more.

    An update of a mapping replaces `_meta` whole and knows no conditions: of two processes that add to it in the same
    moment, one overwrites the other's entry.
    """
    there = vector_fields(index.mappings, index.name)
    lost = [target for target in targets_to_fill(context.targets) if target.field not in there]
    if not lost:
        return
    meta: Json = index.mappings.get("_meta", {})
    for target in lost:
        meta = merge_field_meta(meta, target.field, target.meta)
    retrying(context, partial(context.engine.put_mapping, index.name, {"_meta": meta}))
    names = ", ".join(target.field for target in lost)
    log_event("mapping_restored", f"another process had overwritten what the mapping says about {names}", fields=names)


def _added_field_notes(context: LoadContext, index: IndexState) -> list[str]:
    """Documents of files are written whole, with the vectors that were known of when the load began."""
    if not context.plan.sources:
        return []
    known = {*vector_fields(context.index.mappings, index.name), *(target.field for target in context.targets)}
    return [
        f"{field} was added to the index during this load, and documents that this load wrote may lack it: "
        f"`es-sbert ingest --index {context.plan.settings.index} --vector {field}` embeds them"
        for field in vector_fields(index.mappings, index.name)
        if field not in known
    ]


def _count_missing_documents(context: LoadContext, began: str, terms: PrimaryTerms) -> int:
    """Documents that the engine has acknowledged and that the index does not hold as they were written.

    Two counts find most losses. They cannot see a document that was written with a vector that it had before, or
    without one: where a shard may have lost writes, every document is compared.
    """
    embedded = context.outcomes.ledger.counts()[DocumentOutcome.INDEXED]
    uncounted = embedded - retrying(context, partial(_count_embedded_since, context, began))
    suspicious = uncounted > 0 or _may_have_lost_writes(context, terms)
    if context.memory is None:
        return max(uncounted, _count_lacking_vectors(context) if suspicious else 0, 0)
    acknowledged = context.memory.count_acknowledged()
    if not suspicious:
        suspicious = retrying(context, partial(context.engine.count, context.index.name)) < acknowledged
    return acknowledged - retrying(context, partial(_count_confirmed, context, began)) if suspicious else 0


def _may_have_lost_writes(context: LoadContext, terms: PrimaryTerms) -> bool:
    """Whether a shard has had another primary since the load began, or may have."""
    now = read_primary_terms(context)
    if terms is None or now is None:
        # This user may not ask. An engine that goes down breaks requests, which are sent again.
        return context.outcomes.ledger.retries > 0
    return terms != now


def _count_embedded_since(context: LoadContext, began: str) -> int:
    own = [
        {
            "bool": {
                "filter": [
                    {"term": {f"{target.meta_field}.fingerprint": target.meta.fingerprint}},
                    {"range": {f"{target.meta_field}.embedded_at": {"gte": began}}},
                ]
            }
        }
        for target in targets_to_fill(context.targets)
    ]
    return context.engine.count(context.index.name, {"bool": {"should": own, "minimum_should_match": 1}})


def _count_confirmed(context: LoadContext, began: str) -> int:
    """Acknowledged documents that the index holds as they were written, or as another load has written them since."""
    assert context.memory is not None, "a load of files remembers what it met"
    targets = targets_to_fill(context.targets)
    names = [name for target in targets for name in (*target.template.fields, target.meta_field)]
    routing = context.index.alias_routing(context.plan.settings.index)
    confirmed = 0
    for page in context.engine.scan(
        context.index.name, query=scan_query(targets), source_includes=names, page=SCAN_PAGE
    ):
        own = (hit for hit in page if hit.get("_routing") == routing)
        consistent = [written for hit in own if (written := _matching_document(hit, targets, began)) is not None]
        confirmed += context.memory.count_acknowledged(consistent)
    return confirmed


def _matching_document(hit: Json, targets: EmbeddingTargets, began: str) -> tuple[str, str | None] | None:
    """Id of a document and hash of what it was made of; None where it lacks a vector, or has one of another text.

    The hash is None where it does not count: the document has no text, or was embedded since the load began.
    """
    source: Json = hit.get("_source") or {}
    has_vector = hit.get("matched_queries", [])
    try:
        texts = target_texts(source, targets)
    except TextFieldError:
        return None
    written = []
    for number, (target, text) in enumerate(zip(targets, texts, strict=True)):
        current = is_vector_current(raw_document_meta(source, target.meta_field), text, target.meta.fingerprint)
        if (str(number) in has_vector) != bool(text) or (text and not current):
            return None
        meta = read_document_meta(source, target.meta_field)
        if meta is not None and text:
            written.append(meta)
    if any(meta.embedded_at >= began for meta in written) or not written:
        return hit["_id"], None
    contents = {meta.document_hash for meta in written}
    content = contents.pop()
    return None if contents or content is None else (hit["_id"], content)


def _count_lacking_vectors(context: LoadContext) -> int:
    """Documents of the index that lack a current vector, without those that this load could not embed."""
    scratch = OutcomeRecorder(Ledger(), _NullDeadLetters())
    reader = IndexReader(replace(context, outcomes=scratch))
    lacking = sum(1 for _ in reader.documents())
    refused = context.outcomes.ledger.counts()[DocumentOutcome.DEAD] - scratch.ledger.counts()[DocumentOutcome.DEAD]
    return lacking - refused


class _NullDeadLetters:
    """Writes no dead letter: the load has written them already."""

    def write(self, origin: Origin, reason: str, **about: Any) -> None:
        """Does nothing."""


def _missing_documents_note(context: LoadContext, missing: int) -> str:
    name = context.index.name
    told = (
        f"{missing:,} documents that the engine acknowledged are missing from {name}, or lack the vector that this "
        "load wrote: the engine lost writes, or other writers deleted or replaced the documents"
    )
    if context.memory is not None:
        return f"{told}. Run the same command again: it looks up every document and sends what is missing"
    fields = " ".join(f"--vector {target.field}" for target in targets_to_fill(context.targets))
    return f"{told}. `es-sbert ingest --index {context.plan.settings.index} {fields}` embeds those that are there"
