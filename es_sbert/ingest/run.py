"""One load from its plan to its summary."""

from __future__ import annotations

import time
from collections.abc import Sequence
from contextlib import ExitStack, closing
from functools import partial

from es_sbert.clock import Clock
from es_sbert.engines.protocol import Engine, IndexState
from es_sbert.errors import DocumentsAltered, EsSbertError
from es_sbert.index.ensure import Outcome as FieldOutcome
from es_sbert.index.ensure import VectorField, ensure_vector_field
from es_sbert.index.load_settings import left_behind
from es_sbert.index.schema import vector_fields
from es_sbert.index.targets import Target, Targets, kept_targets
from es_sbert.ingest.concurrent_changes import read_primary_terms, report_concurrent_changes
from es_sbert.ingest.context import (
    LoadContext,
    check_index,
    load_identity,
    observe_index,
    open_letters,
    patiently,
    read_index,
    refresh,
)
from es_sbert.ingest.control import Control
from es_sbert.ingest.error_limit import ErrorMonitor
from es_sbert.ingest.first_window import check_first_window
from es_sbert.ingest.index_fitness import check_created_index, discard_unused_index
from es_sbert.ingest.ledger import Ledger, Outcome
from es_sbert.ingest.load import WRITERS
from es_sbert.ingest.memory import LoadMemory
from es_sbert.ingest.milestones import record_end
from es_sbert.ingest.observer import Observer, Unobserved
from es_sbert.ingest.outcomes import Outcomes
from es_sbert.ingest.plan import Plan
from es_sbert.ingest.progress import Meter
from es_sbert.ingest.prune import Confirm, prune
from es_sbert.ingest.quiet_index import still_changed, switch_back, switch_off, wants_load_settings
from es_sbert.ingest.retry import RetryPolicy
from es_sbert.ingest.runner import Runner
from es_sbert.ingest.sources.letters import taken_aside
from es_sbert.ingest.startup import wait_for_engine
from es_sbert.ingest.summary import Summary
from es_sbert.ingest.throttle import Throttle


def run(engine: Engine, runner: Runner, wanted: Plan, control: Control, meter: Meter,
        confirm: Confirm = lambda gone: True, observer: Observer | None = None, *,
        show_summary: bool = True) -> Summary:  # fmt: skip
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
        stream = check_first_window(engine, wanted, control)
        if stream is not None:
            stack.enter_context(closing(stream))
        fields = wait(lambda: _ensure_fields(engine, runner, wanted))
        begin = time.monotonic()
        stack.enter_context(closing(meter))
        index = wait(lambda: read_index(engine, settings.index))
        targets = _targets(wanted, fields, index)
        created = any(field.outcome is FieldOutcome.CREATED for field in fields)
        if created:
            first = [] if stream is None else stream.peeked
            check_created_index(engine, index, settings.index, [target.meta_field for target in targets], first)
        memory = None
        if wanted.state_file is not None:
            memory = runner.open_memory(wanted.state_file, load_identity(wanted, index, targets))
            stack.enter_context(closing(memory))
        clock = Clock()
        letters = open_letters(wanted, memory, clock)
        stack.enter_context(closing(letters))
        errors = ErrorMonitor(settings.error_limit, control.cut, str(wanted.dead_letters))
        outcomes = Outcomes(Ledger(), letters, memory, errors)
        context = LoadContext(
            engine, wanted, targets, control, meter, outcomes, RetryPolicy(settings.retry_seconds), index, memory,
            Throttle(settings.bulk_bytes, WRITERS), observer or Unobserved(), clock, stream,
        )  # fmt: skip
        fast = wants_load_settings(settings, created=created)
        changed = fast or left_behind(index) is not None
        if changed:
            # Before the first request that changes them.
            control.left_behind = f"{still_changed(settings.index)}."
        notes = [memory.note] if memory is not None and memory.note is not None else []
        before = None
        try:
            if fast:
                before, said = switch_off(context)
                notes += said
            began = clock.now()
            terms = read_primary_terms(context)
            if wanted.sources:
                observe_index(context)
            info = runner.load(context)
            # After an interrupt the next run does all of it: a refresh may have to build a graph first.
            if control.lost is None and not _is_interrupted(control, wanted):
                refresh(context)
                changes = report_concurrent_changes(context, check_index(context), began, terms)
                notes, missing = [*notes, *changes.notes], changes.missing
                if settings.prune and not missing and not control.stop.is_set():
                    meter.close()
                    pruned, note = prune(context, confirm)
                    notes += note
            if changed:
                notes += switch_back(context, before)
            if created and control.lost is None and not control.stop.is_set():
                notes += _discarded(context)
        except EsSbertError as error:
            if memory is not None and isinstance(error, DocumentsAltered):
                memory.distrust()
            if changed:
                error.message += "".join(f"; {note}" for note in switch_back(context, before))
            written = sum(outcomes.ledger.counts()[outcome] for outcome in (Outcome.INDEXED, Outcome.UPDATED))
            error.message += f" (this came after {written:,} documents were written)"
            raise
        if memory is not None and not missing and not control.stop.is_set():
            if settings.retry is not None:
                # Every letter has come to its end, be it as a new one.
                taken_aside(settings.retry).unlink()
            memory.finish()
        notes += _dropped(context)
    summary = Summary.of(
        outcomes.ledger, info, index=settings.index, engine=engine.info.label,
        source=wanted.source, dead_letters=str(wanted.dead_letters),
        seconds=time.monotonic() - begin, interrupted=_is_interrupted(control, wanted),
        stopped=_why_stopped(control, wanted, memory), resumed=memory is not None and memory.resumed,
        notes=tuple(notes), pruned=pruned, missing=missing,
    )  # fmt: skip
    record_end(summary, shown=show_summary)
    return summary


