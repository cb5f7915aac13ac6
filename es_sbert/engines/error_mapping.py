"""Map connection errors and error responses to es-sbert's exceptions, each with a remedy.

`is_transient_failure` says which are transient; docs/reliability.md has the table. The status alone does not tell:
engines answer 500 to a document that no mapper can read, and 403 while a disk is full.
"""

from __future__ import annotations

import re
from typing import Any

from urllib3.exceptions import NewConnectionError

from es_sbert.errors import (
    AccessDenied,
    EngineError,
    EngineUnreachable,
    FeatureMissing,
    HostUnknown,
    IndexMissing,
    PointInTimeLost,
    RequestFailed,
    TlsFailed,
)
from es_sbert.messages import setting

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
_TOO_MANY_REQUESTS = 429


def is_transient_failure(status: int, kind: str = "") -> bool:
    """Whether the same request, or the same action of a bulk request, may succeed later.

    Args:
        status: HTTP status; 0 for a broken connection.
        kind: Type of the root cause; empty if it is unknown.
    """
    return kind not in PERMANENT_TYPES and (status in (0, _TOO_MANY_REQUESTS) or status >= 500)


def is_closed(kind: str, reason: str) -> bool:
    """Whether a request was refused because the index is closed."""
    return kind == "index_closed_exception" or (kind in BLOCK_TYPES and "index closed" in reason)


# The module that exact search needs and `es-sbert engine up es9-small` lacks, and the engines' message without it.
SCRIPTS_MODULE = "lang-painless"
_NO_SCRIPTS = "script_lang not supported [painless]"
# Engines take the first part of a path without a handler for the name of an index.
_UNKNOWN_PATH = re.compile(r"no handler found for uri|Incorrect HTTP method for uri|Invalid index name \[_")

# Statuses of responses to an API that is disabled, or that the engine was built without; Serverless answers 410. Others
# say nothing about the API: a proxy may be overloaded.
MISSING_API_STATUSES = frozenset({400, 404, 405, 410})


def is_missing_api(body: Any) -> bool:
    """Whether an error says that the engine lacks the API, as old engines and Elasticsearch Serverless do."""
    error = body.get("error") if isinstance(body, dict) else None
    if isinstance(error, dict):
        return error.get("type") == "api_not_available_exception"
    return isinstance(error, str) and _UNKNOWN_PATH.search(error) is not None


CREDENTIALS_REMEDY = (
    "Check ES_SBERT_USERNAME and ES_SBERT_PASSWORD, or ES_SBERT_API_KEY, or ES_SBERT_TOKEN. The engine does not "
    "say whether they are wrong or expired."
)
# How the engines name missing permissions: Elasticsearch by privileges, the narrowest first; OpenSearch by actions.
_GRANTED_BY = re.compile(r"granted by the (index|cluster) privileges? \[([^\]]+)\]")
_ON_INDICES = re.compile(r"on (?:restricted )?indices \[([^\]]+)\]")
# The name of an action may end in `[s]`.
_NO_PERMISSIONS = re.compile(r"no permissions for \[(.+?)\](?= and |;|$)")
# Actions that OpenSearch's security plugin looks for among the cluster permissions of a role. For the index permissions
# it would ignore them.
_CLUSTER_ACTION = re.compile(
    r"cluster:.+|indices:admin/(?:index_)?template/.+|indices:data/read/(?:mget|mtv|msearch.*|scroll.*)|"
    r"indices:data/write/(?:bulk|reindex)"
)
# How Elasticsearch and OpenSearch refuse an update by a user from whom they hide documents or fields.
LIMITED_VIEW = re.compile(r"level security is enabled|not supported when FLS or DLS")
_STATUS_REMEDIES = {
    400: "Fix the part of the request that the engine's message names.",
    404: "Check the name of the index: `GET _cat/indices` lists them.",
    413: "The request is larger than the server accepts (http.max_content_length): send smaller bulk requests.",
    429: "The server is overloaded: try again later, or with smaller bulk requests.",
    503: "The server or a shard is not ready: look at `GET _cluster/health` and try again.",
}

