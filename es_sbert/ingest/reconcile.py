"""The end of a load: report concurrent changes, and remove documents that are no longer in the source."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial

import orjson

from es_sbert.engines.engine import Engine, document_key
from es_sbert.engines.error_mapping import access_denied
from es_sbert.engines.index_scan import scan_index
from es_sbert.engines.index_state import IndexState
from es_sbert.engines.multi_get import multi_get
from es_sbert.engines.rest import Json
from es_sbert.engines.retry import Backoff, Retrier, RetryPolicy, make_retrier, without_retries
from es_sbert.errors import RequestFailed
from es_sbert.index.document_vectors import action_metadata, if_unchanged, targets_to_fill
from es_sbert.index.index_meta import update_mapping
from es_sbert.index.mapping import EARLIER_SEGMENTS, merge_field_meta, read_meta_entry, vector_fields
from es_sbert.ingest.concurrent_changes import WriteState, count_concurrent_changes
from es_sbert.ingest.load_context import LoadContext
from es_sbert.ingest.load_report import ConcurrentChanges
from es_sbert.ingest.written_versions import WrittenVersions
from es_sbert.messages import be, log_event, pluralize


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
        return 0, ConcurrentChanges(unseen=context.outcomes.unseen), []
    missing, changes = count_concurrent_changes(context, versions, began, start)
    notes = _new_field_notes(context, index)
    if missing:
        notes.append(_missing_documents_note(context, missing))
    return missing, changes, notes + _change_notes(context, changes)


def _restore_meta_entries(context: LoadContext, index: IndexState) -> None:
    """Restore the entries of the load's fields in the mapping's `_meta`, which another program may have overwritten."""
    lost: list[str] = []

    def plan(state: IndexState) -> Json | None:
        existing = vector_fields(state.mappings, state.name)
        meta: Json = state.mappings.get("_meta", {})
        missing = [target for target in targets_to_fill(context.targets) if target.field not in existing]
        for target in missing:
            # All segments have the index type if they had it when the load began: types never change back.
            is_new = target.field not in (read_meta_entry(context.index.state.mappings, EARLIER_SEGMENTS) or {})
            meta = merge_field_meta(meta, target.field, target.meta, is_new=is_new)
        lost.extend(target.field for target in missing)
        return {"_meta": meta} if missing else None

    context.retrying(update_mapping, context.engine, index, plan)
    if lost:
        names = ", ".join(dict.fromkeys(lost))
        message = f"another process had overwritten the entry of {names} in `_meta`, which is restored"
        log_event("mapping_restored", message, fields=names)


def _new_field_notes(context: LoadContext, index: IndexState) -> list[str]:
    """Notes on vector fields added during a load from files, which writes only the fields known at its start."""
    if not context.plan.sources:
        return []
    known_fields = {
        *vector_fields(context.index.state.mappings, index.name),
        *(target.field for target in context.targets),
    }
    return [
        f"{field} was added to the index during this load, and documents that this load wrote may lack it: "
        f"`es-sbert ingest --index {context.index.alias} --vector {field}` embeds them"
        for field in vector_fields(index.mappings, index.name)
        if field not in known_fields
    ]


def _missing_documents_note(context: LoadContext, missing: int) -> str:
    name = context.index.concrete
    message = (
        f"{pluralize(missing, 'document')} that this load wrote {'is' if missing == 1 else 'are'} missing from {name}, "
        "or have an earlier version there: the engine lost writes that it had acknowledged. If a shard failed during "
        "the load, documents that another program deleted are counted too, since the two cannot be told apart"
    )
    if context.checkpoint is not None:
        return f"{message}. Run the same command again: it looks up every document and sends what is missing"
    return f"{message}. {context.in_place_command} embeds those that are there"


def _change_notes(context: LoadContext, changes: ConcurrentChanges) -> list[str]:
    """Notes on documents that other programs wrote or deleted."""
    notes = []
    is_in_place = context.checkpoint is None
    if changes.deleted:
        again = "" if is_in_place else ": run the same command again to load what the source has"
        was = "was" if changes.deleted == 1 else "were"
        notes.append(
            f"{pluralize(changes.deleted, 'document')} of this load {was} deleted by others during the load{again}"
        )
    changed = changes.changed + changes.unseen
    if changed and is_in_place:
        was, has = ("was", "has") if changed == 1 else ("were", "have")
        notes.append(
            f"{pluralize(changed, 'document')} {was} written by others during this load and {has} no current vector: "
            f"run {context.in_place_command} again, or use `watch_seconds`, which embeds documents as they are "
            "written"
        )
    elif changed:
        was = "was" if changed == 1 else "were"
        notes.append(
            f"{pluralize(changed, 'document')} of this load {was} changed by others during the load: run the same "
            "command again to load what the source has"
        )
    return notes


_SAMPLE = 5
_PAGE = 1000
_NOT_FOUND = 404
_CONFLICT = 409
_FORBIDDEN = 403


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


def prune_index(context: LoadContext, confirm: ConfirmPrune) -> tuple[int, list[str]]:
    """Remove documents that the source no longer has.

    Documents of other writers are left alone: they lack the hash that a load from files writes.

    Args:
        confirm: Decides whether to remove the documents.

    Returns:
        Number of documents that were removed, and notes on those that were not, of this and of other writers.

    Raises:
        EngineError: the engine failed; the same command resumes.
    """
    notes = context.retrying(_others_notes, context)
    candidates = context.retrying(_find_candidates, context)
    if not candidates.count:
        return 0, notes
    summary = (
        f"{pluralize(candidates.count, 'document')} of the index {be(candidates.count)} no longer in the "
        "source; none of them was removed"
    )
    if not context.outcomes.ledger.read:
        return 0, [
            f"{summary}, since the source holds no document at all: an export that failed looks the same",
            *notes,
        ]
    if context.outcomes.rejected:
        broken = f"{pluralize(context.outcomes.rejected, 'record')} of the source cannot be used"
        return 0, [f"{summary}, since {broken}: it is unknown which documents they are", *notes]
    if not confirm(candidates):
        return 0, [summary, *notes]
    removed, control = 0, context.control
    index, on_retry = context.index.alias, context.outcomes.ledger.add_retries
    for _, hits in _unseen_documents(context, context.retrying, _was_loaded(context)):
        if control.stop_reading.is_set():
            break
        removed += delete_hits(context.engine, index, hits, context.retry_policy, control.stop_retrying, on_retry)
    context.refresh_index()
    return removed, notes


def _others_notes(context: LoadContext) -> list[str]:
    """A note on documents that the source lacks too, and that other writers wrote last."""
    query: Json = {"bool": {"must_not": [_was_loaded(context)]}}
    count = sum(len(hits) for _, hits in _unseen_documents(context, without_retries, query))
    if not count:
        return []
    return [
        f"{pluralize(count, 'document')} that the source does not have {be(count)} kept: `prune` removes only what a "
        "load from files wrote last, not a write of another program or a document that was embedded in the index"
    ]


def _find_candidates(context: LoadContext) -> PruneCandidates:
    count, loaded = 0, 0
    sample: list[str] = []
    for page_size, hits in _unseen_documents(context, without_retries, _was_loaded(context)):
        loaded += page_size
        count += len(hits)
        sample += [str(hit["_id"]) for hit in hits[: _SAMPLE - len(sample)]]
    return PruneCandidates(count, loaded, tuple(sample))


def _was_loaded(context: LoadContext) -> Json:
    """A query for the documents that loads from files wrote last."""
    targets = targets_to_fill(context.targets)
    hashes = [{"exists": {"field": f"{target.meta_field}.document_hash"}} for target in targets]
    return {"bool": {"should": hashes, "minimum_should_match": 1}}


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
    routing = context.index.state.alias_routing(name)
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
    index: str,
    hits: list[Json],
    policy: RetryPolicy,
    stop_retrying: threading.Event | None = None,
    on_retry: Callable[[int], None] = lambda documents: None,
) -> int:
    """Delete documents of an index; transient failures are retried.

    Args:
        index: Index or alias.
        hits: `_id`, `_routing` if the document has one, and `_seq_no` and `_primary_term` to keep a document that was
            written after it was read.
        policy, stop_retrying: See `Backoff`.
        on_retry: Called with the number of documents that are sent again.

    Returns:
        Number of deleted documents.

    Raises:
        EngineError: the engine failed, or refused to delete a document.
    """

    removed, backoff = 0, Backoff(policy, stop_retrying)
    retrying = make_retrier(policy, lambda reason: on_retry(len(hits)), stop_retrying)
    while hits:
        actions = [action_metadata(hit) | (if_unchanged(hit) if "_seq_no" in hit else {}) for hit in hits]
        body = b"".join(orjson.dumps({"delete": action}) + b"\n" for action in actions)
        results = retrying(partial(engine.bulk, index, body, timeout=backoff.seconds_left))
        again, conflicts = [], []
        for hit, result in zip(hits, results, strict=True):
            if result.ok or (result.status == _NOT_FOUND and not result.reason):
                removed += 1
            elif result.may_succeed_later:
                again.append(hit)
            elif result.status == _CONFLICT:
                conflicts.append(hit)
            elif result.status == _FORBIDDEN:
                raise access_denied(engine.info.label, f"removing {hit['_id']!r} from {index}", result.reason)
            else:
                raise RequestFailed(
                    f"{engine.info.label} refused to delete {hit['_id']!r} from {index}: {result.reason}",
                    "Fix the cause and run the same command again: it continues with the remaining documents.",
                    result.status,
                )
        if conflicts:
            # If a response was lost, the retry conflicts with deletions of the first request: these count as removed.
            retrying(partial(engine.refresh, index))
            existing = retrying(partial(multi_get, engine, index, [hit["_id"] for hit in conflicts]))
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
