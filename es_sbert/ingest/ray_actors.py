"""The Ray actors of a distributed load: workers that run the ingest pipeline over partitions, and their coordinator."""

from __future__ import annotations

import logging
import os
import pickle
import platform
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, cast

import numpy as np
import ray
from numpy.typing import NDArray
from ray.exceptions import RayError, RayTaskError
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from es_sbert.clock import Clock
from es_sbert.config import EngineSettings
from es_sbert.encoder.encoder import Encoder, EncoderInfo
from es_sbert.engines.connect import connect
from es_sbert.engines.engine import Engine
from es_sbert.engines.index_scan import IndexSlice
from es_sbert.engines.retry import Throttle, wait_for_engine
from es_sbert.errors import ClusterError, EsSbertError, IndexMismatch, SourceError, error_summary
from es_sbert.index.document_vectors import EmbeddingTargets
from es_sbert.ingest.backfill import IndexReader, embed_in_place
from es_sbert.ingest.checkpoint import LoadCheckpoint, LoadIdentity, SeenRecord, SeenStatus
from es_sbert.ingest.ledger import Ledger, OutcomeRecorder, PackedVersions, WrittenVersions
from es_sbert.ingest.load_context import IndexRef, LoadContext
from es_sbert.ingest.load_pipeline import WRITERS, load_records
from es_sbert.ingest.load_plan import LoadPlan
from es_sbert.ingest.load_threads import LoadControl
from es_sbert.ingest.progress import fraction_processed
from es_sbert.ingest.read_documents import RecordStream
from es_sbert.ingest.sources.document_source import DocumentSource, Origin, RejectedRecord
from es_sbert.messages import log_event


def get_result(reference: Any) -> Any:
    """Wait for a remote call and return its result.

    Raises:
        EsSbertError: the remote call raised it.
        ClusterError: the process that runs the call has ended.
    """
    try:
        return ray.get(reference)
    except RayTaskError as error:
        raise find_own_error(error) or error from None
    except RayError as error:
        raise ClusterError(
            f"a process of the load on the Ray cluster ended: {remote_error_summary(error)}",
            "Check the cluster (`ray status`) and run the same command again: it resumes.",
        ) from error


def remote_error_summary(error: Exception) -> str:
    """Return the error as one line: the line after the first traceback's frames in Ray's message."""
    lines = str(error).splitlines()
    frames = [number for number, line in enumerate(lines) if line.startswith('  File "')]
    rest = lines[frames[0] :] if frames else []
    return next((line for line in rest if line and not line[0].isspace()), error_summary(error))


def find_own_error(error: BaseException) -> EsSbertError | None:
    """Find the EsSbertError that a remote call raised and Ray wrapped; None if the call raised another error."""
    seen: set[int] = set()
    waiting: list[BaseException | None] = [error]
    while waiting:
        current = waiting.pop()
        if current is None or id(current) in seen:
            continue
        seen.add(id(current))
        # Ray makes a class that is both its own and the original's; the original is in `cause`.
        if isinstance(current, EsSbertError) and not isinstance(current, RayTaskError):
            return current
        waiting += [getattr(current, "cause", None), current.__cause__, current.__context__]
    return None


# Path, run, `resumed` and note of a checkpoint.
OpenedCheckpoint = tuple[Path, str, bool, str | None]


@dataclass(frozen=True, slots=True)
class PartitionProgress:
    """Progress of a partition.

    Attributes:
        read: Documents read from it.
        processed: Documents that are embedded, or needed no embedding.
        fraction: Processed fraction, 0 to 1.
    """

    read: int
    processed: int
    fraction: float


