"""Remove documents from the new index that were deleted from the old one.

A full pass compares all ids. In a large index it takes minutes, so it runs once, before writes are blocked. Later
deletions are found with points in time: a document that is deleted or rewritten leaves its old sequence number.
Therefore ranges of sequence numbers that contain fewer documents than in an earlier point in time are split until only
a few documents are left. This takes a few requests per hundred changes, regardless of the size of the index.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial

from es_sbert.engines.multi_get import batched
from es_sbert.engines.protocol import DocumentKey, Engine, Json, document_key
from es_sbert.errors import EngineError
from es_sbert.migration.document_copy import MigrationContext, delete_write, is_migration_write

# Sequence numbers from the first, left out, to the last.
SeqNoRange = tuple[int, int]
CountSeqNoRanges = Callable[[Sequence[SeqNoRange]], list[int]]

_PAGE = 1000
_RANGES_PER_REQUEST = 256
_SPLIT_PARTS = 16
_SMALL_RANGE = 16
_MAX_SHARDS = 64


class PointInTimeLost(Exception):
    """A point in time has expired, or one of its shards does not answer."""


def remove_deleted(context: MigrationContext) -> int:
    """Remove from the new index what the old one no longer has, unless another writer has written it there.

    Returns:
        Documents removed.
    """
    _refresh_indices(context)
    pages = context.engine.scan(context.target, query={"match_all": {}}, source_includes=(), page=_PAGE)
    removed = sum(_remove_missing(context, [document_key(hit) for hit in page]) for page in pages)
    # Only now: one that is killed before has all of it still to do.
    context.state_store.write(deletions=False)
    return removed


class DeletionTracker:
    """Finds what was deleted from the old index since the last look, without reading all of it.

    Of an index with more than 64 shards, or where a point in time is lost, all ids are compared instead.

    Args:
        context: The migration.
    """

    def __init__(self, context: MigrationContext) -> None:
        self._context = context
        self._views: list[tuple[str, int]] = []
        self._copied: set[DocumentKey] = set()

    def begin(self) -> None:
        """Remember the old index as it is now; `remove_deleted` has to follow.

        Raises:
            EngineError: the engine failed.
        """
        self.close()
        self._views = self._open()

    def copied(self, keys: Iterable[DocumentKey]) -> None:
        """Documents that a round has copied since."""
        self._copied.update(keys)

    def remove(self) -> int:
        """Remove from the new index what was deleted from the old one since `begin`, or since the last call.

        Returns:
            Documents removed.

        Raises:
            EngineError: the engine failed.
        """
        # First the new point in time: what is deleted while this one is compared is found the next time.
        views, since = self._open(), self._copied
        try:
            gone = self._changed_since()
        except PointInTimeLost:
            self._use(views)
            return remove_deleted(self._context)
        self._use(views)
        _refresh_indices(self._context)
        removed = sum(_remove_missing(self._context, keys) for keys in batched(list(gone | since), _PAGE))
        self._context.state_store.write(deletions=False)
        return removed

    def close(self) -> None:
        """Give the points in time back."""
        self._use([])

    def _use(self, views: list[tuple[str, int]]) -> None:
        for pit_id, _ in self._views:
            self._context.engine.close_point_in_time(pit_id)
        self._views, self._copied = views, set()

    def _open(self) -> list[tuple[str, int]]:
        """A point in time of each shard and the number up to which it misses nothing; none if there are too many."""
        engine, source = self._context.engine, self._context.source
        # First the numbers, then the refresh: whatever has one of them can be seen then.
        numbers = self._context.retrying(partial(engine.sequence_numbers, source))
        self._context.retrying(partial(engine.refresh, source))
        views: list[tuple[str, int]] = []
        if len(numbers) > _MAX_SHARDS:
            return views
        try:
            for shard, number in enumerate(numbers):
                views.append((engine.open_point_in_time(source, shard=shard), number.global_checkpoint))
        except EngineError:
            # Engines limit their number. Without them all ids are compared.
            for pit_id, _ in views:
                engine.close_point_in_time(pit_id)
            return []
        return views

    def _changed_since(self) -> set[DocumentKey]:
        """Documents of the points in time that were deleted or written again since.

        Raises:
            ViewLost: there are no points in time, or one has expired.
        """
        if not self._views:
            raise PointInTimeLost
        return {key for shard, (pit_id, up_to) in enumerate(self._views) for key in self._changed(shard, pit_id, up_to)}

    def _changed(self, shard: int, pit_id: str, up_to: int) -> Iterator[DocumentKey]:
        engine, source = self._context.engine, self._context.source

        def before(body: Json) -> Json:
            return _search_point_in_time(engine, pit_id, body)

        def now(body: Json) -> Json:
            return engine.search(source, body, preference=f"_shards:{shard}")

        # Numbers beyond `up_to` may come into sight later, so their counts say nothing: all of these are looked up.
        beyond: Json = {"range": {"_seq_no": {"gt": up_to}}}
        changed = changed_ranges(up_to, partial(_count_ranges, before), partial(_count_ranges, now))
        for ranges in batched([beyond, *map(_seq_no_query, changed)], _RANGES_PER_REQUEST):
            yield from self._keys(before, {"bool": {"should": list(ranges), "minimum_should_match": 1}})

    def _keys(self, search: Callable[[Json], Json], query: Json) -> Iterator[DocumentKey]:
        body: Json = {"query": query, "size": _PAGE, "_source": False, "sort": [{"_seq_no": "asc"}]}
        while True:
            hits = search(body)["hits"]["hits"]
            yield from map(document_key, hits)
            if len(hits) < _PAGE:
                return
            body["search_after"] = hits[-1]["sort"]


def changed_ranges(up_to: int, before: CountSeqNoRanges, now: CountSeqNoRanges) -> list[SeqNoRange]:
    """Ranges of few documents that cover all which were there before and are not there now.

    Args:
        up_to: The highest sequence number that is looked at.
        before: Documents in each of these ranges, as they were.
        now: As they are; never more than before.
    """
    found: list[SeqNoRange] = []
    pending: list[SeqNoRange] = [(-1, up_to)] if up_to >= 0 else []
    while pending:
        smaller: list[SeqNoRange] = []
        for ranges in batched(pending, _RANGES_PER_REQUEST):
            for (low, high), then, there in zip(ranges, before(ranges), now(ranges), strict=True):
                if then == there:
                    continue
                if then <= _SMALL_RANGE or not there:
                    found.append((low, high))
                else:
                    step = max(1, -(-(high - low) // _SPLIT_PARTS))
                    smaller += [(start, min(start + step, high)) for start in range(low, high, step)]
        pending = smaller
    return found


def _seq_no_query(numbers: SeqNoRange) -> Json:
    low, high = numbers
    return {"range": {"_seq_no": {"gt": low, "lte": high}}}


def _count_ranges(search: Callable[[Json], Json], ranges: Sequence[SeqNoRange]) -> list[int]:
    filters = {str(number): _seq_no_query(one) for number, one in enumerate(ranges)}
    body: Json = {"size": 0, "track_total_hits": False, "aggs": {"ranges": {"filters": {"filters": filters}}}}
    buckets = search(body)["aggregations"]["ranges"]["buckets"]
    return [int(buckets[str(number)]["doc_count"]) for number in range(len(ranges))]


def _search_point_in_time(engine: Engine, pit_id: str, body: Json) -> Json:
    """A search of a point in time.

    Raises:
        ViewLost: it has expired, or a shard does not answer.
    """
    answer = engine.request_api("/_search", body=body | {"pit": {"id": pit_id, "keep_alive": "30m"}})
    if answer is None or answer.get("timed_out") or answer["_shards"].get("failed"):
        raise PointInTimeLost
    return answer


def _refresh_indices(context: MigrationContext) -> None:
    for index in (context.source, context.target):
        context.retrying(partial(context.engine.refresh, index))


def _remove_missing(context: MigrationContext, keys: Sequence[DocumentKey]) -> int:
    """Remove those documents of the new index that the old one lacks; how many that were."""
    there = context.find(context.source, [key[0] for key in keys])
    gone = {key for key in keys if key not in there}
    if not gone:
        return 0
    copies = context.find(context.target, [key[0] for key in gone])
    writes = [delete_write(hit) for key, hit in copies.items() if key in gone and is_migration_write(context, hit)]
    return len(context.send(writes))
