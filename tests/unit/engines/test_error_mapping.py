"""What the errors of an engine mean, and what to do about them."""

from __future__ import annotations

import pickle
import socket
import ssl
from typing import Any

import pytest

from es_sbert.engines.bulk_request import BulkItemResult
from es_sbert.engines.complete_answer import check_complete
from es_sbert.engines.error_mapping import connection_error, response_error, root_cause
from es_sbert.engines.retry import is_transient
from es_sbert.errors import AccessDenied, EsSbertError, FeatureMissing, IndexMissing, RequestFailed
from tests.raised import raises_as_recorded, record

URL = "http://localhost:9200"


def failed(status: int, body: Any) -> Any:
    return response_error(status, body, label="Elasticsearch 9.5.0", action="PUT /docs")


def test_root_cause_joins_the_cause_chain_once() -> None:
    body = {
        "error": {
            "root_cause": [{"type": "mapper_parsing_exception", "reason": "failed to parse"}],
            "type": "mapper_parsing_exception",
            "reason": "failed to parse",
            "caused_by": {"type": "x", "reason": "no\n such type", "caused_by": {"reason": "failed to parse"}},
        }
    }
    assert root_cause(body) == ("mapper_parsing_exception", "failed to parse; no such type")


@pytest.mark.parametrize(
    ("status", "kind", "expected"),
    [
        (401, "security_exception", AccessDenied),
        (403, "security_exception", AccessDenied),
        (404, "index_not_found_exception", IndexMissing),
        (400, "parsing_exception", RequestFailed),
        (429, "es_rejected_execution_exception", RequestFailed),
        (503, "", RequestFailed),
    ],
)
def test_status_maps_to_error_class(status: int, kind: str, expected: type[EsSbertError]) -> None:
    body = {"error": {"type": kind, "reason": "because"}}
    error = failed(status, body)
    assert type(error) is expected
    record(error)
    for each in (error, pickle.loads(pickle.dumps(error))):
        assert (each.status, each.type, each.body, each.request) == (status, kind, body, "PUT /docs")


@pytest.mark.parametrize(
    "blocks",
    [
        "index [docs] blocked by: [FORBIDDEN/5/index read-only (api)];",
        "index [docs] blocked by: [FORBIDDEN/13/remote index is read-only];",
        "index [docs] blocked by: [FORBIDDEN/8/index write (api)];[FORBIDDEN/9/index metadata (api)];index [b] "
        "blocked by: [FORBIDDEN/8/index write (api)];",
    ],
)
def test_remedy_for_a_block_that_was_set_by_hand_is_its_removal(blocks: str) -> None:
    error = failed(403, {"error": {"type": "cluster_block_exception", "reason": blocks}})
    assert type(error) is RequestFailed
    record(error)


@pytest.mark.parametrize(
    "answer",
    [
        {"_nodes": {"total": 3, "successful": 2, "failed": 1}},
        {"failed_indices": 1, "indices": []},
        {"_shards": {"failed": 1, "failures": [{"reason": {"type": "search_context_missing_exception"}}]}},
    ],
)
def test_incomplete_answer_can_be_asked_for_again(answer: Any) -> None:
    with raises_as_recorded(RequestFailed) as caught:
        check_complete(answer, "Elasticsearch 9.5.0", "GET /docs")
    assert is_transient(caught.value)


@pytest.mark.parametrize(
    "cause",
    [
        ConnectionRefusedError(111, "Connection refused"),
        socket.gaierror(-2, "Name or service not known"),
        TimeoutError("timed out"),
        ssl.SSLError("[SSL: WRONG_VERSION_NUMBER] wrong version number"),
        ssl.SSLCertVerificationError("certificate verify failed"),
        ConnectionResetError(104, "Connection reset by peer"),
    ],
)
def test_connection_errors_have_specific_remedies(cause: Exception) -> None:
    wrapper = OSError("outer")
    wrapper.__cause__ = cause
    record(connection_error(URL, wrapper, 60))


