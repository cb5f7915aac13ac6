"""The Ray actors of a distributed load: workers that run the ingest pipeline over partitions, and their coordinator."""

from __future__ import annotations

import logging
import os
import pickle
import platform
import time
from collections.abc import Callable, Mapping
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
from es_sbert.ingest.checkpoint import LoadCheckpoint, LoadIdentity
from es_sbert.ingest.ledger import Ledger, OutcomeRecorder, PackedVersions, WrittenVersions
from es_sbert.ingest.load_pipeline import WRITERS, load_records
from es_sbert.ingest.load_plan import IndexRef, LoadContext, LoadPlan
from es_sbert.ingest.load_threads import LoadControl
from es_sbert.ingest.progress import fraction_processed
from es_sbert.ingest.read_documents import RecordStream
from es_sbert.ingest.sources.document_source import DocumentSource, RejectedRecord
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
        # Ray makes a class that is both its own and the original's; the original is in `cause`.
        raise (error.cause if isinstance(error.cause, EsSbertError) else error) from None
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


# What a worker loads at a time: a part of a source, or a slice of the index.
Partition = DocumentSource | IndexSlice
# Documents read, documents embedded or without need of it, and the processed fraction, 0 to 1 for each partition.
Progress = tuple[int, int, float]
# Seconds between two progress reports of a worker.
_REPORT_SECONDS = 1.0


class LoadCoordinator:
    """Owns the checkpoint file of all workers, tells them to stop, and collects their writes and their progress."""

    def __init__(self) -> None:
        self._checkpoint: LoadCheckpoint | None = None
        self._versions = WrittenVersions()
        self._stopped = False
        self._progress: dict[int, Progress] = {}

    def open(self, path: Path, identity: LoadIdentity) -> tuple[str, bool, str | None]:
        """Open the checkpoint; return its `run`, `resumed` and `note`.

        Raises:
            UsageError, OutputError: see `LoadCheckpoint`.
        """
        self._checkpoint = LoadCheckpoint(path.absolute(), identity, rereads=True)
        return self._checkpoint.run, self._checkpoint.resumed, self._checkpoint.note

    def call(self, method: str, *arguments: Any) -> tuple[Any, bool]:
        """Call a method of the checkpoint; also return whether the load must stop."""
        assert self._checkpoint is not None, "open was called"
        return getattr(self._checkpoint, method)(*arguments), self._stopped

    def add_versions(self, versions: PackedVersions, writes: int) -> None:
        """See `WrittenVersions.add`."""
        self._versions.add(versions, writes)

    def written_versions(self) -> tuple[PackedVersions, int]:
        """The versions of all workers, and the number of writes among them."""
        return self._versions.packed(), self._versions.writes

    def request_stop(self) -> None:
        self._stopped = True

    def report_progress(self, partition: int, progress: Progress) -> bool:
        """Record the progress of a partition; the last report counts, since a partition may be restarted elsewhere.

        Returns:
            Whether the load must stop.
        """
        self._progress[partition] = progress
        return self._stopped

    def progress(self) -> Progress:
        """The sums over all partitions."""
        read, processed, fraction = zip((0, 0, 0.0), *self._progress.values(), strict=True)
        return sum(read), sum(processed), sum(fraction)


def start_coordinator() -> Any:
    """Start a coordinator on the node of this process; it ends with this process."""
    here = NodeAffinitySchedulingStrategy(ray.get_runtime_context().get_node_id(), soft=False)
    return ray.remote(LoadCoordinator).options(num_cpus=0, scheduling_strategy=here).remote()


class RemoteCheckpoint:
    """A `LoadCheckpoint` whose file is owned by the coordinator, which runs its methods.

    Args:
        coordinator: Handle of the actor.
        on_stop: Called when the load must stop.
    """

    def __init__(self, coordinator: Any, on_stop: Callable[[], None] = lambda: None) -> None:
        self._coordinator = coordinator
        self._on_stop = on_stop

    def open(self, path: Path, identity: LoadIdentity) -> LoadCheckpoint:
        self.path = path
        self.run, self.resumed, self.note = get_result(self._coordinator.open.remote(path, identity))
        return cast(LoadCheckpoint, self)

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
        result, must_stop = get_result(self._coordinator.call.remote(method, *arguments))
        if must_stop:
            self._on_stop()
        return result


