"""Bulk requests: sent, tried again, split, and every document's end entered."""

from __future__ import annotations

from collections.abc import Callable

from es_sbert.engines.protocol import Engine, ItemResult
from es_sbert.errors import EngineError, RequestFailed
from es_sbert.ingest.actions import Action, halves
from es_sbert.ingest.control import Control
from es_sbert.ingest.ledger import Outcome
from es_sbert.ingest.outcomes import Outcomes
from es_sbert.ingest.retry import TRANSIENT, Backoff, RetryPolicy, is_transient

# The whole request was refused because of something inside it: halve it until the culprit stands alone.
_SPLIT = frozenset({400, 413})
_BLOCKED = "cluster_block_exception"


class BulkWriter:
    """Sends groups of actions; thread-safe.

    Args:
        engine: Where to.
        index: Index or alias.
        policy: How long transient failures are waited out.
        outcomes: Where each document's end is entered.
        control: Told when the engine is lost; after that, nothing is sent any more.
        on_conflict: Takes the action of a document that was written since it was read.
    """

    def __init__(self, engine: Engine, index: str, policy: RetryPolicy, outcomes: Outcomes, control: Control,
                 on_conflict: Callable[[Action], None]) -> None:  # fmt: skip
        self._engine = engine
        self._index = index
        self._policy = policy
        self._outcomes = outcomes
        self._control = control
        self._on_conflict = on_conflict

    def send(self, actions: list[Action]) -> None:
        """Send a group; when this returns, every document of it has come to an end."""
        waiting = [actions]
        backoff = Backoff(self._policy, self._control.aborted)
        while waiting:
            group = waiting.pop()
            if self._control.lost is not None:
                self._give_up(group, self._control.lost)
                continue
            again, refusal = self._attempt(group, waiting)
            if not again:
                backoff.succeeded()
                continue
            if len(again) < len(group):
                # Some went through, so the engine lives: the budget is for standstill.
                backoff.succeeded()
            if backoff.wait():
                self._outcomes.ledger.add_retries(len(again))
                waiting.append(again)
            else:
                self._control.lose(f"{refusal} (tried again for {self._policy.budget:g} s)")
                waiting.append(again)

    def _attempt(self, group: list[Action], waiting: list[list[Action]]) -> tuple[list[Action], str]:
        """One request; returns what is worth another try, and why it was refused."""
        try:
            results = self._engine.bulk(self._index, b"".join(action.body for action in group))
        except EngineError as error:
            if is_transient(error):
                return group, error.message
            if isinstance(error, RequestFailed) and error.status in _SPLIT:
                if len(group) > 1:
                    waiting.extend(reversed(halves(group)))
                else:
                    self._give_up(group, error.message)
            else:
                self._control.lose(error.message)
                self._give_up(group, error.message)
            return [], ""
        again: list[Action] = []
        refusal = ""
        for action, result in zip(group, results, strict=True):
            if result.status in TRANSIENT:
                again.append(action)
                refusal = result.reason
            else:
                self._enter(action, result)
        return again, refusal

    def _enter(self, action: Action, result: ItemResult) -> None:
        document = action.document
        if result.ok:
            if action.outcome is Outcome.INDEXED:
                self._outcomes.indexed(action.lost_tokens)
            else:
                self._outcomes.ledger.enter(action.outcome)
        elif document.version is not None and result.status == 409:
            self._on_conflict(action)
        elif document.version is not None and result.reason.startswith("document_missing_exception"):
            self._outcomes.deleted()
        else:
            reason = f"refused by the engine ({result.status}): {result.reason}"
            if result.reason.startswith(_BLOCKED):
                # Read-only, by hand or by a full disk: every other document would be refused as well.
                self._control.lose(reason)
            self._give_up([action], reason)

    def _give_up(self, group: list[Action], reason: str) -> None:
        for action in group:
            document = action.document
            self._outcomes.dead(document.origin, reason, document.source, document.id)
