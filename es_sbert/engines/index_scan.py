"""Read an index shard by shard, in the order of the last writes, or documents by id.

`ShardChanges` reads what has changed. `scan_index` reads all documents that match a query, each shard from a point in
time, which keeps documents that are written or deleted while it is read. If a node goes down, its points in time are
lost. Another one is then opened, and reading continues after the last document: the `_seq_no` of a document is the same
on all copies of a shard, unlike its position in the files. Documents that were written again since the first point in
time was opened have a new `_seq_no`; they come last. `multi_get` searches all routings, unlike `_mget`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from functools import partial
from typing import Any, NamedTuple, TypeVar

from es_sbert.engines.engine import DocumentKey, Engine, document_key, seq_no_range_body
from es_sbert.engines.index_state import ShardState
from es_sbert.engines.rest import Json
from es_sbert.engines.retry import Retrier, without_retries
from es_sbert.errors import AccessDenied, EngineError, IndexMismatch, IndexMissing, RequestFailed

T = TypeVar("T")

_TOO_MANY_REQUESTS = 429


class ScanPage(NamedTuple):
    """Documents of one shard.

    Attributes:
        shard: Number of the shard.
        hits: With `_seq_no` and `_primary_term`.
        is_rewritten: Whether a point in time was lost, and the documents were written after it was opened. Some of them
            may have been read before, in an earlier version.
    """

    shard: int
    hits: list[Json]
    is_rewritten: bool


class ShardSnapshot(NamedTuple):
    """A point in time of one shard.

    Attributes:
        shard: Number of the shard.
        point_in_time: Id of the point in time.
        max_seq_no: The highest sequence number up to which it contains all writes; -1 for none.
    """

    shard: int
    point_in_time: str
    max_seq_no: int


@dataclass(frozen=True)
class IndexSlice:
    """One of the parts in which an index is read; each document of the snapshots is in exactly one of them.

    Attributes:
        number: Number of the slice, from 0.
        count: Number of all slices.
        snapshots: One of each shard, the same for all slices.
    """

    number: int
    count: int
    snapshots: tuple[ShardSnapshot, ...]

    def bounds(self, snapshot: ShardSnapshot) -> tuple[int, int]:
        """The slice's part of the sequence numbers of a shard: first (exclusive) and last (inclusive)."""
        length = snapshot.max_seq_no + 1
        return length * self.number // self.count - 1, length * (self.number + 1) // self.count - 1


def scan_index(
    engine: Engine,
    name: str,
    *,
    query: Json,
    source_includes: Sequence[str],
    page: int = 500,
    vectors: bool = False,
    extra: Json | None = None,
    slice: IndexSlice | None = None,
    retrying: Retrier = without_retries,
) -> Iterator[ScanPage]:
    """Read all documents of an index that match a query.

    Args:
        name: An index, or an alias of one; the filter of an alias applies.
        source_includes: Fields to read; if empty, no `_source` is read.
        page: Maximum number of documents in a page; fewer if `index.max_result_window` is smaller.
        vectors: Also return vectors on engines that leave them out of `_source`.
        extra: Further members of the search body.
        slice: The part of the index to read; None for all of it.
        retrying: Retries each request; a lost point in time is replaced by a new one.

    Raises:
        IndexMissing: the index does not exist.
        IndexMismatch: the index was deleted or replaced, or its alias was moved, while it was read.
        EngineError: the engine failed for longer than `retrying` allows.
    """
    uuids = retrying(lambda: engine.index_uuids(name))
    page = min(page, retrying(lambda: engine.result_window(name)))
    source = engine.hit_source(source_includes, vectors=vectors)

    def body(after: int, up_to: int) -> Json:
        return seq_no_range_body(query, after, up_to, page, source) | (extra or {})

    if slice is None:
        shards = retrying(lambda: engine.searched_shards(name))
        readers = [_ShardReader(engine, name, uuids, shard, page, body, retrying) for shard in shards]
    else:
        readers = [
            _ShardReader(engine, name, uuids, each.shard, page, body, retrying, each, slice.bounds(each))
            for each in slice.snapshots
        ]
    for reader in readers:
        with closing(reader):
            yield from reader.pages()


def open_snapshots(
    engine: Engine, name: str, retrying: Retrier, nodes: Mapping[int, str] | None = None
) -> tuple[ShardSnapshot, ...]:
    """Open a point in time of each shard; the caller closes them with `close_snapshots`.

    Args:
        nodes: Shard → id of the node whose copy is read; for a shard that is left out, any copy.

    Raises:
        IndexMissing: the index does not exist.
        EngineError: the engine failed.
    """
    shards = retrying(lambda: engine.searched_shards(name))
    snapshots: list[ShardSnapshot] = []
    try:
        for shard in shards:
            snapshots.append(retrying(partial(_open_snapshot, engine, name, shard, (nodes or {}).get(shard, ""))))
    except BaseException:
        close_snapshots(engine, snapshots)
        raise
    return tuple(snapshots)


def close_snapshots(engine: Engine, snapshots: Sequence[ShardSnapshot]) -> None:
    """Close the points in time. Never fails: those that cannot be closed expire."""
    for snapshot in snapshots:
        engine.close_point_in_time(snapshot.point_in_time)


