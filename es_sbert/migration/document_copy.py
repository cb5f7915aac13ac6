"""Copy documents from the old index to the new one in rounds, remove deleted ones, and verify the copy.

Every write gets the next sequence number of its shard. A round reads a shard's documents in that order, starting after
the last number that was copied, so an interrupted round can resume.

Deleted documents: a full pass compares all ids. In a large index it takes minutes, so it runs once, before writes are
blocked. Later deletions are found with points in time: a document that is deleted or rewritten leaves its old sequence
number. Therefore ranges of sequence numbers that contain fewer documents than in an earlier point in time are split
until only a few documents are left. This takes a few requests per hundred changes, regardless of the size of the index.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property, partial

import numpy as np
import orjson

from es_sbert.batched import batched
from es_sbert.encoder.encoder import Encoder
from es_sbert.engines.bulk_request import BulkOutcome
from es_sbert.engines.engine import DocumentKey, Engine, document_key
from es_sbert.engines.index_scan import ShardChanges, ShardSnapshot, close_snapshots, multi_get, scan_index
from es_sbert.engines.rest import Json, exact_numbers
from es_sbert.engines.retry import Retrier, RetryPolicy, without_retries
from es_sbert.errors import EngineError, IndexMismatch, RequestFailed
from es_sbert.index.derived_fields import is_within, mapped_fields
from es_sbert.index.document_vectors import (
    action_metadata,
    doc_value_request,
    hit_vectors,
    if_unchanged,
    row_cosines,
    same_vectors,
    stored_value,
)
from es_sbert.index.mapping import VECTOR_TYPES, VectorFieldMeta, document_meta_field, random_order_query
from es_sbert.index.privileges import count_all_documents
from es_sbert.index.text_template import MISSING, TextTemplate, without_fields
from es_sbert.index.vector_field import VectorField, require_index
from es_sbert.index.versioned_updates import BulkWrite, VersionedUpdates
from es_sbert.index.whole_documents import keyword_fields, max_docvalue_fields, restore_numbers, rewrites_numbers
from es_sbert.ingest.load_threads import LoadControl
from es_sbert.io.json_text import dump_object
from es_sbert.messages import pluralize
from es_sbert.migration.migration_state import MigrationStateStore


def copy_write(hit: Json, dropped: Collection[str]) -> BulkWrite:
    """Build the action that writes a document of the old index, without some of its fields.

    Args:
        hit: The document, with `_id`, `_source` and perhaps `_routing`.
        dropped: Dotted names of the fields to leave out.
    """
    source = without_fields(hit["_source"], dropped)
    # No ingest pipeline is used: it has processed the document already.
    action = action_metadata(hit) | {"pipeline": "_none"}
    return BulkWrite(document_key(hit), b"%b\n%b\n" % (orjson.dumps({"index": action}), dump_object(source)))


def delete_write(existing: Json) -> BulkWrite:
    """Build the action that removes a document from the new index, unless it was written since it was read."""
    action = {"delete": action_metadata(existing) | if_unchanged(existing)}
    return BulkWrite(document_key(existing), orjson.dumps(action) + b"\n")


_CHECKPOINT_SECONDS = 5.0
_PROGRESS_SECONDS = 10.0
_COPY_PAGE = 200  # whole documents, with vectors


@dataclass(frozen=True)
class MigrationContext:
    """The objects and state that the steps of one migration share.

    Attributes:
        engine: The engine with both indices. It retries requests that may be repeated until the user stops the
            migration.
        unretried: The same engine without retries.
        source, target: The old and the new index.
        state_store: The stored state.
        policy: Backoff and time limit for transient failures.
        retrying: Retries a call as `engine` does.
        control: Stops the migration from outside.
        updates: Writes to the new index.
        report: Receives a message for each step.
    """

    engine: Engine
    unretried: Engine
    source: str
    target: str
    state_store: MigrationStateStore
    policy: RetryPolicy
    retrying: Retrier
    control: LoadControl
    updates: VersionedUpdates
    report: Callable[[str], None]

    @cached_property
    def changes(self) -> ShardChanges:
        """Reads the changes in the old index."""
        return ShardChanges(self.unretried, self.source, self.retrying)

    @cached_property
    def _result_window(self) -> int:
        """`index.max_result_window` of both indices."""
        return self.engine.result_window(self.target)

    @property
    def is_stopped(self) -> bool:
        return self.control.stop_reading.is_set()

    def is_swapped(self) -> bool:
        """Whether the alias points to the new index."""
        state = self.engine.get_index(self.state_store.state.alias)
        return state is not None and state.name == self.target

    def send(self, writes: Sequence[BulkWrite]) -> int:
        """Write into the new index; returns the number of accepted writes once the engine has answered all of them.

        Args:
            writes: At most one for each document.

        Raises:
            EngineError: the engine refuses a document, or has not accepted the writes within the policy's budget.
        """
        accepted = 0
        for write, result in self.updates.send(writes):
            accepted += result.ok
            if result.outcome is BulkOutcome.REFUSED:
                raise RequestFailed(
                    f"{self.engine.info.label} refuses the document {write.key[0]!r} in {self.target}: {result.reason}",
                    "Fix or delete that document in the old index, then run the same command again to resume.",
                    result.status,
                )
        self.control.engine_wait.end()
        return accepted

    def find(
        self, index: str, ids: Sequence[str], source: Json | bool = False, extra: Json | None = None
    ) -> dict[DocumentKey, Json]:
        """Find the documents of an index that have these ids, see `multi_get`; the hits have `_shard`."""
        window = self._result_window
        return multi_get(self.engine, index, ids, source=source, extra=extra, shards=True, result_window=window)


def copy_changes(context: MigrationContext, *, keys: set[DocumentKey] | None = None) -> int:
    """Run one round: copy the changes in the old index since the last round; in the first round, all documents.

    Args:
        keys: Set to which the keys of the copied documents are added.

    Returns:
        Number of documents copied.

    Raises:
        EngineError: the engine fails for longer than the policy allows, or refuses a document.
    """
    store = context.state_store
    shards = context.changes.make_visible()
    source = require_index(context.engine, context.source)
    read = partial(
        context.changes.read, query={"match_all": {}}, page=min(_COPY_PAGE, source.result_window), whole=True
    )
    _forget_other_histories(store, {number: shard.history for number, shard in shards.items()})
    dropped, copied, deletions = store.state.not_copied, list(store.state.copied), False
    count, saved, reported = 0, time.monotonic(), time.monotonic()
    for shard, number in shards.items():
        begin, seen = copied[shard], 0
        while copied[shard] < number.global_checkpoint:
            with exact_numbers():
                page = read(shard, copied[shard], number.global_checkpoint)
            if not page:
                break
            for (document_id, _), reason in restore_numbers(context.unretried, source, page, context.retrying).items():
                raise IndexMismatch(
                    f"the document {document_id!r} cannot be written again: {reason}",
                    "Then run the same command again to resume.",
                )
            context.send([copy_write(hit, dropped) for hit in page])
            if keys is not None:
                keys.update(map(document_key, page))
            seen += len(page)
            count += len(page)
            copied[shard] = page[-1]["_seq_no"]
            if time.monotonic() - reported > _PROGRESS_SECONDS:
                context.report(f"{pluralize(count, 'document')} copied")
                reported = time.monotonic()
            if context.is_stopped or time.monotonic() - saved > _CHECKPOINT_SECONDS:
                # Assume deletions until the end of the round: numbers without a document may have been deletions.
                store.write(copied=tuple(copied), deletions=True)
                saved = time.monotonic()
            if context.is_stopped:
                return count
        copied[shard] = max(number.global_checkpoint, begin)
        # Each number belongs to an existing document, or to one that was written again or deleted since.
        deletions |= begin >= 0 and seen < copied[shard] - begin
    deletions |= store.state.deletions
    if (tuple(copied), deletions) != (store.state.copied, store.state.deletions):
        store.write(copied=tuple(copied), deletions=deletions)
    return count


def _forget_other_histories(store: MigrationStateStore, histories: dict[int, str]) -> None:
    """Start over with shards whose sequence numbers no longer belong to the writes that were copied."""
    current = tuple(histories[shard] for shard in sorted(histories))
    if current == store.state.histories:
        return
    before = store.state.histories or current
    changed = [then != now for then, now in zip(before, current, strict=True)]
    copied = tuple(-1 if other else number for number, other in zip(store.state.copied, changed, strict=True))
    store.write(histories=current, copied=copied, deletions=store.state.deletions or any(changed))


# First sequence number (exclusive) and last (inclusive).
SeqNoRange = tuple[int, int]
CountSeqNoRanges = Callable[[Sequence[SeqNoRange]], list[int]]

_ID_PAGE = 1000
_RANGES_PER_REQUEST = 256
_SPLIT_PARTS = 16
_SMALL_RANGE = 16
_MAX_SHARDS = 64


class _CannotCompare(Exception):
    """Raised if a point in time has expired, or its node does not answer."""


def remove_deleted(context: MigrationContext) -> int:
    """Remove documents from the new index that the old one no longer has.

    Returns:
        Number of documents removed.
    """
    context.engine.refresh(context.source)
    context.engine.refresh(context.target)
    pages = scan_index(
        context.unretried,
        context.target,
        query={"match_all": {}},
        source_includes=(),
        page=_ID_PAGE,
        retrying=context.retrying,
    )
    removed = 0
    for page in pages:
        removed += _remove_missing(context, [document_key(hit) for hit in page.hits])
        if context.is_stopped:
            return removed
    # This is written last: a run that is killed before has to compare all ids again.
    context.state_store.write(deletions=False)
    return removed


def _remove_missing(context: MigrationContext, keys: Sequence[DocumentKey]) -> int:
    """Remove from the new index those documents that the old one lacks; returns their number."""
    found = context.engine.mget(context.source, keys, source_includes=None)
    # Two routings may lead to the same shard, which then has the document of only one of them.
    missing = {
        key for key, document in zip(keys, found, strict=True) if document is None or document_key(document) != key
    }
    if not missing:
        return 0
    copies = context.find(context.target, [key[0] for key in missing])
    return context.send([delete_write(hit) for key, hit in copies.items() if key in missing])


class DeletionTracker:
    """Finds documents that were deleted from the old index since the last call, without reading the whole index.

    If the index has more than 64 shards, or a point in time is lost, all ids are compared instead.

    Args:
        context: The migration.

    Attributes:
        copied: Documents that rounds have copied since the last call.
    """

    def __init__(self, context: MigrationContext) -> None:
        self._context = context
        self._points_in_time: list[ShardSnapshot] = []
        self.copied: set[DocumentKey] = set()

    def begin(self) -> None:
        """Remember the current state of the old index; `remove_deleted` must follow.

        Raises:
            EngineError: the engine failed.
        """
        self.close()
        self._points_in_time = self._open()

    def remove(self) -> int:
        """Remove documents from the new index that were deleted from the old one since `begin` or the last call.

        Returns:
            Number of documents removed.

        Raises:
            EngineError: the engine failed.
        """
        # Open the next points in time first: documents that are deleted during the comparison are found next time.
        points_in_time, copied = self._open(), self.copied
        try:
            if not self._points_in_time:
                raise _CannotCompare
            changed = {key for one in self._points_in_time for key in self._changed_documents(one)}
        except _CannotCompare:
            self._replace(points_in_time)
            return remove_deleted(self._context)
        self._replace(points_in_time)
        self._context.engine.refresh(self._context.target)
        removed = sum(_remove_missing(self._context, keys) for keys in batched(list(changed | copied), _ID_PAGE))
        self._context.state_store.write(deletions=False)
        return removed

    def close(self) -> None:
        """Close the points in time."""
        self._replace([])

    def _replace(self, points_in_time: list[ShardSnapshot]) -> None:
        close_snapshots(self._context.unretried, self._points_in_time)
        self._points_in_time, self.copied = points_in_time, set()

    def _open(self) -> list[ShardSnapshot]:
        """Open a point in time of each shard; empty if there are too many shards or points in time."""
        changes = self._context.changes
        shards = changes.make_visible()
        opened: list[ShardSnapshot] = []
        if len(shards) > _MAX_SHARDS:
            return opened
        try:
            for number in shards:
                opened.append(changes.open_snapshot(number))
        except EngineError:
            # Engines limit the number of points in time. Without them, all ids are compared.
            close_snapshots(self._context.unretried, opened)
            return []
        return opened

    def _changed_documents(self, before: ShardSnapshot) -> Iterator[DocumentKey]:
        """Find documents of a point in time that were deleted or written again since.

        Raises:
            _CannotCompare: the point in time has expired, or its node does not answer.
        """
        ranges = changed_ranges(
            before.max_seq_no,
            lambda ranges: _parse_counts(self._search_point_in_time(before, _count_body(ranges))),
            lambda ranges: _parse_counts(self._context.changes.search(before.shard, _count_body(ranges))),
        )
        # Documents above `max_seq_no` may become visible later, so their counts say nothing: look up all of them.
        newer: Json = {"range": {"_seq_no": {"gt": before.max_seq_no}}}
        page = self._context.changes.page_size(_ID_PAGE)
        for queries in batched([newer, *map(_seq_no_query, ranges)], _RANGES_PER_REQUEST):
            query: Json = {"bool": {"should": list(queries), "minimum_should_match": 1}}
            body: Json = {"query": query, "size": page, "_source": False, "sort": [{"_seq_no": "asc"}]}
            while True:
                hits = self._search_point_in_time(before, body)["hits"]["hits"]
                yield from map(document_key, hits)
                if len(hits) < page:
                    break
                body["search_after"] = hits[-1]["sort"]

    def _search_point_in_time(self, snapshot: ShardSnapshot, body: Json) -> Json:
        try:
            return self._context.unretried.search_point_in_time(snapshot.point_in_time, body)
        except EngineError as error:
            # The caller then compares all ids, which does not need the point in time.
            raise _CannotCompare from error


def changed_ranges(max_seq_no: int, before: CountSeqNoRanges, now: CountSeqNoRanges) -> list[SeqNoRange]:
    """Find small ranges that together contain every document that existed before and does not exist now.

    Args:
        max_seq_no: The highest sequence number to compare.
        before: Counts the documents that each range contained before.
        now: Counts the documents that each range contains now, which are never more.
    """
    changed: list[SeqNoRange] = []
    pending: list[SeqNoRange] = [(-1, max_seq_no)] if max_seq_no >= 0 else []
    while pending:
        smaller: list[SeqNoRange] = []
        for ranges in batched(pending, _RANGES_PER_REQUEST):
            for (low, high), old, new in zip(ranges, before(ranges), now(ranges), strict=True):
                if old == new:
                    continue
                if old <= _SMALL_RANGE or not new:
                    changed.append((low, high))
                else:
                    step = max(1, -(-(high - low) // _SPLIT_PARTS))
                    smaller += [(start, min(start + step, high)) for start in range(low, high, step)]
        pending = smaller
    return changed


def _seq_no_query(numbers: SeqNoRange) -> Json:
    low, high = numbers
    return {"range": {"_seq_no": {"gt": low, "lte": high}}}


def _count_body(ranges: Sequence[SeqNoRange]) -> Json:
    filters = {str(number): _seq_no_query(one) for number, one in enumerate(ranges)}
    return {"size": 0, "track_total_hits": False, "aggs": {"ranges": {"filters": {"filters": filters}}}}


def _parse_counts(response: Json) -> list[int]:
    buckets = response["aggregations"]["ranges"]["buckets"]
    return [int(buckets[str(number)]["doc_count"]) for number in range(len(buckets))]


SAMPLE_SIZE = 50
# Lower than 1, because batches differ in their padding.
_MIN_COSINE = 0.999
# Two variants of a model, such as int8 and fp32. Each is exported only if the cosines of its vectors and those of the
# original model are at least 0.9 (`PARITY_THRESHOLDS`); between the two, the angle is at most twice as large.
_MIN_VARIANT_COSINE = 2 * 0.9**2 - 1


def verify_copy(
    context: MigrationContext, encoder: Encoder, fields: dict[str, VectorFieldMeta], *, other_variants: bool
) -> int:
    """Compare counts, a random sample of documents, and their vectors, which are computed again.

    Documents that were written in the old index since they were copied may differ.

    Args:
        encoder: Computes the vectors of these fields.
        other_variants: Whether another variant of the model, such as int8, may have computed some of the vectors.

    Returns:
        Number of vectors that were compared.

    Raises:
        IndexMismatch: the indices differ.
        EngineError: the engine failed.
    """
    old, new = _count_documents(context)
    shards, copied = context.changes.states(), context.state_store.state.copied
    since = sum(shard.max_seq_no - copied[number] for number, shard in shards.items())
    if abs(old - new) > since:
        how = f"it holds {pluralize(new, 'document')}, {context.source} {old:,} ({pluralize(since, 'write')} to come)"
        raise _mismatch_error(context, how)
    source = context.engine.info.source_with_vectors()
    size = min(SAMPLE_SIZE, context.engine.result_window(context.target))
    filled = [VectorField(context.target, name, meta) for name, meta in fields.items()]
    doc_values = doc_value_request(context.engine.info.engine_type, filled)
    body: Json = {"query": random_order_query(None, seed=0), "size": size, "_source": source, **doc_values}
    sample: list[Json] = context.engine.search(context.target, body)["hits"]["hits"]
    _verify_documents(context, sample)
    least = _MIN_VARIANT_COSINE if other_variants else _MIN_COSINE
    return sum(_verify_vectors(context, encoder, sample, field, least) for field in filled)


def verify_counts(context: MigrationContext, *, surplus_ok: bool = False) -> bool:
    """Compare counts while the old index takes no writes. Afterwards, searches of both see all writes.

    Args:
        surplus_ok: Whether the new index may still hold documents that were deleted from the old one.

    Returns:
        Whether the counts are equal.

    Raises:
        IndexMismatch: the new index holds too few documents, or too many.
        EngineError: the engine failed.
    """
    old, new = _count_documents(context)
    if new < old or (new > old and not surplus_ok):
        raise _mismatch_error(context, f"it holds {pluralize(new, 'document')}, {context.source} {old:,}")
    return new == old


def _count_documents(context: MigrationContext) -> tuple[int, int]:
    """Count the documents in the old index and in the new one, after a refresh."""
    counts = [count_all_documents(context.engine, name, without_retries) for name in (context.source, context.target)]
    return counts[0], counts[1]


def _verify_documents(context: MigrationContext, sample: list[Json]) -> None:
    """Check that copies are equal to their originals, unless the original was written since.

    Numbers are compared as they were written. The engine may write them anew in `_source`, but not in keyword fields.
    """
    if not sample:
        return
    copied, dropped = context.state_store.state.copied, context.state_store.state.not_copied
    old, new = [require_index(context.engine, name) for name in (context.source, context.target)]
    keywords = set(keyword_fields(old).values()) & set(keyword_fields(new).values())
    compared = sorted(name for name in keywords if not is_within(name, dropped))[: max_docvalue_fields(old)]
    mapped = mapped_fields(new.mappings.get("properties", {}))
    vectors = {name.partition(".")[0] for name, field in mapped if field.get("type") in VECTOR_TYPES.values()}
    ids, source = [hit["_id"] for hit in sample], context.engine.info.source_with_vectors()
    terms: Json = {"docvalue_fields": compared}
    with exact_numbers():
        # Use one search for all, because a document may be written again between two searches.
        originals = context.find(old.name, ids, source, terms)
        copies = context.find(new.name, ids, source, terms)
    is_rewritten = rewrites_numbers(context.engine.info, new)
    for key in map(document_key, sample):
        original, copy = originals.get(key), copies.get(key)
        if original is None or copy is None:
            continue  # deleted since; the counts show if many are
        shard = int(original["_shard"].rpartition("[")[2].rstrip("]"))
        if original["_seq_no"] > copied[shard]:
            continue  # written since
        one, two = without_fields(copy["_source"], dropped), without_fields(original["_source"], dropped)
        is_same = _same_document(one, two, vectors) and copy.get("fields") == original.get("fields")
        if is_same and not is_rewritten:
            one, two = without_fields(one, vectors), without_fields(two, vectors)
            is_same = dump_object(one, sort_keys=True) == dump_object(two, sort_keys=True)
        if not is_same:
            raise _mismatch_error(context, f"the document {key[0]!r} differs from that in {context.source}")


def _verify_vectors(
    context: MigrationContext, encoder: Encoder, sample: list[Json], field: VectorField, least: float
) -> int:
    """Check that the vectors of one field are those that the encoder computes; returns the number compared."""
    name, meta = field.name, field.meta
    if meta.text is None:
        return 0
    template = TextTemplate.parse(meta.text)
    ids, texts, vectors = [], [], []
    for hit in sample:
        document_meta = hit["_source"].get(document_meta_field(name)) or {}
        if stored_value(hit, name) is None:
            continue
        if document_meta.get("fingerprint", encoder.info.fingerprint) != encoder.info.fingerprint:
            which = f"the vector of the document {hit['_id']!r} in {name}"
            raise _mismatch_error(context, f"{which} is of the model {document_meta['fingerprint'][:12]}")
        text = template.render(hit["_source"])
        for start, end, vector in hit_vectors(hit, field):
            ids.append(hit["_id"])
            texts.append(text if meta.passages is None else text[start:end])
            vectors.append(vector)
    if not ids:
        return 0
    expected = encoder.encode(texts, "document")  # (vectors, dimensions)
    cosines = row_cosines(np.stack(vectors), expected)  # (vectors,)
    for document_id, cosine in zip(ids, cosines, strict=True):
        if cosine < least:
            which = f"the vector of the document {document_id!r} in {name}"
            how = f"{which} is not the one that {encoder.info.model} computes (cosine {cosine:.4f})"
            raise _mismatch_error(context, how)
    return len(ids)


def _same_document(copy: Json, original: Json, vectors: Collection[str]) -> bool:
    """Whether two documents are equal.

    Elasticsearch stores vectors normalized if it compares cosines. Those that it returns differ in their last digit
    with each copy.

    Args:
        vectors: Top-level fields that hold vectors.
    """
    differing = [
        name for name in copy.keys() | original.keys() if copy.get(name, MISSING) != original.get(name, MISSING)
    ]
    return all(name in vectors and same_vectors(copy.get(name), original.get(name)) for name in differing)


def _mismatch_error(context: MigrationContext, how: str) -> IndexMismatch:
    alias = context.state_store.state.alias
    return IndexMismatch(
        f"the new index {context.target} cannot replace {context.source}: {how}",
        f"Nothing was swapped. Make sure that only this migration writes to {context.target}, remove it with "
        f"`es-sbert index migrate {alias} --cancel`, and begin again.",
    )
