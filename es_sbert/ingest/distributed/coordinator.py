"""The actor that owns the checkpoint of a distributed load, and the workers' client for it."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import ray
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from es_sbert.errors import ClusterError
from es_sbert.ingest.checkpoint import CheckpointFile, LoadIdentity, SeenRecord, SeenStatus
from es_sbert.ingest.distributed.ray_cluster import get_result
from es_sbert.ingest.records import Origin
from es_sbert.messages import log_event


@dataclass(frozen=True, slots=True)
class PartitionProgress:
    """How far a part is.

    Attributes:
        read: Documents met in it.
        processed: Documents that are embedded, or that needed no vector.
        fraction: Part of it that is processed, 0 to 1.
    """

    read: int
    processed: int
    fraction: float


class LoadCoordinator:
    """Holds the state file for all workers, tells them to stop, and knows how far each part is."""

    def __init__(self) -> None:
        self._state: CheckpointFile | None = None
        self._stopped = False
        self._progress: dict[int, PartitionProgress] = {}

    def open(self, path: Path, identity: LoadIdentity) -> tuple[Path, str, bool, str | None]:
        """Path, run, resumed and note of the state.

        Raises:
            UsageError, OutputError: see `CheckpointFile`.
        """
        self._state = CheckpointFile(path.absolute(), identity, rereads=True)
        return path, self._state.run, self._state.resumed, self._state.note

    def call(self, method: str, *arguments: Any) -> Any:
        """A method of the state."""
        assert self._state is not None, "the state is opened first"
        return getattr(self._state, method)(*arguments)

    def record_seen(self, records: Sequence[SeenRecord]) -> tuple[list[tuple[SeenStatus, Origin]], bool]:
        """See `LoadCheckpoint.record_seen`; and whether the load is to stop."""
        return self.call("record_seen", records), self._stopped

    def stop(self) -> None:
        self._stopped = True

    def stopped(self) -> bool:
        return self._stopped

    def report(self, part: int, progress: PartitionProgress) -> bool:
        """How far a part is; the last word counts, since a part may be begun anew elsewhere.

        Returns:
            Whether the load is to stop.
        """
        self._progress[part] = progress
        return self._stopped

    def progress(self) -> PartitionProgress:
        """The sums over all parts."""
        parts = self._progress.values()
        return PartitionProgress(
            sum(part.read for part in parts),
            sum(part.processed for part in parts),
            sum(part.fraction for part in parts),
        )


def start_coordinator() -> Any:
    """A keeper on the machine where this process runs, for as long as it runs."""
    here = NodeAffinitySchedulingStrategy(ray.get_runtime_context().get_node_id(), soft=False)
    return ray.remote(LoadCoordinator).options(num_cpus=0, scheduling_strategy=here).remote()


class RemoteCheckpoint:
    """A `LoadCheckpoint` that asks the keeper.

    Args:
        keeper: Handle of the actor.
        opened: What `LoadCoordinator.open` gave.
        on_stop: Called when the load is to stop.
    """

    def __init__(
        self, keeper: Any, opened: tuple[Path, str, bool, str | None], on_stop: Callable[[], None] = lambda: None
    ) -> None:
        self._keeper = keeper
        self._on_stop = on_stop
        self.path, self.run, self.resumed, self.note = opened

    @classmethod
    def open_remote(cls, keeper: Any, path: Path, identity: LoadIdentity) -> RemoteCheckpoint:
        """The memory of a load, with its file on the keeper's machine.

        Raises:
            UsageError, OutputError: see `CheckpointFile`.
        """
        return cls(keeper, get_result(keeper.open.remote(path, identity)))

    def record_seen(self, records: Sequence[SeenRecord]) -> list[tuple[SeenStatus, Origin]]:
        met: list[tuple[SeenStatus, Origin]]
        met, stopped = get_result(self._keeper.record_seen.remote(records))
        if stopped:
            self._on_stop()
        return met

    def record_acknowledged(self, document_ids: Sequence[str]) -> None:
        self._call("record_acknowledged", list(document_ids))

    def seen_ids(self, document_ids: Sequence[str]) -> set[str]:
        found: set[str] = self._call("seen_ids", list(document_ids))
        return found

    def count_acknowledged(self, documents: Sequence[tuple[str, str | None]] | None = None) -> int:
        return int(self._call("count_acknowledged", documents))

    def mark_untrusted(self) -> None:
        self._call("mark_untrusted")

    def is_untrusted(self) -> bool:
        return bool(self._call("is_untrusted"))

    def record_dead_letters(self, keys: Iterable[bytes]) -> None:
        self._call("record_dead_letters", list(keys))

    def has_dead_letter(self, key: bytes) -> bool:
        return bool(self._call("has_dead_letter", key))

    def close(self) -> None:
        try:
            self._call("close")
        except ClusterError as error:
            # The keeper is gone, and with it the lock; what was committed stands in the file.
            log_event("keeper_lost", error.message, logging.WARNING, text="", reason=error.message)

    def finish(self) -> None:
        self._call("finish")

    def _call(self, method: str, *arguments: Any) -> Any:
        return get_result(self._keeper.call.remote(method, *arguments))
