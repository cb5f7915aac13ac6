"""The context that the parts of one load share, and the engine calls that several of them need."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

from es_sbert.clock import Clock
from es_sbert.engines.protocol import Engine, IndexState
from es_sbert.engines.retry import RetryPolicy, Throttle, with_retries
from es_sbert.errors import EngineError, EsSbertError, IndexMismatch
from es_sbert.index.document_vectors import EmbeddingTargets
from es_sbert.ingest.checkpoint import LoadCheckpoint
from es_sbert.ingest.documents import RecordStream
from es_sbert.ingest.ledger import OutcomeRecorder
from es_sbert.ingest.load_plan import LoadPlan
from es_sbert.ingest.pipeline import LoadControl
from es_sbert.ingest.progress import LoadObserver, ProgressMeter

T = TypeVar("T")


@dataclass(frozen=True)
class LoadContext:
    """What the parts of one load share.

    Attributes:
        targets: The vector fields that it minds.
        index: The index at the beginning.
        memory: What was met and acknowledged; None where the index is the source.
        throttle: How much is sent at a time.
        observer: Sees the load from outside.
        clock: Gives letters and vectors their times.
        stream: The records of the sources, where the first were looked at already; None where they are to be read
            from the beginning.
    """

    engine: Engine
    plan: LoadPlan
    targets: EmbeddingTargets
    control: LoadControl
    meter: ProgressMeter
    outcomes: OutcomeRecorder
    policy: RetryPolicy
    index: IndexState
    memory: LoadCheckpoint | None
    throttle: Throttle
    observer: LoadObserver
    clock: Clock
    stream: RecordStream | None = None


def retrying(context: LoadContext, call: Callable[[], T]) -> T:
    """The call's answer, with the load's patience."""

    def tell(error: EngineError) -> None:
        context.control.waits(error.message)
        context.outcomes.ledger.add_retries(1)

    answer = with_retries(call, context.policy, context.control.no_waiting, tell)
    context.control.clear_backoff()
    return answer


def retrying_unless_halted(context: LoadContext, call: Callable[[], T]) -> T:
    """As `patiently`, for work that is left for the next run once the load is halted.

    Raises:
        Halted: it is.
    """
    context.control.check()
    return retrying(context, call)


def refresh_index(context: LoadContext) -> None:
    """Make the documents visible to searches."""
    try:
        retrying(context, lambda: context.engine.refresh(context.plan.settings.index))
    except EngineError as error:
        # Everything is in; a load of hours is not declared failed for this.
        context.control.cut(f"the last refresh failed, so searches see the documents a little later: {error.message}")


def check_index_unchanged(context: LoadContext) -> IndexState:
    """Make sure that it still is the index that the load began with.

    Engines make an index that is missing when a document comes, without our mapping.

    Returns:
        The index as it is now.

    Raises:
        IndexMismatch: it was deleted or replaced.
        EngineError: the engine failed.
    """
    state = retrying(context, lambda: context.engine.get_index(context.plan.settings.index))
    if state is None or index_uuid(state) != index_uuid(context.index):
        raise index_replaced_error(context)
    return state


def check_index_uuid(context: LoadContext) -> None:
    """As `check_index`, at the cost of a request of a millisecond, without retries.

    Raises:
        IndexMismatch: the index was deleted or replaced.
        EngineError: the engine failed.
    """
    if context.engine.index_uuids(context.index.name).get(context.index.name) != index_uuid(context.index):
        raise index_replaced_error(context)


def moved_alias_reason(context: LoadContext) -> str | None:
    """Why an index that takes no writes will not take any again: its alias has moved to another one.

    None where it has not, where the load names the index itself, or where the engine does not say.
    """
    name = context.plan.settings.index
    try:
        state = None if name == context.index.name else context.engine.get_index(name)
    except EsSbertError:
        return None
    if state is None or state.name == context.index.name:
        return None
    return (
        f"{name} points to {state.name} now, and {context.index.name} takes no more writes: load into {name} again, "
        "with the model that `es-sbert index show` names"
    )


def index_replaced_error(context: LoadContext) -> IndexMismatch:
    """The name by which the load began stands for nothing more, or for another index."""
    return IndexMismatch(
        f"the index {context.index.name} was deleted or replaced during the load",
        f"Look at what stands under {context.plan.settings.index} now, delete it if only this load wrote there, "
        "and run the same command again.",
    )


def index_uuid(index: IndexState) -> str:
    """What tells an index from another one of the same name."""
    return index.settings["index.uuid"]