class LoadCoordinator:
    """Owns the checkpoint file of all workers, tells them to stop, and collects their writes and their progress."""

    def __init__(self) -> None:
        self._checkpoint: LoadCheckpoint | None = None
        self._versions = WrittenVersions()
        self._stopped = False
        self._progress: dict[int, PartitionProgress] = {}

    def open(self, path: Path, identity: LoadIdentity) -> OpenedCheckpoint:
        """Open the checkpoint.

        Raises:
            UsageError, OutputError: see `LoadCheckpoint`.
        """
        self._checkpoint = LoadCheckpoint(path.absolute(), identity, rereads=True)
        return path, self._checkpoint.run, self._checkpoint.resumed, self._checkpoint.note

    def call(self, method: str, *arguments: Any) -> Any:
        """Call a method of the checkpoint."""
        assert self._checkpoint is not None, "open was called"
        return getattr(self._checkpoint, method)(*arguments)

    def record_seen(self, records: Sequence[SeenRecord]) -> tuple[list[tuple[SeenStatus, Origin]], bool]:
        """See `LoadCheckpoint.record_seen`; also returns whether the load must stop."""
        return self.call("record_seen", records), self._stopped

    def add_versions(self, versions: PackedVersions, writes: int) -> None:
        """See `WrittenVersions.add`."""
        self._versions.add(versions, writes)

    def written_versions(self) -> tuple[PackedVersions, int]:
        """The versions of all workers, and the number of writes among them."""
        return self._versions.packed(), self._versions.writes

    def request_stop(self) -> None:
        self._stopped = True

    def is_stopping(self) -> bool:
        return self._stopped

    def report_progress(self, partition: int, progress: PartitionProgress) -> bool:
        """Record the progress of a partition; the last report counts, since a partition may be restarted elsewhere.

        Returns:
            Whether the load must stop.
        """
        self._progress[partition] = progress
        return self._stopped

    def progress(self) -> PartitionProgress:
        """The sums over all partitions."""
        partitions = self._progress.values()
        return PartitionProgress(
            sum(each.read for each in partitions),
            sum(each.processed for each in partitions),
            sum(each.fraction for each in partitions),
        )


def start_coordinator() -> Any:
    """Start a coordinator on the node of this process; it ends with this process."""
    here = NodeAffinitySchedulingStrategy(ray.get_runtime_context().get_node_id(), soft=False)
    return ray.remote(LoadCoordinator).options(num_cpus=0, scheduling_strategy=here).remote()


class _RemoteCheckpoint:
    """A `LoadCheckpoint` whose file is owned by the coordinator, which runs its methods.

    Args:
        coordinator: Handle of the actor.
        opened: Result of `LoadCoordinator.open`.
        on_stop: Called when the load must stop.
    """

    def __init__(self, coordinator: Any, opened: OpenedCheckpoint, on_stop: Callable[[], None]) -> None:
        self._coordinator = coordinator
        self._on_stop = on_stop
        self.path, self.run, self.resumed, self.note = opened

    def record_seen(self, records: Sequence[SeenRecord]) -> list[tuple[SeenStatus, Origin]]:
        statuses: list[tuple[SeenStatus, Origin]]
        statuses, must_stop = get_result(self._coordinator.record_seen.remote(records))
        if must_stop:
            self._on_stop()
        return statuses

    def record_dead_letters(self, keys: Iterable[bytes]) -> None:
        self._call("record_dead_letters", list(keys))

    def close(self) -> None:
        try:
            self._call("close")
        except ClusterError as error:
            # The coordinator and its lock are gone; what was committed is in the file.
            log_event("keeper_lost", error.message, logging.WARNING, text="", reason=error.message)

    def __getattr__(self, name: str) -> Callable[..., Any]:
        """Forward any other method to the checkpoint."""
        return partial(self._call, name)

    def _call(self, method: str, *arguments: Any) -> Any:
        return get_result(self._coordinator.call.remote(method, *arguments))


def remote_checkpoint(
    coordinator: Any, opened: OpenedCheckpoint, on_stop: Callable[[], None] = lambda: None
) -> LoadCheckpoint:
    """Create a proxy for the checkpoint that the coordinator has opened; see `_RemoteCheckpoint`."""
    return cast(LoadCheckpoint, _RemoteCheckpoint(coordinator, opened, on_stop))


