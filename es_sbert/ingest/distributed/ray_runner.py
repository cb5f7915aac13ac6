"""Run a load on a Ray cluster: partition the sources, hand the partitions to workers, and merge their reports."""

from __future__ import annotations

import pickle
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
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
from es_sbert.encoder.tokenizer import SentenceTokenizer
from es_sbert.engines.protocol import PointInTimeSlice
from es_sbert.errors import ClusterError, EsSbertError, SourceError
from es_sbert.index.mapping import ChunkRules
from es_sbert.ingest.checkpoint import LoadCheckpoint, LoadIdentity
from es_sbert.ingest.distributed.coordinator import RemoteCheckpoint, start_coordinator
from es_sbert.ingest.distributed.ray_cluster import (
    NodeRequirements,
    RayWorkerPool,
    check_nodes,
    choose_worker_pool,
    find_own_error,
    ray_connection,
    remote_error_summary,
)
from es_sbert.ingest.distributed.ray_worker import Partition, PartitionLoader, PartitionReport, WorkerJob
from es_sbert.ingest.load import ModelIdentity
from es_sbert.ingest.load_context import LoadContext
from es_sbert.ingest.load_report import record_start
from es_sbert.ingest.progress import ProgressTracker
from es_sbert.ingest.sources.document_source import DocumentSource
from es_sbert.io.text_formats import CorruptStream

# Bytes of a part of a file that can be cut: some minutes of a worker on a CPU. What a lost machine had in hand is begun
# anew, and at the end of a load the workers wait for the last part.
PARTITION_BYTES = 16 << 20
# Slices of an index for each worker, for the same reasons.
SLICES_PER_WORKER = 8
# More of them engines refuse, unless an index is set up otherwise.
MAX_SLICES = 1024


def partition_sources(sources: Sequence[DocumentSource], size: int = PARTITION_BYTES) -> list[Partition]:
    """Parts of sources, those of one source in its order.

    Args:
        size: Bytes of a part of a source that can be cut.

    Raises:
        UsageError: a source that other machines cannot read.
        SourceError: a source that cannot be read to cut it.
    """
    pieces: list[DocumentSource] = []
    for source in sources:
        try:
            pieces += source.partitions(size)
        except (OSError, CorruptStream) as error:
            raise SourceError(f"{source.name} cannot be read: {error}", "Mend or leave out the file.") from error
    return [Partition(number, source=piece) for number, piece in enumerate(pieces)]


def partition_index(workers: int, point_in_time: str) -> list[Partition]:
    """Slices of an index.

    Args:
        point_in_time: Its id.
    """
    count = min(max(2, workers * SLICES_PER_WORKER), MAX_SLICES)  # engines take no single slice
    return [Partition(number, slice=PointInTimeSlice(number, count, point_in_time)) for number in range(count)]


_POLL_SECONDS = 0.5


class RayRunner:
    """Runs a load on the cluster that this process is a driver of.

    Sources, and the slices of an index, are cut into parts; an actor runs the whole pipeline over one part at a time. A
    part whose machine is lost is run again elsewhere: documents that the engine has acknowledged are known to the
    keeper, and what it took without our hearing of it is written again under the same id.

    Args:
        name: The model's folder, hub id or installed name, which every machine must find.
        model: The model behind it.
        engine: Where the engine is, as seen from every machine.
        device, precision: For loading the encoder, see `Encoder`.
        workers: How many actors, and what each takes.
        part_bytes: Bytes of a part of a long file.
        loader: What the actors are.
    """

    def __init__(
        self,
        name: str,
        model: SentenceModel,
        engine: EngineSettings,
        *,
        device: str,
        precision: str,
        workers: RayWorkerPool,
        part_bytes: int = PARTITION_BYTES,
        loader: type[PartitionLoader] = PartitionLoader,
    ) -> None:
        self._name = name
        self._model = model
        self._engine = engine
        self._device = device
        self._precision = precision
        self._workers = workers
        self._part_bytes = part_bytes
        self._loader = loader
        self._keeper = start_coordinator()

    @property
    def model(self) -> ModelIdentity:
        return ModelIdentity(self._model.name, self._model.fingerprint, self._model.dimensions)

    def check_passages(self, rules: ChunkRules) -> None:
        SentenceTokenizer(self._model).splitter(rules.tokens, rules.overlap, "document")

    def open_checkpoint(self, path: Path, identity: LoadIdentity) -> LoadCheckpoint:
        return RemoteCheckpoint.open_remote(self._keeper, path, identity)

    def load(self, context: LoadContext) -> EncoderInfo:
        index = context.index.name
        # A slice of the index sees what was refreshed.
        context.retrying(context.engine.refresh, index)
        empty = context.retrying(context.engine.count, index) == 0
        plan = replace(context.plan, sources=[])
        job = WorkerJob(
            self._engine,
            self._name,
            self._device,
            self._precision,
            self._workers.threads,
            plan,
            context.targets,
            context.index,
            empty,
            self._keeper,
            context.clock.now(),
            Path.cwd(),
        )
        info: EncoderInfo | None = None
        with self._parts(context) as parts, _ProgressPoller(context, self._keeper, len(parts)):
            for report in self._reports(job, parts):
                if info is None and report.info is not None:
                    info = report.info
                    record_start(context, info)
                _merge_report(context, report)
                if report.error is not None:
                    self._keeper.stop.remote()  # the other workers
                    raise report.error
        if info is None:
            raise ClusterError(
                "the load was stopped before a worker of the Ray cluster began",
                "Run the same command again: it goes on where it was.",
            )
        return info

    @contextmanager
    def _parts(self, context: LoadContext) -> Iterator[list[Partition]]:
        """What is to be done; slices of the index can be read until the block ends."""
        if context.plan.sources:
            yield partition_sources(context.plan.sources, self._part_bytes)
            return
        engine = context.engine
        point_in_time = context.retrying(engine.open_point_in_time, context.plan.settings.index)
        try:
            yield partition_index(self._workers.count, point_in_time)
        finally:
            engine.close_point_in_time(point_in_time)

    def _reports(self, job: WorkerJob, parts: Sequence[Partition]) -> Iterator[PartitionReport]:
        """One of each part, in the order in which they end."""
        rows = [{"part": pickle.dumps(part)} for part in parts]
        dataset = ray.data.from_items(rows, override_num_blocks=len(rows)).map_batches(
            self._loader,
            batch_size=1,
            compute=self._workers.strategy(len(rows)),
            fn_constructor_args=[job],
            num_cpus=self._workers.cpus,
            num_gpus=self._workers.gpus,
        )
        try:
            for batch in dataset.iter_batches(batch_size=1, prefetch_batches=0, batch_format="numpy"):
                yield from (pickle.loads(packed) for packed in batch["report"])
        except (RayError, EsSbertError) as error:
            own = find_own_error(error)
            if own is not None:
                raise own from error
            raise ClusterError(
                f"the load on the Ray cluster failed: {remote_error_summary(error)}",
                "Look at `ray status` and the logs of the cluster, then run the same command again: it goes on where "
                "it was.",
            ) from error


