"""Remove documents from the new index that were deleted from the old one.

A full pass compares all ids. In a large index it takes minutes, so it runs once, before writes are blocked. Later
deletions are found with points in time: a document that is deleted or rewritten leaves its old sequence number.
Therefore ranges of sequence numbers that contain fewer documents than in an earlier point in time are split until only
a few documents are left. This takes a few requests per hundred changes, regardless of the size of the index.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from typing import NamedTuple

from es_sbert.engines.multi_get import batched
from es_sbert.engines.protocol import DocumentKey, Json, document_key
from es_sbert.engines.rest import KEEP_ALIVE
from es_sbert.errors import EngineError
from es_sbert.migration.document_copy import MigrationContext, delete_write

# First sequence number (exclusive) and last (inclusive).
SeqNoRange = tuple[int, int]
CountSeqNoRanges = Callable[[Sequence[SeqNoRange]], list[int]]

_PAGE = 1000
_RANGES_PER_REQUEST = 256
_SPLIT_PARTS = 16
_SMALL_RANGE = 16
_MAX_SHARDS = 64


class PointInTimeLost(Exception):
    """A point in time has expired, or one of its shards does not answer."""


class _PointInTime(NamedTuple):
    """One shard of the old index; it contains every write up to `max_seq_no`."""

    shard: int
    id: str
    max_seq_no: int


def remove_deleted(context: MigrationContext) -> int:
    """Remove from the new index what the old one no longer has, unless another writer has written it there.

    Returns:
        Documents removed.
    """
    context.refresh(context.source, context.target)
    pages = context.engine.scan(context.target, query={"match_all": {}}, source_includes=(), page=_PAGE)
    removed = sum(_remove_missing(context, [document_key(hit) for hit in page]) for page in pages)
    # Last: a run that is killed before this has to do all of it again.
    context.state_store.write(deletions=False)
    return removed


def _remove_missing(context: MigrationContext, keys: Sequence[DocumentKey]) -> int:
    """Remove those documents from the new index that the old one lacks; returns their number."""
    existing = context.find(context.source, [key[0] for key in keys])
    missing = {key for key in keys if key not in existing}
    if not missing:
        return 0
    copies = context.find(context.target, [key[0] for key in missing])
    writes = [delete_write(hit) for key, hit in copies.items() if key in missing and context.is_migration_write(hit)]
    return len(context.send(writes))


class DeletionTracker:
    """Finds what was deleted from the old index since the last call, without reading all of it.

    For an index with more than 64 shards, or where a point in time is lost, all ids are compared instead.

    Args:
        context: The migration.
    """

    def __init__(self, context: MigrationContext) -> None:
        self._context = context
        self._points_in_time: list[_PointInTime] = []
        self._copied: set[DocumentKey] = set()

    def begin(self) -> None:
        """Remember the old index as it is now; `remove_deleted` has to follow.

        Raises:
            EngineError: the engine failed.
        """
        self.close()
        self._points_in_time = self._open()

    def add_copied(self, keys: Iterable[DocumentKey]) -> None:
        """Add documents that a round has copied since."""
        self._copied.update(keys)

    def remove(self) -> int:
        """Remove from the new index what was deleted from the old one since `begin`, or since the last call.

        Returns:
            Documents removed.

        Raises:
            EngineError: the engine failed.
        """
        # Opened first: what is deleted during the comparison is found the next time.
        points_in_time, copied = self._open(), self._copied
        try:
            if not self._points_in_time:
                raise PointInTimeLost
            changed = {key for one in self._points_in_time for key in self._changed_documents(one)}
        except PointInTimeLost:
            self._replace(points_in_time)
            return remove_deleted(self._context)
        self._replace(points_in_time)
        self._context.refresh(self._context.source, self._context.target)
        removed = sum(_remove_missing(self._context, keys) for keys in batched(list(changed | copied), _PAGE))
        self._context.state_store.write(deletions=False)
        return removed

    def close(self) -> None:
        """Close the points in time."""
        self._replace([])

    def _replace(self, points_in_time: list[_PointInTime]) -> None:
        for one in self._points_in_time:
            self._context.engine.close_point_in_time(one.id)
        self._points_in_time, self._copied = points_in_time, set()

    def _open(self) -> list[_PointInTime]:
        """A point in time of each shard; none if there are too many."""
        engine, source = self._context.engine, self._context.source
        # First the numbers, then the refresh: every write up to these numbers is visible then.
        numbers = self._context.retrying(partial(engine.sequence_numbers, source))
        self._context.refresh(source)
        opened: list[_PointInTime] = []
        if len(numbers) > _MAX_SHARDS:
            return opened
        try:
            for shard, number in enumerate(numbers):
                opened.append(
                    _PointInTime(shard, engine.open_point_in_time(source, shard=shard), number.global_checkpoint)
                )
        except EngineError:
            # Engines limit their number. Without them all ids are compared.
            for one in opened:
                engine.close_point_in_time(one.id)
            return []
        return opened

    def _changed_documents(self, before: _PointInTime) -> Iterator[DocumentKey]:
        """Documents of a point in time that were deleted or written again since.

        Raises:
            PointInTimeLost: it has expired.
        """
        ranges = changed_ranges(
            before.max_seq_no,
            lambda ranges: _parse_counts(self._search_point_in_time(before, _count_body(ranges))),
            lambda ranges: _parse_counts(self._search_shard(before.shard, _count_body(ranges))),
        )
        # Documents above `max_seq_no` may become visible later, so their counts say nothing: look up all of them.
        newer: Json = {"range": {"_seq_no": {"gt": before.max_seq_no}}}
        for queries in batched([newer, *map(_seq_no_query, ranges)], _RANGES_PER_REQUEST):
            query: Json = {"bool": {"should": list(queries), "minimum_should_match": 1}}
            body: Json = {"query": query, "size": _PAGE, "_source": False, "sort": [{"_seq_no": "asc"}]}
            while True:
                hits = self._search_point_in_time(before, body)["hits"]["hits"]
                yield from map(document_key, hits)
                if len(hits) < _PAGE:
                    break
                body["search_after"] = hits[-1]["sort"]

    def _search_point_in_time(self, point_in_time: _PointInTime, body: Json) -> Json:
        pit = {"id": point_in_time.id, "keep_alive": KEEP_ALIVE}
        response = self._context.engine.request_api("/_search", body=body | {"pit": pit})
        if response is None or response.get("timed_out") or response["_shards"].get("failed"):
            raise PointInTimeLost
        return response

    def _search_shard(self, shard: int, body: Json) -> Json:
        return self._context.engine.search(self._context.source, body, preference=f"_shards:{shard}")


def changed_ranges(max_seq_no: int, before: CountSeqNoRanges, now: CountSeqNoRanges) -> list[SeqNoRange]:
    """Small ranges that together contain every document that existed before and does not exist now.

    Args:
        max_seq_no: The highest sequence number to compare.
        before: Counts the documents in each range, as they were.
        now: Counts them as they are; never more than before.
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