class _RemoteVersions:
    """A `VersionRecorder` that hands the versions to the coordinator: they outlive this worker."""

    def __init__(self, coordinator: Any) -> None:
        self._coordinator = coordinator

    def add(self, versions: PackedVersions, writes: int) -> None:
        get_result(self._coordinator.add_versions.remote(versions, writes))


@dataclass(frozen=True)
class Partition:
    """Unit of work of a worker: a part of a source, or a slice of the index.

    Attributes:
        number: Number of the partition, from 0.
        source: Source to read; None for a slice of the index.
        slice: Slice of the index; None for a source.
    """

    number: int
    source: DocumentSource | None = None
    slice: IndexSlice | None = None


# Seconds between two progress reports of a worker.
_REPORT_SECONDS = 1.0


@dataclass(frozen=True)
class WorkerJob:
    """The settings that every worker of a load needs.

    Attributes:
        engine: Connection settings, valid on every node.
        encoder: Arguments of `Encoder`.
        plan: The load, without its sources.
        targets: The vector fields to fill.
        index: The index that the load fills.
        empty_index: Whether the index was empty at the start of the load.
        coordinator: Handle of the coordinator.
        started_at: Start of the load, by its own clock.
        folder: Working folder of the command: file names may be relative to it.
    """

    engine: EngineSettings
    encoder: Mapping[str, Any]
    plan: LoadPlan
    targets: EmbeddingTargets
    index: IndexRef
    empty_index: bool
    coordinator: Any
    started_at: str
    folder: Path


@dataclass
class PartitionReport:
    """Result of a partition.

    Attributes:
        info: The encoder; None if the partition was not started because the load must stop.
        ledger: Counts of the partition.
        dead_letters: Dead letters of the partition, not written yet.
        rejected: Records that are not documents.
        dropped, rerouted, held: See `OutcomeRecorder`.
        stop_reason, engine_lost: See `LoadControl.reason` and `engine_lost`.
        error: The error that ended the partition; Ray would keep only its text, not its class.
    """

    info: EncoderInfo | None = None
    ledger: Ledger = field(default_factory=Ledger)
    dead_letters: list[RejectedRecord] = field(default_factory=list)
    rejected: int = 0
    dropped: Counter[str] = field(default_factory=Counter)
    rerouted: int = 0
    held: Counter[str] = field(default_factory=Counter)
    stop_reason: str | None = None
    engine_lost: bool = False
    error: EsSbertError | None = None


class DeadLetterCollector:
    """Collects dead letters; their file is on another node."""

    def __init__(self) -> None:
        self.letters: list[RejectedRecord] = []

    def write(self, record: RejectedRecord) -> None:
        self.letters.append(record)


