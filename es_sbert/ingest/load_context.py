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
from es_sbert.index.document_vectors import EmbeddingTargets
from es_sbert.ingest.checkpoint import LoadCheckpoint
from es_sbert.ingest.ledger import OutcomeRecorder
from es_sbert.ingest.load_plan import LoadPlan
from es_sbert.ingest.load_threads import LoadControl
from es_sbert.ingest.progress import LoadObserver, ProgressMeter, SilentMeter
from es_sbert.ingest.read_documents import RecordStream
from es_sbert.ingest.written_versions import WrittenVersions

P = ParamSpec("P")
T = TypeVar("T")


@dataclass(frozen=True)
class LoadContext:
    """What the parts of one load share.

    Attributes:
        index: The index when the load started.
        targets: The vector fields of the load.
        throttle: Limits the size and the number of bulk requests.
        checkpoint: The records seen and acknowledged; None if the index is the source.
        clock: Gives dead letters and vectors their times.
        versions: The versions that the load has written, for the comparison at its end.
        stream: The records of the sources, if the first ones have been checked; None reads the sources from the start.
    """

    engine: Engine
    plan: LoadPlan
    index: IndexState
    targets: EmbeddingTargets
    control: LoadControl
    outcomes: OutcomeRecorder
    throttle: Throttle
    checkpoint: LoadCheckpoint | None = None
    clock: Clock = field(default_factory=Clock)
    meter: ProgressMeter = field(default_factory=SilentMeter)
    observer: LoadObserver = field(default_factory=LoadObserver)
    stream: RecordStream | None = None
    versions: WrittenVersions = field(default_factory=WrittenVersions)

    @property
    def retry_policy(self) -> RetryPolicy:
        """How long a transient failure is retried."""
        return RetryPolicy(self.plan.settings.retry_seconds)

    def retrying(self, call: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """The result of a call; transient failures are retried.

        Raises:
            EngineError: a failure that is not transient, or that outlasted `--retry-seconds`.
        """

        def record_retry(error: EngineError) -> None:
            self.control.set_backoff(error.message)
            self.outcomes.ledger.add_retries(1)

        stop = self.control.stop_retrying
        result = with_retries(lambda: call(*args, **kwargs), self.retry_policy, stop, record_retry)
        self.control.clear_backoff()
        return result

    def refresh_index(self) -> bool:
        """Make the documents visible to searches; False if that failed."""
        try:
            self.retrying(self.engine.refresh, self.plan.settings.index)
        except EngineError as error:
            # All documents are written: a load of hours does not fail because of this.
            late = "the last refresh failed, so searches see the documents a little later"
            self.control.truncate(f"{late}: {error.message}")
            return False
        return True

    def check_index_unchanged(self) -> IndexState:
        """Check that the index is the one that the load started with.

        Returns:
            The current state of the index.

        Raises:
            IndexMismatch: it was deleted or replaced.
            EngineError: the engine failed.
        """
        state = self.retrying(self.engine.get_index, self.plan.settings.index)
        if state is None or index_uuid(state) != index_uuid(self.index):
            raise self.index_replaced_error()
        return state

    def check_index_uuid(self) -> None:
        """As `check_index_unchanged`, in a request of a millisecond and without retries.

        Engines create a missing index when a document arrives, without our mapping.

        Raises:
            IndexMismatch: the index was deleted or replaced.
            EngineError: the engine failed.
        """
        if self.engine.index_uuids(self.index.name).get(self.index.name) != index_uuid(self.index):
            raise self.index_replaced_error()

    def moved_alias_reason(self) -> str | None:
        """Why it is useless to wait for an index that blocks writes: its alias points to another index now.

        None if it does not, if the load names the index itself, or if the engine does not tell.
        """
        name = self.plan.settings.index
        try:
            state = None if name == self.index.name else self.engine.get_index(name)
        except EsSbertError:
            return None
        if state is None or state.name == self.index.name:
            return None
        return (
            f"{name} points to {state.name} now, and {self.index.name} takes no more writes: load into {name} again, "
            "with the model that `es-sbert index show` names"
        )

    def index_replaced_error(self) -> IndexMismatch:
        """The index was deleted or replaced, or its alias was moved."""
        return IndexMismatch(
            f"the index {self.index.name} was deleted or replaced during the load",
            f"Check the index under the name {self.plan.settings.index}, delete it if only this load wrote to it, and "
            "run the same command again.",
        )


def index_uuid(index: IndexState) -> str:
    """The id that distinguishes an index from another one of the same name."""
    return index.settings["index.uuid"]
