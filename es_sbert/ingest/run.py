"""One load from its plan to its summary."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import ExitStack, closing
from dataclasses import dataclass
from typing import TypeVar

from es_sbert.encoder.encoder import Encoder
from es_sbert.engines.protocol import Engine, IndexState
from es_sbert.errors import AccessDenied, EngineError, EsSbertError, IndexMismatch
from es_sbert.index.ensure import Outcome as FieldOutcome
from es_sbert.index.ensure import ensure_vector_field
from es_sbert.index.load_settings import begin_load, left_behind, put_back
from es_sbert.index.meta import document_meta_field
from es_sbert.ingest.actions import Action
from es_sbert.ingest.backfill import Clearing, Conflicts, IndexReader
from es_sbert.ingest.bulk import BulkWriter
from es_sbert.ingest.control import Control
from es_sbert.ingest.dead_letters import DeadLetters, letter_keys, now
from es_sbert.ingest.documents import Document, DocumentRules, read_documents, windows
from es_sbert.ingest.files import ChangeDetection
from es_sbert.ingest.ledger import Ledger, Outcome
from es_sbert.ingest.load import WINDOW_BYTES, WRITERS, Loader, Sorted
from es_sbert.ingest.outcomes import Outcomes
from es_sbert.ingest.plan import Plan
from es_sbert.ingest.progress import Meter, Snapshot, fraction_done
from es_sbert.ingest.prune import Gone, Pruner
from es_sbert.ingest.retry import RetryPolicy, with_retries
from es_sbert.ingest.settings import IngestSettings, LoadSettings
from es_sbert.ingest.sources.letters import take_aside, taken_aside
from es_sbert.ingest.sources.raw import ByteCounter
from es_sbert.ingest.sources.read import ReadSettings, read_records
from es_sbert.ingest.state import LoadIdentity, LoadState
from es_sbert.ingest.summary import Summary
from es_sbert.ingest.throttle import Throttle

T = TypeVar("T")

# How often documents that other writers keep changing are read and embedded anew.
CONFLICT_ROUNDS = 3


@dataclass(frozen=True)
class _Run:
    """What the parts of one load share.

    Attributes:
        index: The index at the beginning.
        state: What was met and acknowledged; None where the index is the source.
    """

    engine: Engine
    encoder: Encoder
    plan: Plan
    control: Control
    meter: Meter
    outcomes: Outcomes
    policy: RetryPolicy
    index: IndexState
    state: LoadState | None


Confirm = Callable[[Gone], bool]


def run(engine: Engine, encoder: Encoder, wanted: Plan, control: Control, meter: Meter,
        confirm: Confirm = lambda gone: True) -> Summary:  # fmt: skip
    """Carry out a plan.

    Args:
        engine: Where to load.
        encoder: What embeds.
        wanted: The plan.
        control: Stops the load from outside.
        meter: Shows how far it is.
        confirm: Asked before documents are removed that the source no longer has.

    Raises:
        UsageError: another process is loading the same source into the same index.
        IndexMismatch: the index holds another model's vectors, or others than asked for, or was deleted meanwhile.
        EngineError: the engine failed before the first document was sent.
        OutputError: the dead letters or the state cannot be written.
    """
    settings = wanted.settings
    field = ensure_vector_field(
        engine, settings.index, vector_field=settings.vector_field, fingerprint=encoder.info.fingerprint,
        model_name=encoder.info.model, dimensions=encoder.info.dimensions, index_type=settings.index_type,
        text=wanted.template.template,
    )  # fmt: skip
    begin = time.monotonic()
    pruned = 0
    with ExitStack() as stack:
        stack.enter_context(closing(meter))
        index = _index(engine, settings.index)
        state = _open_state(wanted, index, encoder)
        if state is not None:
            stack.enter_context(closing(state))
        letters = _open_letters(wanted, state)
        stack.enter_context(closing(letters))
        outcomes = Outcomes(Ledger(), letters, state)
        this = _Run(
            engine, encoder, wanted, control, meter, outcomes, RetryPolicy(settings.retry_seconds), index, state
        )
        fast = _wants_load_settings(settings, created=field.outcome is FieldOutcome.CREATED)
        changed = fast or left_behind(index) is not None
        notes = [state.note] if state is not None and state.note is not None else []
        try:
            if fast:
                notes += _begin_load(this)
            (_load_files if wanted.sources else _load_index)(this)
            if control.lost is None:
                _refresh(this)
                _check_index(this)
                if settings.prune and not control.stop.is_set():
                    meter.close()
                    pruned, note = _prune(this, confirm)
                    notes += note
            if changed:
                notes += _put_back(this)
        except EsSbertError as error:
            if changed:
                error.message += "".join(f"; {note}" for note in _put_back(this))
            written = sum(outcomes.ledger.counts()[outcome] for outcome in (Outcome.INDEXED, Outcome.UPDATED))
            error.message += f" (this came after {written:,} documents were written)"
            raise
        if state is not None and not control.stop.is_set():
            if settings.retry is not None:
                # Every letter has come to its end, be it as a new one.
                taken_aside(settings.retry).unlink()
            state.finish()
    return Summary.of(
        outcomes.ledger, encoder.info, index=settings.index, engine=engine.info.label,
        source="files" if wanted.sources else "index", dead_letters=str(wanted.dead_letters),
        seconds=time.monotonic() - begin, interrupted=control.interrupted, stopped=_why_stopped(control, state),
        resumed=state is not None and state.resumed,
        notes=tuple(notes), pruned=pruned,
    )  # fmt: skip


def _index(engine: Engine, name: str) -> IndexState:
    state = engine.get_index(name)
    if state is None:
        raise IndexMismatch(f"the index {name!r} was deleted while the load began", "Run the command again.")
    return state


def _check_index(this: _Run) -> None:
    """Engines make an index that is missing when a document comes, without our mapping."""
    state = _patiently(this, lambda: this.engine.get_index(this.plan.settings.index))
    if state is None or _uuid(state) != _uuid(this.index):
        raise IndexMismatch(
            f"the index {this.index.name} was deleted or replaced during the load",
            f"Look at what stands under {this.plan.settings.index} now, delete it if only this load wrote there, and "
            "run the same command again.",
        )


def _uuid(index: IndexState) -> str:
    return index.settings["index.uuid"]


def _open_state(wanted: Plan, index: IndexState, encoder: Encoder) -> LoadState | None:
    if wanted.state_file is None:
        return None
    settings = wanted.settings
    identity = LoadIdentity(
        _uuid(index), settings.vector_field, encoder.info.fingerprint, wanted.template.template, settings.id_field
    )
    return LoadState(wanted.state_file, identity)


def _open_letters(wanted: Plan, state: LoadState | None) -> DeadLetters:
    if state is None:
        return DeadLetters(wanted.dead_letters, now())
    if not state.resumed:
        return DeadLetters(wanted.dead_letters, state.run)
    state.remember_letters(letter_keys(wanted.dead_letters, state.run))
    return DeadLetters(wanted.dead_letters, state.run, state.has_letter)


def _wants_load_settings(settings: IngestSettings, *, created: bool) -> bool:
    return settings.load_settings is LoadSettings.FAST or (settings.load_settings is LoadSettings.AUTO and created)


def _begin_load(this: _Run) -> list[str]:
    """Change the index's settings for the load; what must be said about it."""
    try:
        begin_load(this.engine, this.index)
    except AccessDenied as error:
        return [f"Refreshes and replicas stay as they are during the load: {error.message}"]
    return []