class PartitionLoader:
    """The worker actor of Ray Data. The first partition opens engine and encoder, so that their errors are reported."""

    def __init__(self, job: WorkerJob) -> None:
        self._job = job
        self._engine: Engine | None = None
        self._encoder: Encoder | None = None

    def __call__(self, batch: dict[str, NDArray[np.object_]]) -> dict[str, NDArray[np.object_]]:
        """Load the partitions of a batch; return their reports, in order.

        Raises:
            EsSbertError: the load cannot continue.
        """
        if self._job.folder.is_dir():
            os.chdir(self._job.folder)  # the actor has this process to itself
        reports = [self._load(pickle.loads(packed)) for packed in batch["partition"]]
        packed = np.empty(len(reports), dtype=object)
        packed[:] = [pickle.dumps(report) for report in reports]
        return {"report": packed}

    def _load(self, partition: Partition) -> PartitionReport:
        if ray.get(self._job.coordinator.is_stopping.remote()):
            return PartitionReport()
        _check_file_present(partition)
        engine, encoder = self._open()
        dead_letters = DeadLetterCollector()
        context = self._context(partition, engine, dead_letters)
        failure: EsSbertError | None = None
        try:
            self._run(partition, context, encoder)
        except EsSbertError as error:
            failure = error
        self._report(partition, context, 1.0)
        outcomes, control = context.outcomes, context.control
        return PartitionReport(
            info=encoder.info,
            ledger=outcomes.ledger,
            dead_letters=dead_letters.letters,
            rejected=outcomes.rejected,
            dropped=outcomes.dropped,
            rerouted=outcomes.rerouted,
            held=outcomes.held,
            stop_reason=control.reason,
            engine_lost=control.engine_lost,
            error=failure,
        )

    def _open(self) -> tuple[Engine, Encoder]:
        job = self._job
        if self._encoder is None:
            encoder = Encoder(**job.encoder)
            expected = next(target.meta for target in job.targets if target.filled)
            if encoder.info.fingerprint != expected.fingerprint:
                encoder.close()
                raise IndexMismatch(
                    f"a worker has a different model named {job.encoder['model']} ({encoder.info.fingerprint[:12]}, "
                    f"not {expected.fingerprint[:12]})",
                    "Set `model` to a folder that all machines share, or install the same model on each.",
                )
            self._encoder = encoder
        if self._engine is None:
            self._engine = wait_for_engine(lambda: connect(job.engine), job.plan.settings.retry_seconds)
        return self._engine, self._encoder

    def _context(self, partition: Partition, engine: Engine, dead_letters: DeadLetterCollector) -> LoadContext:
        job, control = self._job, LoadControl()
        checkpoint = None
        if partition.source is not None:
            opened = (job.plan.dead_letters, "", False, None)
            checkpoint = remote_checkpoint(job.coordinator, opened, control.interrupt)
        outcomes = OutcomeRecorder(dead_letters, checkpoint, versions=_RemoteVersions(job.coordinator))
        plan = replace(job.plan, sources=[] if partition.source is None else [partition.source])
        throttle, clock = Throttle(plan.settings.bulk_bytes, WRITERS), Clock()
        clock.observe(job.started_at)
        return LoadContext(
            engine, plan, job.index, job.targets, control, outcomes, throttle, checkpoint=checkpoint, clock=clock
        )

    def _run(self, partition: Partition, context: LoadContext, encoder: Encoder) -> None:
        if partition.source is not None:
            stream = RecordStream(context.plan.sources, context.plan.reading, context.control)
            size = partition.source.size
            tick = self._ticker(partition, context, lambda: stream.counter.bytes / size if size else None)
            load_records(context, encoder, stream, tick, empty_index=self._job.empty_index)
            return
        tick = self._ticker(partition, context, lambda: None)
        reader = IndexReader(context, partition.slice)
        embed_in_place(context, encoder, reader, reader.documents(), tick)

    def _ticker(self, partition: Partition, context: LoadContext, fraction_read: Callable[[], float | None]) -> Any:
        last = time.monotonic()

        def tick() -> None:
            nonlocal last
            if time.monotonic() - last >= _REPORT_SECONDS:
                last = time.monotonic()
                ledger = context.outcomes.ledger
                fraction = fraction_processed(ledger.read, ledger.processed, fraction_read())
                if get_result(self._report(partition, context, fraction or 0.0)):
                    context.control.interrupt()

        return tick

    def _report(self, partition: Partition, context: LoadContext, fraction: float) -> Any:
        """Report progress; return a reference to whether the load must stop."""
        ledger = context.outcomes.ledger
        return self._job.coordinator.report_progress.remote(
            partition.number, PartitionProgress(ledger.read, ledger.processed, fraction)
        )


def _check_file_present(partition: Partition) -> None:
    """Check that a local file of the partition exists on this node.

    Raises:
        SourceError: the file does not exist.
    """
    path = None if partition.source is None else partition.source.path
    if path is not None and not path.exists():
        remedy = "Put the files where all machines find them under the same path, or use a URL (s3://…)."
        raise SourceError(f"{path} is not on the machine {platform.node()} of the cluster", remedy)
