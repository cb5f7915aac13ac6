"""One load from its settings to its summary."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass

from es_sbert.encoder.encoder import Encoder
from es_sbert.engines.protocol import Engine, IndexState
from es_sbert.errors import EngineError, EsSbertError, UsageError, VectorIndexError
from es_sbert.index.ensure import ensure_vector_field, missing_index
from es_sbert.index.meta import VectorFieldMeta, document_meta_field
from es_sbert.index.schema import vector_fields
from es_sbert.ingest.actions import Action
from es_sbert.ingest.backfill import Clearing, Conflicts, IndexReader
from es_sbert.ingest.bulk import BulkWriter
from es_sbert.ingest.control import Control
from es_sbert.ingest.dead_letters import DeadLetters, default_path, now
from es_sbert.ingest.documents import Document, DocumentRules, read_documents, windows
from es_sbert.ingest.files import ChangeDetection
from es_sbert.ingest.ledger import Ledger, Outcome
from es_sbert.ingest.load import WINDOW_BYTES, Loader, Sorted
from es_sbert.ingest.outcomes import Outcomes
from es_sbert.ingest.progress import Meter, Snapshot, fraction_done
from es_sbert.ingest.retry import RetryPolicy, with_retries
from es_sbert.ingest.seen import SeenIds
from es_sbert.ingest.settings import IngestSettings
from es_sbert.ingest.sources.check import check_sources
from es_sbert.ingest.sources.find import Source, find_sources
from es_sbert.ingest.sources.raw import ByteCounter
from es_sbert.ingest.sources.read import ReadSettings, read_records
from es_sbert.ingest.summary import Summary
from es_sbert.ingest.text import TextTemplate
from es_sbert.ingest.triage import is_source_disabled

DEFAULT_TEXT_FIELD = "text"
# How often documents that other writers keep changing are read and embedded anew.
CONFLICT_ROUNDS = 3


@dataclass(frozen=True)
class Plan:
    """A load whose input and index were looked at, before a model is loaded.

    Attributes:
        settings: What was asked for.
        sources: Files to load; none for documents of the index.
        template: Text to embed.
        state: The index as it stands; None where it does not exist yet.
        stored: What the mapping says of the vector field; None where it has none.
        dead_letters: The dead-letter file.
    """

    settings: IngestSettings
    sources: list[Source]
    template: TextTemplate
    state: IndexState | None
    stored: VectorFieldMeta | None
    dead_letters: DeadLetters


def plan(engine: Engine, settings: IngestSettings) -> Plan:
    """Check everything that can be checked before a model is loaded and a document written.

    Raises:
        UsageError: options that contradict each other.
        SourceError: a file that cannot be read, or lacks the columns asked for.
        OutputError: the dead-letter file could not be written.
        IndexMissing: documents of an index that does not exist.
        IndexMismatch: the mapping's `_meta` is damaged, or an alias stands for several indices.
        EngineError: the engine failed.
    """
    sources = find_sources(settings.files, settings.format)
    if not settings.files and settings.id_field is not None:
        raise UsageError("--id-field is for documents from files", "Leave it out: documents of the index have ids.")
    letters = DeadLetters(settings.dead_letters or default_path(settings.index), run=now())
    letters.check()
    state = engine.get_index(settings.index)
    stored = vector_fields(state.mappings, state.name).get(settings.vector_field) if state else None
    if not sources:
        if state is None:
            raise missing_index(settings.index, engine)
        if is_source_disabled(state.mappings):
            raise VectorIndexError(
                f"the index {state.name} keeps no _source, so its documents cannot be read back",
                "Load the documents from files into a new index.",
            )
    template = _template(settings, stored)
    check_sources(sources, settings.max_document_bytes, template.fields, settings.id_field)
    return Plan(settings, sources, template, state, stored, letters)


def _template(settings: IngestSettings, stored: VectorFieldMeta | None) -> TextTemplate:
    if settings.text_template is not None:
        if settings.text_fields:
            raise UsageError("--text-field and --text-template exclude each other", "Give one of the two.")
        return TextTemplate.parse(settings.text_template)
    if settings.text_fields:
        return TextTemplate.of_fields(settings.text_fields)
    if stored is not None and stored.text is not None:
        return TextTemplate.parse(stored.text)
    return TextTemplate.of_fields([DEFAULT_TEXT_FIELD])


def run(engine: Engine, encoder: Encoder, wanted: Plan, control: Control, meter: Meter) -> Summary:
    """Carry out a plan.

    Raises:
        IndexMismatch: the index holds another model's vectors, or others than asked for.
        EngineError: the engine failed before the first document was sent.
        OutputError: the dead letters cannot be written.
    """
    settings = wanted.settings
    ensure_vector_field(
        engine, settings.index, vector_field=settings.vector_field, fingerprint=encoder.info.fingerprint,
        model_name=encoder.info.model, dimensions=encoder.info.dimensions, index_type=settings.index_type,
        text=wanted.template.template,
    )  # fmt: skip
    outcomes = Outcomes(Ledger(), wanted.dead_letters)
    policy = RetryPolicy(settings.retry_seconds)
    begin = time.monotonic()
    with closing(wanted.dead_letters), closing(meter):
        load = _load_files if wanted.sources else _load_index
        try:
            load(engine, encoder, wanted, control, meter, outcomes, policy)
        except EsSbertError as error:
            written = sum(outcomes.ledger.counts()[outcome] for outcome in (Outcome.INDEXED, Outcome.UPDATED))
            error.message += f" (this came after {written:,} documents were written)"
            raise
        if control.lost is None:
            _refresh(engine, settings.index, control, outcomes, policy)
    stopped = control.lost or control.cut_short
    if control.interrupted and stopped is None:
        stopped = "interrupted; the same command goes on, leaving alone what is in the index"
    return Summary.of(
        outcomes.ledger, encoder.info, index=settings.index, engine=engine.info.label,
        source="files" if wanted.sources else "index", dead_letters=str(wanted.dead_letters.path),
        seconds=time.monotonic() - begin, interrupted=control.interrupted, stopped=stopped,
    )  # fmt: skip


def _refresh(engine: Engine, index: str, control: Control, outcomes: Outcomes, policy: RetryPolicy) -> None:
    """Make the documents visible to searches."""
    try:
        with_retries(lambda: engine.refresh(index), policy, control.aborted, lambda: outcomes.ledger.add_retries(1))
    except EngineError as error:
        # Everything is in; a load of hours is not declared failed for this.
        control.cut(f"the last refresh failed, so searches see the documents a little later: {error.message}")


def _load_files(engine: Engine, encoder: Encoder, wanted: Plan, control: Control, meter: Meter,
                outcomes: Outcomes, policy: RetryPolicy) -> None:  # fmt: skip
    settings = wanted.settings
    engine.refresh(settings.index)
    detect = ChangeDetection(
        engine, settings.index, settings.vector_field, encoder.info.fingerprint, outcomes,
        policy=policy, aborted=control.aborted, empty_index=engine.count(settings.index) == 0,
    )  # fmt: skip
    rules = DocumentRules(
        wanted.template, settings.id_field, (settings.vector_field, document_meta_field(settings.vector_field))
    )
    counter = ByteCounter()
    sizes = [source.size for source in wanted.sources]
    total = None if None in sizes else sum(size or 0 for size in sizes)
    reading = ReadSettings(settings.max_document_bytes, plain_field=wanted.template.fields[0])
    loader = _loader(engine, encoder, settings, outcomes, policy, control, detect, _no_conflict)
    with closing(SeenIds()) as seen:
        records = read_records(wanted.sources, reading, counter, control.stop)
        documents = read_documents(records, rules, seen, outcomes)
        tick = _ticker(meter, outcomes.ledger, lambda: counter.bytes / total if total else None)
        loader.run(windows(documents, settings.batch_window, WINDOW_BYTES), tick)


def _load_index(engine: Engine, encoder: Encoder, wanted: Plan, control: Control, meter: Meter,
                outcomes: Outcomes, policy: RetryPolicy) -> None:  # fmt: skip
    settings = wanted.settings
    # A point in time sees what was refreshed; documents written a moment ago are to be embedded too.
    engine.refresh(settings.index)
    total = engine.count(settings.index)
    conflicts, clearing = Conflicts(), Clearing(settings.vector_field)
    reader = IndexReader(
        engine, settings.index, settings.vector_field, wanted.template, encoder.info.fingerprint, outcomes, control
    )
    loader = _loader(engine, encoder, settings, outcomes, policy, control, clearing, conflicts.add)
    tick = _ticker(meter, outcomes.ledger, lambda: min(1.0, outcomes.ledger.read / total) if total else None)
    loader.run(windows(reader.documents(), settings.batch_window, WINDOW_BYTES), tick)
    for _ in range(CONFLICT_ROUNDS):
        changed = conflicts.take()
        if not changed:
            return
        loader.run(windows(reader.again(changed), settings.batch_window, WINDOW_BYTES), tick)
    for action in conflicts.take().values():
        reason = "other writers kept changing it while it was being embedded: run again"
        outcomes.dead(action.document.origin, reason, action.document.source, action.document.id)


def _loader(engine: Engine, encoder: Encoder, settings: IngestSettings, outcomes: Outcomes, policy: RetryPolicy,
            control: Control, sort_out: Callable[[list[Document]], Sorted],
            on_conflict: Callable[[Action], None]) -> Loader:  # fmt: skip
    writer = BulkWriter(engine, settings.index, policy, outcomes, control, on_conflict)
    return Loader(
        engine, encoder, settings.vector_field, bulk_bytes=settings.bulk_bytes, sort_out=sort_out, writer=writer,
        outcomes=outcomes, control=control,
    )  # fmt: skip


def _no_conflict(action: Action) -> None:
    raise RuntimeError(f"{action.document.id} was sent without a version, yet conflicted")


def _ticker(meter: Meter, ledger: Ledger, part_read: Callable[[], float | None]) -> Callable[[], None]:
    begin = time.monotonic()

    def tick() -> None:
        read, done = ledger.read, ledger.done
        fraction = fraction_done(read, done, part_read())
        meter.show(Snapshot(read, done, fraction, time.monotonic() - begin))

    return tick
