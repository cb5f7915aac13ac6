"""One Ray actor of a distributed load: an encoder, and the ingest pipeline over one partition at a time."""

from __future__ import annotations

import os
import pickle
import platform
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from es_sbert.clock import Clock
from es_sbert.config import EngineSettings
from es_sbert.encoder.encoder import Encoder, EncoderInfo
from es_sbert.engines.connect import connect
from es_sbert.engines.protocol import Engine, IndexState, PointInTimeSlice
from es_sbert.engines.retry import Throttle, wait_for_engine
from es_sbert.errors import EsSbertError, IndexMismatch, SourceError
from es_sbert.index.document_vectors import EmbeddingTargets
from es_sbert.ingest.backfill import IndexReader, embed_in_place
from es_sbert.ingest.distributed.coordinator import PartitionProgress, RemoteCheckpoint
from es_sbert.ingest.distributed.ray_cluster import get_result
from es_sbert.ingest.documents import RecordStream
from es_sbert.ingest.ledger import Ledger, OutcomeRecorder
from es_sbert.ingest.load_context import LoadContext
from es_sbert.ingest.load_pipeline import WRITERS, load_sources
from es_sbert.ingest.load_plan import LoadPlan
from es_sbert.ingest.pipeline import LoadControl
from es_sbert.ingest.progress import fraction_processed
from es_sbert.ingest.records import Origin, RejectedRecord
from es_sbert.ingest.sources.document_source import DocumentSource


@dataclass(frozen=True)
class Partition:
    """What one worker does at a time.

    Attributes:
        number: From 0.
        source: What it reads; None where the index is the source.
        slice: Slice of the index; None where a source is read.
    """

    number: int
    source: DocumentSource | None = None
    slice: PointInTimeSlice | None = None


# Between two words to the keeper about how far a part is.
_REPORT_SECONDS = 1.0


@dataclass(frozen=True)
class WorkerJob:
    """What every worker of a load is told.

    Attributes:
        engine: Where the engine is, as seen from the workers.
        model, device, precision, threads: For loading the encoder.
        plan: The load, its sources left out.
        targets: The vector fields that it minds.
        index: The index at the beginning.
        empty_index: Whether it held nothing then.
        keeper: Handle of the keeper.
        begun: When, by the clock of the load.
        folder: Where the command runs: names of files may be relative to it.
    """

    engine: EngineSettings
    model: str
    device: str
    precision: str
    threads: int
    plan: LoadPlan
    targets: EmbeddingTargets
    index: IndexState
    empty_index: bool
    keeper: Any
    begun: str
    folder: Path


@dataclass
class PartitionReport:
    """What became of a part.

    Attributes:
        part: Its number.
        info: What embedded; None where the part was not begun, because the load was to stop.
        ledger: Its counts.
        letters: Its dead letters, not written yet.
        rejected: Records that are no documents.
        dropped: See `OutcomeRecorder.dropped`.
        lost: Why the engine takes no more.
        cut: Why its source was not read to its end.
        error: What ended it; Ray would tell its text alone, not its class.
    """

    part: int
    info: EncoderInfo | None = None
    ledger: Ledger = field(default_factory=Ledger)
    letters: list[RejectedRecord] = field(default_factory=list)
    rejected: int = 0
    dropped: Counter[str] = field(default_factory=Counter)
    lost: str | None = None
    cut: str | None = None
    error: EsSbertError | None = None


class DeadLetterCollector:
    """Takes dead letters in the place of the file, which stands on another machine."""

    def __init__(self) -> None:
        self.letters: list[RejectedRecord] = []

    def write(
        self,
        origin: Origin,
        reason: str,
        *,
        document: bytes | None = None,
        document_id: str | None = None,
        raw: bytes = b"",
        size: int = 0,
        partial: bool = False,
    ) -> None:
        self.letters.append(RejectedRecord(origin, reason, raw, size, document, document_id, partial))