# Reason of an error → remedy.
_REASON_REMEDIES = {
    r"Limit of total fields \[": "Raise index.mapping.total_fields.limit (`PUT INDEX/_settings`), or leave fields out. "
    "A vector field with its metadata takes 9, with passages 12.",
    r"Limit of nested fields \[": "Raise index.mapping.nested_fields.limit (`PUT INDEX/_settings`), or omit "
    "passages, which need a nested field.",
    r"maximum (?:\w+ )?shards open": "Delete or close indices, create the index with fewer shards or replicas, or "
    "raise cluster.max_shards_per_node (`PUT _cluster/settings`).",
    r"in time_series mode|index\.append_only\.enabled": "Documents of INDEX cannot be changed. Copy them into an index "
    "without this setting (`POST _reindex`), and load that one.",
    r"creates data streams only": "Choose another name for the index, or change the patterns of the template "
    "that the message names.",
    r"Keep alive for .* is too large": "Raise the setting that the message names to 30m or more: `PUT "
    "_cluster/settings`.",
}

_BLOCKED_INDEX = re.compile(r"index \[([^\]]+)\] blocked by: ((?:\[[^\]]*\];?)+)")
# A block that was set by hand: `[FORBIDDEN/8/index write (api)]` is `index.blocks.write`.
_SET_BLOCK = re.compile(r"/index ([a-z-]+) \(api\)\]")
# These blocks protect all settings but themselves: they are removed before the others, each by its own request.
_REMOVED_FIRST = frozenset({"read-only", "metadata"})

# Type of the error about a point in time or a scroll that is gone.
SEARCH_CONTEXT_MISSING = "search_context_missing_exception"


class NodeSilentError(Exception):
    """Raised if a node accepts connections, but responds neither to a request nor to a health request.

    Args:
        url: Address of the node.
        sent: Whether the request was sent, so that the node may have carried it out.
    """

    def __init__(self, url: str, *, sent: bool) -> None:
        super().__init__(f"{url} has stopped answering")
        self.sent = sent


class ForeignNodeError(NewConnectionError):
    """Raised before a connection to a node that belongs to another cluster than the nodes before."""


_TLS_REMEDY = (
    "Set {ca_certs} to the file of the certificate authority that signed the engine's certificate, and use the host "
    "name in the certificate."
)
# Pattern of the types and messages of a connection error and its causes → error, message and remedy; the first counts.
_CONNECTION_ERRORS: tuple[tuple[str, type[EngineUnreachable], str, str], ...] = (
    ("nodesilenterror", EngineUnreachable, "{url} has stopped answering: not even a health request gets a response",
     "Check that the process is not stopped and the machine not overloaded, or restart the node."),
    ("foreignnodeerror", EngineUnreachable, "the addresses {url} belong to different clusters",
     "Use only addresses of nodes of one cluster."),
    ("wrong.version.number|ssl.*record layer", TlsFailed, "{url} does not speak TLS",
     "Write http:// in front of the address, or enable TLS in the engine."),
    # If the connection breaks during the handshake, the server may be starting.
    ("ssleoferror", EngineUnreachable, "the TLS connection to {url} failed: {reason}", _TLS_REMEDY),
    ("certificate|ssl", TlsFailed, "the TLS connection to {url} failed: {reason}", _TLS_REMEDY),
    ("timed out|timeout", EngineUnreachable, "{url} did not answer within {seconds}",
     "Check the host, its firewall and its load (`GET _nodes/hot_threads`), or raise {raised}."),
    ("name or service not known|nodename nor servname|getaddrinfo|resolve", HostUnknown,
     "the host of {url} is not known", "Check the spelling of the address and the DNS."),
    ("refused", EngineUnreachable, "nothing listens at {url}", "{refused}"),
    ("", EngineUnreachable, "the connection to {url} broke: {reason}",
     "Check that an engine runs there, and whether it needs https:// instead of http://."),
)  # fmt: skip
_START_ENGINE_REMEDY = (
    "Check the address and the port (engines use 9200), or start an engine here: `es-sbert engine up`."
)


def connection_error(
    url: str, error: BaseException, timeout: float | None, *, refused_remedy: str = _START_ENGINE_REMEDY
) -> EngineUnreachable:
    """Return the error for a broken or refused connection.

    Args:
        url: Address without credentials.
        error: The client's exception; its causes are searched too.
        timeout: Seconds that were allowed, for the message of a timeout; None if only the client knows.
        refused_remedy: What to do if the connection is refused.
    """
    causes = exception_chain(error)
    text = " ".join(f"{type(cause).__name__}: {cause}" for cause in causes).lower()
    kind, message, remedy = next(
        (kind, message, remedy)
        for pattern, kind, message, remedy in _CONNECTION_ERRORS
        if re.search(pattern, text, re.DOTALL)
    )
    words = {
        "url": url,
        "reason": next((cause.verify_message for cause in causes if hasattr(cause, "verify_message")), causes[-1]),
        "seconds": "the time allowed" if timeout is None else f"{timeout:g} seconds",
        "raised": "the client's timeout" if timeout is None else setting("timeout"),
        "refused": refused_remedy,
        "ca_certs": setting("ca_certs"),
    }
    return kind(message.format(**words), remedy.format(**words))


