"""Run a load from its plan to its report: check the first records, open the index, embed, compare and report."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager
from dataclasses import astuple, dataclass, replace
from datetime import UTC, datetime
from functools import partial
from pathlib import Path

from es_sbert.clock import Clock, format_timestamp
from es_sbert.encoder.encoder import Encoder, EncoderInfo
from es_sbert.engines.engine import Engine
from es_sbert.engines.index_state import IndexState
from es_sbert.engines.retry import Throttle, wait_for_engine, without_retries
from es_sbert.errors import DocumentsAltered, EsSbertError, IndexMismatch
from es_sbert.index.derived_fields import mapped_fields
from es_sbert.index.document_vectors import EmbeddingTarget, EmbeddingTargets, kept_targets, targets_to_fill
from es_sbert.index.hidden_documents import require_all_visible
from es_sbert.index.load_checks import check_created_index, delete_unused_index, settings_of_killed_load
from es_sbert.index.mapping import vector_fields
from es_sbert.index.source_mode import list_forms
from es_sbert.index.text_template import STRIP_HTML, TextTemplate
from es_sbert.index.vector_field import FieldOutcome, VectorField, ensure_vector_field
from es_sbert.ingest.backfill import embed_index, watch_index
from es_sbert.ingest.check_first_records import check_first_records
from es_sbert.ingest.checkpoint import LoadCheckpoint, LoadIdentity
from es_sbert.ingest.dead_letters import DeadLetters, dead_letter_keys, last_dead_letter_time, quarantine_path
from es_sbert.ingest.ledger import DocumentOutcome, ErrorMonitor, OutcomeRecorder, WrittenVersions
from es_sbert.ingest.load_context import IndexRef, LoadContext
from es_sbert.ingest.load_pipeline import WRITERS, load_sources
from es_sbert.ingest.load_plan import LoadPlan, ModelIdentity
from es_sbert.ingest.load_report import ConcurrentChanges, LoadReport, record_end, record_start
from es_sbert.ingest.load_threads import LoadControl
from es_sbert.ingest.progress import LoadObserver, ProgressMeter
from es_sbert.ingest.read_documents import RecordStream
from es_sbert.ingest.reconcile import ConfirmPrune, WriteState, prune_index, read_write_state, report_concurrent_changes
from es_sbert.messages import be, have, pluralize

OpenCheckpoint = Callable[[Path, LoadIdentity], LoadCheckpoint]


def run_load(
    engine: Engine,
    encoder: Encoder,
    plan: LoadPlan,
    control: LoadControl,
    meter: ProgressMeter,
    confirm: ConfirmPrune = lambda candidates: True,
    observer: LoadObserver | None = None,
    *,
    show_summary: bool = True,
) -> LoadReport:
    """Carry out a plan in this process.

    Args:
        encoder: Embeds the documents; it is not closed.
        control: Stops the load from outside.
        meter: Shows the progress.
        confirm: Decides whether to remove documents that the source no longer has.
        observer: Observes the load, for example for metrics.
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
        plan.check_chunk_rules(encoder.make_chunker)
        with open_load(engine, plan, model, stream, control, meter, observer) as load:
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
    observer: LoadObserver | None,
    open_checkpoint: OpenCheckpoint = LoadCheckpoint,
) -> Iterator[OpenLoad]:
    """Prepare the index, the checkpoint and the dead-letter file for a load, until the block ends.

    If the block fails, the error states how much was written.

    Args:
        stream: The records of the sources, whose first records were checked; None for documents of the index.

    Raises:
        EsSbertError: see `run_load`.
    """
    if plan.state is not None and not plan.sources:
        check = partial(require_all_visible, engine, plan.state.name, without_retries)
        wait_for_engine(check, plan.settings.retry_seconds, control.stop_retrying)
    fields = _ensure_fields(engine, plan, model, control)
    started = time.monotonic()
    created = any(field.outcome is FieldOutcome.CREATED for field in fields)
    with closing(meter), ExitStack() as stack:
        index = _read_index(engine, plan, control)
        targets = _load_targets(plan, fields, index)
        if created:
            _check_created_index(engine, plan, fields, targets, index, stream)
        notes = _rollover_notes(plan, fields)
        if (left := settings_of_killed_load(index)) is not None:
            notes.append(": ".join(left))
        checkpoint: LoadCheckpoint | None = None
        if plan.state_file is not None:
            checkpoint = stack.enter_context(closing(open_checkpoint(plan.state_file, _identity(plan, index, targets))))
            notes += [] if checkpoint.note is None else [checkpoint.note]
        clock, versions = Clock(), WrittenVersions()
        dead_letters = stack.enter_context(closing(_open_dead_letters(plan, checkpoint, clock)))
        errors = ErrorMonitor(plan.settings.error_limit, control.end_early, plan.dead_letters_place)
        # A watch does not record versions: it has no end at which the index could be compared.
        recorder = versions if plan.settings.watch_seconds is None else None
        context = LoadContext(
            engine,
            plan,
            IndexRef(plan.settings.index, index),
            targets,
            control,
            OutcomeRecorder(dead_letters, checkpoint, errors, recorder),
            Throttle(plan.settings.bulk_bytes, WRITERS),
            checkpoint,
            clock,
            meter,
            observer or LoadObserver(),
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
    missing, pruned, concurrent = 0, 0, ConcurrentChanges(unseen=context.outcomes.unseen)
    # After an interrupt, this is left to the next run: a refresh may have to build a graph first.
    if not control.engine_lost and not _is_interrupted(context):
        # If the refresh fails, further requests would fail too, and the counts would be lost with the report.
        if context.refresh_index():
            index = context.check_index_unchanged()
            missing, concurrent, change_notes = report_concurrent_changes(
                context, index, load.versions, load.began_at, load.write_state
            )
            notes += change_notes
            if context.outcomes.ledger.counts()[DocumentOutcome.INDEXED]:
                notes += html_notes(index, [target.template for target in targets_to_fill(context.targets)])
        if plan.settings.prune and not missing and not control.stop_reading.is_set():
            context.meter.close()
            pruned, prune_notes = prune_index(context, confirm)
            notes += prune_notes
    if load.is_new_index and _delete_unused_index(context):
        notes.append(
            f"no document could be indexed: the index {context.index.concrete}, which this load created, was deleted"
        )
    if checkpoint is not None and not missing and not control.stop_reading.is_set():
        if plan.settings.retry is not None:
            # Every dead letter has an outcome, possibly as a new dead letter.
            quarantine_path(plan.settings.retry).unlink()
        checkpoint.finish()
    notes += _outcome_notes(context, pruned)
    return LoadReport.from_ledger(
        context.outcomes.ledger,
        encoder,
        index=context.index.alias,
        engine=context.engine.info.label,
        source=plan.source,
        dead_letters=plan.dead_letters_place,
        seconds=time.monotonic() - load.started,
        interrupted=_is_interrupted(context),
        stopped=_stop_reason(context),
        resumed=checkpoint is not None and checkpoint.resumed,
        notes=tuple(notes),
        pruned=pruned,
        missing=missing,
        concurrent=concurrent,
        lacking=context.outcomes.lacking,
    )


def _ensure_fields(engine: Engine, plan: LoadPlan, model: ModelIdentity, control: LoadControl) -> list[VectorField]:
    """Return the vector fields of the plan, and create those that do not exist."""

    def ensure() -> list[VectorField]:
        return [
            ensure_vector_field(engine, plan.settings.index, request, create=bool(plan.sources))
            for request in plan.field_requests(model)
        ]

    return wait_for_engine(ensure, plan.settings.retry_seconds, control.stop_retrying)


def _read_index(engine: Engine, plan: LoadPlan, control: LoadControl) -> IndexState:
    """Read the index that `_ensure_fields` found or created.

    Raises:
        IndexMismatch: the index has been deleted since then.
    """
    name = plan.settings.index
    state = wait_for_engine(lambda: engine.get_index(name), plan.settings.retry_seconds, control.stop_retrying)
    if state is None:
        raise IndexMismatch(f"the index {name!r} was deleted while the load began", "Run the command again.")
    return state


def _load_targets(plan: LoadPlan, fields: list[VectorField], index: IndexState) -> EmbeddingTargets:
    """Return the fields that the load fills, and those that documents from files keep."""
    filled = tuple(
        EmbeddingTarget(field.name, planned.template, field.meta)
        for planned, field in zip(plan.fields, fields, strict=True)
    )
    if not plan.sources:
        return filled  # partial updates leave other fields alone
    kept = kept_targets(vector_fields(index.mappings, index.name), [target.field for target in filled])
    return tuple(
        replace(target, template=target.template.with_list_forms(list_forms(target.template.fields, index)))
        for target in (*filled, *kept)
    )


def _check_created_index(
    engine: Engine,
    plan: LoadPlan,
    fields: list[VectorField],
    targets: EmbeddingTargets,
    index: IndexState,
    stream: RecordStream | None,
) -> None:
    """Check that the new index can take the documents in spite of index templates; if it cannot, delete it."""
    rules = plan.document_rules(targets, engine.info, index)
    first = [] if stream is None else [rules.own_fields(document) for document in stream.peeked]
    meta_fields = [target.meta_field for target in targets]
    routing_field = plan.settings.routing_field
    check_created_index(
        engine,
        index,
        plan.settings.index,
        meta_fields,
        first,
        text_fields=plan.text_fields,
        routing_field=routing_field,
    )


def _rollover_notes(plan: LoadPlan, fields: Sequence[VectorField]) -> list[str]:
    """Notes on the vector fields that the write index of an alias lacked, as after a rollover."""
    return [
        f"{field.index} had no vector field {field.name}, which {planned.similar.index} of the alias {plan.alias} has, "
        "so this load added it. Put it into the index template too, or the next rollover creates an index without it "
        "(docs/commands/index.md, After a rollover)"
        for planned, field in zip(plan.fields, fields, strict=True)
        if planned.similar is not None and field.outcome is FieldOutcome.ADDED
    ]


# Fields of these types are analyzed, and BM25 searches their words.
_WORD_TYPES = frozenset({"text", "match_only_text", "search_as_you_type"})


def html_notes(index: IndexState, templates: Iterable[TextTemplate]) -> list[str]:
    """A note on the fields whose HTML is stripped from the embedded text, but not from the words of the index."""

    def strips_html(analyzer: str) -> bool:
        filters = index.settings.get(f"index.analysis.analyzer.{analyzer}.char_filter") or []
        named = [filters] if isinstance(filters, str) else filters
        types = (index.settings.get(f"index.analysis.char_filter.{each}.type", each) for each in named)
        return "html_strip" in types

    mapped = dict(mapped_fields(index.mappings.get("properties", {})))
    stripped = dict.fromkeys(part.field for each in templates for part in each.parts if part.filter == STRIP_HTML)
    with_tags = [
        name
        for name in filter(None, stripped)
        if (field := mapped.get(name, {})).get("type") in _WORD_TYPES
        and field.get("index", True)
        and not strips_html(field.get("analyzer", "default"))
    ]
    if not with_tags:
        return []
    return [
        f"the words of {' and '.join(with_tags)} are indexed with HTML tags, which BM25 and hybrid searches find: in a "
        "new index, give the field an analyzer with the character filter `html_strip` (docs/sources.md, HTML)"
    ]


def _identity(plan: LoadPlan, index: IndexState, targets: EmbeddingTargets) -> LoadIdentity:
    """Return the settings that must not change between a load and the load that resumes it."""
    filled = targets_to_fill(targets)
    rules = [None if target.meta.passages is None else str(target.meta.passages) for target in filled]
    return LoadIdentity(
        index.uuid,
        filled[0].meta.fingerprint,
        tuple((target.field, target.template.template, rule) for target, rule in zip(filled, rules, strict=True)),
        plan.settings.id_field,
        file_options=astuple(plan.settings.file_options),
        routing_field=plan.settings.routing_field,
    )


def _open_dead_letters(plan: LoadPlan, checkpoint: LoadCheckpoint | None, clock: Clock) -> DeadLetters:
    """Open the dead-letter file; a resumed load writes no dead letter twice.

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
    name = context.index.alias
    context.retrying(context.engine.refresh, name)
    for target in targets_to_fill(context.targets):
        field = f"{target.meta_field}.embedded_at"
        latest = {"query": {"exists": {"field": field}}, "sort": [{field: "desc"}], "size": 1, "_source": False}
        for hit in context.retrying(context.engine.search, name, latest)["hits"]["hits"]:
            context.clock.observe(format_timestamp(datetime.fromtimestamp(hit["sort"][0] / 1000, UTC)))


def _delete_unused_index(context: LoadContext) -> bool:
    """Delete the index that this load has created if no document could be loaded; return whether it was deleted."""
    control = context.control
    # Without dead letters, the index is kept: an empty source is not a failure.
    if control.engine_lost or control.stop_reading.is_set() or not context.outcomes.ledger.dead:
        return False
    return context.retrying(delete_unused_index, context.engine, context.index.state)


def _outcome_notes(context: LoadContext, pruned: int) -> list[str]:
    """Notes on documents that lack a vector, or that the index holds twice."""
    name, outcomes = context.index.alias, context.outcomes
    notes = [
        f"{pluralize(count, 'document')} lost {'its' if count == 1 else 'their'} vector in {field}, since its text "
        "changed or _source leaves it out: "
        f"`es-sbert ingest --index {name} --vector-field {field}` embeds it again"
        for field, count in sorted(outcomes.dropped.items())
    ]
    computed_next = f"which the next watch computes, or {context.in_place_command}"
    for index, held in sorted(outcomes.held.items()):
        notes.append(
            f"{pluralize(held, 'document')} {be(held)} unchanged in {index}, another index of the alias "
            f"{context.plan.alias}, and {'stays' if held == 1 else 'stay'} there"
        )
    if context.plan.settings.prune and context.plan.alias is not None:
        notes.append(
            f"`prune` checks only {context.index.concrete}: documents in other indices of the alias "
            f"{context.plan.alias} are kept, even if the source no longer has them"
        )
    if count := outcomes.lacking:
        seen = f"{pluralize(count, 'document')} that {be(count, past=True)} seen {'lacks' if count == 1 else 'lack'}"
        notes.append(f"{seen} a current vector, {computed_next}")
    if count := outcomes.unseen:
        written = f"{pluralize(count, 'document')} {be(count, past=True)} written after the last check of this watch"
        notes.append(f"{written} and {have(count)} no current vector, {computed_next}")
    if outcomes.rerouted and not pruned:
        notes.append(
            f"{pluralize(outcomes.rerouted, 'document')} {be(outcomes.rerouted)} also in {name} with a routing other "
            "than the source's: searches may find both. `prune` removes those of earlier loads that the source no "
            "longer has"
        )
    return notes


def _is_interrupted(context: LoadContext) -> bool:
    """Whether the user stopped the load before its end; a watch has no other end."""
    return context.control.interrupted and context.plan.settings.watch_seconds is None


def _stop_reason(context: LoadContext) -> str | None:
    """The reason why the load stopped before its end, and how it resumes; None if it did not."""
    reason = context.control.reason or ("interrupted" if _is_interrupted(context) else None)
    if reason is None:
        return None
    if context.checkpoint is None:
        return f"{reason}; the same command resumes, skipping documents that have a vector"
    return f"{reason}; the same command resumes where it stopped ({context.checkpoint.path})"
