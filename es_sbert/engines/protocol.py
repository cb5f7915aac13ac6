"""The `Engine` protocol: the operations that es-sbert needs from Elasticsearch or OpenSearch, and their types."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Protocol

Json = dict[str, Any]


class EngineType(StrEnum):
    ELASTICSEARCH = "elasticsearch"
    OPENSEARCH = "opensearch"


@dataclass(frozen=True)
class EngineInfo:
    """What answers at an address.

    Attributes:
        engine_type: Elasticsearch or OpenSearch.
        version: (major, minor, patch).
        url: Address without credentials.
    """

    engine_type: EngineType
    version: tuple[int, int, int]
    url: str

    @property
    def label(self) -> str:
        """`Elasticsearch 9.5.0` or `OpenSearch 3.6.0`."""
        name = "Elasticsearch" if self.engine_type is EngineType.ELASTICSEARCH else "OpenSearch"
        return f"{name} {'.'.join(map(str, self.version))}"

    @property
    def supports_base64_vectors(self) -> bool:
        """Whether a vector may be sent as base64 of big-endian float32 instead of a list of numbers.

        OpenSearch has a base64 of its own from 3.9 (little-endian); no such server was at hand to prove it
        on, so lists are sent there.
        """
        return self.engine_type is EngineType.ELASTICSEARCH and self.version >= (9, 3, 0)

    @property
    def excludes_vectors_from_source(self) -> bool:
        """Whether `_source` leaves vectors out unless asked (`_source.exclude_vectors`)."""
        return self.engine_type is EngineType.ELASTICSEARCH and self.version >= (9, 2, 0)

    def source_with_vectors(self, includes: Sequence[str] = ()) -> Json | bool:
        """`_source` of a search that brings these fields, vectors among them.

        Args:
            includes: Names or patterns; none for all fields. OpenSearch puts a stand-in for a vector inside passages
                unless it is asked for by its own name.
        """
        source: Json = {"includes": list(includes)} if includes else {}
        if self.excludes_vectors_from_source:
            source["exclude_vectors"] = False
        return source or True


@dataclass(frozen=True)
class IndexState:
    """An index as the engine describes it.

    Attributes:
        name: The concrete index (an alias is resolved to its one index).
        mappings: The whole mapping (`properties`, `_meta`, …).
        settings: Flat settings (`index.knn`, `index.number_of_shards`, …), values as strings.
        aliases: Its aliases with their properties (`index_routing`, `filter`, …).
        data_stream: The data stream whose documents it holds; None for an ordinary index.
    """

    name: str
    mappings: Json
    settings: dict[str, str]
    aliases: dict[str, Json] = field(default_factory=dict)
    data_stream: str | None = None

    @property
    def result_window(self) -> int:
        """Hits that one search may return (`index.max_result_window`)."""
        return int(self.settings.get("index.max_result_window", 10_000))

    def alias_filter(self, name: str) -> Json | None:
        """The filter of this alias; None where it has none, or the name is no alias."""
        filter: Json | None = self.aliases.get(name, {}).get("filter")
        return filter

    def alias_routing(self, alias: str) -> str | None:
        """The routing of all documents that are written by this alias; None where there is none, or it is no alias."""
        routing: str | None = self.aliases.get(alias, {}).get("index_routing")
        return routing


@dataclass(frozen=True)
class PointInTimeSlice:
    """One of the parts that a point in time is read in; every document of it is in exactly one of them.

    Slices of different points in time do not fit together: Elasticsearch slices by the position of documents in its
    files, and a document that is written again moves.

    Attributes:
        number: From 0.
        count: Of how many, at least 2.
        point_in_time: Its id, the same for all slices.
    """

    number: int
    count: int
    point_in_time: str


@dataclass(frozen=True)
class SequenceNumbers:
    """How far the writes of one shard are. Every write and every deletion takes the next number.

    Attributes:
        highest: The highest that was given out; -1 for none.
        everywhere: Up to this one, every write has arrived on all copies: a refresh makes it visible.
    """

    max_seq_no: int
    global_checkpoint: int


@dataclass(frozen=True)
class BulkItemResult:
    """What became of one action of a bulk request.

    Attributes:
        status: HTTP status of the item; 429 and 503 are worth another try.
        id: The document's id; another one than was sent where an ingest pipeline has changed it.
        reason: Why it failed, one line; empty on success.
        index: Where it was written; another index where an ingest pipeline has changed it.
        result: `created`, `updated`, `deleted`, or `noop` if an ingest pipeline dropped the document or an update
            changed nothing; empty on failure.
        version: `_seq_no` and `_primary_term` of the write; None on failure.
    """

    status: int
    id: str
    reason: str
    index: str = ""
    result: str = ""
    version: tuple[int, int] | None = None

    @property
    def ok(self) -> bool:
        return 200 <= self.status < 300


class Engine(Protocol):
    """One client for either engine. All methods raise `EngineError` and its kinds.

    Thread-safe: ingest calls `bulk` from several threads.
    """

    @property
    def info(self) -> EngineInfo: ...

    def get_index(self, name: str) -> IndexState | None:
        """The index, or the one index of an alias; None if there is none.

        Raises:
            IndexMismatch: the alias points to several indices.
        """

    def get_indices(self, name: str) -> list[IndexState]:
        """The index, or all indices of an alias; empty if there is no such name."""

    def create_index(self, name: str, body: Json) -> None: ...

    def delete_index(self, name: str) -> None:
        """Nothing happens where there is none. An alias is refused."""

    def put_mapping(self, name: str, body: Json) -> None: ...

    def put_settings(self, name: str, settings: Mapping[str, str | None]) -> None:
        """Change settings by their flat names; None restores the engine's default."""

    def block_writes(self, name: str) -> None:
        """Refuse writes to an index from now on; returns when those in flight have ended.

        The setting `index.blocks.write` takes the block away.

        Raises:
            RequestFailed: they did not end within the engine's own time limit; the block may be there all the same.
        """

    def flush(self, name: str) -> None:
        """Put on disk what was written, so that its sequence numbers are final. A translog may be written later.

        Raises:
            RequestFailed: a shard could not.
        """

    def refresh(self, name: str) -> None:
        """Let searches see what was written.

        Raises:
            RequestFailed: a shard was not refreshed: searches would miss its documents.
        """

    def count(self, name: str, query: Json | None = None) -> int: ...

    def get_aliases(self, name: str) -> dict[str, dict[str, Json]]:
        """Concrete index → alias → its properties, for an index or all indices of an alias."""

    def update_aliases(self, actions: Sequence[Json]) -> None:
        """Add and remove aliases, and remove indices, in one step: all of it, or none."""

    def store_size(self, name: str) -> int:
        """Bytes of the primary shards on disk."""

    def vector_size(self, name: str, field: str) -> int | None:
        """Bytes on disk of a field's vectors, quantised copies and graph in the primary shards, without `_source`.

        None where the engine does not tell: OpenSearch where the index has several vector fields, or no graphs.
        """

    def count_segments(self, name: str) -> list[int]:
        """Segments that searches see in each primary shard, shards in order."""

    def start_force_merge(self, name: str) -> str:
        """Begin to merge every shard into one segment; the task's name, for `is_task_done`."""

    def is_task_done(self, task: str) -> bool:
        """Whether a task has come to its end.

        Raises:
            RequestFailed: it came to a bad one.
        """

    def sequence_numbers(self, name: str) -> list[SequenceNumbers]:
        """How far the writes of each primary shard are, shards in order."""

    def bulk(self, name: str, body: bytes, *, timeout: float | None = None) -> list[BulkItemResult]:
        """Send newline-delimited actions, already encoded; results are in the order of the actions.

        Args:
            timeout: Seconds that the engine itself waits for a shard that is not active, at most what the client waits
                for the answer; None for the engine's own minute.

        Raises:
            RequestFailed: the whole request was refused (`status` 413, 429, 503, …; 0: the connection broke).
        """

    def mget_sources(
        self, name: str, ids: Sequence[str], *, source_includes: Sequence[str], vectors: bool = False
    ) -> dict[str, Json]:
        """Real-time lookup: id → the part of `_source` asked for; ids that do not exist are absent.

        Args:
            vectors: Also bring vectors on engines that leave them out of `_source`.
        """

    def mget(
        self, name: str, keys: Sequence[tuple[str, str | None]], *, source_includes: Sequence[str]
    ) -> list[Json | None]:
        """Real-time lookup with vectors, in the order of the keys; None where there is no such document.

        Args:
            keys: Id and routing of each document.

        Returns:
            `_source`, `_seq_no`, `_primary_term` and, where it has one, `_routing` of each document.
        """

    def index_uuids(self, name: str) -> dict[str, str]:
        """Concrete index → UUID, which tells it from another one of the same name; none where there is no such name.

        Args:
            name: Of an index, an alias or a data stream.
        """

    def primary_terms(self, name: str) -> dict[int, int] | None:
        """Shard → its primary term, which grows when the shard fails over or is recovered after its node was lost.

        None where the engine does not tell this user.
        """

    def search(
        self,
        name: str | Sequence[str],
        body: Json,
        *,
        preference: str | None = None,
        named_scores: bool = False,
        hit_fields: Sequence[str] = (),
    ) -> Json:
        """`_search` as the engine answers it.

        Args:
            name: Index or alias, or several.
            preference: Which copies of the shards are asked, in the engine's words (`_shards:0`).
            named_scores: Let hits tell the scores of the queries that have a `_name`, not their names alone.
            hit_fields: Leave everything out of the answer but its hits, and of those all but these members (`_id`).
        """

    def multi_search(self, name: str | Sequence[str], bodies: Sequence[Json]) -> list[Json]:
        """`_msearch`: several searches in one request, each answered as by `search`."""

    def scan(
        self,
        name: str,
        *,
        query: Json,
        source_includes: Sequence[str],
        page: int = 500,
        vectors: bool = False,
        slice: PointInTimeSlice | None = None,
    ) -> Iterator[list[Json]]:
        """All hits of a query from one point in time, page by page, with `_seq_no` and `_primary_term`.

        Args:
            vectors: Also bring vectors on engines that leave them out of `_source`.
            slice: The part of a point in time to read; None reads all of one of its own.
        """

    def open_point_in_time(self, name: str, *, shard: int | None = None) -> str:
        """Its id; it stays for half an hour after each page that is read from it.

        Args:
            shard: The only shard to be seen; None for all of them.
        """

    def close_point_in_time(self, pit_id: str) -> None:
        """Never fails: one that cannot be closed expires by itself."""

    def read_changes(
        self,
        name: str,
        shard: int,
        after: int,
        up_to: int,
        *,
        query: Json,
        source_includes: Sequence[str],
        page: int = 500,
        vectors: bool = False,
    ) -> list[Json]:
        """The first hits of a query in a shard whose last write has a `_seq_no` in (after, up_to], in its order.

        Hits carry `_seq_no` and `_primary_term`. Deleted documents are none, and only refreshed writes are seen.

        Args:
            vectors: Also bring vectors on engines that leave them out of `_source`.
        """

    def request_api(self, path: str, params: Mapping[str, str] | None = None, body: Json | None = None) -> Json | None:
        """What one of the engine's own APIs tells (GET; POST with a body); None where the engine lacks it.

        Args:
            path: Written in this program: never made of a name from outside.
        """

    def close(self) -> None: ...


DocumentKey = tuple[str, str | None]


def document_key(hit: Json) -> DocumentKey:
    """What tells documents apart: ids are unique within a routing only."""
    return hit["_id"], hit.get("_routing")
