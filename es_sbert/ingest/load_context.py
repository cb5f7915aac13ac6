"""The context that the parts of one load share, and the engine calls that several of them need."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import ParamSpec, TypeVar

from es_sbert.clock import Clock
from es_sbert.engines.engine import Engine
from es_sbert.engines.index_state import IndexState
from es_sbert.engines.retry import RetryPolicy, Throttle, with_retries
from es_sbert.errors import EngineError, EsSbertError, IndexMismatch
from es_sbert.index.document_vectors import EmbeddingTargets, targets_to_fill
from es_sbert.ingest.checkpoint import LoadCheckpoint
from es_sbert.ingest.ledger import OutcomeRecorder
from es_sbert.ingest.load_plan import LoadPlan
from es_sbert.ingest.load_threads import LoadControl
from es_sbert.ingest.progress import (
    LoadObserver,
    ProgressMeter,
    ProgressTracker,
    SilentMeter,
    fraction_processed,
)

P = ParamSpec("P")
T = TypeVar("T")


@dataclass(frozen=True)
class IndexRef:
    """The index of a load, by both of its names.

    Attributes:
        alias: The name that the user gave, often the index's own. Read requests use it, because an alias may have a
            filter.
        state: State of the index at the start of the load.
    """

    alias: str
    state: IndexState

    @property
    def concrete(self) -> str:
        """The index's own name. Write requests use it, because an alias may be moved to another model's index."""
        return self.state.name


@dataclass(frozen=True)
class LoadContext:
    """The shared state of the parts of a load.

    Attributes:
        index: The index that the load fills.
        targets: The vector fields of the load.
        throttle: Limits the size and the number of bulk requests.
        checkpoint: The records seen and acknowledged; None if the index is the source.
        clock: Gives dead letters and vectors their timestamps.
    """

    engine: Engine
    plan: LoadPlan
    index: IndexRef
    targets: EmbeddingTargets
    control: LoadControl
    outcomes: OutcomeRecorder
    throttle: Throttle
    checkpoint: LoadCheckpoint | None = None
    clock: Clock = field(default_factory=Clock)
    meter: ProgressMeter = field(default_factory=SilentMeter)
    observer: LoadObserver = field(default_factory=LoadObserver)

    @property
    def retry_policy(self) -> RetryPolicy:
        """The time limit for retries of a transient failure."""
        return RetryPolicy(self.plan.settings.retry_seconds)

    @property
    def in_place_command(self) -> str:
        """The command that embeds the documents of the index that lack a vector of this load."""
        fields = " ".join(f"--vector {target.field}" for target in targets_to_fill(self.targets))
        return f"`es-sbert ingest --index {self.index.alias} {fields}`"

    def retrying(self, call: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Call a function and return its result; transient failures are retried.

        Raises:
            EngineError: the failure is not transient, or has outlasted `retry_seconds`.
        """

        def record_retry(error: EngineError) -> None:
            self.control.engine_wait.begin(error.message)
            self.outcomes.ledger.add_retries(1)

        stop = self.control.stop_retrying
        result = with_retries(lambda: call(*args, **kwargs), self.retry_policy, stop, record_retry)
        self.control.engine_wait.end()
        return result

    def refresh_index(self) -> bool:
        """Make the documents visible to searches; return False if the refresh failed."""
        try:
            self.retrying(self.engine.refresh, self.index.alias)
        except EngineError as error:
            # Not an error: all documents are written, and a load of hours must not fail because of a refresh.
            late = "the last refresh failed, so searches find the documents a little later"
            self.control.end_early(f"{late}: {error.message}")
            return False
        return True

    def check_index_unchanged(self) -> IndexState:
        """Check that the index is the one that the load started with.

        Returns:
            The current state of the index.

        Raises:
            IndexMismatch: the index was deleted or replaced.
            EngineError: the engine failed.
        """
        state = self.retrying(self.engine.get_index, self.index.alias)
        if state is None or state.uuid != self.index.state.uuid:
            raise self.index_replaced_error()
        return state

    def check_index_uuid(self) -> None:
        """Like `check_index_unchanged`, but with one small request and without retries.

        Engines create a missing index when a document arrives, without our mapping.

        Raises:
            IndexMismatch: the index was deleted or replaced.
            EngineError: the engine failed.
        """
        if self.engine.index_uuids(self.index.concrete).get(self.index.concrete) != self.index.state.uuid:
            raise self.index_replaced_error()

    def moved_alias_reason(self) -> str | None:
        """Return the reason not to wait for an index that blocks writes: its alias points to a different index now.

        None if the alias has not moved, if the load names the index itself, or if the engine cannot be asked.
        """
        target = self._moved_alias_target()
        if target is None:
            return None
        return (
            f"{self.index.alias} points to {target} now, and {self.index.concrete} takes no more writes: load into "
            f"{self.index.alias} again, with the model that `es-sbert index show` names"
        )

    def _moved_alias_target(self) -> str | None:
        """The index to which the alias of the load has been moved; None if it has not, or if that cannot be asked."""
        alias, concrete = self.index.alias, self.index.concrete
        try:
            state = None if alias == concrete else self.engine.get_index(alias)
        except EsSbertError:
            return None
        # Where the alias was deleted, a write of another program creates an index of that name.
        return None if state is None or state.name in (alias, concrete) else state.name

    def index_replaced_error(self) -> IndexMismatch:
        """Create the error for an index that was deleted or replaced, or whose alias was moved."""
        target, alias = self._moved_alias_target(), self.index.alias
        if target is not None:
            return IndexMismatch(
                f"{alias} pointed to {self.index.concrete} when the load began, and points to {target} now, as after a "
                "migration",
                f"Run the same command again: it continues with {target}. `es-sbert index show {alias}` shows its "
                "model and text, if the options of the command name others.",
            )
        return IndexMismatch(
            f"the index {self.index.concrete} was deleted or replaced during the load",
            f"Check the index under the name {self.index.alias}, delete it if only this load wrote to it, and "
            "run the same command again.",
        )

    def progress_callback(
        self, fraction_read: Callable[[], float | None], *, watching: Callable[[], bool] = lambda: False
    ) -> Callable[[], None]:
        """Return a function that shows the progress of the load whenever it is called.

        Args:
            fraction_read: The part of the source that was read, 0 to 1; None if its size is unknown.
            watching: Whether the load waits for changes of the index.
        """
        tracker, ledger = ProgressTracker(), self.outcomes.ledger

        def tick() -> None:
            read, processed = ledger.read, ledger.processed
            fraction = fraction_processed(read, processed, fraction_read())
            snapshot = tracker.snapshot(read, processed, fraction, self.control.engine_wait.reason, watching=watching())
            self.meter.show(snapshot)
            self.observer.show(snapshot)

        return tick
