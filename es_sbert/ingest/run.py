"""One load from its plan to its summary."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack, closing

from es_sbert.encoder.encoder import Encoder
from es_sbert.engines.protocol import Engine, IndexState
from es_sbert.errors import EsSbertError
from es_sbert.index.ensure import Outcome as FieldOutcome
from es_sbert.index.ensure import VectorField, ensure_vector_field
from es_sbert.index.load_settings import left_behind
from es_sbert.index.schema import vector_fields
from es_sbert.ingest.actions import Action
from es_sbert.ingest.backfill import Clearing, Conflicts, IndexReader
from es_sbert.ingest.bulk import BulkWriter
from es_sbert.ingest.context import LoadContext, check_index, open_letters, open_state, read_index, refresh
from es_sbert.ingest.control import Control
from es_sbert.ingest.documents import Document, DocumentRules, read_documents, windows
from es_sbert.ingest.files import ChangeDetection
from es_sbert.ingest.ledger import Ledger, Outcome
from es_sbert.ingest.load import WINDOW_BYTES, WRITERS, Loader, Sorted
from es_sbert.ingest.milestones import record_end, record_start
from es_sbert.ingest.outcomes import Outcomes
from es_sbert.ingest.plan import Plan
from es_sbert.ingest.progress import Meter, Snapshot, fraction_done
from es_sbert.ingest.prune import Confirm, prune
from es_sbert.ingest.quiet_index import switch_back, switch_off, wants_load_settings
from es_sbert.ingest.retry import RetryPolicy
from es_sbert.ingest.sources.letters import take_aside, taken_aside
from es_sbert.ingest.sources.raw import ByteCounter
from es_sbert.ingest.sources.read import ReadSettings, read_records
from es_sbert.ingest.state import LoadState
from es_sbert.ingest.summary import Summary
from es_sbert.ingest.targets import Target, Targets, kept_targets
from es_sbert.ingest.throttle import Throttle
from es_sbert.ingest.watch import Unwatched, Watch

# How often documents that other writers keep changing are read and embedded anew.
CONFLICT_ROUNDS = 3


def run(engine: Engine, encoder: Encoder, wanted: Plan, control: Control, meter: Meter,
        confirm: Confirm = lambda gone: True, watch: Watch | None = None) -> Summary:  # fmt: skip
    """Carry out a plan.

    Args:
        engine: Where to load.
        encoder: What embeds.
        wanted: The plan.
        control: Stops the load from outside.
        meter: Shows how far it is.
        confirm: Asked before documents are removed that the source no longer has.
        watch: Sees the load from outside.

    Raises:
        UsageError: another process is loading the same source into the same index.
        IndexMismatch: the index holds another model's vectors, or others than asked for, or was deleted meanwhile.
        EngineError: the engine failed before the first document was sent.
        OutputError: the dead letters or the state cannot be written.
    """
    settings = wanted.settings
    fields = _ensure_fields(engine, encoder, wanted)
    begin = time.monotonic()
    pruned = 0
    with ExitStack() as stack:
        stack.enter_context(closing(meter))
        index = read_index(engine, settings.index)
        targets = _targets(wanted, fields, index)
        state = open_state(wanted, index, targets, encoder)
        if state is not None:
            stack.enter_context(closing(state))
        letters = open_letters(wanted, state)
        stack.enter_context(closing(letters))
        outcomes = Outcomes(Ledger(), letters, state)
        context = LoadContext(
            engine, encoder, wanted, targets, control, meter, outcomes, RetryPolicy(settings.retry_seconds), index,
            state, Throttle(settings.bulk_bytes, WRITERS), watch or Unwatched(),
        )  # fmt: skip
        context.watch.began(settings.index, engine.info, encoder.info, outcomes.ledger, context.throttle)
        record_start(context)
        fast = wants_load_settings(settings, created=any(field.outcome is FieldOutcome.CREATED for field in fields))
        changed = fast or left_behind(index) is not None
        notes = [state.note] if state is not None and state.note is not None else []
        try:
            if fast:
                notes += switch_off(context)
            (_load_files if wanted.sources else _load_index)(context)
            if control.lost is None:
                refresh(context)
                check_index(context)
                if settings.prune and not control.stop.is_set():
                    meter.close()
                    pruned, note = prune(context, confirm)
                    notes += note
            if changed:
                notes += switch_back(context)
        except EsSbertError as error:
            if changed:
                error.message += "".join(f"; {note}" for note in switch_back(context))
            written = sum(outcomes.ledger.counts()[outcome] for outcome in (Outcome.INDEXED, Outcome.UPDATED))
            error.message += f" (this came after {written:,} documents were written)"
            raise
        if state is not None and not control.stop.is_set():
            if settings.retry is not None:
                # Every letter has come to its end, be it as a new one.
                taken_aside(settings.retry).unlink()
            state.finish()
        notes += _dropped(context)
    summary = Summary.of(
        outcomes.ledger, encoder.info, index=settings.index, engine=engine.info.label,
        source="files" if wanted.sources else "index", dead_letters=str(wanted.dead_letters),
        seconds=time.monotonic() - begin, interrupted=control.interrupted, stopped=_why_stopped(control, state),
        resumed=state is not None and state.resumed,
        notes=tuple(notes), pruned=pruned,
    )  # fmt: skip
    record_end(summary)
    return summary


def _ensure_fields(engine: Engine, encoder: Encoder, wanted: Plan) -> list[VectorField]:
    """The vector fields of the plan, fit for the model."""
    for field in wanted.fields:
        if field.passages is not None:
            # Rules that do not go with the model are refused before an index is made for them.
            encoder.splitter(field.passages.tokens, field.passages.overlap, "document")
    settings = wanted.settings
    return [
        ensure_vector_field(
            engine, settings.index, vector_field=field.field, fingerprint=encoder.info.fingerprint,
            model_name=encoder.info.model, dimensions=encoder.info.dimensions, index_type=settings.index_type,
            text=field.template.template, passages=field.passages,
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


def _dropped(context: LoadContext) -> list[str]:
    """What must be said about vectors that this load does not make and that no longer stand for their texts."""
    name = context.plan.settings.index
    return [
        f"{count:,} documents lost their vector in {field}, since its text changed: "
        f"`es-sbert ingest --index {name} --vector-field {field}` embeds it anew"
        for field, count in sorted(context.outcomes.dropped.items())
    ]


def _why_stopped(control: Control, state: LoadState | None) -> str | None:
    """Why the load did not come to its end, and how it goes on; None where it did."""
    reason = control.lost or control.cut_short or ("interrupted" if control.interrupted else None)
    if reason is None:
        return None
    where = f" where it was ({state.path})" if state is not None else ", leaving alone what has a vector"
    return f"{reason}; the same command goes on{where}"


def _load_files(context: LoadContext) -> None:
    settings, outcomes, control = context.plan.settings, context.outcomes, context.control
    assert context.state is not None, "a load of files has a state"
    if settings.retry is not None:
        take_aside(settings.retry)
    context.engine.refresh(settings.index)
    detect = ChangeDetection(
        context.engine, settings.index, context.targets, outcomes, policy=context.policy, aborted=control.aborted,
        empty_index=context.engine.count(settings.index) == 0,
    )  # fmt: skip
    reserved = tuple(name for target in context.targets for name in (target.field, target.meta_field))
    rules = DocumentRules(context.targets, settings.id_field, reserved)
    counter = ByteCounter()
    sizes = [source.size for source in context.plan.sources]
    total = None if None in sizes else sum(size or 0 for size in sizes)
    reading = ReadSettings(settings.max_document_bytes, plain_field=context.plan.text_fields[0], index=settings.index)
    records = read_records(context.plan.sources, reading, counter, control.stop)
    documents = read_documents(records, rules, context.state, outcomes)
    tick = _ticker(context, lambda: counter.bytes / total if total else None)
    _loader(context, detect, _no_conflict).run(windows(documents, settings.batch_window, WINDOW_BYTES), tick)


def _load_index(context: LoadContext) -> None:
    engine, settings, outcomes = context.engine, context.plan.settings, context.outcomes
    # A point in time sees what was refreshed; documents written a moment ago are to be embedded too.
    engine.refresh(settings.index)
    total = engine.count(settings.index)
    conflicts, clearing = Conflicts(), Clearing(context.targets)
    reader = IndexReader(engine, settings.index, context.targets, outcomes, context.control)
    loader = _loader(context, clearing, conflicts.add)
    tick = _ticker(context, lambda: min(1.0, outcomes.ledger.read / total) if total else None)
    loader.run(windows(reader.documents(), settings.batch_window, WINDOW_BYTES), tick)
    for _ in range(CONFLICT_ROUNDS):
        changed = conflicts.take()
        if not changed:
            return
        loader.run(windows(reader.again(changed), settings.batch_window, WINDOW_BYTES), tick)
    for action in conflicts.take().values():
        reason = "other writers kept changing it while it was being embedded: run again"
        outcomes.dead(action.document.origin, reason, action.document.source, action.document.id, partial=True)


def _loader(
    context: LoadContext, sort_out: Callable[[list[Document]], Sorted], on_conflict: Callable[[Action], None]
) -> Loader:
    settings = context.plan.settings
    writer = BulkWriter(
        context.engine, settings.index, context.policy, context.throttle, context.outcomes, context.control,
        on_conflict, context.watch,
    )  # fmt: skip
    return Loader(
        context.engine, context.encoder, context.targets, throttle=context.throttle, sort_out=sort_out,
        writer=writer, outcomes=context.outcomes, control=context.control, watch=context.watch,
    )  # fmt: skip


def _no_conflict(action: Action) -> None:
    raise RuntimeError(f"{action.document.id} was sent without a version, yet conflicted")


def _ticker(context: LoadContext, part_read: Callable[[], float | None]) -> Callable[[], None]:
    begin = time.monotonic()
    ledger = context.outcomes.ledger

    def tick() -> None:
        read, done = ledger.read, ledger.done
        fraction = fraction_done(read, done, part_read())
        snapshot = Snapshot(read, done, fraction, time.monotonic() - begin, context.control.waiting)
        context.meter.show(snapshot)
        context.watch.show(snapshot)

    return tick