def not_json(url: str) -> EngineUnreachable:
    """Return the error for a response that is not JSON."""
    return EngineUnreachable(f"{url} sent a response that is not JSON", "Check for a proxy in front of the engine.")


def exception_chain(error: BaseException) -> list[BaseException]:
    """Return the exception and everything it wraps, outermost first."""
    found: list[BaseException] = []
    waiting: list[BaseException] = [error]
    while waiting:
        current = waiting.pop(0)
        if any(current is seen for seen in found):
            continue
        found.append(current)
        wrapped = [current.__cause__, getattr(current, "reason", None), *getattr(current, "errors", ()), *current.args]
        waiting.extend(cause for cause in wrapped if isinstance(cause, BaseException))
    return found


def response_error(status: int, body: Any, *, label: str, action: str) -> EngineError | IndexMissing:
    """Return the error for a response other than 2xx.

    Args:
        body: The response, parsed if it is JSON.
        label: `Elasticsearch 9.5.0 at http://…`.
        action: The request, such as `PUT /docs`.
    """
    kind, reason = root_cause(body)
    error = _meaning(status, kind, reason, body, label, action)
    error.status = error.status or status
    error.type = "index_closed_exception" if is_closed(kind, reason) else kind
    error.body, error.request = body, action
    return error


def _meaning(status: int, kind: str, reason: str, body: Any, label: str, action: str) -> EngineError | IndexMissing:
    if status == 401:
        return AccessDenied(f"{label} refused the credentials (401)", CREDENTIALS_REMEDY)
    if is_closed(kind, reason):
        # It may be one of several indices of an alias or a pattern.
        closed = failed_index(body)
        message = f"{label} cannot carry out {action}: {f'the index {closed}' if closed else 'an index'} is closed"
        remedy = f"Open it (`POST /{closed or 'INDEX'}/_open`), or take it out of the alias or the names."
        return RequestFailed(message, remedy, status)
    if kind in BLOCK_TYPES:
        return RequestFailed(f"{label} blocks {action}: {reason}", block_remedy(reason), status)
    if status == 403 or LIMITED_VIEW.search(reason):
        return access_denied(label, action, reason)
    if status == 400 and _NO_SCRIPTS in reason:
        message = f"{label} lacks the module {SCRIPTS_MODULE} (scripts), which {action} needs: {reason}"
        remedy = (
            "Use a server that has it: `es-sbert engine up es9`, `es-sbert engine up opensearch`, or the complete "
            f"Elasticsearch of docker-compose.yml. Without it, search without {setting('exact')}, or load the "
            f"documents into an index with {setting('index_type', 'flat')}, where kNN is exact."
        )
        return FeatureMissing(message, remedy, status, SCRIPTS_MODULE)
    if status in MISSING_API_STATUSES and is_missing_api(body):
        message = f"{label} lacks the API for {action}: {reason}"
        remedy = "Check the name and the address; this engine, or a proxy in front of it, does not have the API."
        return FeatureMissing(message, remedy, status)
    if kind == SEARCH_CONTEXT_MISSING:
        return point_in_time_lost(label, reason)
    if kind == "index_not_found_exception":
        return IndexMissing(f"{reason} ({label})", "Check the name, or create the index: `es-sbert index create NAME`.")
    remedy = _STATUS_REMEDIES.get(status, "See the engine's log for details; the message above comes from the engine.")
    for pattern, advice in _REASON_REMEDIES.items():
        if re.search(pattern, reason):
            remedy = advice
    return RequestFailed(f"{label} answered {action} with {status}: {reason}", remedy, status)


def block_remedy(reason: str) -> str:
    """Return a remedy that removes the blocks which the engine names in its reason for refusing a request."""
    remedies, removals = [], []
    for index, blocks in _BLOCKED_INDEX.findall(reason):
        for name in sorted(_SET_BLOCK.findall(blocks), key=lambda name: name not in _REMOVED_FIRST):
            removals.append(f'`PUT {index}/_settings {{"index.blocks.{name.replace("-", "_")}": null}}`')
            if name == "write":
                remedies.append(killed_migration_remedy(index))
    if removals:
        return " ".join([*remedies, f"Remove what was set by hand: {', then '.join(removals)}."])
    if "remote index is read-only" in reason:
        return "A searchable snapshot takes no writes: restore the snapshot as an ordinary index."
    return (
        "A full disk makes indices read-only and prevents new ones: free some space. If the engine keeps the block, or "
        "it was set by hand, set it to null (`GET INDEX/_settings` or `GET _cluster/settings` show it)."
    )