def _open_snapshot(engine: Engine, name: str, shard: int, node: str = "") -> ShardSnapshot:
    point_in_time = engine.open_point_in_time(name, shard=shard, node=node)
    try:
        latest = latest_seq_no(engine.search_point_in_time(point_in_time, LATEST_WRITE))
    except BaseException:
        engine.close_point_in_time(point_in_time)
        raise
    return ShardSnapshot(shard, point_in_time, latest)


# Body of a search of one shard; `latest_seq_no` reads the response.
LATEST_WRITE: Json = {"sort": [{"_seq_no": "desc"}], "size": 1, "_source": False, "track_total_hits": False}


def latest_seq_no(response: Json) -> int:
    """Read the highest sequence number of a document from the response to `LATEST_WRITE`; -1 without documents."""
    hits = response["hits"]["hits"]
    return int(hits[0]["sort"][0]) if hits else -1


@dataclass
class _ShardReader:
    """Reads one shard; see `scan_index`.

    Args:
        uuids: UUIDs of the index when the scan began.
        page: Maximum number of documents in a page.
        body: Returns the body of the search for a range of sequence numbers.
        given: A point in time to begin with, which is not closed; None to open one.
        bounds: Sequence numbers to read, see `IndexSlice.bounds`; None for all.
    """

    _engine: Engine
    _name: str
    _uuids: Mapping[str, str]
    _shard: int
    _page: int
    _body: Callable[[int, int], Json]
    _retrying: Retrier
    _given: ShardSnapshot | None = None
    _bounds: tuple[int, int] | None = None

    def __post_init__(self) -> None:
        self._snapshot = self._given
        # `max_seq_no` of the first point in time; None until there is one.
        self._first_max = None if self._given is None else self._given.max_seq_no

    def pages(self) -> Iterator[ScanPage]:
        """Read the documents of the first point in time; if it was lost, those written since then follow."""
        first = self._retrying(self._current_snapshot)
        after, up_to = self._bounds or (-1, first.max_seq_no)
        yield from self._read(after, lambda: up_to, is_rewritten=False)
        if self._snapshot != first:
            yield from self._read(
                first.max_seq_no, lambda: self._retrying(self._current_snapshot).max_seq_no, is_rewritten=True
            )

    def close(self) -> None:
        """Close the point in time."""
        if self._snapshot is not None and self._snapshot != self._given:
            self._engine.close_point_in_time(self._snapshot.point_in_time)
        self._snapshot = None

    def _read(self, after: int, up_to: Callable[[], int], *, is_rewritten: bool) -> Iterator[ScanPage]:
        """Read the documents with a sequence number in (after, up_to], page by page.

        Each search covers a range of numbers, so that it has few documents to sort; the numbers are indexed.
        """
        page = width = self._page
        while after < (end := up_to()):
            last = min(after + width, end)
            hits = self._retrying(lambda: self._search(after, last))  # noqa: B023
            if hits:
                yield ScanPage(self._shard, hits, is_rewritten)
            if len(hits) == page:
                after, width = int(hits[-1]["_seq_no"]), max(page, width // 2)
            else:
                after, width = last, width * 2 if 2 * len(hits) < page else width

    def _search(self, after: int, up_to: int) -> list[Json]:
        snapshot = self._current_snapshot()
        try:
            answer = self._engine.search_point_in_time(snapshot.point_in_time, self._body(after, up_to))
        except IndexMissing as error:
            raise self._index_replaced() from error
        except EngineError as error:
            # Another point in time is opened before the request is sent again, unless the engine is only overloaded:
            # also after a broken connection, since the node that holds this one may hang.
            if not (isinstance(error, RequestFailed) and error.status == _TOO_MANY_REQUESTS):
                self.close()
            raise
        hits: list[Json] = answer["hits"]["hits"]
        return hits

    def _current_snapshot(self) -> ShardSnapshot:
        """Return the point in time to read from; open one if there is none.

        Raises:
            IndexMismatch: the index is not the one of the first point in time.
            EngineError: the engine failed.
        """
        if self._snapshot is not None:
            return self._snapshot
        if self._engine.index_uuids(self._name) != self._uuids:
            raise self._index_replaced()
        may_refresh = self._first_max is None or self._refresh()
        snapshot = _open_snapshot(self._engine, self._name, self._shard)
        if self._first_max is None:
            self._first_max = snapshot.max_seq_no
        elif not may_refresh and snapshot.max_seq_no < self._first_max:
            self._engine.close_point_in_time(snapshot.point_in_time)
            raise RequestFailed(
                f"a copy of shard {self._shard} of {self._name} does not show the latest writes yet, and this user may "
                "not refresh the index",
                "Give the user the privilege maintenance on the index, or run the command again later.",
                503,
            )
        self._snapshot = snapshot
        return snapshot

    def _index_replaced(self) -> IndexMismatch:
        return IndexMismatch(
            f"the index {self._name} was deleted or replaced while it was read", "Run the command again."
        )

    def _refresh(self) -> bool:
        """Refresh the index, because the next copy may show fewer writes than the lost one; False if not allowed."""
        try:
            self._engine.refresh(self._name)
        except AccessDenied:
            return False
        return True


@dataclass
class ShardChanges:
    """Reads the changes in the shards of one index, in the order of the writes.

    They are read from a shard's primary. Another copy may have missed a write if it was cut off from the cluster and
    the node that coordinates the search does not know this yet.

    Args:
        index: Name of the index.
        retrying: Retries each request. If a shard gets another primary, the retry goes to the new one.

    All methods raise `EngineError` if the engine fails for longer than `retrying` allows.
    """

    _engine: Engine
    _index: str
    _retrying: Retrier
    _states: dict[int, ShardState] = field(default_factory=dict, init=False)

    def page_size(self, most: int) -> int:
        """Number of hits to read at a time: `most`, or fewer if `index.max_result_window` is smaller."""
        return min(most, self._retrying(lambda: self._engine.result_window(self._index)))

    def states(self) -> dict[int, ShardState]:
        """Number of each primary shard → the state of its writes."""
        return self._retrying(lambda: self._engine.shard_states(self._index))

    def make_visible(self) -> dict[int, ShardState]:
        """Refresh the index.

        Returns:
            The state of each shard's writes before the refresh; `read` sees them up to the global checkpoint.
        """
        return self._retrying(self._make_visible)

    def _make_visible(self) -> dict[int, ShardState]:
        # Read the numbers before the refresh, so that it makes every write up to them visible.
        states = self._engine.shard_states(self._index)
        self._engine.refresh(self._index)
        self._states = states
        return states

    def read(self, shard: int, after: int, up_to: int, *, alias: str | None = None, **options: Any) -> list[Json]:
        """Read the first hits of a query whose last write has a `_seq_no` in (after, up_to]; see `Engine.read_changes`.

        Args:
            alias: Read through this alias of the index, whose filter applies.
            options: Of `Engine.read_changes`.
        """
        name = alias or self._index
        return self._from_primary(
            lambda: self._engine.read_changes(name, shard, after, up_to, node=self._states[shard].node, **options)
        )

    def search(self, shard: int, body: Json) -> Json:
        """Search one shard and return the response."""
        return self._from_primary(lambda: self._engine.search_shard(self._index, shard, body, self._states[shard].node))

    def open_snapshot(self, shard: int) -> ShardSnapshot:
        """Open a point in time of one shard. It contains every write before the last `make_visible`.

        The request is not retried, since engines limit the number of open points in time.
        """
        state = self._states[shard]
        point_in_time = self._engine.open_point_in_time(self._index, shard=shard, node=state.node)
        return ShardSnapshot(shard, point_in_time, state.global_checkpoint)

    def _from_primary(self, call: Callable[[], T]) -> T:
        """Send a request to the primary of a shard; after a failure, look the primary up again."""
        failed = False

        def attempt() -> T:
            nonlocal failed
            if failed:
                self._make_visible()
                failed = False
            try:
                return call()
            except EngineError:
                failed = True
                raise

        return self._retrying(attempt)


# Documents with the same id but different routings are in different shards; an index has at most this many.
_MAX_SHARDS = 1024


def multi_get(
    engine: Engine,
    name: str,
    ids: Iterable[str],
    *,
    query: Json | None = None,
    source: Json | bool = False,
    shards: bool = False,
    result_window: int | None = None,
    hit_fields: Sequence[str] = (),
    extra: Json | None = None,
) -> dict[DocumentKey, Json]:
    """Read the documents with these ids as of the last refresh, by id and routing, with `_seq_no` and `_primary_term`.

    Args:
        name: Index or alias.
        ids: Ids of the documents; if a search cannot return that many, each half is requested separately.
        query: Return only documents that match it.
        source: The part of `_source` to return.
        shards: Return the `_shard` of each document.
        result_window: The index's `index.max_result_window`; None to read it from the index.
        hit_fields: Members of a hit to return in addition to `_id` and `_routing`; empty for all.
        extra: Further members of the search body.

    Raises:
        EngineError: the engine failed.
    """
    window = engine.result_window(name) if result_window is None else result_window
    members = ["_id", "_routing", *hit_fields] if hit_fields else []

    def find(wanted: Sequence[str]) -> dict[DocumentKey, Json]:
        body: Json = {
            "query": {"bool": {"must": query or {"match_all": {}}, "filter": {"ids": {"values": wanted}}}},
            "_source": source,
            "seq_no_primary_term": True,
            "explain": shards,  # the only way to get the shard
            "size": min(len(wanted) + _MAX_SHARDS, window),
            "track_total_hits": False,
            **(extra or {}),
        }
        # If there are no hits, `filter_path` leaves out `hits` as well.
        hits: list[Json] = engine.search(name, body, hit_fields=members).get("hits", {}).get("hits", [])
        if len(hits) < body["size"] or len(wanted) == 1:
            return {document_key(hit): hit for hit in hits}
        half = len(wanted) // 2
        return find(wanted[:half]) | find(wanted[half:])

    return find(list(dict.fromkeys(ids)))
