"""Run a load from its plan to its report: check the first records, open the index, embed, compare and report."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import TypeVar

from es_sbert.clock import Clock, format_timestamp
from es_sbert.encoder.encoder import Encoder
from es_sbert.encoder.text_pipeline import EncoderInfo
from es_sbert.engines.engine import Engine
from es_sbert.engines.index_state import IndexState
from es_sbert.engines.retry import Throttle, wait_for_engine, without_retries
from es_sbert.errors import DocumentsAltered, EsSbertError, IndexMismatch
from es_sbert.index.document_vectors import EmbeddingTarget, EmbeddingTargets, kept_targets, targets_to_fill
from es_sbert.index.load_checks import check_created_index, delete_unused_index
from es_sbert.index.mapping import vector_fields
from es_sbert.index.privileges import require_all_visible
from es_sbert.index.vector_field import FieldOutcome, VectorField, ensure_vector_field
from es_sbert.ingest.backfill import embed_index, watch_index
from es_sbert.ingest.check_first_records import check_first_records
from es_sbert.ingest.checkpoint import LoadCheckpoint, LoadIdentity
from es_sbert.ingest.dead_letters import DeadLetters, dead_letter_keys, last_dead_letter_time, quarantine_path
from es_sbert.ingest.ledger import DocumentOutcome, ErrorMonitor, OutcomeRecorder, WrittenVersions
from es_sbert.ingest.load_pipeline import WRITERS, load_sources
from es_sbert.ingest.load_plan import IndexRef, LoadContext, LoadPlan, ModelIdentity
from es_sbert.ingest.load_report import ConcurrentChanges, LoadReport, record_end, record_start
from es_sbert.ingest.load_threads import LoadControl
from es_sbert.ingest.progress import ProgressMeter
from es_sbert.ingest.read_documents import RecordStream
from es_sbert.ingest.reconcile import ConfirmPrune, WriteState, prune_index, read_write_state, report_concurrent_changes
from es_sbert.messages import be, log_event, pluralize, setting

T = TypeVar("T")
OpenCheckpoint = Callable[[Path, LoadIdentity], LoadCheckpoint]


def run_load(
    engine: Engine,
    encoder: Encoder,
    plan: LoadPlan,
    control: LoadControl,
    meter: ProgressMeter,
    confirm: ConfirmPrune = lambda candidates: True,
    *,
    show_summary: bool = True,
) -> LoadReport:
    """Carry out a plan in this process.

    Args:
        encoder: Embeds the documents; it is not closed.
        control: Stops the load from outside.
        meter: Shows the progress.
        confirm: Decides whether to remove documents that the source no longer has.
        show_summary: Whether a terminal shows the summary; it is logged in any case.

    Raises:
        UsageError: another process is loading the same source into the same index, or the chunk rules do not fit the
            model.
        SourceError: the first documents cannot be loaded, or lack a field of the text; nothing was written then.
        IndexMismatch: the index holds vectors of another model or text, or was deleted during the load.
        EngineError: the engine failed before the first document was sent.
        OutputError: the dead letters or the checkpoint cannot be written.
    """
    info = encoder.info
    model = ModelIdentity(info.model, info.fingerprint, info.dimensions)
    with check_first_records(engine, plan, control) as stream:
        plan.check_chunk_rules(encoder.pipeline.make_chunker)
        with open_load(engine, plan, model, stream, control, meter) as load:
            record_start(load.context, info)
            if plan.sources:
                load_sources(load.context, encoder, stream)
            elif plan.settings.watch_seconds is None:
                embed_index(load.context, encoder)
            else:
                watch_index(load.context, encoder, plan.settings.watch_seconds)
            report = finish_load(load, info, confirm)
    record_end(report, shown=show_summary)
    return report


@dataclass
class OpenLoad:
    """A load whose index is ready for the first document.

    Attributes:
        is_new_index: Whether the load has created the index.
        versions: The versions that the load has written, for the comparison at its end.
        began_at: Start of the load by its own clock: before its first vector.
        write_state: The write state of the index at that time.
        notes: Notes for the report.
        started: Start of the load, in seconds of a monotonic clock.
    """

    context: LoadContext
    is_new_index: bool
    versions: WrittenVersions
    began_at: str
    write_state: WriteState
    notes: list[str]
    started: float


@contextmanager
def open_load(
    engine: Engine,
    plan: LoadPlan,
    model: ModelIdentity,
    stream: RecordStream | None,
    control: LoadControl,
    meter: ProgressMeter,
    open_checkpoint: OpenCheckpoint = LoadCheckpoint,
) -> Iterator[OpenLoad]:
    """Prepare the index, the checkpoint and the dead-letter file for a load, until the block ends.

    If the block fails, the error states how much was written.

    Args:
        stream: The records of the sources, whose first records were checked; None for documents of the index.

    Raises:
        EsSbertError: see `run_load`.
    """
    settings = plan.settings

    def waiting(call: Callable[[], T]) -> T:
        return wait_for_engine(call, settings.retry_seconds, control.stop_retrying)

    if plan.state is not None and not plan.sources:
        waiting(partial(require_all_visible, engine, plan.state.name, without_retries))
    requests = plan.field_requests(model)
    fields = waiting(
        lambda: [ensure_vector_field(engine, settings.index, each, create=bool(plan.sources)) for each in requests]
    )
    started = time.monotonic()
    created = any(field.outcome is FieldOutcome.CREATED for field in fields)
    with closing(meter), ExitStack() as stack:
        index = waiting(lambda: engine.get_index(settings.index))
        if index is None:
            deleted = f"the index {settings.index!r} was deleted while the load began"
            raise IndexMismatch(deleted, "Run the command again.")
        targets = _load_targets(plan, fields, index)
        if created:
            rules = plan.document_rules(targets, engine.info, index)
            check_created_index(
                engine,
                index,
                settings.index,
                [target.meta_field for target in targets],
                [] if stream is None else [rules.own_fields(document) for document in stream.peeked],
                routing_field=settings.routing_field,
            )
        notes: list[str] = []
        if stream is not None and settings.id_field is None and stream.has_unused_ids:
            notes.append(f"ids are hashes of the documents: set {setting('id_field', 'id')} to use their field id")
            log_event("id_field_unused", notes[-1], logging.WARNING)
        checkpoint: LoadCheckpoint | None = None
        if plan.state_file is not None:
            checkpoint = stack.enter_context(closing(open_checkpoint(plan.state_file, _identity(plan, index, targets))))
            notes += [] if checkpoint.note is None else [checkpoint.note]
        clock, versions = Clock(), WrittenVersions()
        dead_letters = stack.enter_context(closing(_open_dead_letters(plan, checkpoint, clock)))
        errors = ErrorMonitor(settings.error_limit, control.end_early, plan.dead_letters_place)
        # A watch does not record versions: it has no end at which the index could be compared.
        add_versions = versions.add if settings.watch_seconds is None else None
        context = LoadContext(
            engine,
            plan,
            IndexRef(settings.index, index),
            targets,
            control,
            OutcomeRecorder(dead_letters, checkpoint, errors, add_versions),
            Throttle(settings.bulk_bytes, WRITERS),
            checkpoint,
            clock,
            meter,
        )
        try:
            load = OpenLoad(context, created, versions, clock.now(), read_write_state(context), notes, started)
            if plan.sources:
                _advance_clock(context)
            yield load
        except EsSbertError as error:
            if checkpoint is not None and isinstance(error, DocumentsAltered):
                checkpoint.mark_untrusted()
            counts = context.outcomes.ledger.counts()
            count = counts[DocumentOutcome.INDEXED] + counts[DocumentOutcome.UPDATED]
            error.add_note(f"this came after {pluralize(count, 'document')} {be(count, past=True)} written")
            raise


def finish_load(load: OpenLoad, encoder: EncoderInfo, confirm: ConfirmPrune) -> LoadReport:
    """Compare the index with what was acknowledged, and remove what the source no longer has.

    Args:
        encoder: The encoder that embedded the documents.
        confirm: Decides whether to remove the documents.

    Raises:
        IndexMismatch: the index was deleted or replaced during the load.
        EngineError: the engine failed.
        OutputError: the checkpoint cannot be written.
    """
    context, notes = load.context, load.notes
    control, plan, checkpoint = context.control, context.plan, context.checkpoint
    outcomes, has_stopped = context.outcomes, control.stop_reading.is_set
    missing, pruned, concurrent = 0, 0, ConcurrentChanges()

    def is_interrupted() -> bool:  # a watch has no other end than an interrupt
        return control.interrupted and plan.settings.watch_seconds is None

    # After an interrupt, this is left to the next run: a refresh may have to build a graph first.
    if not control.engine_lost and not is_interrupted():
        # If the refresh fails, further requests would fail too, and the counts would be lost with the report.
        if context.refresh_index():
            index = context.check_index_unchanged()
            missing, concurrent, change_notes = report_concurrent_changes(
                context, index, load.versions, load.began_at, load.write_state
            )
            notes += change_notes
        if plan.settings.prune and not missing and not has_stopped():
            context.meter.close()
            pruned, kept_reason = prune_index(context, confirm)
            notes += [] if kept_reason is None else [kept_reason]
    # An index without dead letters is kept: an empty source is not a failure.
    is_useless = load.is_new_index and outcomes.ledger.dead and not control.engine_lost and not has_stopped()
    if is_useless and context.retrying(delete_unused_index, context.engine, context.index.state):
        notes.append(
            f"no document could be indexed: the index {context.index.concrete}, which this load created, was deleted"
        )
    if checkpoint is not None and not missing and not has_stopped():
        if plan.settings.retry is not None:
            # Every dead letter has an outcome, possibly as a new dead letter.
            quarantine_path(plan.settings.retry).unlink()
        checkpoint.finish()
    notes += _outcome_notes(context, pruned)
    stopped = control.reason or ("interrupted" if is_interrupted() else None)
    if stopped is not None and checkpoint is None:
        stopped = f"{stopped}; the same command resumes, skipping documents that have a vector"
    elif stopped is not None and checkpoint is not None:
        stopped = f"{stopped}; the same command resumes where it stopped ({checkpoint.path})"
    return LoadReport.from_ledger(
        outcomes.ledger,
        encoder,
        index=context.index.alias,
        engine=context.engine.info.label,
        source="files" if plan.sources else "index",
        dead_letters=plan.dead_letters_place,
        seconds=time.monotonic() - load.started,
        interrupted=is_interrupted(),
        stopped=stopped,
        resumed=checkpoint is not None and checkpoint.resumed,
        notes=tuple(notes),
        pruned=pruned,
        missing=missing,
        concurrent=concurrent,
        lacking=outcomes.lacking,
    )


def _load_targets(plan: LoadPlan, fields: list[VectorField], index: IndexState) -> EmbeddingTargets:
    """Return the fields that the load fills, and those that documents from files keep."""
    filled = tuple(
        EmbeddingTarget(field.name, planned.template, field.meta)
        for planned, field in zip(plan.fields, fields, strict=True)
    )
    if not plan.sources:
        return filled  # partial updates leave other fields alone
    kept = kept_targets(vector_fields(index.mappings, index.name), [target.field for target in filled])
    return (*filled, *kept)


def _identity(plan: LoadPlan, index: IndexState, targets: EmbeddingTargets) -> LoadIdentity:
    """Return the settings that must not change between a load and the load that resumes it."""
    filled = targets_to_fill(targets)
    rules = [None if target.meta.passages is None else str(target.meta.passages) for target in filled]
    options = plan.settings.file_options
    return LoadIdentity(
        index.uuid,
        filled[0].meta.fingerprint,
        tuple((target.field, target.template.template, rule) for target, rule in zip(filled, rules, strict=True)),
        plan.settings.id_field,
        # Placeholders for removed options (sheet, types, decimal mark), so that older checkpoints still match.
        file_options=(options.format, options.delimiter, options.encoding, None, (), None),
        routing_field=plan.settings.routing_field,
    )


def _open_dead_letters(plan: LoadPlan, checkpoint: LoadCheckpoint | None, clock: Clock) -> DeadLetters:
    """Open the dead-letter file; a resumed load writes no dead letter twice.

    Args:
        clock: Advanced to the time of the last dead letter.
    """
    clock.observe(last_dead_letter_time(plan.dead_letters) or "")
    run = clock.now() if checkpoint is None else checkpoint.run
    is_resumed = checkpoint is not None and checkpoint.resumed
    written = frozenset(dead_letter_keys(plan.dead_letters, run) if is_resumed else ())
    return DeadLetters(plan.dead_letters, run, written, clock, plan.settings.index, plan.dead_letters_place)


def _advance_clock(context: LoadContext) -> None:
    """Advance the clock, so that no vector of this load looks older than one of the index.

    Raises:
        EngineError: the engine failed.
    """
    name = context.index.alias
    context.retrying(context.engine.refresh, name)
    for target in targets_to_fill(context.targets):
        field = f"{target.meta_field}.embedded_at"
        latest = {"query": {"exists": {"field": field}}, "sort": [{field: "desc"}], "size": 1, "_source": False}
        for hit in context.retrying(context.engine.search, name, latest)["hits"]["hits"]:
            context.clock.observe(format_timestamp(datetime.fromtimestamp(hit["sort"][0] / 1000, UTC)))


def _outcome_notes(context: LoadContext, pruned: int) -> list[str]:
    """Notes on documents that lack a vector, or that the index holds twice."""
    name, outcomes, ledger = context.index.alias, context.outcomes, context.outcomes.ledger
    notes = [
        f"{pluralize(count, 'document')} lost {'its' if count == 1 else 'their'} vector in {field}, since its text "
        "changed or _source leaves it out: "
        f"`es-sbert ingest --index {name} --vector-field {field}` embeds it again"
        for field, count in sorted(ledger.dropped.items())
    ]
    if count := outcomes.lacking:
        at_least = "at least " if context.control.reason is not None else ""  # not every write was compared
        lack = f"{at_least}{pluralize(count, 'document')} {'lacks' if count == 1 else 'lack'} a current vector"
        notes.append(f"{lack}, which the next watch computes, or {context.in_place_command}")
    if (count := ledger.rerouted) and not pruned:
        notes.append(
            f"{pluralize(count, 'document')} {be(count)} also in {name} with a routing other than the source's: "
            f"searches may find both. {setting('prune')} removes those of earlier loads that the source no longer has"
        )
    return notes
