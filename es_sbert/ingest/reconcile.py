"""The end of a load: report concurrent changes, and remove documents that are no longer in the source.

Changes are made by other programs, or by a failure of the engine. A shard that keeps its primary loses no acknowledged
write: a document that is missing then was deleted by another program. If a shard got a new primary, its primary term
has grown, and the versions tell most of the rest: a document with an earlier version than the load wrote has lost a
write, one with a later version was written by another program afterwards. A document that is gone may have been lost or
deleted, and counts as lost.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple

import orjson

from es_sbert.batched import batched
from es_sbert.engines.bulk_request import BulkOutcome
from es_sbert.engines.engine import DocumentKey, Engine, document_key
from es_sbert.engines.index_scan import (
    LATEST_WRITE,
    IndexSlice,
    ShardChanges,
    ShardSnapshot,
    close_snapshots,
    latest_seq_no,
    multi_get,
    open_snapshots,
    scan_index,
)
from es_sbert.engines.index_state import IndexState
from es_sbert.engines.rest import Json
from es_sbert.engines.retry import Retrier, RetryPolicy, make_retrier, without_retries
from es_sbert.errors import AccessDenied, RequestFailed
from es_sbert.index.document_vectors import (
    EmbeddingTargets,
    action_metadata,
    if_unchanged,
    is_outdated,
    read_document_meta,
    stored_vectors,
    target_texts,
    targets_to_fill,
)
from es_sbert.index.index_meta import update_mapping
from es_sbert.index.mapping import merge_field_meta, vector_fields
from es_sbert.index.text_template import TextFieldError
from es_sbert.index.versioned_updates import BulkWrite, VersionedUpdates
from es_sbert.ingest.backfill import SCAN_PAGE, IndexReader, scan_query
from es_sbert.ingest.ledger import (
    DocumentOutcome,
    VersionComparison,
    VersionMatch,
    WrittenVersions,
    hit_version,
    pack_versions,
)
from es_sbert.ingest.load_plan import LoadContext
from es_sbert.ingest.load_report import ConcurrentChanges
from es_sbert.messages import be, have, log_event, pluralize, setting

# Documents per page of the scan, which reads only ids and versions.
_VERSIONS_PAGE = 5000


class WriteState(NamedTuple):
    """The latest writes of an index at one moment.

    Attributes:
        terms: Shard → its primary term; None if the user may not read it.
        seq_nos: Shard → the highest sequence number; -1 for none.
        is_complete: Whether `seq_nos` include deletions. Without the privilege `monitor` on the index, they include
            only documents that exist.
    """

    terms: Mapping[int, int] | None
    seq_nos: Mapping[int, int]
    is_complete: bool


def read_write_state(context: LoadContext) -> WriteState:
    """Read the current write state of the load's index, for `count_concurrent_changes`.

    Raises:
        EngineError: the engine failed.
    """
    engine, name = context.engine, context.index.concrete
    terms = context.retrying(engine.primary_terms, name)
    try:
        states = context.retrying(engine.shard_states, name)
    except AccessDenied:
        context.retrying(engine.refresh, name)
        seq_nos = {
            shard: latest_seq_no(context.retrying(engine.search_shard, name, shard, LATEST_WRITE))
            for shard in range(context.index.state.shards)
        }
        return WriteState(terms, seq_nos, is_complete=False)
    return WriteState(terms, {shard: state.max_seq_no for shard, state in states.items()}, is_complete=True)


def count_concurrent_changes(
    context: LoadContext, versions: WrittenVersions, began: str, start: WriteState
) -> tuple[int, ConcurrentChanges]:
    """Compare what the load has written with the index, unless it is certain that no other program has changed it.

    Args:
        versions: The versions that the load has written.
        began: A time before the first vector of this load.
        start: The write state of the index at that time.

    Returns:
        Number of documents whose last write by this load is lost or may be lost, and the changes of other programs.

    Raises:
        EngineError: the engine failed.
    """
    now = read_write_state(context)
    primaries = Primaries(start.terms, now.terms, may_have_failed=context.outcomes.ledger.retries > 0)
    is_complete = start.is_complete and now.is_complete
    others = sum(now.seq_nos.values()) - sum(start.seq_nos.values()) - versions.writes
    # Without deletions, the number of writes is not exact; then the counts below reveal deleted documents of this load.
    untouched = others == 0 if is_complete else others <= 0
    if primaries.are_unchanged and untouched and not _are_too_few(context, began):
        return 0, ConcurrentChanges()
    comparison = VersionComparison(versions.packed())
    stale = _find_stale_documents(context, began, start, comparison, primaries)
    lost, deleted = stale[VersionMatch.EARLIER], 0
    for term, count in comparison.absent_terms.items():
        if primaries.may_have_lost(term):
            lost += count
        else:
            deleted += count
    if is_complete and primaries.are_unchanged and deleted > others:
        # More documents are gone than other programs can have deleted with their writes: the rest is lost.
        lost += deleted - max(0, others)
        deleted = max(0, others)
    return lost, ConcurrentChanges(
        deleted=deleted, changed=stale[VersionMatch.LATER], unseen=stale[VersionMatch.UNKNOWN]
    )


class Primaries:
    """The primaries of the shards at the start of a load and now.

    Args:
        start, now: Shard → its primary term; None if the terms are unknown.
        may_have_failed: Whether there were signs, such as retried requests, that a shard got a new primary.
    """

    def __init__(
        self, start: Mapping[int, int] | None, now: Mapping[int, int] | None, *, may_have_failed: bool
    ) -> None:
        self._start, self._now = start, now
        if start is None or now is None:
            # When an engine goes down, requests fail and are retried.
            self.are_unchanged = not may_have_failed
        else:
            self.are_unchanged = start == now

    def may_have_lost(self, term: int) -> bool:
        """Whether a shard may have lost an acknowledged write of this term."""
        if self.are_unchanged:
            return False
        if self._start is None or self._now is None:
            return True
        return any(term < latest and self._start.get(shard, 0) != latest for shard, latest in self._now.items())


def _are_too_few(context: LoadContext, began: str) -> bool:
    """Whether the index has fewer documents than the load has written."""
    embedded = []
    for target in targets_to_fill(context.targets):
        by_model = {"term": {f"{target.meta_field}.fingerprint": target.meta.fingerprint}}
        since = {"range": {f"{target.meta_field}.embedded_at": {"gte": began}}}
        embedded.append({"bool": {"filter": [by_model, since]}})
    query = {"bool": {"should": embedded, "minimum_should_match": 1}}
    count, name = context.engine.count, context.index.concrete
    if context.retrying(count, name, query) < context.outcomes.ledger.counts()[DocumentOutcome.INDEXED]:
        return True
    checkpoint = context.checkpoint
    return checkpoint is not None and context.retrying(count, name) < checkpoint.count_acknowledged()


def _find_stale_documents(
    context: LoadContext, began: str, start: WriteState, comparison: VersionComparison, primaries: Primaries
) -> Counter[VersionMatch]:
    """Read the versions of the index, and count the documents that another run of the load would write.

    A load of files leaves out documents of other programs. Every load leaves out documents that it rejected.
    """
    query: Json = {"match_all": {}}
    if primaries.are_unchanged and not context.plan.sources:
        # All writes since the start, of this load and of other programs, have higher sequence numbers.
        query = {"bool": {"filter": [{"range": {"_seq_no": {"gt": min(start.seq_nos.values(), default=-1)}}}]}}
    rejected = {document_id for document_id, _ in context.outcomes.rejected_versions}
    reader = IndexReader(context)
    stale: dict[DocumentKey, VersionMatch] = {}
    snapshots = context.retrying(_open_primaries, context)
    try:
        for page in scan_index(
            context.engine,
            context.index.concrete,
            query=query,
            source_includes=[],
            page=_VERSIONS_PAGE,
            slice=IndexSlice(0, 1, snapshots),
            retrying=context.retrying,
        ):
            if context.control.stop_reading.is_set():
                break
            keys = [document_key(hit) for hit in page.hits]
            versions = pack_versions([(key, hit_version(hit)) for key, hit in zip(keys, page.hits, strict=True)])
            matches = dict(zip(keys, comparison.compare(versions), strict=True))
            for key in matches:
                stale.pop(key, None)  # an earlier version of the document may have been read before
            if context.plan.sources:
                changed = [key for key, match in matches.items() if match in (VersionMatch.EARLIER, VersionMatch.LATER)]
                stale_keys = _find_differing(context, changed, began)
            else:
                old = start.seq_nos.get(page.shard, -1) if primaries.are_unchanged else -1
                new = [document_key(hit) for hit in page.hits if hit["_seq_no"] > old and hit["_id"] not in rejected]
                stale_keys = reader.find_stale([key for key in new if matches[key] is not VersionMatch.SAME])
            stale |= {key: matches[key] for key in stale_keys}
    finally:
        close_snapshots(context.engine, snapshots)
    return Counter(stale.values())


def _open_primaries(context: LoadContext) -> tuple[ShardSnapshot, ...]:
    """Open points in time with every write until now: on the primaries, since a replica may have missed one."""
    engine, name = context.engine, context.index.concrete
    try:
        states = ShardChanges(engine, name, without_retries).make_visible()
    except AccessDenied:
        engine.refresh(name)
        states = {}
    return open_snapshots(engine, name, without_retries, {shard: state.node for shard, state in states.items()})


def _find_differing(context: LoadContext, keys: Sequence[DocumentKey], began: str) -> set[DocumentKey]:
    """Find the keys of documents that differ between the index and the source."""
    assert context.checkpoint is not None, "a load of files has a checkpoint"
    targets = targets_to_fill(context.targets)
    names = [name for target in targets for name in (*target.template.fields, target.meta_field)]
    differing: set[DocumentKey] = set()
    for page_keys in batched(keys, SCAN_PAGE):
        ids, source = [document_id for document_id, _ in page_keys], {"includes": names}
        query, name = scan_query(targets), context.index.concrete
        hits = context.retrying(multi_get, context.engine, name, ids, query=query, source=source)
        existing = [hits[key] for key in page_keys if key in hits]
        consistent = [same for hit in existing if (same := _consistent_document(hit, targets, began)) is not None]
        differing |= {document_key(hit) for hit in existing} - context.checkpoint.acknowledged_keys(consistent)
    return differing


def _consistent_document(hit: Json, targets: EmbeddingTargets, began: str) -> tuple[DocumentKey, str | None] | None:
    """Return key and content hash of a document; None if it lacks a vector, or has the vector of a different text.

    The hash is None if it is not needed: the document has no text, or was embedded after the load started.
    """
    source: Json = hit.get("_source") or {}
    try:
        texts = target_texts(source, targets)
    except TextFieldError:
        return None
    if any(is_outdated(*each) for each in zip(targets, texts, stored_vectors(hit, targets), strict=True)):
        return None
    metas = [read_document_meta(source, target.meta_field) for target, text in zip(targets, texts, strict=True) if text]
    stored_metas = [meta for meta in metas if meta is not None]
    if any(meta.embedded_at and meta.embedded_at >= began for meta in stored_metas) or not stored_metas:
        return document_key(hit), None
    contents = {meta.document_hash for meta in stored_metas}
    content = contents.pop()
    return None if contents or content is None else (document_key(hit), content)


def report_concurrent_changes(
    context: LoadContext, index: IndexState, versions: WrittenVersions, began: str, start: WriteState
) -> tuple[int, ConcurrentChanges, list[str]]:
    """Restore overwritten `_meta` entries of the load's fields; report other concurrent changes and lost writes.

    Args:
        index: The current state of the index, after a refresh.
        versions: The versions that the load has written.
        began: A time before the first vector of this load.
        start: The write state of the index at that time.

    Returns:
        Number of documents that the engine has acknowledged and lost, changes of other programs, and notes for the
        report.

    Raises:
        EngineError: the engine failed.
    """
    _restore_meta_entries(context, index)
    if context.control.stop_reading.is_set() or context.plan.settings.watch_seconds is not None:
        return 0, ConcurrentChanges(), []
    missing, changes = count_concurrent_changes(context, versions, began, start)
    return missing, changes, _change_notes(context, index, missing, changes)


def _restore_meta_entries(context: LoadContext, index: IndexState) -> None:
    """Restore the entries of the load's fields in the mapping's `_meta`, which another program may have overwritten."""
    lost: list[str] = []

    def plan(state: IndexState) -> Json | None:
        existing = vector_fields(state.mappings, state.name)
        meta: Json = state.mappings.get("_meta", {})
        missing = [target for target in targets_to_fill(context.targets) if target.field not in existing]
        for target in missing:
            meta = merge_field_meta(meta, target.field, target.meta)
        lost.extend(target.field for target in missing)
        return {"_meta": meta} if missing else None

    context.retrying(update_mapping, context.engine, index, plan)
    if lost:
        names = ", ".join(dict.fromkeys(lost))
        message = f"another process had overwritten the entry of {names} in `_meta`, which is restored"
        log_event("mapping_restored", message, fields=names)


def _change_notes(context: LoadContext, index: IndexState, missing: int, changes: ConcurrentChanges) -> list[str]:
    """Notes on vector fields that others added, on lost writes, and on documents that others wrote or deleted."""
    notes: list[str] = []
    is_in_place = context.checkpoint is None
    again = "run the same command again to load what the source has"
    if context.plan.sources:
        # A load from files writes only the fields that it knew at its start.
        known_fields = {target.field for target in context.targets}
        known_fields |= vector_fields(context.index.state.mappings, index.name).keys()
        notes += [
            f"{field} was added to the index during this load, and documents that this load wrote may lack it: "
            f"`es-sbert ingest --index {context.index.alias} --vector {field}` embeds them"
            for field in vector_fields(index.mappings, index.name)
            if field not in known_fields
        ]
    if missing:
        repair = f"{context.in_place_command} embeds those that are there" if is_in_place else again.capitalize()
        notes.append(
            f"{pluralize(missing, 'document')} that this load wrote {be(missing)} missing from "
            f"{context.index.concrete}, or have an earlier version there: the engine lost writes that it had "
            f"acknowledged, or, if a shard failed during the load, another program deleted them. {repair}"
        )
    if changes.deleted:
        deleted = f"{pluralize(changes.deleted, 'document')} of this load {be(changes.deleted, past=True)} deleted"
        notes.append(f"{deleted} by others during the load{'' if is_in_place else f': {again}'}")
    if changed := changes.changed + changes.unseen:
        written = f"{pluralize(changed, 'document')} {be(changed, past=True)} written by others during this load"
        watch = setting("watch_seconds")
        embed = f"and {have(changed)} no current vector: run {context.in_place_command}, or use {watch}"
        notes.append(f"{written} {embed}" if is_in_place else f"{written}: {again}")
    return notes


_SAMPLE = 5
_PAGE = 1000


@dataclass(frozen=True)
class PruneCandidates:
    """Documents of an index that the source no longer has.

    Attributes:
        count: Number of these documents.
        loaded: Number of all documents from files in the index.
        sample: Ids of some of these documents.
    """

    count: int
    loaded: int
    sample: tuple[str, ...]


ConfirmPrune = Callable[[PruneCandidates], bool]


def prune_index(context: LoadContext, confirm: ConfirmPrune) -> tuple[int, str | None]:
    """Remove documents that the source no longer has.

    Documents of other writers are left alone: they lack the hash that a load from files writes.

    Args:
        confirm: Decides whether to remove the documents.

    Returns:
        Number of documents that were removed, and the reason if none was; None if the source has all.

    Raises:
        EngineError: the engine failed; the same command resumes.
    """
    # Documents that loads from files wrote last.
    hashes = [
        {"exists": {"field": f"{target.meta_field}.document_hash"}} for target in targets_to_fill(context.targets)
    ]
    loaded: Json = {"bool": {"should": hashes, "minimum_should_match": 1}}
    count, read, sample = context.retrying(_count_unseen, context, loaded)
    if not count:
        return 0, None
    summary = (
        f"{pluralize(count, 'document')} of the index {be(count)} no longer in the source; none of them was removed"
    )
    ledger, control = context.outcomes.ledger, context.control
    if not ledger.read:
        empty = "since the source holds no document at all: an export that failed looks the same"
        return 0, f"{summary}, {empty}"
    if ledger.rejected:
        broken = f"{pluralize(ledger.rejected, 'record')} of the source cannot be used"
        return 0, f"{summary}, since {broken}: it is unknown which documents they are"
    if not confirm(PruneCandidates(count, read, sample)):
        return 0, summary
    removed = 0
    for _, hits in _unseen_documents(context, context.retrying, loaded):
        if control.stop_reading.is_set():
            break
        removed += delete_hits(
            context.engine,
            context.index.state,
            hits,
            context.retry_policy,
            lambda reason: ledger.add(retries=1),
            control.stop_retrying,
        )
    context.refresh_index()
    return removed, None


def _count_unseen(context: LoadContext, query: Json) -> tuple[int, int, tuple[str, ...]]:
    """Count the documents of a query that this load has not seen, and all of its documents; also ids of some unseen."""
    count, read = 0, 0
    sample: list[str] = []
    for page_size, hits in _unseen_documents(context, without_retries, query):
        read += page_size
        count += len(hits)
        sample += [str(hit["_id"]) for hit in hits[: _SAMPLE - len(sample)]]
    return count, read, tuple(sample)


def _unseen_documents(context: LoadContext, retrying: Retrier, query: Json) -> Iterator[tuple[int, list[Json]]]:
    """Read documents that may be missing from the source, page by page.

    Args:
        retrying: Retries the request of each page.
        query: A query for the documents to read.

    Yields:
        Number of documents of the page, and those that this load has not seen.
    """
    assert context.checkpoint is not None, "a load of files has a checkpoint"
    name = context.index.alias
    routing = context.index.state.alias(name).get("index_routing")
    for _, hits, is_rewritten in scan_index(
        context.engine, name, query=query, source_includes=[], page=_PAGE, retrying=retrying
    ):
        if is_rewritten:
            continue  # written by another load in the meantime
        # A load through an alias with a routing writes only documents with that routing.
        candidates = [hit for hit in hits if routing is None or hit.get("_routing") == routing]
        seen_keys = context.checkpoint.seen_keys([document_key(hit) for hit in candidates])
        yield len(candidates), [hit for hit in candidates if document_key(hit) not in seen_keys]


def delete_hits(
    engine: Engine,
    state: IndexState,
    hits: Sequence[Json],
    policy: RetryPolicy,
    on_wait: Callable[[str], None] = lambda reason: None,
    stop_retrying: threading.Event | None = None,
) -> int:
    """Delete documents of an index; transient failures are retried, see `VersionedUpdates`.

    Args:
        hits: `_id`, `_routing` if the document has one, and `_seq_no` and `_primary_term` to keep a document that was
            written after it was read.

    Returns:
        Number of deleted documents.

    Raises:
        IndexMismatch: the index was deleted or replaced.
        EngineError: the engine failed, or refused to delete a document.
    """
    actions = []
    for hit in hits:
        head = action_metadata(hit) | (if_unchanged(hit) if "_seq_no" in hit else {})
        actions.append(BulkWrite(document_key(hit), orjson.dumps({"delete": head}) + b"\n"))
    removed, conflicts = 0, []
    for action, result in VersionedUpdates(engine, state, policy, on_wait, stop_retrying, source=None).send(actions):
        if result.outcome in (BulkOutcome.WRITTEN, BulkOutcome.MISSING):
            removed += 1
        elif result.outcome is BulkOutcome.CONFLICT:
            conflicts.append(action.key)
        else:
            raise RequestFailed(
                f"{engine.info.label} refused to delete {action.key[0]!r} from {state.name}: {result.reason}",
                "Fix the cause and run the same command again: it continues with the remaining documents.",
                result.status,
            )
    if conflicts:
        # If a response was lost, the retry conflicts with deletions of the first request: these count as removed.
        retrying = make_retrier(policy, on_wait, stop_retrying)
        retrying(partial(engine.refresh, state.name))
        existing = retrying(partial(multi_get, engine, state.name, [document_id for document_id, _ in conflicts]))
        removed += len(set(conflicts) - existing.keys())
    return removed
