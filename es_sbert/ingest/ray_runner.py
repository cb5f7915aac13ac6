"""Run a load on a Ray cluster: partition the sources, hand the partitions to workers, and merge their reports."""

from __future__ import annotations

import pickle
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import ray
import ray.data
from ray.exceptions import RayError

from es_sbert.bundle.local_registry import registered_model_folder
from es_sbert.bundle.model_lookup import installed_model_folder, resolve_model
from es_sbert.bundle.sentence_model import SentenceModel, read_sentence_model
from es_sbert.config import EngineSettings
from es_sbert.encoder.encoder import EncoderInfo
from es_sbert.engines.engine import Engine
from es_sbert.engines.index_scan import IndexSlice, ShardSnapshot, close_snapshots, open_snapshots
from es_sbert.errors import ClusterError, EsSbertError, SourceError
from es_sbert.ingest.check_first_records import check_first_records
from es_sbert.ingest.checkpoint import LoadCheckpoint, LoadIdentity
from es_sbert.ingest.load import OpenLoad, finish_load, open_load
from es_sbert.ingest.load_context import LoadContext
from es_sbert.ingest.load_plan import LoadPlan, ModelIdentity
from es_sbert.ingest.load_report import LoadReport, record_end, record_start
from es_sbert.ingest.load_threads import LoadControl
from es_sbert.ingest.progress import LoadObserver, ProgressMeter, ProgressTracker
from es_sbert.ingest.ray_actors import (
    Partition,
    PartitionLoader,
    PartitionReport,
    WorkerJob,
    remote_checkpoint,
    start_coordinator,
)
from es_sbert.ingest.ray_cluster import (
    RayWorkerPool,
    check_nodes,
    choose_worker_pool,
    find_own_error,
    get_result,
    ray_connection,
    remote_error_summary,
)
from es_sbert.ingest.reconcile import ConfirmPrune
from es_sbert.ingest.sources.document_source import DocumentSource
from es_sbert.io.text_formats import CorruptStream
from es_sbert.runtime.tokenizer import SentenceTokenizer

# Bytes of a file partition: a few minutes of work for a worker on a CPU. The partition of a lost machine is restarted,
# and at the end of a load the workers wait for the last partition.
PARTITION_BYTES = 16 << 20
# Slices of an index per worker, for the same reasons.
SLICES_PER_WORKER = 8
MAX_SLICES = 1024


def partition_sources(sources: Sequence[DocumentSource], size: int = PARTITION_BYTES) -> list[Partition]:
    """Split sources into partitions, in order.

    Args:
        size: Bytes of a partition of a source that can be split.

    Raises:
        UsageError: other machines cannot read a source.
        SourceError: a source cannot be read to split it.
    """
    parts: list[DocumentSource] = []
    for source in sources:
        try:
            parts += source.partitions(size)
        except (OSError, CorruptStream) as error:
            raise SourceError(f"{source.name} cannot be read: {error}", "Fix the file, or leave it out.") from error
    return [Partition(number, source=part) for number, part in enumerate(parts)]


def partition_index(workers: int, snapshots: tuple[ShardSnapshot, ...]) -> list[Partition]:
    """Split an index into slices.

    Args:
        snapshots: One snapshot per shard.
    """
    count = min(workers * SLICES_PER_WORKER, MAX_SLICES)
    return [Partition(number, slice=IndexSlice(number, count, snapshots)) for number in range(count)]


_POLL_SECONDS = 0.5


