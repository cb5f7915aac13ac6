"""The two ways of documents into an index: from sources, and where they stand."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial

from es_sbert.encoder.encoder import Encoder
from es_sbert.index.layout import nested_limit
from es_sbert.ingest.actions import Action
from es_sbert.ingest.backfill import Clearing, Conflicts, IndexReader
from es_sbert.ingest.bulk import BulkWriter
from es_sbert.ingest.context import LoadContext, alias_moved, check_same_index, patiently_unless_halted
from es_sbert.ingest.documents import Document, DocumentRules, read_documents, windows
from es_sbert.ingest.files import ChangeDetection
from es_sbert.ingest.load import WINDOW_BYTES, Loader, Sorted
from es_sbert.ingest.progress import ProgressTracker, fraction_processed
from es_sbert.ingest.read_back import ReadBack
from es_sbert.ingest.stream import RecordStream

# How often documents that other writers keep changing are read and embedded anew.
CONFLICT_ROUNDS = 3


def load_sources(context: LoadContext, encoder: Encoder, stream: RecordStream, tick: Callable[[], None], *,
                 empty_index: bool) -> None:  # fmt: skip
    """Bring every document of the plan's sources to its end.

    Args:
        stream: Their records.
        tick: Called several times a second.
        empty_index: Whether the index held nothing when the load began.

    Raises:
        EsSbertError: a stage failed (never because of a single document).
    """
    assert context.memory is not None, "a load of files remembers what it met"
    settings, outcomes = context.plan.settings, context.outcomes
    detect = ChangeDetection(
        context.engine, context.index, settings.index, context.targets, outcomes,
        patiently=partial(patiently_unless_halted, context),
        # Where there are other vector fields, another load may be filling them just now.
        empty_index=empty_index and all(target.filled for target in context.targets),
        # A letter gives way to a later version of its document, also to one that was written a moment ago.
        refresh=settings.retry is not None,
        distrusted=context.memory.is_distrusted(),
    )  # fmt: skip
    rules = DocumentRules.of(context.targets, settings.id_field, context.index.routing_of(settings.index))
    documents = read_documents(stream, rules, context.memory, outcomes)
    read_back = ReadBack(context)
    loader = _loader(context, encoder, detect, _no_conflict, read_back)
    loader.run(windows(documents, batch_window(context, encoder), WINDOW_BYTES), tick)
    read_back.check_sample()


def embed_in_place(context: LoadContext, encoder: Encoder, reader: IndexReader,
                   documents: Callable[[], Iterable[Document]], tick: Callable[[], None]) -> None:  # fmt: skip
    """Give documents of the index their vectors.

    Args:
        documents: Gives those that lack one, as `reader` finds them.
        tick: Called several times a second.

    Raises:
        EsSbertError: a stage failed (never because of a single document).
    """
    window = batch_window(context, encoder)
    conflicts = Conflicts()
    read_back = ReadBack(context)
    loader = _loader(context, encoder, Clearing(context.targets), conflicts.add, read_back)
    loader.run(windows(documents(), window, WINDOW_BYTES), tick)
    for _ in range(CONFLICT_ROUNDS):
        changed = conflicts.take()
        if not changed:
            break
        loader.run(windows(reader.again(changed), window, WINDOW_BYTES), tick)
    for action in conflicts.take().values():
        reason = "other writers kept changing it while it was being embedded: run again"
        document = action.document
        context.outcomes.dead(document.origin, reason, document.source, document.id, partial=True)
    read_back.check_sample()


def batch_window(context: LoadContext, encoder: Encoder) -> int:
    """Texts that are sorted by length and embedded together.

    A GPU wants all that the encoder takes; on a CPU half of it costs nothing, and documents reach the index sooner.
    """
    asked = context.plan.settings.batch_window
    return asked or (encoder.window // 2 if encoder.info.device == "cpu" else encoder.window)


def ticker(
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


def _loader(context: LoadContext, encoder: Encoder, sort_out: Callable[[list[Document]], Sorted],
            on_conflict: Callable[[Action], None], read_back: ReadBack) -> Loader:  # fmt: skip
    writer = BulkWriter(
        # The index itself: behind an alias that goes over to another model's meanwhile, vectors would be mixed.
        context.engine, context.index.name, context.policy, context.throttle, context.outcomes, context.control,
        on_conflict, context.observer, read_back, partial(check_same_index, context), partial(alias_moved, context),
    )  # fmt: skip
    return Loader(
        context.engine, encoder, context.targets, throttle=context.throttle, sort_out=sort_out, writer=writer,
        outcomes=context.outcomes, control=context.control, observer=context.observer, clock=context.clock,
        nested_limit=nested_limit(context.index),
    )  # fmt: skip


def _no_conflict(action: Action) -> None:
    raise RuntimeError(f"{action.document.id} was sent without a version, yet conflicted")
