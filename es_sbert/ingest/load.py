"""Run a load from its plan to its report, in this process or on a cluster."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, closing
from dataclasses import astuple, dataclass, field
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Protocol

from es_sbert.clock import Clock, format_timestamp
from es_sbert.encoder.encoder import Encoder, EncoderInfo
from es_sbert.engines.engine import Engine
from es_sbert.engines.index_state import IndexState
from es_sbert.engines.retry import Throttle, wait_for_engine
from es_sbert.errors import AccessDenied, DocumentsAltered, EngineError, EsSbertError, IndexMismatch, VectorIndexError
from es_sbert.index.document_vectors import EmbeddingTarget, EmbeddingTargets, kept_targets, targets_to_fill
from es_sbert.index.load_checks import check_created_index, delete_unused_index
from es_sbert.index.load_settings import (
    BULK_LOAD_SETTINGS,
    apply_load_settings,
    restore_load_settings,
    unrestored_settings,
)
from es_sbert.index.mapping import ChunkRules, vector_fields
from es_sbert.index.privileges import CHANGE_LOAD_SETTINGS, require_privileges
from es_sbert.index.vector_field import FieldOutcome, VectorField, ensure_vector_field
from es_sbert.ingest.backfill import IndexReader, IndexWatcher, embed_in_place
from es_sbert.ingest.checkpoint import LoadCheckpoint, LoadIdentity
from es_sbert.ingest.concurrent_changes import read_write_state
from es_sbert.ingest.dead_letters import (
    DeadLetters,
    dead_letter_keys,
    last_dead_letter_time,
    quarantine,
    quarantine_path,
)
from es_sbert.ingest.first_records import check_first_records
from es_sbert.ingest.ledger import DocumentOutcome, ErrorMonitor, OutcomeRecorder
from es_sbert.ingest.load_context import LoadContext, index_uuid
from es_sbert.ingest.load_pipeline import WRITERS, load_sources
from es_sbert.ingest.load_plan import BulkLoadSettings, LoadPlan, ModelIdentity
from es_sbert.ingest.load_report import (
    ConcurrentChanges,
    LoadReport,
    record_end,
    record_start,
    record_watch,
    record_watch_check,
)
from es_sbert.ingest.load_threads import LoadControl
from es_sbert.ingest.progress import LoadObserver, ProgressMeter, ProgressTracker, fraction_processed
from es_sbert.ingest.read_documents import RecordStream
from es_sbert.ingest.reconcile import ConfirmPrune, prune_index, report_concurrent_changes
from es_sbert.ingest.written_versions import WrittenVersions
from es_sbert.messages import be, log_event, pluralize


class LoadRunner(Protocol):
    """Loads the documents, in this process or on a cluster."""

    @property
    def model(self) -> ModelIdentity:
        """The model that embeds."""

    def check_passages(self, rules: ChunkRules) -> None:
        """Check that chunk rules fit the model.

        Raises:
            UsageError: they do not.
        """

    def open_checkpoint(self, path: Path, identity: LoadIdentity) -> LoadCheckpoint:
        """The checkpoint of the load, usable by the runner.

        Raises:
            UsageError: another process is loading with this file.
            OutputError: the file cannot be written.
        """

    def load(self, context: LoadContext) -> EncoderInfo:
        """Load all documents, until each has an outcome; what embedded them.

        Raises:
            EsSbertError: a stage failed (never because of a single document).
        """


def run_load(
    engine: Engine,
    runner: LoadRunner,
    plan: LoadPlan,
    control: LoadControl,
    meter: ProgressMeter,
    confirm: ConfirmPrune = lambda candidates: True,
    observer: LoadObserver | None = None,
    *,
    show_summary: bool = True,
) -> LoadReport:
    """Carry out a plan.

    Args:
        control: Stops the load from outside.
        meter: Shows the progress.
        confirm: Decides whether documents are removed that the source no longer has.
        observer: Observes the load, for example for metrics.
        show_summary: Whether a terminal shows the summary; it is logged in any case.

    Raises:
        UsageError: another process is loading the same source into the same index.
        SourceError: the first documents cannot be loaded, or lack a field of the text; nothing was written then.
        IndexMismatch: the index holds vectors of another model or text, or was deleted during the load.
        EngineError: the engine failed before the first document was sent.
        OutputError: the dead letters or the checkpoint cannot be written.
    """
    report = _Load(engine, runner, plan, control, meter, confirm, observer or LoadObserver()).run()
    record_end(report, shown=show_summary)
    return report


@dataclass
class _Load:
    """One load, from its plan to its report."""

    _engine: Engine
    _runner: LoadRunner
    _plan: LoadPlan
    _control: LoadControl
    _meter: ProgressMeter
    _confirm: ConfirmPrune
    _observer: LoadObserver
    _notes: list[str] = field(default_factory=list)
    _pruned: int = 0
    _missing: int = 0
    _concurrent: ConcurrentChanges = field(default_factory=ConcurrentChanges)
    # Of the index, as they were before this load changed them.
    _previous_settings: Mapping[str, str | None] | None = None

    def __post_init__(self) -> None:
        self._settings = self._plan.settings
        self._wait = partial(
            wait_for_engine, seconds=self._settings.retry_seconds, stop_retrying=self._control.stop_retrying
        )

    def run(self) -> LoadReport:
        with ExitStack() as stack:
            stream = check_first_records(self._engine, self._plan, self._control)
            if stream is not None:
                stack.enter_context(closing(stream))
            fields = self._wait(self._ensure_fields)
            self._started = time.monotonic()
            stack.enter_context(closing(self._meter))
            self._notes += _added_field_notes(self._plan, fields)
            created = any(field.outcome is FieldOutcome.CREATED for field in fields)
            context = self._open(fields, created, stream, stack)
            mode = self._settings.load_settings
            change_settings = mode is BulkLoadSettings.FAST or (mode is BulkLoadSettings.AUTO and created)
            restore_settings = change_settings or unrestored_settings(context.index) is not None
            if restore_settings:
                self._control.exit_warning = f"{self._unrestored_note()}."  # before the settings are changed
            try:
                if change_settings:
                    self._apply_settings(context)
                info = self._load_documents(context)
                if restore_settings:
                    self._restore_settings(context)
                if created:
                    self._delete_unused_index(context)
            except EsSbertError as error:
                if context.checkpoint is not None and isinstance(error, DocumentsAltered):
                    context.checkpoint.mark_untrusted()
                if restore_settings:
                    before = len(self._notes)
                    self._restore_settings(context)
                    for note in self._notes[before:]:
                        error.add_note(note)
                counts = context.outcomes.ledger.counts()
                written = counts[DocumentOutcome.INDEXED] + counts[DocumentOutcome.UPDATED]
                error.add_note(f"this came after {pluralize(written, 'document')} {be(written, past=True)} written")
                raise
            self._finish_checkpoint(context.checkpoint)
        return self._report(context, info)

    def _ensure_fields(self) -> list[VectorField]:
        """The vector fields of the plan, created if necessary."""
        for planned in self._plan.fields:
            if planned.passages is not None:
                # Before an index is created with rules that do not fit the model.
                self._runner.check_passages(planned.passages)
        return [
            ensure_vector_field(self._engine, self._settings.index, request, create=bool(self._plan.sources))
            for request in self._plan.field_requests(self._runner.model)
        ]

    def _open(
        self, fields: list[VectorField], created: bool, stream: RecordStream | None, stack: ExitStack
    ) -> LoadContext:
        """The context of the load, with its checkpoint and its dead-letter file; both are closed by the stack."""
        plan, settings = self._plan, self._settings
        index = self._wait(self._require_index)
        targets = _load_targets(plan, fields, index)
        if created:
            rules = plan.document_rules(targets, self._engine.info, index)
            first = [] if stream is None else [rules.own_fields(fields) for fields in stream.peeked]
            meta_fields = [target.meta_field for target in targets]
            routing_field = settings.routing_field
            check_created_index(self._engine, index, settings.index, meta_fields, first, routing_field=routing_field)
        checkpoint: LoadCheckpoint | None = None
        if plan.state_file is not None:
            checkpoint = self._runner.open_checkpoint(plan.state_file, _load_identity(plan, index, targets))
            stack.enter_context(closing(checkpoint))
            if checkpoint.note is not None:
                self._notes.append(checkpoint.note)
        clock = Clock()
        dead_letters = stack.enter_context(closing(_open_dead_letters(plan, checkpoint, clock)))
        errors = ErrorMonitor(settings.error_limit, self._control.truncate, plan.dead_letters_place)
        versions = WrittenVersions()
        # A watch has no end to compare the index at.
        recorder = versions if settings.watch_seconds is None else None
        outcomes = OutcomeRecorder(dead_letters, checkpoint, errors, recorder)
        throttle, control = Throttle(settings.bulk_bytes, WRITERS), self._control
        meter, observer = self._meter, self._observer
        return LoadContext(
            self._engine,
            plan,
            index,
            targets,
            control,
            outcomes,
            throttle,
            checkpoint,
            clock,
            meter,
            observer,
            stream,
            versions,
        )

    def _require_index(self) -> IndexState:
        """The index, which `_ensure_fields` has found or created.

        Raises:
            IndexMismatch: it was deleted since.
        """
        state = self._engine.get_index(self._settings.index)
        if state is None:
            message = f"the index {self._settings.index!r} was deleted while the load began"
            raise IndexMismatch(message, "Run the command again.")
        return state

    def _apply_settings(self, context: LoadContext) -> None:
        """Disable refreshes and replicas during the load, if the user may."""
        engine, name = self._engine, context.index.name
        try:
            context.retrying(require_privileges, engine, name, CHANGE_LOAD_SETTINGS)
            # Read again: a concurrent change of the mapping would be overwritten.
            before = context.retrying(lambda: apply_load_settings(engine, self._require_index()))
        except AccessDenied as error:
            if unrestored_settings(context.index) is None:
                self._control.exit_warning = ""
            self._notes.append(f"Refreshes and replicas stay as they are during the load: {error.message}")
            return
        self._previous_settings = before
        changed = {setting: BULK_LOAD_SETTINGS[setting] for setting in before}
        log_event("settings_changed", "refreshes and replicas are off until the load ends", settings=changed)

    def _restore_settings(self, context: LoadContext) -> None:
        """Restore the settings that this load, or one that was killed, has changed."""
        before, name = self._previous_settings, self._settings.index
        try:
            settings = context.retrying(restore_load_settings, self._engine, name, before)
        except (EngineError, VectorIndexError) as error:
            self._notes.append(self._unrestored_note(f" ({error.message})"))
            return
        self._control.exit_warning = ""
        if settings:
            log_event("settings_put_back", "refreshes and replicas are as they were before the load", settings=settings)

    def _unrestored_note(self, reason: str = "") -> str:
        name = self._settings.index
        return (
            f"Refreshes and replicas of {name} are still as they were for the load{reason}: the next load puts them "
            f"back, or `es-sbert index repair {name}`"
        )

    def _load_documents(self, context: LoadContext) -> EncoderInfo:
        """Load the documents, then compare the index with what was acknowledged."""
        started = context.clock.now()
        start = read_write_state(context)
        if self._plan.sources:
            _advance_clock(context)
        info = self._runner.load(context)
        # After an interrupt the next run does the rest: a refresh may have to build a graph first.
        if self._control.unreachable_reason is None and not self._interrupted():
            is_visible = context.refresh_index()
            index = context.check_index_unchanged()
            if is_visible:
                self._missing, self._concurrent, notes = report_concurrent_changes(context, index, started, start)
                self._notes += notes
            if self._settings.prune and not self._missing and not self._control.stop.is_set():
                self._meter.close()
                self._pruned, notes = prune_index(context, self._confirm)
                self._notes += notes
        return info

    def _delete_unused_index(self, context: LoadContext) -> None:
        """Delete the index that this load has created, if no document could be loaded."""
        if self._control.unreachable_reason is not None or self._control.stop.is_set():
            return
        # An empty source is not a failure.
        if context.outcomes.ledger.dead and context.retrying(delete_unused_index, self._engine, context.index):
            self._notes.append(
                f"the index {context.index.name}, which this load created, took no document and was deleted again"
            )

    def _finish_checkpoint(self, checkpoint: LoadCheckpoint | None) -> None:
        if checkpoint is None or self._missing or self._control.stop.is_set():
            return
        if self._settings.retry is not None:
            # Every dead letter has an outcome, possibly as a new dead letter.
            quarantine_path(self._settings.retry).unlink()
        checkpoint.finish()

    def _report(self, context: LoadContext, info: EncoderInfo) -> LoadReport:
        plan, name = self._plan, self._settings.index
        self._notes += [
            f"{pluralize(count, 'document')} lost {'its' if count == 1 else 'their'} vector in {field}, since its text "
            "changed or _source leaves it out: "
            f"`es-sbert ingest --index {name} --vector-field {field}` embeds it again"
            for field, count in sorted(context.outcomes.dropped.items())
        ]
        if context.outcomes.rerouted and not self._pruned:
            self._notes.append(
                f"{pluralize(context.outcomes.rerouted, 'document')} {be(context.outcomes.rerouted)} also "
                f"in {name} with another routing than the source's: "
                "searches may find both. `prune` removes those of earlier loads that the source no longer has"
            )
        return LoadReport.from_ledger(
            context.outcomes.ledger,
            info,
            index=name,
            engine=self._engine.info.label,
            source=plan.source,
            dead_letters=plan.dead_letters_place,
            seconds=time.monotonic() - self._started,
            interrupted=self._interrupted(),
            stopped=self._stop_reason(context.checkpoint),
            resumed=context.checkpoint is not None and context.checkpoint.resumed,
            notes=tuple(self._notes),
            pruned=self._pruned,
            missing=self._missing,
            concurrent=self._concurrent,
            lacking=context.outcomes.lacking,
        )

    def _interrupted(self) -> bool:
        """Whether the user stopped the load before its end; a watch has no other end."""
        return self._control.interrupted and self._settings.watch_seconds is None

    def _stop_reason(self, checkpoint: LoadCheckpoint | None) -> str | None:
        """Why the load stopped before its end, and how it resumes; None if it did not."""
        reason = self._control.unreachable_reason or self._control.truncated_reason
        reason = reason or ("interrupted" if self._interrupted() else None)
        if reason is None:
            return None
        where = f" where it stopped ({checkpoint.path})" if checkpoint else ", skipping documents that have a vector"
        return f"{reason}; the same command resumes{where}"


def _added_field_notes(plan: LoadPlan, fields: Sequence[VectorField]) -> list[str]:
    """Notes on the vector fields that the write index of an alias lacked, as after a rollover."""
    return [
        f"{field.index} had no vector field {field.name}, which {planned.similar.index} of the alias {plan.alias} has, "
        "so this load added it. Put it into the index template too, or the next rollover makes an index without it: "
        f"`es-sbert index template {planned.similar.index}`"
        for planned, field in zip(plan.fields, fields, strict=True)
        if planned.similar is not None and field.outcome is FieldOutcome.ADDED
    ]


def _load_targets(plan: LoadPlan, fields: list[VectorField], index: IndexState) -> EmbeddingTargets:
    """The fields that the load fills, and those that documents from files keep."""
    own = tuple(
        EmbeddingTarget(field.name, planned.template, field.meta)
        for planned, field in zip(plan.fields, fields, strict=True)
    )
    if not plan.sources:
        return own  # partial updates leave other fields alone
    return own + kept_targets(vector_fields(index.mappings, index.name), [target.field for target in own])


def _load_identity(plan: LoadPlan, index: IndexState, targets: EmbeddingTargets) -> LoadIdentity:
    """What must be the same for a load to resume another one."""
    own = targets_to_fill(targets)
    passages = [None if target.meta.passages is None else str(target.meta.passages) for target in own]
    fields = tuple((target.field, target.template.template, rules) for target, rules in zip(own, passages, strict=True))
    settings = plan.settings
    return LoadIdentity(
        index_uuid(index),
        own[0].meta.fingerprint,
        fields,
        settings.id_field,
        file_options=astuple(settings.file_options),
        routing_field=settings.routing_field,
    )


def _open_dead_letters(plan: LoadPlan, checkpoint: LoadCheckpoint | None, clock: Clock) -> DeadLetters:
    """The dead-letter file; a resumed load writes no dead letter twice.

    Args:
        clock: Advanced to the time of the last dead letter.

    Raises:
        OutputError: the checkpoint cannot be written.
    """
    clock.observe(last_dead_letter_time(plan.dead_letters) or "")
    run = clock.now() if checkpoint is None else checkpoint.run
    is_written = None
    if checkpoint is not None and checkpoint.resumed:
        checkpoint.record_dead_letters(dead_letter_keys(plan.dead_letters, run))
        is_written = checkpoint.has_dead_letter
    return DeadLetters(plan.dead_letters, run, is_written, clock, plan.name, plan.dead_letters_place)


def _advance_clock(context: LoadContext) -> None:
    """Advance the clock, so that no vector of this load looks older than one of the index.

    Raises:
        EngineError: the engine failed.
    """
    name = context.plan.settings.index
    context.retrying(context.engine.refresh, name)
    for target in targets_to_fill(context.targets):
        field = f"{target.meta_field}.embedded_at"
        latest = {"query": {"exists": {"field": field}}, "sort": [{field: "desc"}], "size": 1, "_source": False}
        for hit in context.retrying(context.engine.search, name, latest)["hits"]["hits"]:
            context.clock.observe(format_timestamp(datetime.fromtimestamp(hit["sort"][0] / 1000, UTC)))


class LocalRunner:
    """Runs a load in this process, with one encoder.

    Args:
        encoder: Embeds the documents; it is not closed.
    """

    def __init__(self, encoder: Encoder) -> None:
        self._encoder = encoder

    @property
    def model(self) -> ModelIdentity:
        info = self._encoder.info
        return ModelIdentity(info.model, info.fingerprint, info.dimensions)

    def check_passages(self, rules: ChunkRules) -> None:
        self._encoder.make_chunker(rules.tokens, rules.overlap, "document")

    def open_checkpoint(self, path: Path, identity: LoadIdentity) -> LoadCheckpoint:
        return LoadCheckpoint(path, identity)

    def load(self, context: LoadContext) -> EncoderInfo:
        record_start(context, self._encoder.info)
        if context.plan.sources:
            self._load_sources(context)
        elif context.plan.settings.watch_seconds is None:
            self._embed_index(context, IndexReader(context))
        else:
            self._watch(context, context.plan.settings.watch_seconds)
        return self._encoder.info

    def _load_sources(self, context: LoadContext) -> None:
        plan = context.plan
        if plan.settings.retry is not None:
            quarantine(plan.settings.retry)
        # By the name of the index: an alias may have a filter.
        empty = context.retrying(context.engine.count, context.index.name) == 0
        stream = context.stream or RecordStream(plan.sources, plan.reading, context.control)
        sizes = [source.size for source in plan.sources if source.size is not None]
        total = sum(sizes) if len(sizes) == len(plan.sources) else None
        tick = progress_callback(context, lambda: stream.counter.bytes / total if total else None)
        load_sources(context, self._encoder, stream, tick, empty_index=empty)

    def _embed_index(self, context: LoadContext, reader: IndexReader) -> None:
        name, ledger = context.plan.settings.index, context.outcomes.ledger
        # A point in time includes only refreshed documents, and those written a moment ago are to be embedded too.
        context.retrying(context.engine.refresh, name)
        total = context.retrying(context.engine.count, name)
        tick = progress_callback(context, lambda: min(1.0, ledger.read / total) if total else None)
        embed_in_place(context, self._encoder, reader, reader.documents(), tick)

    def _watch(self, context: LoadContext, seconds: float) -> None:
        reader = IndexReader(context)
        # Before the whole index is read, so that no write between the two is missed.
        watcher = IndexWatcher(context, reader)
        self._embed_index(context, reader)
        if not context.control.stop.is_set():
            record_watch(context, seconds)
        idle = True
        tick = progress_callback(context, lambda: None, watching=lambda: idle)
        tick()
        while not context.control.stop.wait(seconds):
            if watcher.has_changes():
                idle = False
                embed_in_place(context, self._encoder, reader, watcher.documents(), tick)
                idle = True
            if not context.control.stop.is_set() and watcher.is_check_due():
                self._embed_missed(context, reader, watcher, tick)
            tick()
        _count_missed(context, watcher)

    def _embed_missed(
        self, context: LoadContext, reader: IndexReader, watcher: IndexWatcher, tick: Callable[[], None]
    ) -> None:
        """Embed the documents that the watch has missed, if any."""
        try:
            missed = watcher.missed_documents()
        except EngineError as error:
            context.control.truncate(f"reading the index failed: {error.message}")
            return
        record_watch_check(context, len(missed))
        if missed:
            context.outcomes.ledger.add_read(len(missed))
            embed_in_place(context, self._encoder, reader, missed, tick)


def _count_missed(context: LoadContext, watcher: IndexWatcher) -> None:
    """Count the documents that a watch which has ended leaves without a vector, for the report."""
    control = context.control
    if control.truncated_reason is not None or control.unreachable_reason is not None:
        return  # the engine failed
    try:
        missed = len(watcher.missed_documents())
    except EngineError as error:
        control.truncate(f"whether documents lack a vector could not be checked: {error.message}")
        return
    # Those that were read, and left when the user stopped the watch, are counted already.
    context.outcomes.lacking = max(0, missed - context.outcomes.ledger.counts()[DocumentOutcome.LEFT])


def progress_callback(
    context: LoadContext, fraction_read: Callable[[], float | None], *, watching: Callable[[], bool] = lambda: False
) -> Callable[[], None]:
    """A function that shows the progress of a load whenever it is called.

    Args:
        fraction_read: The part of the source that was read, 0 to 1; None if its size is unknown.
        watching: Whether the load waits for changes of the index.
    """
    tracker = ProgressTracker()
    ledger = context.outcomes.ledger

    def tick() -> None:
        read, processed = ledger.read, ledger.processed
        fraction = fraction_processed(read, processed, fraction_read())
        snapshot = tracker.snapshot(read, processed, fraction, context.control.backoff_reason, watching=watching())
        context.meter.show(snapshot)
        context.observer.show(snapshot)

    return tick