def _put_back(this: _Run) -> list[str]:
    """Put back what this load, or one that was killed, has changed in the settings; what must be said about it."""
    name = this.plan.settings.index
    try:
        put_back(this.engine, name)
    except EngineError as error:
        return [
            f"Refreshes and replicas of {name} are still as they were for the load ({error.message}): the next load "
            f"puts them back, or `es-sbert index repair {name}`"
        ]
    return []


def _prune(this: _Run, confirm: Confirm) -> tuple[int, list[str]]:
    """How many documents were removed, and what must be said about those that were not."""
    assert this.state is not None, "a load of files has a state"
    settings = this.plan.settings
    pruner = Pruner(
        this.engine, settings.index, settings.vector_field, this.state, this.policy, this.control,
        this.outcomes.ledger.add_retries,
    )  # fmt: skip
    gone = pruner.find()
    if not gone.count:
        return 0, []
    kept = f"{gone.count:,} documents of the index are no longer in the source; none of them was removed"
    if this.outcomes.rejected:
        broken = f"{this.outcomes.rejected:,} records of the source cannot be used"
        return 0, [f"{kept}, since {broken}: their documents would be taken for gone"]
    if not confirm(gone):
        return 0, [kept]
    removed = pruner.remove()
    _refresh(this)
    return removed, []


