"""Send bulk updates that apply only to unchanged documents, and retry each until it is accepted or rejected."""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Iterable, Iterator
from functools import partial
from typing import NamedTuple

from es_sbert.engines.bulk_request import A, BulkAttempt, BulkItemResult, BulkOutcome, group_actions, send_bulk
from es_sbert.engines.engine import DocumentKey, Engine
from es_sbert.engines.error_mapping import block_remedy
from es_sbert.engines.index_state import IndexState
from es_sbert.engines.retry import Backoff, RetryPolicy
from es_sbert.errors import IndexMismatch, RequestFailed
from es_sbert.index.source_mode import check_source_is_whole
from es_sbert.messages import pluralize

BODY_BYTES = 5 << 20


class BulkWrite(NamedTuple):
    """One action of a bulk request.

    Attributes:
        key: Id and routing of the document.
        body: The lines of the action.
    """

    key: DocumentKey
    body: bytes


class VersionedUpdates:
    """Sends updates to one index and retries them after overloads and connection failures.

    Args:
        state: The index as it was read; an index that has replaced it is not updated.
        policy: Backoff and time limit for transient failures.
        on_wait: Called with the reason of each retry.
        stop_retrying: Once set, failures are not retried; None if only Ctrl-C ends the retries.
        source: The index whose `_source` the documents are written from again: for partial updates, the same index;
            None if documents are only deleted.
        made: Top-level fields that every update sets or removes.

    Raises:
        IndexMismatch: documents would lose fields that `_source` lacks.
    """

    def __init__(
        self,
        engine: Engine,
        state: IndexState,
        policy: RetryPolicy,
        on_wait: Callable[[str], None],
        stop_retrying: threading.Event | None = None,
        *,
        source: IndexState | None,
        made: Collection[str] = (),
    ) -> None:
        if source is not None:
            check_source_is_whole(source, made)
        self._engine = engine
        self._state = state
        self._policy = policy
        self._on_wait = on_wait
        self._stop_retrying = stop_retrying

    def send(self, actions: Iterable[A]) -> Iterator[tuple[A, BulkItemResult]]:
        """Yield each action with its final result, in any order. No two actions may be for the same document.

        Raises:
            AccessDenied: the user may not write to the index. Acknowledged updates are kept.
            IndexMismatch: the index was deleted or replaced.
            EngineError: the index was closed, or the engine did not accept an update within the policy's budget.
                Acknowledged updates are kept.
        """
        for group in group_actions(actions, BODY_BYTES):
            yield from self._send_group(group)

    def _send_group(self, group: list[A]) -> Iterator[tuple[A, BulkItemResult]]:
        groups, backoff = [group], Backoff(self._policy, self._stop_retrying)
        while groups:
            waiting = groups.pop()
            attempt = send_bulk(waiting, partial(self._post, len(waiting), backoff.seconds_left))
            for action, result in attempt.results:
                # These reasons hold for all documents.
                if result.outcome in (BulkOutcome.DENIED, BulkOutcome.INDEX_CLOSED):
                    raise result.error(self._engine.info.label, f"writing to {self._state.name}")
                if result.outcome is BulkOutcome.INDEX_MISSING:
                    raise IndexMismatch("the index was deleted while it was written to", "Run the command again.")
                yield action, result
            groups += reversed(attempt.halves)
            if len(attempt.retryable) < len(waiting):
                backoff.reset()
            if attempt.retryable:
                groups.append(attempt.retryable)
                self._on_wait(attempt.reason)
                if not backoff.wait():
                    raise attempt.error or self._refused_error(attempt)

    def _post(self, actions: int, seconds: float, body: bytes) -> list[BulkItemResult]:
        self._check_index()
        return self._engine.bulk(self._state.name, body, actions=actions, timeout=seconds)

    def _refused_error(self, attempt: BulkAttempt[A]) -> RequestFailed:
        remedy = block_remedy(attempt.reason) if attempt.is_blocked else "Check the cluster's load and free disk space."
        return RequestFailed(
            f"{self._engine.info.label} did not accept {pluralize(len(attempt.retryable), 'update')} within "
            f"{self._policy.budget:g} s: {attempt.reason}",
            f"{remedy} Then run the same command again: documents that are up to date are not written again.",
        )

    def _check_index(self) -> None:
        """Check that the index is the one that was read, because a bulk request would create a missing index."""
        if self._engine.index_uuids(self._state.name).get(self._state.name) != self._state.uuid:
            raise IndexMismatch(
                f"the index {self._state.name} was deleted or replaced since it was read", "Run the command again."
            )
