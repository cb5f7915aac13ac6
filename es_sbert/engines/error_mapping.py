"""Map connection errors and error responses to es-sbert's exceptions, each with a remedy."""

from __future__ import annotations

import re
import ssl
from typing import Any

from es_sbert.engines.missing_features import find_missing_module, missing_feature_error
from es_sbert.errors import (
    AccessDenied,
    EngineUnreachable,
    EsSbertError,
    HostUnknown,
    IndexMissing,
    RequestFailed,
    TlsFailed,
)

CREDENTIALS_REMEDY = (
    "Check ES_SBERT_USERNAME and ES_SBERT_PASSWORD, or ES_SBERT_API_KEY, or ES_SBERT_TOKEN: an expired or mistyped one "
    "looks the same."
)
# How the engines name what is missing: Elasticsearch by privileges, the least first; OpenSearch by actions.
_GRANTED_BY = re.compile(r"granted by the (index|cluster) privileges? \[([^\]]+)\]")
_ON_INDICES = re.compile(r"on (?:restricted )?indices \[([^\]]+)\]")
_NO_PERMISSIONS = re.compile(r"no permissions for \[([^\]]+)\]")
_STATUS_REMEDIES = {
    400: "The message above is the engine's own: mend what it names.",
    404: "Check the name of the index: `GET _cat/indices` lists them.",
    413: "The request is larger than the server takes (http.max_content_length): send smaller bulk requests.",
    429: "The server is overloaded: try again later, or with smaller bulk requests.",
    503: "The server or a shard is not ready: look at `GET _cluster/health` and try again.",
}

# The statuses of answers about an unknown path, script language or type.
_UNSUPPORTED_STATUSES = frozenset({400, 404, 405})

# Of a point in time, or a scroll.
SEARCH_CONTEXT_MISSING = "search_context_missing_exception"

# OpenSearch also closes the whole cluster to new indices when its disks are nearly full.
_BLOCK_EXCEPTIONS = frozenset({"cluster_block_exception", "index_create_block_exception"})
_START_ENGINE_REMEDY = (
    "Check the address and the port (engines use 9200), or start an engine here: `es-sbert engine up`."
)


def connection_error(
    url: str, error: BaseException, timeout: float | None, *, nobody: str = _START_ENGINE_REMEDY
) -> EngineUnreachable:
    """A broken or refused connection in words.

    Args:
        url: Address without credentials.
        error: The client's exception; its causes are searched for the one that says most.
        timeout: Seconds that were allowed, for the message of a timeout; None where the client alone knows them.
        nobody: What to do where nothing listens.
    """
    causes = list(_exception_chain(error))
    text = " ".join(str(cause) for cause in causes).lower()
    if any(isinstance(cause, ssl.SSLError) for cause in causes) or "certificate" in text or "ssl" in text:
        if "wrong_version_number" in text or "wrong version number" in text or "record layer" in text:
            return TlsFailed(
                f"{url} does not speak TLS", "Write http:// in front of the address, or switch TLS on in the engine."
            )
        if "fingerprint" in text:
            return TlsFailed(
                f"the certificate of {url} is not the one with the fingerprint given",
                "If the engine has a new certificate, take its fingerprint on the engine's own machine; if it has not, "
                "somebody stands in between.",
            )
        # A connection that breaks during the handshake may be a server that starts.
        kind = EngineUnreachable if any(isinstance(cause, ssl.SSLEOFError) for cause in causes) else TlsFailed
        return kind(
            f"the TLS connection to {url} failed: {_tls_reason(causes)}",
            "Give --ca-certs the certificate authority that signed the engine's certificate, "
            "and use the host name that stands in the certificate.",
        )
    if "timed out" in text or "timeout" in text:
        raised = "the client's timeout" if timeout is None else "--timeout"
        return EngineUnreachable(
            f"{url} did not answer within {'the time allowed' if timeout is None else f'{timeout:g} seconds'}",
            f"Check the host, its firewall and its load (`GET _nodes/hot_threads`), or raise {raised}.",
        )
    if any(word in text for word in ("name or service not known", "nodename nor servname", "getaddrinfo", "resolve")):
        return HostUnknown(f"the host of {url} is not known", "Check the spelling of the address and the DNS.")
    if "refused" in text or any(isinstance(cause, ConnectionRefusedError) for cause in causes):
        return EngineUnreachable(f"nothing listens at {url}", nobody)
    return EngineUnreachable(
        f"the connection to {url} broke: {causes[-1]}",
        "Check that an engine runs there, and whether it wants https:// instead of http://.",
    )


def _exception_chain(error: BaseException) -> list[BaseException]:
    """The exception and everything it wraps, outermost first."""
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


def _tls_reason(causes: list[BaseException]) -> str:
    for cause in causes:
        if isinstance(cause, ssl.SSLCertVerificationError):
            return str(getattr(cause, "verify_message", cause))
    return str(causes[-1])