def _merge_report(context: LoadContext, report: PartitionReport) -> None:
    """The ends of a part's documents, as if they had been loaded here."""
    outcomes, control = context.outcomes, context.control
    for letter in report.letters:
        outcomes.dead_letters.write(
            letter.origin,
            letter.reason,
            document=letter.document,
            document_id=letter.id,
            raw=letter.raw,
            size=letter.size,
            partial=letter.partial,
        )
    outcomes.ledger.merge(report.ledger)
    outcomes.rejected += report.rejected
    outcomes.dropped.update(report.dropped)
    # Workers have no limit of their own: a part is not the whole source.
    outcomes.check_errors(letter.reason for letter in report.letters)
    if report.lost is not None:
        control.mark_unreachable(report.lost)
    if report.cut is not None:
        control.truncate(report.cut)


class _ProgressPoller:
    """Shows how far the load is, and passes on that it is to stop, while reports are waited for."""

    def __init__(self, context: LoadContext, keeper: Any, parts: int) -> None:
        self._context = context
        self._keeper = keeper
        self._parts = parts
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run, name="ingest-cluster-ticker", daemon=True)

    def __enter__(self) -> _ProgressPoller:
        self._tracker = ProgressTracker()
        self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._over.set()
        self._thread.join()

    def _run(self) -> None:
        told = False
        while not self._over.wait(_POLL_SECONDS):
            if self._context.control.stop.is_set() and not told:
                told = True
                self._keeper.stop.remote()
            try:
                parts = ray.get(self._keeper.progress.remote())
            except RayError:
                return  # whoever waits for the reports meets the same
            snapshot = self._tracker.snapshot(parts.read, parts.processed, parts.fraction / max(1, self._parts))
            self._context.meter.show(snapshot)
            self._context.observer.show(snapshot)


@contextmanager
def open_ray_runner(
    address: str,
    model: str,
    engine: EngineSettings,
    *,
    device: str,
    precision: str,
    threads: int | None,
    count: int | None,
    part_bytes: int,
) -> Iterator[RayRunner]:
    """A runner on the cluster at an address, until the block ends.

    Args:
        address: See `connected`.
        model: Model folder, bundle, hub id, installed or registered name, the same on all machines.
        threads: Cores of a worker; None chooses.
        count: How many workers; None takes all that fit.

    Raises:
        ClusterError: there is no such cluster, it has no room for a worker, or a machine has another es-sbert or model.
        ModelError: the model is not found or broken.
        UsageError: options that do not go together.
    """
    folder = Path(model) if Path(model).is_dir() else None
    if folder is None and "/" not in model and installed_model_folder(model) is None:
        folder = registered_model_folder(model)  # other machines have other registries
    named = model if folder is None else str(folder.absolute())
    with ray_connection(address):
        nodes = [node for node in ray.nodes() if node["Alive"]]  # type: ignore[no-untyped-call]
        workers = choose_worker_pool([node["Resources"] for node in nodes], device, threads, count)
        loaded = read_sentence_model(resolve_model(model), model)
        check_nodes(nodes, workers, NodeRequirements(named, loaded.fingerprint))
        yield RayRunner(
            named, loaded, engine, device=device, precision=precision, workers=workers, part_bytes=part_bytes
        )