@dataclass
class RayRunner:
    """Runs a load on a Ray cluster, with this process as a driver.

    Sources and indices are split into partitions; each worker runs the whole pipeline over one partition at a time. If
    a node is lost, its partition is restarted elsewhere: the coordinator knows the documents that the engine has
    acknowledged, and the others are written again under the same id.

    Attributes:
        model_name: The model's folder, hub id or installed name, which every node must find.
        sentence_model: The model of that name.
        engine: Connection settings, valid on every node.
        device, precision, runtime: Arguments for loading the encoder, see `Encoder`.
        workers: The actors.
        part_bytes: Bytes of a partition of a long file.
        loader: Class of the actors.
    """

    model_name: str
    sentence_model: SentenceModel
    engine: EngineSettings
    device: str
    precision: str
    runtime: str
    workers: RayWorkerPool
    part_bytes: int = PARTITION_BYTES
    loader: type[PartitionLoader] = PartitionLoader
    _coordinator: Any = field(default_factory=start_coordinator, init=False)

    def run_load(
        self,
        engine: Engine,
        plan: LoadPlan,
        control: LoadControl,
        meter: ProgressMeter,
        confirm: ConfirmPrune = lambda candidates: True,
        observer: LoadObserver | None = None,
    ) -> LoadReport:
        """Carry out a plan on the cluster; see `load.run_load` for the arguments and errors.

        Raises:
            ClusterError: the cluster failed, or the load was stopped before any worker started.
        """
        loaded = self.sentence_model
        model = ModelIdentity(loaded.name, loaded.fingerprint, loaded.dimensions)
        with check_first_records(engine, plan, control) as stream:
            plan.check_chunk_rules(SentenceTokenizer(loaded).make_chunker)
            with open_load(engine, plan, model, stream, control, meter, observer, self._open_checkpoint) as load:
                report = finish_load(load, self._embed(load), confirm)
        record_end(report)
        return report

    def _open_checkpoint(self, path: Path, identity: LoadIdentity) -> LoadCheckpoint:
        return remote_checkpoint(self._coordinator, get_result(self._coordinator.open.remote(path, identity)))

    def _embed(self, load: OpenLoad) -> EncoderInfo:
        """Load all documents until each has an outcome; return the encoder that embedded them."""
        context = load.context
        index = context.index.concrete
        # A slice of the index includes only refreshed documents.
        context.retrying(context.engine.refresh, index)
        empty = context.retrying(context.engine.count, index) == 0
        plan = replace(context.plan, sources=[])
        job = WorkerJob(
            self.engine,
            self.model_name,
            self.device,
            self.precision,
            self.runtime,
            self.workers.threads,
            plan,
            context.targets,
            context.index,
            empty,
            self._coordinator,
            context.clock.now(),
            Path.cwd(),
        )
        info: EncoderInfo | None = None
        with self._partitions(context) as parts, _progress_poller(context, self._coordinator, len(parts)):
            for report in self._reports(job, parts):
                if info is None and report.info is not None:
                    info = report.info
                    record_start(context, info)
                _merge_report(context, report)
                if report.error is not None:
                    self._coordinator.request_stop.remote()  # the other workers
                    raise report.error
        load.versions.add(*get_result(self._coordinator.written_versions.remote()))
        if info is None:
            remedy = "Run the same command again to resume it."
            raise ClusterError("the load was stopped before any worker of the Ray cluster started", remedy)
        return info

    @contextmanager
    def _partitions(self, context: LoadContext) -> Iterator[list[Partition]]:
        """Yield the partitions of the load; slices of the index can be read until the block ends."""
        if context.plan.sources:
            yield partition_sources(context.plan.sources, self.part_bytes)
            return
        snapshots = open_snapshots(context.engine, context.index.alias, context.retrying)
        try:
            yield partition_index(self.workers.count, snapshots)
        finally:
            close_snapshots(context.engine, snapshots)

    def _reports(self, job: WorkerJob, parts: Sequence[Partition]) -> Iterator[PartitionReport]:
        """Run the partitions on the workers, and yield their reports in the order in which they finish."""
        rows = [{"partition": pickle.dumps(part)} for part in parts]
        dataset = ray.data.from_items(rows, override_num_blocks=len(rows)).map_batches(
            self.loader,
            batch_size=1,
            compute=self.workers.actor_pool(len(rows)),
            fn_constructor_args=[job],
            num_cpus=self.workers.cpus,
            num_gpus=self.workers.gpus,
        )
        try:
            for batch in dataset.iter_batches(batch_size=1, prefetch_batches=0, batch_format="numpy"):
                yield from (pickle.loads(packed) for packed in batch["report"])
        except (RayError, EsSbertError) as error:
            load_error = find_own_error(error)
            if load_error is not None:
                raise load_error from error
            remedy = "Check `ray status` and the logs of the cluster, then run the same command again: it resumes."
            raise ClusterError(f"the load on the Ray cluster failed: {remote_error_summary(error)}", remedy) from error