class PartitionLoader:
    """What Ray Data makes an actor of. Everything is opened with the first part: an error then is one of ours."""

    def __init__(self, job: WorkerJob) -> None:
        self._job = job
        self._engine: Engine | None = None
        self._encoder: Encoder | None = None

    def __call__(self, batch: dict[str, NDArray[np.object_]]) -> dict[str, NDArray[np.object_]]:
        """Reports of the parts of a batch, in its order.

        Raises:
            EsSbertError: the load cannot go on.
        """
        if self._job.folder.is_dir():
            os.chdir(self._job.folder)  # this process is the actor's own
        reports = [self._load(pickle.loads(packed)) for packed in batch["part"]]
        packed = np.empty(len(reports), dtype=object)
        packed[:] = [pickle.dumps(report) for report in reports]
        return {"report": packed}

    def _load(self, part: Partition) -> PartitionReport:
        import ray

        if ray.get(self._job.keeper.stopped.remote()):
            return PartitionReport(part.number)
        _check_file_present(part)
        engine, encoder = self._opened()
        letters = DeadLetterCollector()
        context = self._context(part, engine, letters)
        failed: EsSbertError | None = None
        try:
            self._run(part, context, encoder)
        except EsSbertError as error:
            failed = error
        self._tell(part, context, 1.0)
        outcomes, control = context.outcomes, context.control
        return PartitionReport(
            part.number,
            info=encoder.info,
            ledger=outcomes.ledger,
            letters=letters.letters,
            rejected=outcomes.rejected,
            dropped=outcomes.dropped,
            lost=control.unreachable_reason,
            cut=control.truncated_reason,
            error=failed,
        )

    def _opened(self) -> tuple[Engine, Encoder]:
        job = self._job
        if self._encoder is None:
            encoder = Encoder(job.model, device=job.device, precision=job.precision, threads=job.threads)
            wanted = next(target.meta for target in job.targets if target.filled)
            if encoder.info.fingerprint != wanted.fingerprint:
                encoder.close()
                raise IndexMismatch(
                    f"a worker has another model under the name {job.model} ({encoder.info.fingerprint[:12]}, not "
                    f"{wanted.fingerprint[:12]})",
                    "Give --model a folder that all machines share, or install the same model on each.",
                )
            self._encoder = encoder
        if self._engine is None:
            self._engine = wait_for_engine(lambda: connect(job.engine), job.plan.settings.retry_seconds)
        return self._engine, self._encoder

    def _context(self, part: Partition, engine: Engine, letters: DeadLetterCollector) -> LoadContext:
        job, control = self._job, LoadControl()
        checkpoint = None
        if part.source is not None:
            checkpoint = RemoteCheckpoint(job.keeper, (job.plan.dead_letters, "", False, None), control.interrupt)
        outcomes = OutcomeRecorder(Ledger(), letters, checkpoint)
        plan = replace(job.plan, sources=[] if part.source is None else [part.source])
        throttle, clock = Throttle(plan.settings.bulk_bytes, WRITERS), Clock()
        clock.observe(job.begun)
        return LoadContext(
            engine, plan, job.index, job.targets, control, outcomes, throttle, checkpoint=checkpoint, clock=clock
        )

    def _run(self, part: Partition, context: LoadContext, encoder: Encoder) -> None:
        if part.source is not None:
            stream, size = RecordStream(context.plan.sources, context.plan.reading, context.control), part.source.size
            tick = self._ticker(part, context, lambda: stream.counter.bytes / size if size else None)
            load_sources(context, encoder, stream, tick, empty_index=self._job.empty_index)
            return
        tick = self._ticker(part, context, lambda: None)
        reader = IndexReader(context, part.slice)
        embed_in_place(context, encoder, reader, reader.documents(), tick)

    def _ticker(self, part: Partition, context: LoadContext, part_read: Callable[[], float | None]) -> Any:
        last = time.monotonic()

        def tick() -> None:
            nonlocal last
            if time.monotonic() - last >= _REPORT_SECONDS:
                last = time.monotonic()
                ledger = context.outcomes.ledger
                fraction = fraction_processed(ledger.read, ledger.processed, part_read())
                if get_result(self._tell(part, context, fraction or 0.0)):
                    context.control.interrupt()

        return tick

    def _tell(self, part: Partition, context: LoadContext, fraction: float) -> Any:
        """Tell the keeper how far a part is; its answer, by reference: whether the load is to stop."""
        ledger = context.outcomes.ledger
        return self._job.keeper.report.remote(part.number, PartitionProgress(ledger.read, ledger.processed, fraction))


def _check_file_present(part: Partition) -> None:
    """Make sure that a file of the part stands on this machine.

    Raises:
        SourceError: it does not.
    """
    path = None if part.source is None else part.source.path
    if path is not None and not path.exists():
        raise SourceError(
            f"{path} is not on the machine {platform.node()} of the cluster",
            "Keep files where all machines see them under the same path, or name an address (s3://…).",
        )
