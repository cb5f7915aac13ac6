"""The table of docs/reliability.md: which errors of an engine are transient."""

from __future__ import annotations

import pytest

from es_sbert.engines.engine import BulkItemResult
from es_sbert.engines.error_mapping import ErrorClass, classify_error, response_error
from es_sbert.engines.retry import error_class

FLOOD = "index [docs] blocked by: [TOO_MANY_REQUESTS/12/disk usage exceeded flood-stage watermark];"


@pytest.mark.parametrize(
    ("status", "kind", "reason", "expected"),
    [
        (0, "", "", "transient"),
        (429, "es_rejected_execution_exception", "rejected execution of coordinating operation", "transient"),
        (429, "rejected_execution_exception", "rejected execution of coordinating operation", "transient"),
        (429, "circuit_breaking_exception", "[parent] Data too large", "transient"),
        (429, "cluster_block_exception", FLOOD, "transient"),
        (500, "", "", "transient"),
        (500, "node_not_connected_exception", "", "transient"),
        (502, "", "<html>Bad Gateway</html>", "transient"),
        (503, "no_shard_available_action_exception", "", "transient"),
        (503, "unavailable_shards_exception", "[docs][0] primary shard is not active", "transient"),
        (503, "process_cluster_event_timeout_exception", "failed to process cluster event", "transient"),
        (503, "master_not_discovered_exception", "", "transient"),
        (503, "cluster_block_exception", "blocked by: [SERVICE_UNAVAILABLE/1/state not recovered];", "transient"),
        (503, "search_phase_execution_exception", "all shards failed", "transient"),
        (403, "cluster_block_exception", "blocked by: [FORBIDDEN/8/index write (api)];", "blocked"),
        (403, "cluster_block_exception", "[FORBIDDEN/12/index read-only / allow delete (api)];", "blocked"),
        (403, "index_create_block_exception", "cluster create-index blocked", "blocked"),
        (403, "cluster_block_exception", "blocked by: [FORBIDDEN/4/index closed];", "permanent"),
        (400, "index_closed_exception", "closed", "permanent"),
        (400, "document_parsing_exception", "failed to parse", "permanent"),
        (400, "validation_exception", "this action would add [2] shards", "permanent"),
        (403, "security_exception", "action is unauthorized", "permanent"),
        (404, "index_not_found_exception", "no such index", "permanent"),
        (409, "version_conflict_engine_exception", "", "permanent"),
        (413, "", "", "permanent"),
        (500, "fail_processor_exception", "no", "permanent"),
        (500, "illegal_argument_exception", "dims", "permanent"),
        (500, "mapper_parsing_exception", "failed to parse", "permanent"),
        (500, "null_pointer_exception", "Cannot invoke", "permanent"),
        (500, "unsupported_operation_exception", "Derive source is not supported", "permanent"),
        (503, "query_shard_exception", "failed to create query", "permanent"),
        (503, "too_many_buckets_exception", "Trying to create too many buckets", "permanent"),
    ],
)
def test_errors_are_classified_alike_in_requests_and_in_bulk_items(
    status: int, kind: str, reason: str, expected: str
) -> None:
    assert classify_error(status, kind, reason) == expected
    item = BulkItemResult(status, "1", f"{kind}: {reason}" if kind else reason)
    assert item.may_succeed_later == (expected != ErrorClass.PERMANENT)
    body = {"error": {"type": "search_phase_execution_exception", "root_cause": [{"type": kind, "reason": reason}]}}
    error = response_error(status, body, label="Elasticsearch 9.5.0", action="POST /docs/_bulk")
    assert error_class(error) == expected  # type: ignore[arg-type]
