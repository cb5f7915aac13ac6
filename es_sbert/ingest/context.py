"""What the parts of one load share, and what they all need of the engine."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from typing import TypeVar

from es_sbert.clock import Clock, iso
from es_sbert.engines.protocol import Engine, IndexState
from es_sbert.errors import EngineError, EsSbertError, IndexMismatch
from es_sbert.index.targets import Targets, filled
from es_sbert.ingest.control import Control
from es_sbert.ingest.dead_letters import DeadLetters, last_time, letter_keys
from es_sbert.ingest.memory import LoadIdentity, LoadMemory
from es_sbert.ingest.observer import Observer
from es_sbert.ingest.outcomes import Outcomes
from es_sbert.ingest.plan import Plan
from es_sbert.ingest.progress import Meter
from es_sbert.ingest.retry import RetryPolicy, with_retries
from es_sbert.ingest.stream import RecordStream
from es_sbert.ingest.throttle import Throttle

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
    plan: Plan
    targets: Targets
    control: Control
    meter: Meter
    outcomes: Outcomes
    policy: RetryPolicy
    index: IndexState
    memory: LoadMemory | None
    throttle: Throttle
    observer: Observer
    clock: Clock
    stream: RecordStream | None = None


def patiently(context: LoadContext, call: Callable[[], T]) -> T:
    """The call's answer, with the load's patience."""

    def tell(error: EngineError) -> None:
        context.control.waits(error.message)
        context.outcomes.ledger.add_retries(1)

    answer = with_retries(call, context.policy, context.control.no_waiting, tell)
    context.control.goes_on()
    return answer


def patiently_unless_halted(context: LoadContext, call: Callable[[], T]) -> T:
    """As `patiently`, for work that is left for the next run once the load is halted.

    Raises:
        Halted: it is.
    """
    context.control.check()
    return patiently(context, call)


def refresh(context: LoadContext) -> None:
    """Make the documents visible to searches."""
    try:
        patiently(context, lambda: context.engine.refresh(context.plan.settings.index))
    except EngineError as error:
        # Everything is in; a load of hours is not declared failed for this.
        context.control.cut(f"the last refresh failed, so searches see the documents a little later: {error.message}")


def read_index(engine: Engine, name: str) -> IndexState:
    """The index that the load has made sure of.

    Raises:
        IndexMismatch: it is gone already.
    """
    state = engine.get_index(name)
    if state is None:
        raise IndexMismatch(f"the index {name!r} was deleted while the load began", "Run the command again.")
    return state


def check_index(context: LoadContext) -> IndexState:
    """Make sure that it still is the index that the load began with.

    Engines make an index that is missing when a document comes, without our mapping.

    Returns:
        The index as it is now.

    Raises:
        IndexMismatch: it was deleted or replaced.
        EngineError: the engine failed.
    """
    state = patiently(context, lambda: context.engine.get_index(context.plan.settings.index))
    if state is None or index_uuid(state) != index_uuid(context.index):
        raise replaced(context)
    return state


def check_same_index(context: LoadContext) -> None:
    """As `check_index`, at the cost of a request of a millisecond, without retries.

    Raises:
        IndexMismatch: the index was deleted or replaced.
        EngineError: the engine failed.
    """
    if context.engine.index_uuids(context.index.name).get(context.index.name) != index_uuid(context.index):
        raise replaced(context)


def alias_moved(context: LoadContext) -> str | None:
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


def replaced(context: LoadContext) -> IndexMismatch:
    """The name by which the load began stands for nothing more, or for another index."""
    return IndexMismatch(
        f"the index {context.index.name} was deleted or replaced during the load",
        f"Look at what stands under {context.plan.settings.index} now, delete it if only this load wrote there, "
        "and run the same command again.",
    )


def index_uuid(index: IndexState) -> str:
    """What tells an index from another one of the same name."""
    return index.settings["index.uuid"]


def load_identity(wanted: Plan, index: IndexState, targets: Targets) -> LoadIdentity:
    """What must be the same for a load to go on where another one ended."""
    own = filled(targets)
    fields = tuple(
        (target.field, target.template.template, None if target.meta.passages is None else str(target.meta.passages))
        for target in own
    )
    return LoadIdentity(index_uuid(index), own[0].meta.fingerprint, fields, wanted.settings.id_field)


def observe_index(context: LoadContext) -> None:
    """Let nothing that this load writes look older than what the index holds.

    Raises:
        EngineError: the engine failed.
    """
    name = context.plan.settings.index
    patiently(context, partial(context.engine.refresh, name))
    for target in filled(context.targets):
        field = f"{target.meta_field}.embedded_at"
        latest = {"query": {"exists": {"field": field}}, "sort": [{field: "desc"}], "size": 1, "_source": False}
        answer = patiently(context, partial(context.engine.search, name, latest))
        for hit in answer["hits"]["hits"]:
            context.clock.observe(iso(datetime.fromtimestamp(hit["sort"][0] / 1000, UTC)))


def open_letters(wanted: Plan, memory: LoadMemory | None, clock: Clock) -> DeadLetters:
    """The dead-letter file, which gets no letter twice when a load goes on.

    Args:
        clock: Is shown the last letter's time.

    Raises:
        OutputError: the memory cannot be written.
    """
    clock.observe(last_time(wanted.dead_letters) or "")
    index = wanted.settings.index
    if memory is None:
        return DeadLetters(wanted.dead_letters, clock.now(), clock=clock, index=index)
    if not memory.resumed:
        return DeadLetters(wanted.dead_letters, memory.run, clock=clock, index=index)
    memory.remember_letters(letter_keys(wanted.dead_letters, memory.run))
    return DeadLetters(wanted.dead_letters, memory.run, memory.has_letter, clock, index)
