"""Compare the index with the load at its end: report concurrent changes, and remove documents (`--prune`)."""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import orjson

from es_sbert.engines.error_mapping import access_denied
from es_sbert.engines.multi_get import multi_get
from es_sbert.engines.protocol import DocumentKey, Engine, IndexState, Json, document_key
from es_sbert.engines.retry import Backoff, RetryPolicy, is_retryable, with_retries
from es_sbert.errors import EngineError, RequestFailed
from es_sbert.index.document_vectors import (
    EmbeddingTargets,
    is_vector_current,
    raw_document_meta,
    read_document_meta,
    target_texts,
    targets_to_fill,
)
from es_sbert.index.mapping import merge_field_meta, vector_fields
from es_sbert.index.text_template import TextFieldError
from es_sbert.ingest.backfill import SCAN_PAGE, IndexReader, scan_query
from es_sbert.ingest.checkpoint import LoadCheckpoint
from es_sbert.ingest.ledger import DocumentOutcome, Ledger, OutcomeRecorder
from es_sbert.ingest.load_context import LoadContext, refresh_index, retrying
from es_sbert.ingest.pipeline import LoadControl
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


_SAMPLE = 5
_PAGE = 1000
_CONFLICT = 409
_FORBIDDEN = 403
_NOT_FOUND = 404


@dataclass(frozen=True)
class PruneCandidates:
    """Documents of an index that the source no longer has.

    Attributes:
        count: How many.
        loaded: How many documents from files the index holds in all.
        sample: Some of their ids.
    """

    count: int
    loaded: int
    sample: tuple[str, ...]


ConfirmPrune = Callable[[PruneCandidates], bool]


class Pruner:
    """Finds and removes documents that were not met in a whole pass over the source.

    Documents that other writers put into the index are left alone: they lack the hash that a load from files writes.

    Args:
        engine: Where.
        index: Index or alias.
        targets: The load's vector fields, beside whose vectors the hashes stand.
        memory: What was met.
        policy: How long transient failures are waited out.
        control: Told to stop.
        on_retry: Called with the number of documents that are sent again.
    """

    def __init__(
        self,
        engine: Engine,
        index: str,
        targets: EmbeddingTargets,
        memory: LoadCheckpoint,
        policy: RetryPolicy,
        control: LoadControl,
        on_retry: Callable[[int], None],
    ) -> None:
        self._engine = engine
        self._index = index
        hashes = [{"exists": {"field": f"{target.meta_field}.document_hash"}} for target in targets_to_fill(targets)]
        self._query: Json = {"bool": {"should": hashes, "minimum_should_match": 1}}
        self._memory = memory
        self._policy = policy
        self._control = control
        self._on_retry = on_retry

    def find(self) -> PruneCandidates:
        """Count them.

        Raises:
            EngineError: the engine failed.
        """
        count, loaded = 0, 0
        sample: list[str] = []
        for page in self._engine.scan(self._index, query=self._query, source_includes=[], page=_PAGE):
            loaded += len(page)
            for hit in self._gone(page):
                count += 1
                if len(sample) < _SAMPLE:
                    sample.append(str(hit["_id"]))
        return PruneCandidates(count, loaded, tuple(sample))

    def remove(self) -> int:
        """Remove them, but for those that were written since they were seen; how many were removed.

        Raises:
            EngineError: the engine failed; the same command goes on.
        """
        removed = 0
        for page in self._engine.scan(self._index, query=self._query, source_includes=[], page=_PAGE):
            if self._control.stop.is_set():
                break
            removed += delete_hits(
                self._engine,
                self._index,
                list(self._gone(page)),
                self._policy,
                self._control.no_waiting,
                self._on_retry,
            )
        return removed

    def _gone(self, page: list[Json]) -> Iterator[Json]:
        there = self._memory.holds([hit["_id"] for hit in page])
        return (hit for hit in page if hit["_id"] not in there)


