"""Bulk requests: split them, and classify what the engine answered to each action.

Loads, `VersionedUpdates` and the gateway all decide by `classify_result` how to go on.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from itertools import accumulate
from typing import Generic, Protocol, TypeVar

from es_sbert.batched import slice_by_size
from es_sbert.engines.error_mapping import BLOCK_TYPES, is_closed, is_transient_failure, response_error, root_cause
from es_sbert.engines.rest import Json
from es_sbert.errors import EngineError, EngineUnreachable, EsSbertError, RequestFailed


class BulkOutcome(StrEnum):
    """What became of an action. All but `RETRY`, `BLOCKED` and `SPLIT` are final.

    Attributes:
        WRITTEN: The engine carried it out.
        RETRY: Send it again: the engine is overloaded, or lacks a node.
        BLOCKED: Send it again: the index is read-only, by hand or because a disk is full.
        SPLIT: Send smaller requests: the request is too large, or one of its actions is invalid.
        CONFLICT: Another writer has changed the document.
        MISSING: There is no such document.
        DENIED: The user lacks a privilege, which then holds for all documents.
        INDEX_CLOSED, INDEX_MISSING: So are all documents of the index.
        REFUSED: The engine refuses this document.
    """

    WRITTEN = "written"
    RETRY = "retry"
    BLOCKED = "blocked"
    SPLIT = "split"
    CONFLICT = "conflict"
    MISSING = "missing"
    DENIED = "denied"
    INDEX_CLOSED = "index_closed"
    INDEX_MISSING = "index_missing"
    REFUSED = "refused"

    @property
    def is_retried(self) -> bool:
        return self in (BulkOutcome.RETRY, BulkOutcome.BLOCKED)


# A request with one of these statuses is split until the offending document is alone.
_SPLIT_STATUSES = frozenset({400, 413})
# Type of the engine's error, or status without a type → outcome.
_FINAL: dict[str | int, BulkOutcome] = {
    "security_exception": BulkOutcome.DENIED,
    "index_not_found_exception": BulkOutcome.INDEX_MISSING,
    "document_missing_exception": BulkOutcome.MISSING,
    404: BulkOutcome.MISSING,  # a deletion
}


def classify_result(status: int, kind: str = "", reason: str = "", *, actions: int = 1) -> BulkOutcome:
    """Classify the engine's answer to an action, or to a request that failed as a whole.

    Args:
        status: HTTP status; 0 for a broken connection.
        kind: Type of the engine's error; empty if it is unknown.
        reason: The reason that the engine gives.
        actions: Number of actions that the answer is for.
    """
    if 200 <= status < 300:
        return BulkOutcome.WRITTEN
    if is_closed(kind, reason):
        return BulkOutcome.INDEX_CLOSED
    if kind in BLOCK_TYPES and status < 500:
        return BulkOutcome.BLOCKED
    if is_transient_failure(status, kind):
        return BulkOutcome.RETRY
    if status in _SPLIT_STATUSES and actions > 1:
        return BulkOutcome.SPLIT
    if status == 409:
        return BulkOutcome.CONFLICT
    return _FINAL.get(kind or status, BulkOutcome.REFUSED)


# Not frozen: one is made per document, and a frozen dataclass takes three times as long to make.
@dataclass(slots=True)
class BulkItemResult:
    """The result of one action of a bulk request.

    Attributes:
        status: HTTP status of the item.
        id: The document's id; it differs from the one that was sent if an ingest pipeline has changed it.
        reason: Type of the engine's error and reason for the failure, in one line; empty on success.
        index: The index it was written to; it differs from the one in the request if an ingest pipeline has changed it.
        result: `created`, `updated`, `deleted`, or `noop` if an ingest pipeline dropped the document or an update
            changed nothing; empty on failure.
        version: `_seq_no` and `_primary_term` of the write; None on failure.
        kind: Type of the engine's error; empty on success.
    """

    status: int
    id: str
    reason: str
    index: str = ""
    result: str = ""
    version: tuple[int, int] | None = None
    kind: str = ""

    @classmethod
    def from_item(cls, item: Json) -> BulkItemResult:
        """Read an item of the engine's response."""
        [result] = item.values()
        read, kind, reason = result.get, "", ""
        if "error" in result:
            kind, text = root_cause({"error": result["error"]})
            reason = f"{kind}: {text}" if kind else text
        version = (result["_seq_no"], result["_primary_term"]) if "_seq_no" in result else None
        return cls(result["status"], read("_id") or "", reason, read("_index", ""), read("result", ""), version, kind)

    @property
    def ok(self) -> bool:
        return 200 <= self.status < 300

    @property
    def outcome(self) -> BulkOutcome:
        return classify_result(self.status, self.kind, self.reason)

    def error(self, label: str, action: str) -> EsSbertError:
        """The error for a failure that does not concern the document alone; see `response_error`."""
        error = {"type": self.kind, "reason": self.reason, "index": self.index}
        return response_error(self.status, {"error": error}, label=label, action=action)