@pytest.mark.parametrize(
    "reason",
    [
        "action [indices:admin/refresh] is unauthorized for user [anna] with effective roles [narrow] on indices "
        "[docs], this action is granted by the index privileges [maintenance,manage,all]",
        "action [cluster:monitor/main] is unauthorized for API key id [x] of user [elastic], this action is "
        "granted by the cluster privileges [monitor,manage,all]",
        "no permissions for [indices:data/write/bulk] and User [name=anna, backend_roles=[], requestedTenant=null]",
        "Can't execute an update request if field or document level security is enabled",
        "no",
    ],
)
def test_missing_privilege_is_named(reason: str) -> None:
    error = failed(403, {"error": {"type": "security_exception", "reason": reason}})
    assert isinstance(error, AccessDenied)
    record(error)


@pytest.mark.parametrize(
    ("action", "error", "module"),
    [
        ("POST /docs/_search", {"reason": "failed to create query: script_lang not supported [painless]"},
         "lang-painless"),
        ("POST /docs/_rank_eval", "no handler found for uri [/docs/_rank_eval] and method [POST]", ""),
        ("GET /_data_stream", "Invalid index name [_data_stream], must not start with '_'.", ""),
        ("POST /_reindex", {"type": "api_not_available_exception", "reason": "not in serverless"}, ""),
    ],
)  # fmt: skip
def test_missing_feature_is_named(action: str, error: Any, module: str) -> None:
    found = response_error(400, {"error": error}, label="Elasticsearch 9.5.0", action=action)
    assert isinstance(found, FeatureMissing)
    assert (found.module, found.status) == (module, 400)
    record(found)
    again = pickle.loads(pickle.dumps(found))
    assert (type(again), again.module, again.status, str(again)) == (FeatureMissing, module, 400, str(found))


FLOOD = "index [docs] blocked by: [TOO_MANY_REQUESTS/12/disk usage exceeded flood-stage watermark];"


@pytest.mark.parametrize(
    ("status", "kind", "reason", "transient", "outcome"),
    [
        (0, "", "", True, "retry"),
        (429, "es_rejected_execution_exception", "rejected execution of coordinating operation", True, "retry"),
        (429, "cluster_block_exception", FLOOD, True, "blocked"),
        (500, "", "", True, "retry"),
        (502, "", "<html>Bad Gateway</html>", True, "retry"),
        (503, "cluster_block_exception", "[SERVICE_UNAVAILABLE/1/state not recovered];", True, "retry"),
        (503, "search_phase_execution_exception", "all shards failed", True, "retry"),
        (403, "cluster_block_exception", "blocked by: [FORBIDDEN/8/index write (api)];", False, "blocked"),
        (403, "cluster_block_exception", "[FORBIDDEN/12/index read-only / allow delete (api)];", False, "blocked"),
        (403, "index_create_block_exception", "cluster create-index blocked", False, "blocked"),
        (403, "cluster_block_exception", "blocked by: [FORBIDDEN/4/index closed];", False, "index_closed"),
        (403, "security_exception", "action is unauthorized", False, "denied"),
        (409, "version_conflict_engine_exception", "", False, "conflict"),
        (413, "", "", False, "refused"),
        (404, "shard_not_found_exception", "no such shard", False, "refused"),
        (500, "security_exception", "not initialized", True, "retry"),
        (400, "document_parsing_exception", "failed: index_not_found_exception", False, "refused"),
        (500, "fail_processor_exception", "no", False, "refused"),
        (500, "null_pointer_exception", "Cannot invoke", False, "refused"),
        (500, "unsupported_operation_exception", "Derive source is not supported", False, "refused"),
        (503, "query_shard_exception", "failed to create query", False, "refused"),
    ],
)
def test_errors_are_classified_alike_in_requests_and_in_bulk_items(
    status: int, kind: str, reason: str, transient: bool, outcome: str
) -> None:
    item = BulkItemResult.from_item({"index": {"status": status, "error": {"type": kind, "reason": reason}}})
    assert (item.outcome, item.outcome.is_retried) == (outcome, transient or outcome == "blocked")
    body = {"error": {"type": "search_phase_execution_exception", "root_cause": [{"type": kind, "reason": reason}]}}
    error = response_error(status, body, label="Elasticsearch 9.5.0", action="POST /docs/_bulk")
    assert is_transient(error) is transient  # type: ignore[arg-type]
