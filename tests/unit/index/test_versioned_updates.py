"""Updates of unchanged documents are sent again after a broken connection."""

from __future__ import annotations

from collections import Counter
from typing import Any, cast

import pytest

from es_sbert.engines.engine import BulkItemResult, Engine
from es_sbert.engines.index_state import IndexState
from es_sbert.engines.retry import RetryPolicy
from es_sbert.errors import AccessDenied, EngineError, EngineUnreachable
from es_sbert.ingest.reconcile import delete_hits

STATE = IndexState("docs", {}, {"index.uuid": "one"})
HIT = {"_id": "1", "_seq_no": 4, "_primary_term": 1}
LOST = EngineUnreachable("the connection broke", "Check the network.")


class BrokenEngine:
    """An engine whose first bulk requests fail.

    Args:
        failures: The errors of the first bulk requests.
        deletes_before: Whether the failed requests delete the document, and only their response is lost.
    """

    def __init__(self, *failures: EngineError, deletes_before: bool = False) -> None:
        self._failures = list(failures)
        self._deletes_before = deletes_before
        self._exists = True
        self.requests: Counter[str] = Counter()

    def index_uuids(self, name: str) -> dict[str, str]:
        return {name: "one"}

    def refresh(self, name: str) -> None: ...

    def bulk(self, name: str, body: bytes, *, actions: int, timeout: float) -> list[BulkItemResult]:
        self.requests["bulk"] += 1
        if self._failures:
            self._exists = self._exists and not self._deletes_before
            raise self._failures.pop(0)
        if self._exists:
            self._exists = False
            return [BulkItemResult(200, "1", "", result="deleted")]
        return [BulkItemResult(409, "1", "version_conflict_engine_exception: required seqNo [4]")]

    def mget(self, name: str, keys: list[Any], **options: Any) -> list[Any]:
        return [{"_id": "1"} if self._exists else None for _ in keys]


def delete(engine: BrokenEngine, budget: float, reasons: list[str]) -> int:
    return delete_hits(
        cast(Engine, engine), STATE, [HIT], RetryPolicy(budget, first=0.001, ceiling=0.002), reasons.append
    )


def test_deletion_is_sent_again_after_a_broken_connection() -> None:
    engine, reasons = BrokenEngine(LOST, LOST), list[str]()
    assert delete(engine, 60, reasons) == 1
    assert engine.requests["bulk"] == 3
    assert reasons == [LOST.message] * 2


def test_broken_connection_ends_a_deletion_when_the_budget_is_spent() -> None:
    engine = BrokenEngine(LOST)
    with pytest.raises(EngineUnreachable):
        delete(engine, 0, [])


def test_denied_deletion_is_not_sent_again() -> None:
    engine, reasons = BrokenEngine(AccessDenied("the password is wrong", "Correct it.")), list[str]()
    with pytest.raises(AccessDenied):
        delete(engine, 60, reasons)
    assert engine.requests["bulk"] == 1
    assert not reasons


def test_document_counts_as_deleted_if_only_the_response_was_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    existing: dict[Any, Any] = {}
    monkeypatch.setattr("es_sbert.ingest.reconcile.multi_get", lambda *args, **options: existing)
    assert delete(BrokenEngine(LOST, deletes_before=True), 60, []) == 1
