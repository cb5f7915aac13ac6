"""Which errors of an engine are transient. docs/reliability.md has the table.

The status alone does not tell: engines answer 500 to a document that no mapper can read, and 403
while a disk is full.
"""

from __future__ import annotations

from enum import StrEnum


class ErrorClass(StrEnum):
    """What to do after an error.

    Attributes:
        TRANSIENT: Send the request again: the engine is overloaded, starting, or lacks a node.
        BLOCKED: The index is read-only, by hand or because a disk is full. Writes of documents wait, other requests
            fail.
        PERMANENT: The same request would fail again.
    """

    TRANSIENT = "transient"
    BLOCKED = "blocked"
    PERMANENT = "permanent"


# OpenSearch also closes the whole cluster to new indices when its disks are nearly full.
BLOCK_TYPES = frozenset({"cluster_block_exception", "index_create_block_exception"})
# Errors that every copy of a shard would return again, regardless of the status: invalid requests, invalid documents,
# and engine code that cannot handle a document.
PERMANENT_TYPES = frozenset({
    "action_request_validation_exception", "arithmetic_exception", "array_index_out_of_bounds_exception",
    "class_cast_exception", "document_parsing_exception", "fail_processor_exception", "illegal_argument_exception",
    "index_closed_exception", "index_out_of_bounds_exception", "invalid_index_name_exception",
    "json_parse_exception", "mapper_exception", "mapper_parsing_exception", "max_bytes_length_exceeded_exception",
    "null_pointer_exception", "number_format_exception", "parse_exception", "parsing_exception",
    "query_shard_exception", "script_exception", "settings_exception", "strict_dynamic_mapping_exception",
    "string_index_out_of_bounds_exception", "too_many_buckets_exception", "too_many_clauses",
    "too_many_nested_clauses", "unsupported_operation_exception", "validation_exception",
    "x_content_parse_exception",
})  # fmt: skip
_FORBIDDEN = 403
_TOO_MANY_REQUESTS = 429


def classify_error(status: int, kind: str = "", reason: str = "") -> ErrorClass:
    """Classify an error of a request or of an action of a bulk request.

    Args:
        status: HTTP status; 0 for a broken connection.
        kind: Type of the root cause; empty if it is unknown.
        reason: The reason that the engine gives.
    """
    if kind in PERMANENT_TYPES:
        return ErrorClass.PERMANENT
    if kind in BLOCK_TYPES and status == _FORBIDDEN:
        return ErrorClass.PERMANENT if is_closed(kind, reason) else ErrorClass.BLOCKED
    is_transient = status in (0, _TOO_MANY_REQUESTS) or status >= 500
    return ErrorClass.TRANSIENT if is_transient else ErrorClass.PERMANENT


def is_closed(kind: str, reason: str) -> bool:
    """Whether a request was refused because the index is closed."""
    return kind == "index_closed_exception" or (kind in BLOCK_TYPES and "index closed" in reason)