def _why_stopped(control: Control, state: LoadState | None) -> str | None:
    """Why the load did not come to its end, and how it goes on; None where it did."""
    reason = control.lost or control.cut_short or ("interrupted" if control.interrupted else None)
    if reason is None:
        return None
    where = f" where it was ({state.path})" if state is not None else ", leaving alone what has a vector"
    return f"{reason}; the same command goes on{where}"


def _patiently(this: _Run, call: Callable[[], T]) -> T:
    """The call's answer, with the load's patience."""
    return with_retries(call, this.policy, this.control.aborted, lambda: this.outcomes.ledger.add_retries(1))


def _refresh(this: _Run) -> None:
    """Make the documents visible to searches."""
    try:
        _patiently(this, lambda: this.engine.refresh(this.plan.settings.index))
    except EngineError as error:
        # Everything is in; a load of hours is not declared failed for this.
        this.control.cut(f"the last refresh failed, so searches see the documents a little later: {error.message}")


def _load_files(this: _Run) -> None:
    settings, outcomes, control = this.plan.settings, this.outcomes, this.control
    assert this.state is not None, "a load of files has a state"
    if settings.retry is not None:
        take_aside(settings.retry)
    this.engine.refresh(settings.index)
    detect = ChangeDetection(
        this.engine, settings.index, settings.vector_field, this.encoder.info.fingerprint, outcomes,
        policy=this.policy, aborted=control.aborted, empty_index=this.engine.count(settings.index) == 0,
    )  # fmt: skip
    rules = DocumentRules(
        this.plan.template, settings.id_field, (settings.vector_field, document_meta_field(settings.vector_field))
    )
    counter = ByteCounter()
    sizes = [source.size for source in this.plan.sources]
    total = None if None in sizes else sum(size or 0 for size in sizes)
    reading = ReadSettings(settings.max_document_bytes, plain_field=this.plan.template.fields[0], index=settings.index)
    records = read_records(this.plan.sources, reading, counter, control.stop)
    documents = read_documents(records, rules, this.state, outcomes)
    tick = _ticker(this, lambda: counter.bytes / total if total else None)
    _loader(this, detect, _no_conflict).run(windows(documents, settings.batch_window, WINDOW_BYTES), tick)


def _load_index(this: _Run) -> None:
    engine, settings, outcomes = this.engine, this.plan.settings, this.outcomes
    # A point in time sees what was refreshed; documents written a moment ago are to be embedded too.
    engine.refresh(settings.index)
    total = engine.count(settings.index)
    conflicts, clearing = Conflicts(), Clearing(settings.vector_field)
    reader = IndexReader(
        engine, settings.index, settings.vector_field, this.plan.template, this.encoder.info.fingerprint, outcomes,
        this.control,
    )  # fmt: skip
    loader = _loader(this, clearing, conflicts.add)
    tick = _ticker(this, lambda: min(1.0, outcomes.ledger.read / total) if total else None)
    loader.run(windows(reader.documents(), settings.batch_window, WINDOW_BYTES), tick)
    for _ in range(CONFLICT_ROUNDS):
        changed = conflicts.take()
        if not changed:
            return
        loader.run(windows(reader.again(changed), settings.batch_window, WINDOW_BYTES), tick)
    for action in conflicts.take().values():
        reason = "other writers kept changing it while it was being embedded: run again"
        outcomes.dead(action.document.origin, reason, action.document.source, action.document.id, partial=True)


def _loader(this: _Run, sort_out: Callable[[list[Document]], Sorted], on_conflict: Callable[[Action], None]) -> Loader:
    settings = this.plan.settings
    throttle = Throttle(settings.bulk_bytes, WRITERS)
    writer = BulkWriter(this.engine, settings.index, this.policy, throttle, this.outcomes, this.control, on_conflict)
    return Loader(
        this.engine, this.encoder, settings.vector_field, throttle=throttle, sort_out=sort_out, writer=writer,
        outcomes=this.outcomes, control=this.control,
    )  # fmt: skip


def _no_conflict(action: Action) -> None:
    raise RuntimeError(f"{action.document.id} was sent without a version, yet conflicted")


def _ticker(this: _Run, part_read: Callable[[], float | None]) -> Callable[[], None]:
    begin = time.monotonic()
    ledger = this.outcomes.ledger

    def tick() -> None:
        read, done = ledger.read, ledger.done
        fraction = fraction_done(read, done, part_read())
        this.meter.show(Snapshot(read, done, fraction, time.monotonic() - begin, this.control.waiting))

    return tick