def response_error(status: int, body: Any, *, label: str, action: str) -> EsSbertError:
    """An answer other than 2xx as an error.

    Args:
        body: The answer, parsed where it was JSON.
        label: `Elasticsearch 9.5.0 at http://…`.
        action: What was asked, e.g. `PUT /docs`.
    """
    kind, reason = root_cause(body)
    if status == 401:
        return AccessDenied(f"{label} refused the credentials (401)", CREDENTIALS_REMEDY)
    if kind in _BLOCK_EXCEPTIONS:
        return RequestFailed(
            f"{label} blocks {action}: {reason}",
            "A full disk makes indices read-only, and new ones impossible: free space. Where the engine does not "
            "notice, set index.blocks.read_only_allow_delete to null, or the block that somebody has set by hand.",
            status,
        )
    if status == 403:
        return access_denied(label, action, reason)
    module = find_missing_module(reason, action.partition(" ")[2]) if status in _UNSUPPORTED_STATUSES else None
    if module is not None:
        return missing_feature_error(module, label=label, action=action, reason=reason, status=status)
    if "maxClauseCount" in reason:
        return RequestFailed(
            f"{label} answered {action} with {status}: {reason}",
            "The query holds too many words or clauses: search by fewer, or raise indices.query.bool.max_clause_count.",
            status,
        )
    if kind == SEARCH_CONTEXT_MISSING:
        return point_in_time_lost(label, reason, status)
    if kind == "index_not_found_exception":
        return IndexMissing(f"{reason} ({label})", "Check the name, or create it: `es-sbert index create NAME`.")
    if kind == "index_closed_exception":
        return RequestFailed(f"{label} cannot do {action}: the index is closed", "Open it: `POST /NAME/_open`.", status)
    remedy = _STATUS_REMEDIES.get(status, "The engine's log says more; the message above is its own.")
    return RequestFailed(f"{label} answered {action} with {status}: {reason}", remedy, status)


def point_in_time_lost(label: str, reason: str, status: int) -> RequestFailed:
    """A point in time that is no longer there.

    Args:
        label: Whose it was.
        reason: The engine's own.
    """
    return RequestFailed(
        f"{label} has lost the point in time from which the index was read: {reason}",
        "A restart of the engine ends it, and so does half an hour in which nothing was read: run the same command "
        "again.",
        status,
    )


def access_denied(label: str, action: str, reason: str) -> AccessDenied:
    """An action that the user may not do.

    Args:
        label: Who refuses.
        action: What was asked.
        reason: The engine's own, which names the missing privilege.
    """
    return AccessDenied(f"{label} does not allow {action}: {reason}", privilege_remedy(reason))


def privilege_remedy(reason: str) -> str:
    """What to give a user, from the engine's reason for refusing an action."""
    granted, refused = _GRANTED_BY.search(reason), _NO_PERMISSIONS.search(reason)
    if granted is not None:
        scope, names = granted[1], granted[2].split(",")
        indices = _ON_INDICES.search(reason)
        where = f" on {indices[1]}" if indices is not None else ""
        wider = f" (or a wider one: {', '.join(names[1:])})" if names[1:] else ""
        return f"Give the user or API key the {scope} privilege {names[0]}{where}{wider}."
    if refused is not None:
        return f"Give one of the user's roles the permission {refused[1]}."
    return (
        "Give the user or API key the cluster privilege monitor and the index privileges of its task: "
        "docs/operations.md lists them."
    )


def root_cause(body: Any) -> tuple[str, str]:
    """Type and one-line reason of the innermost error in an engine's answer."""
    error = body.get("error", body) if isinstance(body, dict) else body
    if not isinstance(error, dict):
        return "", _one_line(error)
    inner = error
    roots = error.get("root_cause")
    if isinstance(roots, list) and roots and isinstance(roots[0], dict):
        inner = roots[0]
    # Requests that are carried out shard by shard, such as a refresh, answer with the status of the first that failed.
    counted = error.get("_shards")
    shards = error.get("failed_shards") or (counted.get("failures") if isinstance(counted, dict) else None)
    first = shards[0] if isinstance(shards, list) and shards else None
    if isinstance(first, dict) and isinstance(first.get("reason"), dict):
        inner = first["reason"]
    kind = str(inner.get("type", ""))
    reasons = [str(inner.get("reason", ""))]
    cause = inner.get("caused_by") or error.get("caused_by")
    while isinstance(cause, dict):
        reasons.append(str(cause.get("reason", "")))
        cause = cause.get("caused_by")
    distinct = [reason for i, reason in enumerate(reasons) if reason and reason not in " ".join(reasons[:i])]
    text = "; ".join(distinct) or kind or "no reason given"
    return kind, _one_line(text)


def _one_line(value: Any) -> str:
    return " ".join(str(value or "").split())[:1000] or "no reason given"