def killed_migration_remedy(index: str) -> str:
    """The remedy for writes that are refused because a migration was killed right before it moved the alias."""
    return f"If a migration was killed, cancel it: `es-sbert index migrate {index} --cancel`."


def failed_index(body: Any) -> str:
    """The index that an error response names; empty if it names none."""
    error = body.get("error", body) if isinstance(body, dict) else {}
    roots = error.get("root_cause") if isinstance(error, dict) else None
    first = roots[0] if isinstance(roots, list) and roots else error
    return str(first.get("index") or "") if isinstance(first, dict) else ""


def point_in_time_lost(label: str, reason: str) -> PointInTimeLost:
    """Return the error for a point in time that no longer exists.

    Its status is 503, because the caller can open another one.

    Args:
        label: The engine.
        reason: The reason that the engine gives.
    """
    return PointInTimeLost(
        f"{label} has lost the point in time from which the index was read: {reason}",
        "It is lost when its node restarts, or when it is not read for half an hour: run the same command again.",
        503,
    )


def access_denied(label: str, action: str, reason: str) -> AccessDenied:
    """Return the error for an action that the user may not do.

    Args:
        label: The engine.
        action: The request.
        reason: The reason that the engine gives, which names the missing privilege.
    """
    return AccessDenied(f"{label} does not allow {action}: {reason}", privilege_remedy(reason))


def privilege_remedy(reason: str) -> str:
    """Return a remedy that names the missing privilege, read from the engine's reason for refusing an action."""
    granted, refused = _GRANTED_BY.search(reason), _NO_PERMISSIONS.search(reason)
    if granted is not None:
        scope, names = granted[1], granted[2].split(",")
        indices = _ON_INDICES.search(reason)
        where = f" on {indices[1]}" if indices is not None else ""
        wider = f" (or a wider one: {', '.join(names[1:])})" if names[1:] else ""
        return f"Give the user or API key the {scope} privilege {names[0]}{where}{wider}."
    if refused is not None:
        actions = refused[1].split(", ")
        scope = "cluster" if all(map(_CLUSTER_ACTION.fullmatch, actions)) else "index"
        what, them = ("permissions", "them") if actions[1:] else ("permission", "it")
        return f"Give one of the user's roles the {scope} {what} {refused[1]}, or an action group that includes {them}."
    if LIMITED_VIEW.search(reason):
        return "Use a user or API key without document- or field-level security or field masking for the index."
    return (
        "Give the user or API key the cluster privilege monitor and the index privileges of its task: "
        "docs/operations.md lists them."
    )


# Reasons of errors for which the engines give none.
_REASONS = {"no_shard_available_action_exception": "no active copy"}


def root_cause(body: Any) -> tuple[str, str]:
    """Return the type and the one-line reason of the innermost error in an engine's response."""
    error = body.get("error", body) if isinstance(body, dict) else body
    if not isinstance(error, dict):
        return "", _one_line(error)
    inner = error
    roots = error.get("root_cause")
    if isinstance(roots, list) and roots and isinstance(roots[0], dict):
        inner = roots[0]
    # For requests that run shard by shard, such as a refresh, the reason is that of the first shard that failed.
    counted = error.get("_shards")
    shards = error.get("failed_shards") or (counted.get("failures") if isinstance(counted, dict) else None)
    first = shards[0] if isinstance(shards, list) and shards else None
    if isinstance(first, dict) and isinstance(first.get("reason"), dict):
        inner = first["reason"]
    kind = str(inner.get("type", ""))
    # The reason is null if a node is gone.
    reasons = [str(inner.get("reason") or "")]
    cause = inner.get("caused_by") or error.get("caused_by")
    while isinstance(cause, dict):
        reasons.append(str(cause.get("reason") or ""))
        cause = cause.get("caused_by")
    distinct = [reason for i, reason in enumerate(reasons) if reason and reason not in " ".join(reasons[:i])]
    return kind, _one_line("; ".join(distinct) or _REASONS.get(kind, kind))


def _one_line(value: Any) -> str:
    return " ".join(str(value or "").split())[:1000] or "no reason given"