class HasBody(Protocol):
    """Lines of a bulk request."""

    @property
    def body(self) -> bytes: ...


A = TypeVar("A", bound=HasBody)


@dataclass
class BulkAttempt(Generic[A]):
    """The result of one bulk request.

    Attributes:
        results: The actions with a final result, in the order of the request.
        retryable: Actions to send again, in that order.
        halves: Groups to send instead of the request.
        reason: Reason of the retry, in one line.
        is_blocked: Whether an action waits for the end of a block, which the reason names.
        statuses: HTTP statuses of the retryable actions, or that of the request; 0 for a broken connection.
        error: The error of a request that failed as a whole; None if the engine returned a result for every action.
    """

    results: list[tuple[A, BulkItemResult]] = field(default_factory=list)
    retryable: list[A] = field(default_factory=list)
    halves: Sequence[list[A]] = ()
    reason: str = ""
    is_blocked: bool = False
    statuses: set[int] = field(default_factory=set)
    error: EngineError | None = None


def send_bulk(group: list[A], post: Callable[[bytes], list[BulkItemResult]]) -> BulkAttempt[A]:
    """Send one bulk request and say how to go on. The only action of a request that is refused counts as refused.

    Args:
        post: Sends a body; returns the result of every action.

    Raises:
        EngineError: the request failed as a whole, and would fail again.
    """
    attempt: BulkAttempt[A] = BulkAttempt()
    try:
        results = post(b"".join(action.body for action in group))
    except (RequestFailed, EngineUnreachable) as error:
        status, kind = (error.status, error.type) if isinstance(error, RequestFailed) else (0, "")
        attempt.error, attempt.statuses = error, {status}
        outcome = classify_result(status, kind, error.message, actions=len(group))
        if outcome is BulkOutcome.SPLIT:
            attempt.halves = split_in_half(group)
            return attempt
        if not outcome.is_retried and (outcome is not BulkOutcome.REFUSED or status not in _SPLIT_STATUSES):
            raise
        results = [BulkItemResult(status, "", error.message, kind=kind)] * len(group)
    for action, result in zip(group, results, strict=True):
        if result.ok or not result.outcome.is_retried:
            attempt.results.append((action, result))
            continue
        attempt.retryable.append(action)
        attempt.statuses.add(result.status)
        if not attempt.is_blocked:
            attempt.reason, attempt.is_blocked = result.reason, result.outcome is BulkOutcome.BLOCKED
    return attempt


def group_actions(actions: Iterable[A], max_bytes: int) -> Iterator[list[A]]:
    """Yield actions in groups of at most `max_bytes`; a larger action gets its own group."""
    return slice_by_size(actions, lambda action: len(action.body), max_bytes)


def split_in_half(actions: list[A]) -> tuple[list[A], list[A]]:
    """Split actions into two groups of about the same number of bytes, neither of them empty.

    Args:
        actions: At least two actions.
    """
    sizes = list(accumulate(len(action.body) for action in actions))
    count = next(count for count, size in enumerate(sizes, 1) if 2 * size >= sizes[-1] or count == len(actions) - 1)
    return actions[:count], actions[count:]
