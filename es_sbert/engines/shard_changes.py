"""Read the changes in the shards of an index, in the order of the writes.

Changes are read from a shard's primary. Another copy may have missed a write if it was cut off from the cluster and the
node that coordinates the search does not know this yet.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

from es_sbert.engines.engine import Engine
from es_sbert.engines.index_state import ShardState
from es_sbert.engines.rest import Json
from es_sbert.engines.retry import Retrier
from es_sbert.errors import EngineError

T = TypeVar("T")


class ShardChanges:
    """Reads the changes of one index.

    Args:
        index: Name of the index.
        retrying: Retries each request. If a shard gets another primary, the retry goes to the new one.

    All methods raise `EngineError` if the engine fails for longer than `retrying` allows.
    """

    def __init__(self, engine: Engine, index: str, retrying: Retrier) -> None:
        self._engine = engine
        self._index = index
        self._retrying = retrying
        self._states: dict[int, ShardState] = {}

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

    def open_point_in_time(self, shard: int) -> str:
        """Open a point in time of one shard, and return its id. It contains every write before the last `make_visible`.

        The request is not retried, since engines limit the number of open points in time.
        """
        return self._engine.open_point_in_time(self._index, shard=shard, node=self._states[shard].node)

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