def prune_index(context: LoadContext, confirm: ConfirmPrune) -> tuple[int, list[str]]:
    """How many documents were removed, and what must be said about those that were not."""
    assert context.memory is not None, "a load of files remembers what it met"
    settings = context.plan.settings
    pruner = Pruner(
        context.engine,
        settings.index,
        context.targets,
        context.memory,
        context.policy,
        context.control,
        context.outcomes.ledger.add_retries,
    )
    gone = pruner.find()
    if not gone.count:
        return 0, []
    kept = f"{gone.count:,} documents of the index are no longer in the source; none of them was removed"
    if not context.outcomes.ledger.read:
        return 0, [f"{kept}, since the source holds no document at all: an export that failed looks the same"]
    if context.outcomes.rejected:
        broken = f"{context.outcomes.rejected:,} records of the source cannot be used"
        return 0, [f"{kept}, since {broken}: their documents would be taken for gone"]
    if not confirm(gone):
        return 0, [kept]
    removed = pruner.remove()
    refresh_index(context)
    return removed, []


def delete_hits(
    engine: Engine,
    index: str,
    hits: list[Json],
    policy: RetryPolicy,
    no_waiting: threading.Event | None = None,
    on_retry: Callable[[int], None] = lambda documents: None,
) -> int:
    """Delete documents of an index; transient failures are retried.

    Args:
        index: Index or alias.
        hits: `_id`, `_routing` where it has one, and `_seq_no` and `_primary_term` to keep a document that was written
            since it was read.
        policy, no_waiting: See `Backoff`.
        on_retry: Called with the number of documents that are sent again.

    Returns:
        How many were deleted.

    Raises:
        EngineError: the engine failed, or refused to delete a document.
    """
    removed = 0
    backoff = Backoff(policy, no_waiting)
    while hits:
        body = b"".join(_delete_action(hit) for hit in hits)
        send, number = partial(engine.bulk, index, body, timeout=backoff.left), len(hits)

        def count(error: EngineError, number: int = number) -> None:
            on_retry(number)

        results = with_retries(send, policy, no_waiting, count)
        again, conflicts = [], []
        for hit, result in zip(hits, results, strict=True):
            if result.ok or (result.status == _NOT_FOUND and not result.reason):
                removed += 1
            elif is_retryable(result.status):
                again.append(hit)
            elif result.status == _CONFLICT:
                conflicts.append(hit)
            elif result.status == _FORBIDDEN:
                raise access_denied(engine.info.label, f"removing {hit['_id']!r} from {index}", result.reason)
            else:
                raise RequestFailed(
                    f"{engine.info.label} does not remove {hit['_id']!r} from {index}: {result.reason}",
                    "Fix the cause and run the same command again: it continues with the remaining documents.",
                    result.status,
                )
        if conflicts:
            # If a response was lost, the retry finds documents that are already deleted.
            existing = with_retries(partial(_existing_documents, engine, index, conflicts), policy, no_waiting, count)
            removed += sum(document_key(hit) not in existing for hit in conflicts)
        if again and not backoff.wait():
            raise RequestFailed(
                f"{engine.info.label} is too busy to remove documents (tried for {policy.budget:g} s)",
                "Run the same command again later: it continues with the remaining documents.",
                429,
            )
        on_retry(len(again))
        hits = again
    return removed


def _existing_documents(engine: Engine, index: str, hits: list[Json]) -> Collection[DocumentKey]:
    engine.refresh(index)
    return multi_get(engine, index, [hit["_id"] for hit in hits]).keys()


def _delete_action(hit: Json) -> bytes:
    names = {"_id": "_id", "_seq_no": "if_seq_no", "_primary_term": "if_primary_term", "_routing": "routing"}
    head = {parameter: hit[name] for name, parameter in names.items() if name in hit}
    return orjson.dumps({"delete": head}, option=orjson.OPT_APPEND_NEWLINE)