@dataclass
class PartitionReport:
    """Result of a partition.

    Attributes:
        info: The encoder; None if the partition was not started because the load must stop.
        ledger: Counts of the partition.
        dead_letters: Dead letters of the partition, not written yet: their file is on another node.
        stop_reason, engine_lost: See `LoadControl.reason` and `engine_lost`.
        error: The error that ended the partition; Ray would keep only its text, not its class.
    """

    info: EncoderInfo | None = None
    ledger: Ledger = field(default_factory=Ledger)
    dead_letters: list[RejectedRecord] = field(default_factory=list)
    stop_reason: str | None = None
    engine_lost: bool = False
    error: EsSbertError | None = None

    def write(self, record: RejectedRecord) -> None:
        """Take a dead letter, as `DeadLetters.write` does."""
        self.dead_letters.append(record)


@dataclass
class PartitionLoader:
    """The worker actor of Ray Data. The first partition opens engine and encoder, so that their errors are reported.

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
    _opened: tuple[Engine, Encoder] | None = field(default=None, init=False)

    def __call__(self, batch: dict[str, NDArray[np.object_]]) -> dict[str, NDArray[np.object_]]:
        """Load the partitions of a batch; return their reports, in order."""
        if self.folder.is_dir():
            os.chdir(self.folder)  # the actor has this process to itself
        packed = np.empty(len(batch["partition"]), dtype=object)
        for number, partition in enumerate(batch["partition"]):
            report = PartitionReport()
            try:
                self._load(pickle.loads(partition), report)
            except EsSbertError as error:
                report.error = error
            packed[number] = pickle.dumps(report)
        return {"report": packed}

    def _load(self, numbered: tuple[int, Partition], report: PartitionReport) -> None:
        number, partition = numbered
        if ray.get(self.coordinator.report_progress.remote(number, (0, 0, 0.0))):
            return
        source = partition if isinstance(partition, DocumentSource) else None
        if source is not None and source.path is not None and not source.path.exists():
            remedy = "Put the files where all machines find them under the same path, or use a URL (s3://…)."
            raise SourceError(f"{source.path} is not on the machine {platform.node()} of the cluster", remedy)
        self._opened = self._opened or self._open()
        engine, encoder = self._opened
        control, clock = LoadControl(), Clock()
        clock.observe(self.started_at)
        checkpoint = cast(LoadCheckpoint, RemoteCheckpoint(self.coordinator, control.interrupt)) if source else None
        outcomes = OutcomeRecorder(report, checkpoint, add_versions=self._add_versions)
        plan = replace(self.plan, sources=[source] if source else [])
        throttle = Throttle(plan.settings.bulk_bytes, WRITERS)
        context = LoadContext(
            engine, plan, self.index, self.targets, control, outcomes, throttle, checkpoint=checkpoint, clock=clock
        )
        report.info, report.ledger = encoder.info, outcomes.ledger
        last, ledger = time.monotonic(), outcomes.ledger
        stream = RecordStream(plan.sources, plan.reading, control)
        size = source.size if source else None

        def tick() -> None:
            nonlocal last
            if time.monotonic() - last >= _REPORT_SECONDS:
                last = time.monotonic()
                part_read = stream.counter.bytes / size if size else None
                fraction = fraction_processed(ledger.read, ledger.processed, part_read) or 0.0
                progress = (ledger.read, ledger.processed, fraction)
                if get_result(self.coordinator.report_progress.remote(number, progress)):
                    control.interrupt()

        try:
            if isinstance(partition, IndexSlice):
                reader = IndexReader(context, partition)
                embed_in_place(context, encoder, reader, reader.documents(), tick)
            else:
                load_records(context, encoder, stream, tick, empty_index=self.empty_index)
        finally:
            report.stop_reason, report.engine_lost = control.reason, control.engine_lost
            self.coordinator.report_progress.remote(number, (ledger.read, ledger.processed, 1.0))

    def _add_versions(self, versions: PackedVersions, writes: int) -> None:
        """Hand the versions to the coordinator: they outlive this worker."""
        get_result(self.coordinator.add_versions.remote(versions, writes))

    def _open(self) -> tuple[Engine, Encoder]:
        encoder = Encoder(**self.encoder)
        expected = next(target.meta for target in self.targets if target.filled)
        if encoder.info.fingerprint != expected.fingerprint:
            encoder.close()
            raise IndexMismatch(
                f"a worker has a different model named {self.encoder['model']} ({encoder.info.fingerprint[:12]}, "
                f"not {expected.fingerprint[:12]})",
                "Set `model` to a folder that all machines share, or install the same model on each.",
            )
        return wait_for_engine(lambda: connect(self.engine), self.plan.settings.retry_seconds), encoder
