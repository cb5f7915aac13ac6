"""Send bulk updates that apply only to unchanged documents, and retry each until it is accepted or rejected."""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from functools import partial
from typing import TypeVar

from es_sbert.engines.engine import BulkItemResult, Engine
from es_sbert.engines.error_mapping import BLOCK_TYPES, ErrorClass, access_denied, block_remedy
from es_sbert.engines.index_state import IndexState
from es_sbert.engines.retry import Backoff, RetryPolicy, error_class, make_retrier
from es_sbert.errors import EngineError, IndexMismatch, RequestFailed
from es_sbert.index.document_vectors import HasBody, group_actions, split_in_half
from es_sbert.index.source_mode import check_source_is_whole
from es_sbert.messages import pluralize

BODY_BYTES = 5 << 20
CONFLICT = 409
_TOO_LARGE = 413

A = TypeVar("A", bound=HasBody)


def is_deleted(result: BulkItemResult) -> bool:
    """Whether an update found no document.

    Raises:
        IndexMismatch: the whole index was deleted.
    """
    if result.reason.startswith("index_not_found_exception"):
        raise IndexMismatch("the index was deleted while it was written to", "Run the command again.")
    return result.reason.startswith("document_missing_exception")


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
        self._retrying = make_retrier(policy, on_wait, stop_retrying)

    def send(self, actions: Iterable[A]) -> Iterator[tuple[A, BulkItemResult]]:
        """Yield each action with its final result, in any order. No two actions may be for the same document.

        Raises:
            AccessDenied: the user may not write to the index. Acknowledged updates are kept.
            IndexMismatch: the index was deleted or replaced.
            EngineError: the engine did not accept an update within the policy's budget. Acknowledged updates are kept.
        """
        for group in group_actions(actions, BODY_BYTES):
            yield from self._send_group(group)

    def _send_group(self, group: Sequence[A]) -> Iterator[tuple[A, BulkItemResult]]:
        waiting, backoff = list(group), Backoff(self._policy, self._stop_retrying)
        while waiting:
            self._check_index()
            body = b"".join(action.body for action in waiting)
            try:
                results = self._engine.bulk(self._state.name, body, actions=len(waiting), timeout=backoff.seconds_left)
            except EngineError as error:
                status = error.status if isinstance(error, RequestFailed) else 0
                if status == _TOO_LARGE and len(waiting) > 1:
                    for half in split_in_half(waiting):
                        yield from self._send_group(half)
                    return
                if error_class(error) is ErrorClass.PERMANENT:
                    raise
                self._on_wait(error.message)
                if not backoff.wait():
                    raise
                continue
            again, reason = [], ""
            for action, result in zip(waiting, results, strict=True):
                if result.is_denied:
                    raise access_denied(self._engine.info.label, f"writing to {self._state.name}", result.reason)
                if result.may_succeed_later:
                    again.append(action)
                    reason = reason or result.reason
                else:
                    yield action, result
            if len(again) < len(waiting):
                backoff.reset()
            waiting = again
            if waiting:
                self._on_wait(reason)
                if not backoff.wait():
                    is_blocked = any(reason.startswith(kind) for kind in BLOCK_TYPES)
                    remedy = block_remedy(reason) if is_blocked else "Check the cluster's load and free disk space."
                    raise RequestFailed(
                        f"{self._engine.info.label} did not accept {pluralize(len(waiting), 'update')} within "
                        f"{self._policy.budget:g} s: {reason}",
                        f"{remedy} Then run the same command again: documents that are up to date are "
                        "not written again.",
                    )

    def _check_index(self) -> None:
        """Check that the index is the one that was read, because a bulk request would create a missing index."""
        uuids = self._retrying(partial(self._engine.index_uuids, self._state.name))
        if uuids.get(self._state.name) != self._state.uuid:
            raise IndexMismatch(
                f"the index {self._state.name} was deleted or replaced since it was read", "Run the command again."
            )
