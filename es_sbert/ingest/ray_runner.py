"""Run a load on a Ray cluster: partition the sources, hand the partitions to workers, and merge their reports.

Before that, connect to the cluster, choose its worker pool, and check that every node has the same es-sbert and model.
Each worker runs the ingest pipeline over one partition at a time; a coordinator owns the checkpoint of all workers.
"""

from __future__ import annotations

import io
import logging
import os
import pickle
import platform
import socket
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, redirect_stdout
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, cast

import numpy as np
import ray
import ray.data
from numpy.typing import NDArray
from ray.data import ActorPoolStrategy, DataContext
from ray.exceptions import RayError, RayTaskError
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from es_sbert.bundle.local_registry import registered_model_folder
from es_sbert.bundle.model_lookup import find_index_model, installed_model_folder, resolve_model
from es_sbert.bundle.sentence_model import SentenceModel, read_sentence_model
from es_sbert.clock import Clock
from es_sbert.config import DEFAULT_MODEL, EngineSettings
from es_sbert.encoder.encoder import Encoder
from es_sbert.encoder.text_pipeline import EncoderInfo
from es_sbert.engines.connect import connect
from es_sbert.engines.engine import Engine
from es_sbert.engines.index_scan import IndexSlice, close_snapshots, open_snapshots
from es_sbert.engines.retry import Throttle, wait_for_engine
from es_sbert.errors import ClusterError, EsSbertError, IndexMismatch, SourceError, UsageError, error_summary
from es_sbert.index.document_vectors import EmbeddingTargets
from es_sbert.ingest.backfill import IndexReader, embed_in_place
from es_sbert.ingest.check_first_records import check_first_records
from es_sbert.ingest.checkpoint import LoadCheckpoint, LoadIdentity
from es_sbert.ingest.ledger import Ledger, OutcomeRecorder, PackedVersions, WrittenVersions
from es_sbert.ingest.load import OpenLoad, finish_load, open_load
from es_sbert.ingest.load_pipeline import WRITERS, load_records
from es_sbert.ingest.load_plan import IndexRef, LoadContext, LoadPlan, ModelIdentity
from es_sbert.ingest.load_report import LoadReport, record_end, record_start
from es_sbert.ingest.load_threads import LoadControl
from es_sbert.ingest.progress import ProgressMeter, ProgressTracker, fraction_processed
from es_sbert.ingest.read_documents import RecordStream
from es_sbert.ingest.reconcile import ConfirmPrune
from es_sbert.ingest.sources.document_source import DocumentSource, RejectedRecord
from es_sbert.io.text_formats import CorruptStream
from es_sbert.messages import Spelling, current_spelling, log_event, setting, spell_settings
from es_sbert.runtime.onnx_session import CUDA_WORKERS
from es_sbert.runtime.tokenizer import SentenceTokenizer
from es_sbert.version import __version__

# Starts a cluster on this machine for the duration of the load.
LOCAL_CLUSTER = "local"
_CURRENT_CLUSTER = "auto"  # the cluster that this machine belongs to
_CONNECT_SECONDS = 10.0


class _RayOutputLogger(io.TextIOBase):
    """Turns what Ray prints into log events, one per line, and keeps standard output clean."""

    def write(self, text: str) -> int:
        for line in filter(None, map(str.strip, text.splitlines())):
            log_event("ray", line, text="")
        return len(text)


@contextmanager
def ray_connection(address: str) -> Iterator[None]:
    """Connect to the cluster at an address: `host:port`, `auto` for the one that this machine belongs to, or `local`.

    Raises:
        UsageError: the address is that of a Ray Client server.
        ClusterError: there is no cluster at the address.
    """
    if address.startswith("ray://"):
        raise UsageError(
            "Ray Client addresses (ray://) are not supported: the checkpoint file must be on a node of the cluster",
            f"Run the command on a machine that belongs to the cluster, with {setting('ray', 'auto')}.",
        ).about("ray", address)
    # Ray's own logging is silenced: its failures are raised as ClusterError.
    os.environ.setdefault("RAY_IGNORE_UNHANDLED_ERRORS", "1")
    for name in ("ray", "ray.data"):
        logging.getLogger(name).setLevel(logging.CRITICAL)
    context = DataContext.get_current()
    context.enable_progress_bars = False
    context.print_on_execution_start = False
    # A thread of Ray prints messages about lost nodes; the shutdown prints the remaining ones.
    with redirect_stdout(_RayOutputLogger()):
        try:
            if address not in (LOCAL_CLUSTER, _CURRENT_CLUSTER):
                # Check that the cluster accepts connections: Ray itself would try for minutes.
                host, _, port = address.rpartition(":")
                socket.create_connection((host, int(port)), timeout=_CONNECT_SECONDS).close()
            ray.init(
                address=None if address == LOCAL_CLUSTER else address,
                logging_level=logging.CRITICAL,
                log_to_driver=False,
                include_dashboard=False if address == LOCAL_CLUSTER else None,
            )
        except (OSError, ValueError, RuntimeError, RayError) as error:
            raise ClusterError(
                f"there is no Ray cluster at {address}: {error_summary(error)}",
                "Start one (`ray start --head`, then `ray start --address HOST:6379` on each machine), or use "
                f"{setting('ray', 'local')}.",
            ).about("ray", address) from error
        try:
            yield
        finally:
            ray.shutdown()