def _merge_report(context: LoadContext, report: PartitionReport) -> None:
    """Count the outcomes of a partition as if it had been loaded here."""
    outcomes, control = context.outcomes, context.control
    for letter in report.dead_letters:
        outcomes.write_dead_letter(letter)
    outcomes.ledger.merge(report.ledger)
    outcomes.rejected += report.rejected
    outcomes.dropped.update(report.dropped)
    outcomes.rerouted += report.rerouted
    outcomes.held.update(report.held)
    # Workers have no error limit: a partition is not the whole source.
    outcomes.check_errors(letter.reason for letter in report.dead_letters)
    if report.stop_reason is not None:
        (control.stop_sending if report.engine_lost else control.end_early)(report.stop_reason)


@contextmanager
def _progress_poller(context: LoadContext, coordinator: Any, parts: int) -> Iterator[None]:
    """Show the progress of the load, and pass a stop request on to the workers, until the block ends."""
    done, tracker = threading.Event(), ProgressTracker()

    def poll() -> None:
        stop_requested = False
        while not done.wait(_POLL_SECONDS):
            if context.control.stop_reading.is_set() and not stop_requested:
                stop_requested = True
                coordinator.request_stop.remote()
            try:
                progress = ray.get(coordinator.progress.remote())
            except RayError:
                return  # the thread that reads the reports gets the same error
            snapshot = tracker.snapshot(progress.read, progress.processed, progress.fraction / max(1, parts))
            context.meter.show(snapshot)
            context.observer.show(snapshot)

    thread = threading.Thread(target=poll, name="ingest-cluster-ticker", daemon=True)
    thread.start()
    try:
        yield
    finally:
        done.set()
        thread.join()


@contextmanager
def open_ray_runner(
    address: str,
    model: str,
    engine: EngineSettings,
    *,
    device: str,
    precision: str,
    runtime: str,
    threads: int | None,
    count: int | None,
    part_bytes: int,
) -> Iterator[RayRunner]:
    """Open a runner on the cluster at an address, until the block ends.

    Args:
        address: See `ray_connection`.
        model: Model folder, bundle, hub id, installed or registered name; the same on all nodes.
        threads: Cores of a worker; None for the default.
        count: Number of workers; None for as many as fit.

    Raises:
        ClusterError: there is no cluster at the address, no node is large enough for a worker, or a node has a
            different es-sbert or model.
        ModelError: the model is not found or broken.
        UsageError: options conflict.
    """
    folder = Path(model) if Path(model).is_dir() else None
    if folder is None and "/" not in model and installed_model_folder(model) is None:
        folder = registered_model_folder(model)  # the registry is local to this machine
    model_name = model if folder is None else str(folder.absolute())
    with ray_connection(address):
        nodes = [node for node in ray.nodes() if node["Alive"]]  # type: ignore[no-untyped-call]
        workers = choose_worker_pool([node["Resources"] for node in nodes], device, threads, count)
        loaded = read_sentence_model(resolve_model(model), model)
        check_nodes(nodes, workers, model_name, loaded.fingerprint)
        yield RayRunner(
            model_name,
            loaded,
            engine,
            device=device,
            precision=precision,
            runtime=runtime,
            workers=workers,
            part_bytes=part_bytes,
        )
