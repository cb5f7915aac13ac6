"""Run a load from its plan to its report, in this process or on a cluster."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Protocol

from es_sbert.clock import Clock, format_timestamp
from es_sbert.encoder.encoder import Encoder, EncoderInfo
from es_sbert.engines.protocol import Engine, IndexState
from es_sbert.engines.retry import RetryPolicy, Throttle, wait_for_engine
from es_sbert.errors import AccessDenied, DocumentsAltered, EngineError, EsSbertError, IndexMismatch
from es_sbert.index.document_vectors import EmbeddingTarget, EmbeddingTargets, kept_targets, targets_to_fill
from es_sbert.index.load_checks import check_created_index, delete_unused_index
from es_sbert.index.load_settings import BULK_LOAD_SETTINGS as SETTINGS
from es_sbert.index.load_settings import apply_load_settings, restore_load_settings, unrestored_settings
from es_sbert.index.mapping import ChunkRules, vector_fields
from es_sbert.index.privileges import CHANGE_LOAD_SETTINGS, require_privileges
from es_sbert.index.vector_field import FieldOutcome, VectorField, ensure_vector_field
from es_sbert.ingest.backfill import IndexReader, IndexWatcher, embed_in_place
from es_sbert.ingest.checkpoint import CheckpointFile, LoadCheckpoint, LoadIdentity
from es_sbert.ingest.dead_letters import DeadLetters, dead_letter_keys, last_dead_letter_time
from es_sbert.ingest.documents import (
    RecordStream,
)
from es_sbert.ingest.first_records import check_first_records
from es_sbert.ingest.ledger import DocumentOutcome, ErrorMonitor, Ledger, OutcomeRecorder
from es_sbert.ingest.load_context import (
    LoadContext,
    check_index_unchanged,
    index_uuid,
    refresh_index,
    retrying,
)
from es_sbert.ingest.load_pipeline import WRITERS, load_sources
from es_sbert.ingest.load_plan import BulkLoadSettings, IngestSettings, LoadPlan
from es_sbert.ingest.load_report import LoadReport, record_end, record_start, record_watch
from es_sbert.ingest.pipeline import LoadControl
from es_sbert.ingest.progress import LoadObserver, NullObserver, ProgressMeter, ProgressTracker, fraction_processed
from es_sbert.ingest.reconcile import ConfirmPrune, prune_index, read_primary_terms, report_concurrent_changes
from es_sbert.ingest.sources.dead_letter_source import quarantine, quarantine_path
from es_sbert.messages import log_event


def require_index(engine: Engine, name: str) -> IndexState:
    """The index that the load has made sure of.

    Raises:
        IndexMismatch: it is gone already.
    """
    state = engine.get_index(name)
    if state is None:
        raise IndexMismatch(f"the index {name!r} was deleted while the load began", "Run the command again.")
    return state


def load_identity(wanted: LoadPlan, index: IndexState, targets: EmbeddingTargets) -> LoadIdentity:
    """What must be the same for a load to go on where another one ended."""
    own = targets_to_fill(targets)
    fields = tuple(
        (target.field, target.template.template, None if target.meta.passages is None else str(target.meta.passages))
        for target in own
    )
    return LoadIdentity(index_uuid(index), own[0].meta.fingerprint, fields, wanted.settings.id_field)


def advance_clock(context: LoadContext) -> None:
    """Let nothing that this load writes look older than what the index holds.

    Raises:
        EngineError: the engine failed.
    """
    name = context.plan.settings.index
    retrying(context, partial(context.engine.refresh, name))
    for target in targets_to_fill(context.targets):
        field = f"{target.meta_field}.embedded_at"
        latest = {"query": {"exists": {"field": field}}, "sort": [{field: "desc"}], "size": 1, "_source": False}
        answer = retrying(context, partial(context.engine.search, name, latest))
        for hit in answer["hits"]["hits"]:
            context.clock.observe(format_timestamp(datetime.fromtimestamp(hit["sort"][0] / 1000, UTC)))


def open_dead_letters(wanted: LoadPlan, memory: LoadCheckpoint | None, clock: Clock) -> DeadLetters:
    """The dead-letter file, which gets no letter twice when a load goes on.

    Args:
        clock: Is shown the last letter's time.

    Raises:
        OutputError: the memory cannot be written.
    """
    clock.observe(last_dead_letter_time(wanted.dead_letters) or "")
    index = wanted.settings.index
    if memory is None:
        return DeadLetters(wanted.dead_letters, clock.now(), clock=clock, index=index)
    if not memory.resumed:
        return DeadLetters(wanted.dead_letters, memory.run, clock=clock, index=index)
    memory.remember_letters(dead_letter_keys(wanted.dead_letters, memory.run))
    return DeadLetters(wanted.dead_letters, memory.run, memory.has_letter, clock, index)


PreviousSettings = Mapping[str, str | None]


def uses_bulk_load_settings(settings: IngestSettings, *, created: bool) -> bool:
    """Whether a load is to switch them off."""
    return settings.load_settings is BulkLoadSettings.FAST or (
        settings.load_settings is BulkLoadSettings.AUTO and created
    )


def apply_bulk_load_settings(context: LoadContext) -> tuple[PreviousSettings | None, list[str]]:
    """Change the index's settings for the load.

    Returns:
        What stood there before, None where nothing was changed; what must be said about it.
    """
    engine, name = context.engine, context.index.name
    try:
        retrying(context, lambda: require_privileges(engine, name, CHANGE_LOAD_SETTINGS))
        # Looked at anew: whatever another process has written into the mapping meanwhile would be overwritten.
        before = retrying(context, lambda: apply_load_settings(engine, require_index(engine, name)))
    except AccessDenied as error:
        if unrestored_settings(context.index) is None:
            context.control.left_behind = ""
        return None, [f"Refreshes and replicas stay as they are during the load: {error.message}"]
    changed = {setting: SETTINGS[setting] for setting in before}
    log_event("settings_changed", "refreshes and replicas are off until the load ends", settings=changed)
    return before, []


def restore_bulk_load_settings(context: LoadContext, before: PreviousSettings | None) -> list[str]:
    """Put back what this load, or one that was killed, has changed in the settings; what must be said about it.

    Args:
        before: What stood there before this load, where it has changed them.
    """
    name = context.plan.settings.index
    try:
        settings = retrying(context, lambda: restore_load_settings(context.engine, name, before))
        context.control.left_behind = ""
        if settings:
            log_event("settings_put_back", "refreshes and replicas are as they were before the load", settings=settings)
    except EngineError as error:
        return [not_restored_note(name, f" ({error.message})")]
    return []


def not_restored_note(name: str, why: str = "") -> str:
    """What must be said of an index whose settings were not put back."""
    return (
        f"Refreshes and replicas of {name} are still as they were for the load{why}: the next load puts them back, or "
        f"`es-sbert index repair {name}`"
    )


@dataclass(frozen=True)
class ModelIdentity:
    """What an index must know of a model.

    Attributes:
        name, fingerprint, dimensions: Of the model.
    """

    name: str
    fingerprint: str
    dimensions: int


class LoadRunner(Protocol):
    """Brings the documents of a load to their ends."""

    @property
    def model(self) -> ModelIdentity:
        """The model that embeds."""

    def check_passages(self, rules: ChunkRules) -> None:
        """Make sure that rules go with the model.

        Raises:
            UsageError: they do not.
        """

    def open_memory(self, path: Path, identity: LoadIdentity) -> LoadCheckpoint:
        """What the load remembers, where the runner can use it.

        Raises:
            UsageError: another process is loading with this file.
            OutputError: the file cannot be written.
        """

    def load(self, context: LoadContext) -> EncoderInfo:
        """Bring every document to its end; what embedded, as it really ran.

        Raises:
            EsSbertError: a stage failed (never because of a single document).
        """


def progress_callback(
    context: LoadContext, part_read: Callable[[], float | None], *, watching: Callable[[], bool] = lambda: False
) -> Callable[[], None]:
    """What shows how far the load is.

    Args:
        part_read: Part of the source that was read, 0 to 1; None where its size is not known.
        watching: Whether the load waits for changes of the index.
    """
    tracker = ProgressTracker()
    ledger = context.outcomes.ledger

    def tick() -> None:
        read, processed = ledger.read, ledger.processed
        fraction = fraction_processed(read, processed, part_read())
        snapshot = tracker.snapshot(read, processed, fraction, context.control.waiting, watching=watching())
        context.meter.show(snapshot)
        context.observer.show(snapshot)

    return tick


class LocalRunner:
    """Runs a load with one encoder, on this machine's processors or one of its GPUs.

    Args:
        encoder: What embeds; it stays open.
    """

    def __init__(self, encoder: Encoder) -> None:
        self._encoder = encoder

    @property
    def model(self) -> ModelIdentity:
        info = self._encoder.info
        return ModelIdentity(info.model, info.fingerprint, info.dimensions)

    def check_passages(self, rules: ChunkRules) -> None:
        self._encoder.splitter(rules.tokens, rules.overlap, "document")

    def open_memory(self, path: Path, identity: LoadIdentity) -> LoadCheckpoint:
        return CheckpointFile(path, identity)

    def load(self, context: LoadContext) -> EncoderInfo:
        record_start(context, self._encoder.info)
        if context.plan.sources:
            self._load_sources(context)
        elif context.plan.settings.watch_seconds is None:
            self._load_index(context, IndexReader(context))
        else:
            self._watch(context, context.plan.settings.watch_seconds)
        return self._encoder.info

    def _load_sources(self, context: LoadContext) -> None:
        settings = context.plan.settings
        if settings.retry is not None:
            quarantine(settings.retry)
        # Of the index itself: an alias may have a filter.
        empty = retrying(context, lambda: context.engine.count(context.index.name)) == 0
        stream = context.stream or RecordStream(context.plan.sources, context.plan.reading, context.control)
        sizes = [source.size for source in context.plan.sources]
        total = None if None in sizes else sum(size or 0 for size in sizes)
        tick = progress_callback(context, lambda: stream.counter.bytes / total if total else None)
        load_sources(context, self._encoder, stream, tick, empty_index=empty)

    def _load_index(self, context: LoadContext, reader: IndexReader) -> None:
        # A point in time sees what was refreshed; documents written a moment ago are to be embedded too.
        engine, name = context.engine, context.plan.settings.index
        retrying(context, lambda: engine.refresh(name))
        total = retrying(context, lambda: engine.count(name))
        ledger = context.outcomes.ledger
        tick = progress_callback(context, lambda: min(1.0, ledger.read / total) if total else None)
        embed_in_place(context, self._encoder, reader, reader.documents, tick)

    def _watch(self, context: LoadContext, seconds: float) -> None:
        reader = IndexReader(context)
        # Noted before the first look at everything, so that nothing falls between the two.
        changes = IndexWatcher(context, reader)
        self._load_index(context, reader)
        if not context.control.stop.is_set():
            record_watch(context, seconds)
        idle = True
        tick = progress_callback(context, lambda: None, watching=lambda: idle)
        tick()
        while not context.control.stop.wait(seconds):
            if changes.has_changes():
                idle = False
                embed_in_place(context, self._encoder, reader, changes.documents, tick)
                idle = True
            tick()


def run_load(
    engine: Engine,
    runner: LoadRunner,
    wanted: LoadPlan,
    control: LoadControl,
    meter: ProgressMeter,
    confirm: ConfirmPrune = lambda gone: True,
    observer: LoadObserver | None = None,
    *,
    show_summary: bool = True,
) -> LoadReport:
    """Carry out a plan.

    Args:
        engine: Where to load.
        runner: Where the pipeline runs.
        wanted: The plan.
        control: Stops the load from outside.
        meter: Shows how far it is.
        confirm: Asked before documents are removed that the source no longer has.
        observer: Sees the load from outside.
        show_summary: Whether a terminal shows the summary; it is logged in any case.

    Raises:
        UsageError: another process is loading the same source into the same index.
        SourceError: the first documents cannot be loaded, or lack a field of the text; nothing was written then.
        IndexMismatch: the index holds another model's vectors, or others than asked for, or was deleted meanwhile.
        EngineError: the engine failed before the first document was sent.
        OutputError: the dead letters or the state cannot be written.
    """
    settings = wanted.settings
    wait = partial(wait_for_engine, seconds=settings.retry_seconds, no_waiting=control.no_waiting)
    pruned = missing = 0
    with ExitStack() as stack:
        stream = check_first_records(engine, wanted, control)
        if stream is not None:
            stack.enter_context(closing(stream))
        fields = wait(lambda: _ensure_fields(engine, runner, wanted))
        begin = time.monotonic()
        stack.enter_context(closing(meter))
        index = wait(lambda: require_index(engine, settings.index))
        targets = _load_targets(wanted, fields, index)
        created = any(field.outcome is FieldOutcome.CREATED for field in fields)
        if created:
            first = [] if stream is None else stream.peeked
            check_created_index(engine, index, settings.index, [target.meta_field for target in targets], first)
        memory = None
        if wanted.state_file is not None:
            memory = runner.open_memory(wanted.state_file, load_identity(wanted, index, targets))
            stack.enter_context(closing(memory))
        clock = Clock()
        letters = open_dead_letters(wanted, memory, clock)
        stack.enter_context(closing(letters))
        errors = ErrorMonitor(settings.error_limit, control.cut, str(wanted.dead_letters))
        outcomes = OutcomeRecorder(Ledger(), letters, memory, errors)
        context = LoadContext(
            engine,
            wanted,
            targets,
            control,
            meter,
            outcomes,
            RetryPolicy(settings.retry_seconds),
            index,
            memory,
            Throttle(settings.bulk_bytes, WRITERS),
            observer or NullObserver(),
            clock,
            stream,
        )
        fast = uses_bulk_load_settings(settings, created=created)
        changed = fast or unrestored_settings(index) is not None
        if changed:
            # Before the first request that changes them.
            control.left_behind = f"{not_restored_note(settings.index)}."
        notes = [memory.note] if memory is not None and memory.note is not None else []
        before = None
        try:
            if fast:
                before, said = apply_bulk_load_settings(context)
                notes += said
            began = clock.now()
            terms = read_primary_terms(context)
            if wanted.sources:
                advance_clock(context)
            info = runner.load(context)
            # After an interrupt the next run does all of it: a refresh may have to build a graph first.
            if control.lost is None and not _is_interrupted(control, wanted):
                refresh_index(context)
                changes = report_concurrent_changes(context, check_index_unchanged(context), began, terms)
                notes, missing = [*notes, *changes.notes], changes.missing
                if settings.prune and not missing and not control.stop.is_set():
                    meter.close()
                    pruned, note = prune_index(context, confirm)
                    notes += note
            if changed:
                notes += restore_bulk_load_settings(context, before)
            if created and control.lost is None and not control.stop.is_set():
                notes += _delete_created_index(context)
        except EsSbertError as error:
            if memory is not None and isinstance(error, DocumentsAltered):
                memory.distrust()
            if changed:
                error.message += "".join(f"; {note}" for note in restore_bulk_load_settings(context, before))
            written = sum(
                outcomes.ledger.counts()[outcome] for outcome in (DocumentOutcome.INDEXED, DocumentOutcome.UPDATED)
            )
            error.message += f" (this came after {written:,} documents were written)"
            raise
        if memory is not None and not missing and not control.stop.is_set():
            if settings.retry is not None:
                # Every letter has come to its end, be it as a new one.
                quarantine_path(settings.retry).unlink()
            memory.finish()
        notes += _dropped_vector_notes(context)
    summary = LoadReport.of(
        outcomes.ledger,
        info,
        index=settings.index,
        engine=engine.info.label,
        source=wanted.source,
        dead_letters=str(wanted.dead_letters),
        seconds=time.monotonic() - begin,
        interrupted=_is_interrupted(control, wanted),
        stopped=_stop_reason(control, wanted, memory),
        resumed=memory is not None and memory.resumed,
        notes=tuple(notes),
        pruned=pruned,
        missing=missing,
    )
    record_end(summary, shown=show_summary)
    return summary


def _ensure_fields(engine: Engine, runner: LoadRunner, wanted: LoadPlan) -> list[VectorField]:
    """The vector fields of the plan, fit for the model."""
    for field in wanted.fields:
        if field.passages is not None:
            # Rules that do not go with the model are refused before an index is made for them.
            runner.check_passages(field.passages)
    settings, model = wanted.settings, runner.model
    return [
        ensure_vector_field(
            engine,
            settings.index,
            vector_field=field.field,
            fingerprint=model.fingerprint,
            model_name=model.name,
            dimensions=model.dimensions,
            index_type=settings.index_type,
            text=field.template.template,
            passages=field.passages,
            create=bool(wanted.sources),
            text_options=field.text_options,
            replace_text=settings.replace_text_template,
        )
        for field in wanted.fields
    ]


def _load_targets(wanted: LoadPlan, fields: Sequence[VectorField], index: IndexState) -> EmbeddingTargets:
    """The fields that are filled, and those that documents from files keep."""
    own = tuple(
        EmbeddingTarget(field.name, planned.template, field.meta)
        for planned, field in zip(wanted.fields, fields, strict=True)
    )
    if not wanted.sources:
        return own  # partial updates leave other fields alone
    return own + kept_targets(vector_fields(index.mappings, index.name), [target.field for target in own])


def _delete_created_index(context: LoadContext) -> list[str]:
    """Delete the index that this load has created, where it took no document: an export with wrong fields, say."""
    name = context.index.name
    if not context.outcomes.ledger.counts()[DocumentOutcome.DEAD]:
        return []  # an empty source is no failure
    if not retrying(context, partial(delete_unused_index, context.engine, context.index)):
        return []
    return [f"the index {name}, which this load created, took no document and was deleted again"]


def _dropped_vector_notes(context: LoadContext) -> list[str]:
    """What must be said about vectors that this load does not make and that no longer stand for their texts."""
    name = context.plan.settings.index
    return [
        f"{count:,} documents lost their vector in {field}, since its text changed or _source leaves it out: "
        f"`es-sbert ingest --index {name} --vector-field {field}` embeds it anew"
        for field, count in sorted(context.outcomes.dropped.items())
    ]


def _is_interrupted(control: LoadControl, wanted: LoadPlan) -> bool:
    """Whether the user stopped the load before its end; a watch has no other end."""
    return control.interrupted and wanted.settings.watch_seconds is None


def _stop_reason(control: LoadControl, wanted: LoadPlan, memory: LoadCheckpoint | None) -> str | None:
    """Why the load did not come to its end, and how it goes on; None where it did."""
    reason = control.lost or control.truncated_reason or ("interrupted" if _is_interrupted(control, wanted) else None)
    if reason is None:
        return None
    where = f" where it was ({memory.path})" if memory is not None else ", leaving alone what has a vector"
    return f"{reason}; the same command goes on{where}"
