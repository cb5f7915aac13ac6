"""What follows from the answer to a bulk request, and to each of its actions."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import orjson
import pytest

from es_sbert.engines.bulk_request import BulkAttempt, BulkItemResult, send_bulk
from es_sbert.engines.clients import TransportEngine
from es_sbert.engines.engine_info import EngineInfo, EngineType
from es_sbert.engines.index_state import IndexState
from es_sbert.engines.retry import RetryPolicy, is_transient, without_retries
from es_sbert.errors import AccessDenied, EsSbertError, IndexMismatch, RequestFailed
from es_sbert.index.versioned_updates import VersionedUpdates
from es_sbert.index.whole_documents import _check_may_update
from tests.raised import raises_as_recorded

ACTIONS = [SimpleNamespace(id=id, body=f'{{"delete":{{"_id":"{id}"}}}}\n'.encode()) for id in "abcd"]
BLOCK = "cluster_block_exception"


def test_request_that_fails_as_a_whole_is_sent_again() -> None:
    block = RequestFailed("read-only", "r", 403)
    block.type = BLOCK
    assert send_bulk(ACTIONS, Mock(side_effect=block)) == BulkAttempt([], ACTIONS, (), "read-only", True, {403}, block)


def _send(status: int, kind: str, reason: str, *, whole: bool = False) -> dict[str, str]:
    """Delete the documents a to d; the engine refuses c, or every request with it."""
    error = {"type": kind, "reason": reason}

    def perform_request(method: str, path: str, *, body: bytes, **options: Any) -> Any:
        ids = [orjson.loads(line)["delete"]["_id"] for line in (body or b"").splitlines()]
        bad = {"_index": "docs", "status": status, "error": error}
        items = [{"delete": {"_id": id, "status": 200} | (bad if id == "c" else {})} for id in ids]
        uuid: dict[str, Any] = {"docs": {"settings": {"index": {"uuid": "u"}}}}
        answer = {"error": error} if whole and "c" in ids else {"items": items} if ids else uuid
        meta = SimpleNamespace(status=status if "error" in answer else 200, headers={})
        return SimpleNamespace(meta=meta, body=answer)

    info = EngineInfo(EngineType.ELASTICSEARCH, (9, 5, 0), "http://here:9200")
    engine = TransportEngine(info, SimpleNamespace(perform_request=perform_request), None)
    updates = VersionedUpdates(engine, IndexState("docs", {}, {"index.uuid": "u"}), RetryPolicy(0), print, source=None)
    return {action.id: str(result.outcome) for action, result in updates.send(ACTIONS)}


def test_document_that_makes_the_engine_refuse_the_request_is_refused_alone() -> None:
    for status in (400, 413):
        outcomes = _send(status, "action_request_validation_exception", "id is too long", whole=True)
        assert outcomes == {"a": "written", "b": "written", "c": "refused", "d": "written"}


@pytest.mark.parametrize(
    ("status", "kind", "reason", "error"),
    [
        (403, "security_exception", "unauthorized", AccessDenied),
        (400, "index_closed_exception", "closed", RequestFailed),
        (404, "index_not_found_exception", "no such index", IndexMismatch),
        (429, BLOCK, "flood stage", RequestFailed),
    ],
)
def test_refusals_of_all_documents_are_errors(status: int, kind: str, reason: str, error: type[EsSbertError]) -> None:
    with raises_as_recorded(error):
        _send(status, kind, reason)


def test_engine_that_takes_no_update_now_does_not_pass_for_permission() -> None:
    engine, hit = Mock(), {"_id": "1", "_seq_no": 3, "_primary_term": 1}
    engine.bulk.return_value = [BulkItemResult(403, "1", "read-only", kind=BLOCK)]
    with raises_as_recorded(RequestFailed) as caught:
        _check_may_update(engine, IndexState("docs", {}, {}), hit, without_retries)
    assert is_transient(caught.value)
