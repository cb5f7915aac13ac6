"""Send bulk requests: retry on 429 and broken connections, split bodies that are too large, record every outcome."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass, field

from es_sbert.engines.error_mapping import privilege_remedy
from es_sbert.engines.protocol import BulkItemResult, Engine
from es_sbert.engines.retry import Backoff, RetryPolicy, Throttle, is_retryable, is_transient
from es_sbert.errors import AccessDenied, EngineError, RequestFailed
from es_sbert.ingest.documents import Document, DocumentAction, split_in_half
from es_sbert.ingest.ledger import DocumentOutcome, OutcomeRecorder
from es_sbert.ingest.pipeline import LoadControl
from es_sbert.ingest.progress import LoadObserver
from es_sbert.ingest.read_back import ReadBackCheck
from es_sbert.messages import log_event

# The whole request was refused because of something inside it: halve it until the culprit stands alone.
_SPLIT_STATUSES = frozenset({400, 413})
_OVERLOAD_STATUSES = frozenset({429, 503})
# The engine itself stumbles over a document: it may pass, but must not hold up the others for ever.
_INTERNAL_SERVER_ERROR = 500
# Read-only, by hand or by a disk that is nearly full: it passes once somebody has mended it.
_BLOCKED_REASON = "cluster_block_exception"
_DENIED_REASON = "security_exception"
# Nothing is the matter with the documents, and all that follow would be refused too.
_CLOSED_REASON = "index_closed_exception"
# A load whose index was deleted ends with an error that says so.
_DELETED_REASON = "index_not_found_exception"
# What a pipeline refuses it refuses for ever, though engines answer 500 for its `fail` processor.
_PIPELINE_REASON = "fail_processor_exception"
_PIPELINE_SETTINGS = "see the settings index.default_pipeline and index.final_pipeline"
_BLOCKED_STATUS = 403  # of a request; a user who may not is an AccessDenied


@dataclass
class _RetryableActions:
    """What of a request is worth another try.

    Attributes:
        actions: In the order of the request; none where everything has come to its end.
        reason: Why, in one line.
        overloaded: Whether the engine has more to do than it can.
        answered: Whether the engine took the request, whatever became of its actions.
        stumbled: Whether all of them made the engine stumble, while it took the request as such.
        broken: Whether the connection broke before an answer came.
    """

    actions: list[DocumentAction] = field(default_factory=list)
    reason: str = ""
    overloaded: bool = False
    answered: bool = False
    stumbled: bool = False
    broken: bool = False


def _is_retryable_item(result: BulkItemResult) -> bool:
    """Whether an action is worth another try."""
    if result.reason.startswith(_PIPELINE_REASON):
        return False
    return is_retryable(result.status) or result.reason.startswith(_BLOCKED_REASON)


def misrouted_reason(document: Document, taken: BulkItemResult, index: str) -> str | None:
    """Why a document that the engine took does not stand where it was sent to; None where it does.

    Args:
        taken: What the engine said of it.
        index: The index that it was sent to.
    """
    if document.version is not None:  # a partial update, which pipelines do not see
        return None
    if taken.result == "noop":
        return f"an ingest pipeline drops it: {_PIPELINE_SETTINGS} of {index}"
    if (taken.index, taken.id) != (index, document.id):
        return f"an ingest pipeline writes it to {taken.index} as {taken.id!r}: {_PIPELINE_SETTINGS} of {index}"
    return None


class BulkWriter:
    """Sends groups of actions; thread-safe.

    Args:
        engine: Where to.
        index: Index or alias.
        policy: How long transient failures are waited out.
        throttle: How much is sent at a time.
        outcomes: Where each document's end is entered.
        control: Told when the engine is lost; after that, nothing is sent any more. Once the load is interrupted, a
            request that fails is not sent again, and nothing is sent after it.
        on_conflict: Takes the action of a document that was written since it was read.
        observer: Sees each request.
        read_back: Compares what the engine stores with what was sent.
        check_index: Called right before each request, which would create the index if it were missing.
        alias_moved: Why it is useless to wait for a blocked index: its alias points to another one; None where it is
            not.
    """

    def __init__(
        self,
        engine: Engine,
        index: str,
        policy: RetryPolicy,
        throttle: Throttle,
        outcomes: OutcomeRecorder,
        control: LoadControl,
        on_conflict: Callable[[DocumentAction], None],
        observer: LoadObserver,
        read_back: ReadBackCheck,
        check_index: Callable[[], None],
        alias_moved: Callable[[], str | None] = lambda: None,
    ) -> None:
        self._engine = engine
        self._index = index
        self._policy = policy
        self._throttle = throttle
        self._outcomes = outcomes
        self._control = control
        self._on_conflict = on_conflict
        self._observer = observer
        self._given_up = threading.Event()
        self._read_back = read_back
        self._check_index = check_index
        self._alias_moved = alias_moved

    def send(self, actions: list[DocumentAction]) -> None:
        """Send a group; when this returns, every document of it has come to an end."""
        waiting = [actions]
        # Also where another thread has lost the engine: what waits is left then.
        backoff = Backoff(self._policy, self._control.halted)
        while waiting:
            group = waiting.pop()
            if self._is_over():
                self._outcomes.left(len(group))
                continue
            if len(group) > 1 and sum(len(action.body) for action in group) > self._throttle.body_bytes:
                # It was packed when the engine still took more at a time.
                waiting.extend(reversed(split_in_half(group)))
                continue
            with self._throttle.request(), self._read_back.exclusive_first_request():
                if self._is_over():  # since this group waits for its turn
                    self._outcomes.left(len(group))
                    continue
                refused = self._attempt(group, waiting, backoff.left)
            if refused.overloaded:
                self._throttle.overloaded()
            if not refused.actions:
                if refused.answered:
                    self._throttle.succeeded()
                backoff.succeeded()
                self._control.clear_backoff()
                continue
            if len(refused.actions) < len(group):
                # Some went through, so the engine lives: the budget is for standstill.
                backoff.succeeded()
            self._control.waits(refused.reason)
            moved = self._alias_moved() if refused.reason.startswith(_BLOCKED_REASON) else None
            if moved is not None:
                self._control.mark_unreachable(moved)
            elif backoff.wait():
                self._outcomes.ledger.add_retries(len(refused.actions))
                log_event(
                    "retry",
                    f"{len(refused.actions):,} documents are sent again: {refused.reason}",
                    documents=len(refused.actions),
                    reason=refused.reason,
                )
            elif self._control.halted.is_set():
                self._outcomes.left(len(refused.actions))
                if not refused.answered:
                    self._given_up.set()  # each further request might take as long to fail
                continue
            elif refused.stumbled:
                for action in refused.actions:
                    self._give_up(action, f"the engine fails on it, for {self._policy.budget:g} s: {refused.reason}")
                continue
            else:
                self._control.mark_unreachable(f"{refused.reason} (tried again for {self._policy.budget:g} s)")
            if refused.broken and len(refused.actions) > 1:
                # It may be the body: a proxy that takes no larger one, or a server that it keeps too busy to answer.
                waiting.extend(reversed(split_in_half(refused.actions)))
            else:
                waiting.append(refused.actions)

    def _is_over(self) -> bool:
        """Whether nothing is sent any more."""
        return self._control.lost is not None or self._given_up.is_set()

    def _attempt(
        self, group: list[DocumentAction], waiting: list[list[DocumentAction]], seconds: float
    ) -> _RetryableActions:
        """One request; what is too large for it goes back to `waiting` in halves.

        Args:
            seconds: How long the engine itself may wait for a shard.
        """
        body = b"".join(action.body for action in group)
        try:
            self._check_index()
            with self._observer.bulk(len(body)):
                results = self._engine.bulk(self._index, body, timeout=seconds)
        except EngineError as error:
            status = error.status if isinstance(error, RequestFailed) else 0
            if is_transient(error) or status == _BLOCKED_STATUS:
                broken = status == 0
                return _RetryableActions(group, error.message, status in _OVERLOAD_STATUSES or broken, broken=broken)
            if status == 413:
                self._throttle.too_large(len(body))
            if status in _SPLIT_STATUSES and len(group) > 1:
                waiting.extend(reversed(split_in_half(group)))
            elif status in _SPLIT_STATUSES:
                self._give_up(group[0], error.message)
            else:
                way_out = f" ({error.remedy.rstrip('.')})" if isinstance(error, AccessDenied) else ""
                self._control.mark_unreachable(error.message + way_out)
                self._outcomes.left(len(group))
            return _RetryableActions()
        taken = [
            (action, result)
            for action, result in zip(group, results, strict=True)
            if result.ok and misrouted_reason(action.document, result, self._index) is None
        ]
        self._outcomes.acknowledged([action.document.id for action, _ in taken])
        refused = _RetryableActions(answered=True, stumbled=True)
        for action, result in zip(group, results, strict=True):
            if _is_retryable_item(result):
                refused.actions.append(action)
                refused.reason = result.reason
                refused.overloaded |= result.status in _OVERLOAD_STATUSES
                refused.stumbled &= result.status == _INTERNAL_SERVER_ERROR
            elif result.reason.startswith(_DENIED_REASON):
                # Nothing is the matter with the document: the user has lost a privilege, or never had it.
                self._control.mark_unreachable(f"{result.reason} ({privilege_remedy(result.reason).rstrip('.')})")
                self._outcomes.left(1)
            elif result.reason.startswith(_CLOSED_REASON):
                self._control.mark_unreachable(f"the index {self._index} is closed: open it")
                self._outcomes.left(1)
            elif result.reason.startswith(_DELETED_REASON):
                self._outcomes.left(1)
            else:
                self._enter(action, result)
        self._read_back.check_first(taken)
        return refused

    def _enter(self, action: DocumentAction, result: BulkItemResult) -> None:
        document = action.document
        if result.ok and (problem := misrouted_reason(document, result, self._index)) is not None:
            self._give_up(action, problem)
        elif result.ok:
            if action.outcome is DocumentOutcome.INDEXED:
                self._outcomes.indexed(action.lost_tokens, action.passages)
            else:
                self._outcomes.ledger.enter(action.outcome)
        elif document.version is not None and result.status == 409:
            self._no_longer_embedded(action)
            self._on_conflict(action)
        elif document.version is not None and result.reason.startswith("document_missing_exception"):
            self._no_longer_embedded(action)
            self._outcomes.deleted()
        else:
            self._give_up(action, f"refused by the engine ({result.status}): {result.reason}")

    def _no_longer_embedded(self, action: DocumentAction) -> None:
        if action.outcome is DocumentOutcome.INDEXED:
            self._outcomes.ledger.add_embedded(-1)

    def _give_up(self, action: DocumentAction, reason: str) -> None:
        self._no_longer_embedded(action)
        document = action.document
        partial = document.version is not None
        self._outcomes.dead(document.origin, reason, document.source, document.id, partial=partial)
