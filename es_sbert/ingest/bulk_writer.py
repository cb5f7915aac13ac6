"""Send bulk requests: retry on 429 and broken connections, split bodies that are too large, record every outcome."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import dataclass, field

from es_sbert.engines.engine import BulkItemResult, DocumentKey
from es_sbert.engines.error_class import ErrorClass, is_closed
from es_sbert.engines.error_mapping import block_remedy, privilege_remedy
from es_sbert.engines.retry import Backoff, error_class
from es_sbert.errors import AccessDenied, EngineError, RequestFailed
from es_sbert.ingest.bulk_actions import DocumentAction, split_in_half
from es_sbert.ingest.ledger import DocumentOutcome
from es_sbert.ingest.load_context import LoadContext
from es_sbert.ingest.read_back import PIPELINE_SETTINGS, ReadBackCheck
from es_sbert.ingest.read_documents import Document
from es_sbert.ingest.written_versions import Version
from es_sbert.messages import be, log_event, pluralize

# The request was rejected as a whole: split it until the offending document is alone.
_SPLIT_STATUSES = frozenset({400, 413})
_OVERLOAD_STATUSES = frozenset({429, 503})
# HTTP 500 for one item may be transient: it is retried, but only within the budget.
_INTERNAL_SERVER_ERROR = 500
_BLOCKED_REASON = "cluster_block_exception"
# The following reasons are not about a document: every later one would be rejected too.
_DELETED_REASON = "index_not_found_exception"  # the load ends with an error that says so


def misrouted_reason(document: Document, result: BulkItemResult, index: str) -> str | None:
    """The reason why a document that the engine acknowledged is not where it was sent to; None if it is.

    Args:
        result: The engine's result for the document.
        index: The index that the document was sent to.
    """
    if document.version is not None:  # ingest pipelines do not see partial updates
        return None
    is_there = result.id == document.id and result.index == index
    if is_there and result.result != "noop":
        return None
    settings = f"see the settings {' and '.join(PIPELINE_SETTINGS)} of {index}"
    if result.result == "noop":
        return f"an ingest pipeline drops it: {settings}"
    return f"an ingest pipeline writes it to {result.index} as {result.id!r}: {settings}"


@dataclass
class _Attempt:
    """The result of one bulk request.

    Attributes:
        retryable: Actions to send again, in the order of the request.
        reason: Reason for the retry, as one line.
        halves: Groups to send instead, because the request was rejected as a whole.
        overloaded: Whether the engine is overloaded.
        answered: Whether the engine returned a result for every action.
        server_errors: Whether all retryable actions failed with HTTP 500.
        disconnected: Whether the connection broke before a response arrived.
    """

    retryable: list[DocumentAction] = field(default_factory=list)
    reason: str = ""
    halves: Sequence[list[DocumentAction]] = ()
    overloaded: bool = False
    answered: bool = False
    server_errors: bool = False
    disconnected: bool = False


class BulkWriter:
    """Sends groups of actions; thread-safe.

    Nothing is sent once the engine is unreachable. Once the load is interrupted, a failed request is not retried, and
    nothing is sent after it.

    Args:
        context: The load. Actions go to the index itself: an alias may be moved to another model's index during the
            load, which would mix the vectors of both.

    Attributes:
        read_back: Compares what the engine stores with what was sent.
    """

    def __init__(self, context: LoadContext) -> None:
        self.read_back = ReadBackCheck(context)
        self._context = context
        self._index = context.index.concrete
        self._control = context.control
        self._outcomes = context.outcomes
        self._conflicts: dict[DocumentKey, DocumentAction] = {}
        self._given_up = threading.Event()

    def send(self, actions: list[DocumentAction]) -> None:
        """Send a group; when this returns, every document of it has an outcome."""
        groups = [actions]
        # The backoff also ends when another thread finds the engine unreachable.
        backoff = Backoff(self._context.retry_policy, self._control.stop_embedding)
        while groups:
            groups.extend(reversed(self._send_group(groups.pop(), backoff)))

    def take_conflicts(self) -> dict[DocumentKey, DocumentAction]:
        """Return the updates of documents that other writers changed after they were read; each is returned once.

        Nothing may be sent at the same time.
        """
        conflicts, self._conflicts = self._conflicts, {}
        return conflicts

    def _send_group(self, group: list[DocumentAction], backoff: Backoff) -> Sequence[list[DocumentAction]]:
        """Send one request; return the groups to send next, in order."""
        throttle = self._context.throttle
        if self._leave_if_stopped(group):
            return ()
        if len(group) > 1 and sum(len(action.body) for action in group) > throttle.body_bytes:
            # The group was packed before the limit fell.
            return split_in_half(group)
        with throttle.slot(), self.read_back.exclusive_first_request():
            # The engine may have become unreachable while the group waited for its slot.
            if self._leave_if_stopped(group):
                return ()
            attempt = self._attempt(group, backoff.seconds_left)
        if attempt.overloaded:
            throttle.decrease()
        if attempt.retryable:
            if len(attempt.retryable) < len(group):
                # Some documents were accepted: the retry budget covers only the time without progress.
                backoff.reset()
            return self._wait(attempt, backoff)
        if attempt.answered:
            throttle.increase()
        backoff.reset()
        self._control.engine_wait.end()
        return attempt.halves

    def _leave_if_stopped(self, group: Sequence[DocumentAction]) -> bool:
        """Leave the group for the next run if nothing is sent any more; return whether it was left."""
        if not (self._control.engine_lost or self._given_up.is_set()):
            return False
        self._leave(group)
        return True

    def _leave(self, actions: Sequence[DocumentAction]) -> None:
        """Leave the documents of these actions for the next run."""
        self._outcomes.leave([action.document.key for action in actions])

    def _wait(self, attempt: _Attempt, backoff: Backoff) -> Sequence[list[DocumentAction]]:
        """Wait before a retry; return the groups to send then, none if the retries have ended."""
        actions, seconds = attempt.retryable, self._context.retry_policy.budget
        is_blocked = attempt.reason.startswith(_BLOCKED_REASON)
        reason = f"{attempt.reason} {block_remedy(attempt.reason)}" if is_blocked else attempt.reason
        self._control.engine_wait.begin(reason)
        moved = self._context.moved_alias_reason() if is_blocked else None
        if moved is not None:
            self._control.stop_sending(moved)
        elif backoff.wait():
            self._outcomes.ledger.add_retries(len(actions))
            message = f"{pluralize(len(actions), 'document')} {be(len(actions))} sent again: {attempt.reason}"
            log_event("retry", message, documents=len(actions), reason=attempt.reason)
        elif self._control.stop_embedding.is_set():
            self._leave(actions)
            if not attempt.answered:
                self._given_up.set()  # each further request might take as long to fail
            return ()
        elif attempt.server_errors:
            for action in actions:
                self._record_failure(action, f"the engine kept failing on it for {seconds:g} s: {attempt.reason}")
            return ()
        else:
            self._control.stop_sending(f"{reason} (retried for {seconds:g} s)")
        if attempt.disconnected and len(actions) > 1:
            # Split, because the body may be the cause: a proxy limits its size, or it keeps the server too busy.
            return split_in_half(actions)
        return (actions,)

    def _attempt(self, group: list[DocumentAction], seconds: float) -> _Attempt:
        """Send one request and record the outcome of every document that needs no retry.

        Args:
            seconds: Maximum time for which the engine itself may wait for a shard.
        """
        body = b"".join(action.body for action in group)
        try:
            self._context.check_index_uuid()
            with self._context.observer.bulk_request(len(body)):
                results = self._context.engine.bulk(self._index, body, actions=len(group), timeout=seconds)
        except EngineError as error:
            return self._failed_request(group, len(body), error)
        acknowledged: list[tuple[DocumentAction, Version | None]] = []
        others: list[tuple[DocumentAction, BulkItemResult]] = []
        for action, result in zip(group, results, strict=True):
            if result.ok and misrouted_reason(action.document, result, self._index) is None:
                acknowledged.append((action, result.version))
            else:
                others.append((action, result))
        # An update that changes nothing gets no sequence number.
        writes = sum(result.ok and result.index == self._index and result.result != "noop" for result in results)
        self._outcomes.record_in_index([(action.document.key, version) for action, version in acknowledged], writes)
        self._record_outcomes([action for action, _ in acknowledged])
        attempt = _Attempt(answered=True, server_errors=True)
        for action, result in others:
            if result.may_succeed_later:
                attempt.retryable.append(action)
                attempt.reason = result.reason
                attempt.overloaded |= result.status in _OVERLOAD_STATUSES
                attempt.server_errors &= result.status == _INTERNAL_SERVER_ERROR
            else:
                self._record(action, result)
        self.read_back.check_first_request([(action, each) for action, each in acknowledged if each is not None])
        return attempt

    def _failed_request(self, group: list[DocumentAction], size: int, error: EngineError) -> _Attempt:
        """Decide how to continue after a request that failed as a whole."""
        status = error.status if isinstance(error, RequestFailed) else 0
        if error_class(error) is not ErrorClass.PERMANENT:
            disconnected = status == 0
            overloaded = status in _OVERLOAD_STATUSES or disconnected
            return _Attempt(group, error.message, overloaded=overloaded, disconnected=disconnected)
        if status == 413:
            self._context.throttle.limit_body(size)
        if status in _SPLIT_STATUSES:
            if len(group) > 1:
                return _Attempt(halves=split_in_half(group))
            self._record_failure(group[0], error.message)
        else:
            remedy = f" ({error.remedy.rstrip('.')})" if isinstance(error, AccessDenied) else ""
            self._control.stop_sending(error.message + remedy)
            self._leave(group)
        return _Attempt()

    def _record_outcomes(self, actions: Sequence[DocumentAction]) -> None:
        """Record the outcomes of documents that the index holds as they were sent."""
        indexed = [action for action in actions if action.outcome is DocumentOutcome.INDEXED]
        self._outcomes.ledger.add_indexed([(action.lost_tokens, action.chunks) for action in indexed])
        if len(indexed) < len(actions):
            for action in actions:
                if action.outcome is not DocumentOutcome.INDEXED:
                    self._outcomes.add(action.outcome)

    def _record(self, action: DocumentAction, result: BulkItemResult) -> None:
        """Record the outcome of a document that the index does not hold as it was sent."""
        document, reason = action.document, result.reason
        misrouted = misrouted_reason(document, result, self._index) if result.ok else None
        if misrouted is not None:
            self._record_failure(action, misrouted)
        elif is_closed(result.kind, reason) or result.is_denied or reason.startswith(_DELETED_REASON):
            if result.is_denied:
                self._control.stop_sending(f"{reason} ({privilege_remedy(reason).rstrip('.')})")
            elif is_closed(result.kind, reason):
                self._control.stop_sending(f"the index {self._index} is closed: open it")
            self._leave([action])
        elif document.version is not None and result.status == 409:
            self._uncount_embedded(action)
            self._conflicts[document.key] = action
        elif document.version is not None and reason.startswith("document_missing_exception"):
            self._uncount_embedded(action)
            self._outcomes.add(DocumentOutcome.DELETED)
        else:
            self._record_failure(action, f"refused by the engine ({result.status}): {reason}")

    def _record_failure(self, action: DocumentAction, reason: str) -> None:
        self._uncount_embedded(action)
        self._outcomes.record_dead_letter(action.document.rejected(reason))

    def _uncount_embedded(self, action: DocumentAction) -> None:
        if action.outcome is DocumentOutcome.INDEXED:
            self._outcomes.ledger.add_embedded(-1)
