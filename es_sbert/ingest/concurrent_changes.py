"""Find changes to the index by other programs, or by a failure of the engine, while a load wrote to it.

A shard that keeps its primary loses no acknowledged write: a document that is missing then was deleted by another
program. If a shard got a new primary, its primary term has grown, and the versions tell most of the rest: a document
with an earlier version than the load wrote has lost a write, one with a later version was written by another program
afterwards. A document that is gone may have been lost or deleted, and counts as lost.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import NamedTuple

from es_sbert.batched import batched
from es_sbert.engines.engine import DocumentKey, document_key
from es_sbert.engines.index_scan import (
    LATEST_WRITE,
    IndexSlice,
    ScanPage,
    ShardSnapshot,
    close_snapshots,
    latest_seq_no,
    open_snapshots,
    scan_index,
)
from es_sbert.engines.multi_get import multi_get
from es_sbert.engines.rest import Json
from es_sbert.engines.retry import without_retries
from es_sbert.engines.shard_changes import ShardChanges
from es_sbert.errors import AccessDenied
from es_sbert.index.document_vectors import EmbeddingTargets, read_document_meta, target_texts, targets_to_fill
from es_sbert.index.text_template import TextFieldError
from es_sbert.index.vector_changes import is_outdated, stored_vectors
from es_sbert.ingest.backfill import SCAN_PAGE, IndexReader, scan_query
from es_sbert.ingest.ledger import DocumentOutcome
from es_sbert.ingest.load_context import LoadContext
from es_sbert.ingest.load_report import ConcurrentChanges
from es_sbert.ingest.written_versions import (
    VersionComparison,
    VersionMatch,
    WrittenVersions,
    hit_version,
    pack_versions,
)

# Documents per page of the scan, which reads only ids and versions.
_PAGE = 5000


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
    embedded = context.outcomes.ledger.counts()[DocumentOutcome.INDEXED]
    if context.retrying(_count_embedded_since, context, began) < embedded:
        return True
    if context.checkpoint is None:
        return False
    return context.retrying(context.engine.count, context.index.concrete) < context.checkpoint.count_acknowledged()


def _count_embedded_since(context: LoadContext, began: str) -> int:
    embedded = []
    for target in targets_to_fill(context.targets):
        by_model = {"term": {f"{target.meta_field}.fingerprint": target.meta.fingerprint}}
        since = {"range": {f"{target.meta_field}.embedded_at": {"gte": began}}}
        embedded.append({"bool": {"filter": [by_model, since]}})
    return context.engine.count(context.index.concrete, {"bool": {"should": embedded, "minimum_should_match": 1}})


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
    with _snapshots(context) as snapshots:
        for page in scan_index(
            context.engine,
            context.index.concrete,
            query=query,
            source_includes=[],
            page=_PAGE,
            slice=IndexSlice(0, 1, snapshots),
            retrying=context.retrying,
        ):
            if context.control.stop_reading.is_set():
                break
            matches = _matches(page, comparison)
            for key in matches:
                stale.pop(key, None)  # an earlier version of the document may have been read before
            if context.plan.sources:
                changed = [key for key, match in matches.items() if match in (VersionMatch.EARLIER, VersionMatch.LATER)]
                stale_keys = _find_differing(context, changed, began)
            else:
                old = start.seq_nos.get(page.shard, -1) if primaries.are_unchanged else -1
                new = {document_key(hit) for hit in page.hits if hit["_seq_no"] > old}
                stale_keys = reader.find_stale(
                    [
                        key
                        for key, match in matches.items()
                        if match is not VersionMatch.SAME and key in new and key[0] not in rejected
                    ]
                )
            stale |= {key: matches[key] for key in stale_keys}
    return Counter(stale.values())


def _matches(page: ScanPage, comparison: VersionComparison) -> dict[DocumentKey, VersionMatch]:
    keys = [document_key(hit) for hit in page.hits]
    versions = pack_versions([(key, hit_version(hit)) for key, hit in zip(keys, page.hits, strict=True)])
    return dict(zip(keys, comparison.compare(versions), strict=True))


@contextmanager
def _snapshots(context: LoadContext) -> Iterator[tuple[ShardSnapshot, ...]]:
    """Open points in time with every write until now: on the primaries, since a replica may have missed one."""
    engine, name = context.engine, context.index.concrete
    changes = ShardChanges(engine, name, without_retries)

    def open_all() -> tuple[ShardSnapshot, ...]:
        try:
            nodes = {shard: state.node for shard, state in changes.make_visible().items()}
        except AccessDenied:
            engine.refresh(name)
            nodes = {}
        return open_snapshots(engine, name, without_retries, nodes)

    snapshots = context.retrying(open_all)
    try:
        yield snapshots
    finally:
        close_snapshots(engine, snapshots)


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