def _ensure_fields(engine: Engine, runner: Runner, wanted: Plan) -> list[VectorField]:
    """The vector fields of the plan, fit for the model."""
    for field in wanted.fields:
        if field.passages is not None:
            # Rules that do not go with the model are refused before an index is made for them.
            runner.check_passages(field.passages)
    settings, model = wanted.settings, runner.model
    return [
        ensure_vector_field(
            engine, settings.index, vector_field=field.field, fingerprint=model.fingerprint,
            model_name=model.name, dimensions=model.dimensions, index_type=settings.index_type,
            text=field.template.template, passages=field.passages, create=bool(wanted.sources),
            text_options=field.text_options, replace_text=settings.replace_text_template,
        )
        for field in wanted.fields
    ]  # fmt: skip


def _targets(wanted: Plan, fields: Sequence[VectorField], index: IndexState) -> Targets:
    """The fields that are filled, and those that documents from files keep."""
    own = tuple(
        Target(field.name, planned.template, field.meta)
        for planned, field in zip(wanted.fields, fields, strict=True)
    )  # fmt: skip
    if not wanted.sources:
        return own  # partial updates leave other fields alone
    return own + kept_targets(vector_fields(index.mappings, index.name), [target.field for target in own])


def _discarded(context: LoadContext) -> list[str]:
    """Delete the index that this load has created, where it took no document: an export with wrong fields, say."""
    name = context.index.name
    if not context.outcomes.ledger.counts()[Outcome.DEAD]:
        return []  # an empty source is no failure
    if not patiently(context, partial(discard_unused_index, context.engine, context.index)):
        return []
    return [f"the index {name}, which this load created, took no document and was deleted again"]


def _dropped(context: LoadContext) -> list[str]:
    """What must be said about vectors that this load does not make and that no longer stand for their texts."""
    name = context.plan.settings.index
    return [
        f"{count:,} documents lost their vector in {field}, since its text changed or _source leaves it out: "
        f"`es-sbert ingest --index {name} --vector-field {field}` embeds it anew"
        for field, count in sorted(context.outcomes.dropped.items())
    ]


def _is_interrupted(control: Control, wanted: Plan) -> bool:
    """Whether the user stopped the load before its end; a watch has no other end."""
    return control.interrupted and wanted.settings.watch_seconds is None


def _why_stopped(control: Control, wanted: Plan, memory: LoadMemory | None) -> str | None:
    """Why the load did not come to its end, and how it goes on; None where it did."""
    reason = control.lost or control.cut_short or ("interrupted" if _is_interrupted(control, wanted) else None)
    if reason is None:
        return None
    where = f" where it was ({memory.path})" if memory is not None else ", leaving alone what has a vector"
    return f"{reason}; the same command goes on{where}"