# Cores of an actor without a GPU. More cores share one model in memory, but scale a little worse than more actors.
_CORES_PER_WORKER = 4


@dataclass(frozen=True)
class RayWorkerPool:
    """The actors of a load.

    Attributes:
        count: Number of actors.
        cores: CPUs of each actor, and threads of its encoder; on CUDA, concurrent batches.
        gpus: GPUs of each actor.
    """

    count: int
    cores: int
    gpus: int

    def fits(self, node: Mapping[str, float]) -> bool:
        """Whether an actor fits on a node with these resources."""
        return node.get("CPU", 0) >= self.cores and node.get("GPU", 0) >= self.gpus


def choose_worker_pool(
    nodes: list[Mapping[str, float]], device: str, threads: int | None, count: int | None
) -> RayWorkerPool:
    """Choose one actor per GPU if the device allows it, else one per group of cores.

    Args:
        nodes: Resources of each live node, as Ray names them (`CPU`, `GPU`).
        device: `auto`, `cpu` or `cuda`.
        threads: Cores of an actor; None for the default.
        count: Number of actors; None for as many as fit.

    Raises:
        UsageError: the device is a numbered GPU, but Ray assigns GPUs.
        ClusterError: no node is large enough for an actor.
    """
    if ":" in device:
        raise UsageError(
            "Ray assigns GPUs to workers: a card cannot be named", f"Use {setting('device', 'cuda')}."
        ).about("device", device)
    if device == "cuda" or (device == "auto" and any(node.get("GPU", 0) >= 1 for node in nodes)):
        cores, gpus = threads or CUDA_WORKERS, 1
        what = f"a GPU and {cores} CPUs"
        fitting = sum(min(int(node.get("GPU", 0)), int(node.get("CPU", 0) // cores)) for node in nodes)
    else:
        most = max((int(node.get("CPU", 0)) for node in nodes), default=0)
        cores, gpus = threads or max(1, min(_CORES_PER_WORKER, most)), 0
        what = f"{cores} CPUs"
        fitting = sum(int(node.get("CPU", 0) // cores) for node in nodes)
    if not fitting:
        raise ClusterError(
            f"no machine of the Ray cluster has {what} for a worker",
            f"Check `ray status`, or set {setting('threads')} or {setting('device')}.",
        )
    if count is not None and count > fitting:
        raise ClusterError(
            f"Ray can run {fitting} workers of {what}, not {count}",
            f"Lower {setting('ray_workers')} or {setting('threads')}.",
        ).about("ray_workers", count)
    return RayWorkerPool(count or fitting, cores, gpus)


_MAX_LISTED_NODES = 5


def check_nodes(nodes: Sequence[Mapping[str, Any]], workers: RayWorkerPool, model: str, fingerprint: str) -> None:
    """Check that every node that may get a worker has the same es-sbert and the same model as this machine.

    Args:
        nodes: The live nodes, as `ray.nodes()` describes them.
        workers: Resources of a worker.
        model: The model's folder, hub id or installed name.
        fingerprint: Fingerprint of that model on this machine.

    Raises:
        ClusterError: a node has a different version or model, lacks one of them, or does not respond.
    """
    probe = ray.remote(make_probe(__version__, fingerprint))
    answers = []
    for node in nodes:
        if workers.fits(node["Resources"]):
            on_node = NodeAffinitySchedulingStrategy(node["NodeID"], soft=False)
            answer = probe.options(num_cpus=0, scheduling_strategy=on_node).remote(model)
            answers.append((node["NodeManagerHostname"], answer))
    problems = []
    for host, answer in answers:
        try:
            problem = get_result(answer)
        except ClusterError:
            raise
        except EsSbertError as error:
            problem = f"cannot open the model: {error.message}"
        except RayTaskError as error:
            problem = f"cannot run es-sbert: {remote_error_summary(error)}"
        if problem is not None:
            problems.append(f"{host} {problem}")
    if problems:
        more = ["…"] if len(problems) > _MAX_LISTED_NODES else []
        raise ClusterError(
            f"nodes of the Ray cluster have a different es-sbert or model than this machine (es-sbert {__version__}, "
            f"{model} = {fingerprint[:12]}): {'; '.join(problems[:_MAX_LISTED_NODES] + more)}",
            f"Install one version of es-sbert and one model on all machines, or set {setting('model')} to a folder "
            "that they share, and run the same command again.",
        )


def make_probe(required_version: str, required_fingerprint: str) -> Callable[[str], str | None]:
    """Make the function that a node runs to compare its es-sbert and its model with those of this machine.

    It returns the difference as text that follows the node's name; None if there is none. A nested function is pickled
    as code, not by name, so that it runs on nodes without es-sbert; for the same reason it uses nothing of this module.
    """

    def probe(model: str) -> str | None:
        try:
            from es_sbert.version import __version__ as version
        except ImportError:  # the caller names the node that lacks es-sbert
            return "has no es-sbert in the Python that Ray uses there"
        if version != required_version:
            return f"has es-sbert {version}"
        from es_sbert.bundle.model_lookup import resolve_model
        from es_sbert.bundle.sentence_model import read_sentence_model

        fingerprint = read_sentence_model(resolve_model(model)).fingerprint
        return None if fingerprint == required_fingerprint else f"has the model {fingerprint[:12]} under that name"

    return probe


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
    """Owns the checkpoint file of all workers, tells them to stop, and collects their writes and their progress.

    Args:
        spelling: How messages spell settings.
    """

    def __init__(self, spelling: Spelling) -> None:
        self._spelling = spelling
        self._checkpoint: LoadCheckpoint | None = None
        self._versions = WrittenVersions()
        self._stopped = False
        self._progress: dict[int, Progress] = {}

    def open(self, path: Path, identity: LoadIdentity) -> tuple[str, bool, str | None]:
        """Open the checkpoint; return its `run`, `resumed` and `note`.

        Raises:
            UsageError, OutputError: see `LoadCheckpoint`.
        """
        with spell_settings(self._spelling):
            self._checkpoint = LoadCheckpoint(path.absolute(), identity, rereads=True)
        return self._checkpoint.run, self._checkpoint.resumed, self._checkpoint.note

    def call(self, method: str, *arguments: Any) -> tuple[Any, bool]:
        """Call a method of the checkpoint; also return whether the load must stop."""
        assert self._checkpoint is not None, "open was called"
        with spell_settings(self._spelling):
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
    return ray.remote(LoadCoordinator).options(num_cpus=0, scheduling_strategy=here).remote(current_spelling())


@dataclass
class RemoteCheckpoint:
    """A `LoadCheckpoint` whose file is owned by the coordinator, which runs its methods.

    Args:
        coordinator: Handle of the actor.
        on_stop: Called when the load must stop.
    """

    _coordinator: Any
    _on_stop: Callable[[], None] = lambda: None

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
        spelling: How messages spell settings.
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
    spelling: Spelling
    _opened: tuple[Engine, Encoder] | None = field(default=None, init=False)

    def __call__(self, batch: dict[str, NDArray[np.object_]]) -> dict[str, NDArray[np.object_]]:
        """Load the partitions of a batch; return their reports, in order."""
        if self.folder.is_dir():
            os.chdir(self.folder)  # the actor has this process to itself
        packed = np.empty(len(batch["partition"]), dtype=object)
        for number, partition in enumerate(batch["partition"]):
            report = PartitionReport()
            try:
                with spell_settings(self.spelling):
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
            remedy = "Put the files where all machines find them under the same path."
            raise SourceError(f"{source.path} is not on the machine {platform.node()} of the cluster", remedy)
        self._opened = self._opened or self._open()
        engine, encoder = self._opened
        control, clock = LoadControl(), Clock()
        clock.observe(self.started_at)
        checkpoint = cast(LoadCheckpoint, RemoteCheckpoint(self.coordinator, control.interrupt)) if source else None

        def add_versions(versions: PackedVersions, writes: int) -> None:
            # The coordinator outlives this worker.
            get_result(self.coordinator.add_versions.remote(versions, writes))

        outcomes = OutcomeRecorder(report, checkpoint, add_versions=add_versions)
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

    def _open(self) -> tuple[Engine, Encoder]:
        encoder = Encoder(**self.encoder)
        expected = next(target.meta for target in self.targets if target.filled)
        if encoder.info.fingerprint != expected.fingerprint:
            encoder.close()
            raise IndexMismatch(
                f"a worker has a different model named {self.encoder['model']} ({encoder.info.fingerprint[:12]}, "
                f"not {expected.fingerprint[:12]})",
                f"Set {setting('model')} to a folder that all machines share, or install the same model on each.",
            )
        return wait_for_engine(lambda: connect(self.engine), self.plan.settings.retry_seconds), encoder


# Bytes of a file partition: a few minutes of work for a worker on a CPU. The partition of a lost machine is restarted,
# and at the end of a load the workers wait for the last partition.
PARTITION_BYTES = 16 << 20
# Slices of an index per worker, for the same reasons.
SLICES_PER_WORKER = 8
MAX_SLICES = 1024


def partition_sources(sources: Sequence[DocumentSource]) -> list[DocumentSource]:
    """Split sources into partitions, in order.

    Raises:
        UsageError: other machines cannot read a source.
        SourceError: a source cannot be read to split it.
    """
    parts: list[DocumentSource] = []
    for source in sources:
        try:
            parts += source.partitions(PARTITION_BYTES)
        except (OSError, CorruptStream) as error:
            raise SourceError(f"{source.name} cannot be read: {error}", "Fix the file, or leave it out.") from error
    return parts


_POLL_SECONDS = 0.5


@dataclass
class RayRunner:
    """Runs a load on a Ray cluster, with this process as a driver.

    Sources and indices are split into partitions; each worker runs the whole pipeline over one partition at a time. If
    a node is lost, its partition is restarted elsewhere: the coordinator knows the documents that the engine has
    acknowledged, and the others are written again under the same id.

    Attributes:
        model: The model.
        engine: Connection settings, valid on every node.
        encoder: Arguments of `Encoder`; every node must find the model that they name.
        workers: The actors.
    """

    model: SentenceModel
    engine: EngineSettings
    encoder: Mapping[str, Any]
    workers: RayWorkerPool
    _coordinator: Any = field(default_factory=start_coordinator, init=False)

    def run_load(
        self,
        engine: Engine,
        plan: LoadPlan,
        control: LoadControl,
        meter: ProgressMeter,
        confirm: ConfirmPrune = lambda candidates: True,
    ) -> LoadReport:
        """Carry out a plan on the cluster; see `load.run_load` for the arguments and errors.

        Raises:
            ClusterError: the cluster failed, or the load was stopped before any worker started.
        """
        model = ModelIdentity(self.model.name, self.model.fingerprint, self.model.dimensions)
        open_checkpoint = RemoteCheckpoint(self._coordinator).open
        with check_first_records(engine, plan, control) as stream:
            plan.check_chunk_rules(SentenceTokenizer(self.model).make_chunker)
            with open_load(engine, plan, model, stream, control, meter, open_checkpoint) as load:
                report = finish_load(load, self._embed(load), confirm)
        record_end(report)
        return report

    def _embed(self, load: OpenLoad) -> EncoderInfo:
        """Load all documents until each has an outcome; return the encoder that embedded them."""
        context = load.context
        index = context.index.concrete
        job = {
            "engine": self.engine,
            "encoder": self.encoder,
            "plan": replace(context.plan, sources=[]),
            "targets": context.targets,
            "index": context.index,
            "empty_index": context.retrying(context.engine.count, index) == 0,
            "coordinator": self._coordinator,
            "started_at": context.clock.now(),
            "folder": Path.cwd(),
            "spelling": current_spelling(),
        }
        info: EncoderInfo | None = None
        with ExitStack() as stack:
            if context.plan.sources:
                parts: Sequence[Partition] = partition_sources(context.plan.sources)
            else:
                # A slice of the index includes only refreshed documents.
                context.retrying(context.engine.refresh, index)
                snapshots = open_snapshots(context.engine, context.index.alias, context.retrying)
                stack.callback(close_snapshots, context.engine, snapshots)
                count = min(self.workers.count * SLICES_PER_WORKER, MAX_SLICES)
                parts = [IndexSlice(number, count, snapshots) for number in range(count)]
            stack.enter_context(_progress_poller(context, self._coordinator, len(parts)))
            for report in self._reports(job, parts):
                if info is None and report.info is not None:
                    info = report.info
                    record_start(context, info)
                context.outcomes.merge(report.ledger, report.dead_letters)
                if report.stop_reason is not None:
                    end = context.control.stop_sending if report.engine_lost else context.control.end_early
                    end(report.stop_reason)
                if report.error is not None:
                    self._coordinator.request_stop.remote()  # the other workers
                    raise report.error
        load.versions.add(*get_result(self._coordinator.written_versions.remote()))
        if info is None:
            remedy = "Run the same command again to resume it."
            raise ClusterError("the load was stopped before any worker of the Ray cluster started", remedy)
        return info

    def _reports(self, job: dict[str, Any], parts: Sequence[Partition]) -> Iterator[PartitionReport]:
        """Run the partitions on the workers, and yield their reports in the order in which they finish.

        Args:
            job: The arguments of `PartitionLoader`.
        """
        rows = [{"partition": pickle.dumps(numbered)} for numbered in enumerate(parts)]
        # An actor takes one partition at a time, so that fast actors take more of them.
        pool = ActorPoolStrategy(size=min(self.workers.count, max(len(rows), 1)), max_tasks_in_flight_per_actor=1)
        dataset = ray.data.from_items(rows, override_num_blocks=len(rows)).map_batches(
            PartitionLoader,
            batch_size=1,
            compute=pool,
            fn_constructor_kwargs=job,
            num_cpus=self.workers.cores,
            num_gpus=self.workers.gpus,
        )
        try:
            for batch in dataset.iter_batches(batch_size=1, prefetch_batches=0, batch_format="numpy"):
                yield from (pickle.loads(packed) for packed in batch["report"])
        except RayError as error:
            remedy = "Check `ray status` and the logs of the cluster, then run the same command again: it resumes."
            raise ClusterError(f"the load on the Ray cluster failed: {remote_error_summary(error)}", remedy) from error


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
                read, processed, fraction = ray.get(coordinator.progress.remote())
            except RayError:
                return  # the thread that reads the reports gets the same error
            outcomes = context.outcomes.ledger.counts()  # of the partitions that have ended
            context.meter.show(tracker.snapshot(read, processed, fraction / max(1, parts), outcomes=outcomes))

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
    plan: LoadPlan,
    engine: EngineSettings,
    *,
    model: str | None,
    device: str,
    threads: int | None,
    count: int | None,
    **encoder: str,
) -> Iterator[RayRunner]:
    """Open a runner on the cluster at an address, until the block ends.

    Args:
        address: See `ray_connection`.
        model: Model folder, bundle, hub id, installed or registered name, the same on all nodes; None for the model of
            the index, or the default model.
        threads: Cores of a worker; None for the default.
        count: Number of workers; None for as many as fit.
        encoder: Further arguments of `Encoder`.

    Raises:
        ClusterError: there is no cluster at the address, no node is large enough for a worker, or a node has a
            different es-sbert or model.
        ModelError: the model is not found or broken.
        UsageError: options conflict.
    """
    if model is None and plan.stored is not None:
        found = find_index_model(plan.settings.index, plan.stored.model, plan.stored.fingerprint)
        # Pass public models by name: the folders of packages and of the hub's cache differ between machines.
        model = found.name if found.is_public else str(found.folder)
    model = model or DEFAULT_MODEL
    folder = Path(model) if Path(model).is_dir() else None
    if folder is None and "/" not in model and installed_model_folder(model) is None:
        folder = registered_model_folder(model)  # the registry is local to this machine
    model_name = model if folder is None else str(folder.absolute())
    with ray_connection(address):
        nodes = [node for node in ray.nodes() if node["Alive"]]  # type: ignore[no-untyped-call]
        workers = choose_worker_pool([node["Resources"] for node in nodes], device, threads, count)
        loaded = read_sentence_model(resolve_model(model), model)
        check_nodes(nodes, workers, model_name, loaded.fingerprint)
        arguments = {"model": model_name, "device": device, "threads": workers.cores, **encoder}
        yield RayRunner(loaded, engine, arguments, workers)
