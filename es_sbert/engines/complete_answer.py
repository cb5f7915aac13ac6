"""Detect partial responses of an engine, and responses that do not come from an engine.

An engine answers 200 even if shards, nodes or remote clusters are missing; only the body of the response says so. Code
that takes such a response for a complete one would find documents missing, or mistake shard 1 for shard 0. Therefore
every response is checked here, unless the caller has asked for partial results. Another web server is detected because
its responses cannot be read.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from es_sbert.engines.error_mapping import PERMANENT_TYPES, SEARCH_CONTEXT_MISSING, point_in_time_lost, root_cause
from es_sbert.errors import EsSbertError, RequestFailed, UsageError

Json = dict[str, Any]

_UNAVAILABLE = 503
_BAD_REQUEST = 400
HEALTH_REMEDY = "Look at `GET _cluster/health` and `GET _cat/shards`, and try again when all shards are active."


def check_complete(answer: Json, label: str, action: str) -> None:
    """Check that a response covers everything that was requested.

    Args:
        answer: The parsed body of a 2xx response.
        label: The engine, for messages.
        action: The request, such as `POST /docs/_search`.

    Raises:
        PointInTimeLost: the point in time that was searched no longer exists.
        RequestFailed: shards, nodes or remote clusters are missing, or the engine's own time limit ended the request.
            Status 503 if the same request may succeed later, 400 if the query is the reason.
    """
    if (answer.get("_shards") or {}).get("failed") or _lacks_copies(answer):
        raise _shards_failed(answer, label, action)
    clusters, nodes = answer.get("_clusters") or {}, answer.get("_nodes") or {}
    if answer.get("timed_out"):
        message = f"did not finish {action} within the engine's own time limit, so its response is partial"
        remedy = f"Request less, or raise the limit. {HEALTH_REMEDY}"
    elif any(clusters.get(state) for state in ("skipped", "partial", "failed")):
        message = f"answered {action} without {_missing_clusters(clusters)}"
        remedy = "Look at `GET _remote/info`, and try again when the remote clusters are connected."
    elif nodes.get("failed"):
        reason = _first_reason(nodes) or "a node does not answer"
        message = f"answered {action} for only {nodes.get('successful')} of {nodes.get('total')} nodes: {reason}"
        remedy = "Look at `GET _cat/nodes`, and try again."
    elif answer.get("failed_indices"):
        failures = [failure.get("failure", {}) for failure in answer.get("failures", ())]
        reason = next((reason for failure in failures if (reason := root_cause(failure)[1])), "shards do not answer")
        message, remedy = f"answered {action} without some of the indices: {reason}", HEALTH_REMEDY
    elif answer.get("acknowledged") is False:
        message = f"has accepted {action}, but not all nodes have applied it within the engine's own time limit"
        remedy = "Look at `GET _cluster/health` and `GET _cluster/pending_tasks`, and run the command again."
    else:
        return
    raise RequestFailed(f"{label} {message}", remedy, _UNAVAILABLE)


def missing_shards_error(label: str, action: str, name: str, missing: list[int], count: int) -> RequestFailed:
    """Return the error for a response that lacks primary shards.

    Args:
        missing: Numbers of the missing shards.
        count: Number of primary shards of the index.
    """
    numbers = ", ".join(map(str, missing[:10]))
    which = f"shard {numbers} has" if len(missing) == 1 else f"shards {numbers} have"
    return RequestFailed(
        f"{label} answered {action} for only {count - len(missing)} of {count} shards of {name}: {which} no active "
        "primary",
        HEALTH_REMEDY,
        _UNAVAILABLE,
    )


def _shards_failed(answer: Json, label: str, action: str) -> RequestFailed:
    shards = answer["_shards"]
    failures = list(_failures(answer))
    kinds = {root_cause(failure.get("reason"))[0] for failure in failures}
    if SEARCH_CONTEXT_MISSING in kinds:
        return point_in_time_lost(label, shard_failures_text(answer))
    is_query = bool(kinds) and kinds <= PERMANENT_TYPES
    return RequestFailed(
        f"{label} answered {action} for only {shards.get('successful')} of {shards.get('total')} shards: "
        f"{shard_failures_text(answer)}",
        "Fix the query, so that every shard can run it." if is_query else HEALTH_REMEDY,
        _BAD_REQUEST if is_query else _UNAVAILABLE,
    )


def shard_failures_text(answer: Json) -> str:
    """Describe why shards failed: the first reason, and the number of others. Never empty.

    Args:
        answer: A response with `_shards`.
    """
    failures = list(_failures(answer))
    if not failures:
        return "they have no active copy"
    first = failures[0]
    reason = root_cause(first.get("reason"))[1]
    where = f"shard {first['shard']}" if isinstance(first.get("shard"), int) and first["shard"] >= 0 else "a shard"
    index = f" of {first['index']}" if first.get("index") else ""
    more = f" (and {len(failures) - 1} more)" if len(failures) > 1 else ""
    return f"{where}{index}: {reason}{more}"


def _lacks_copies(answer: Json) -> bool:
    """Whether the response to a search or a count lacks shards because they have no active copy.

    OpenSearch does not report such shards as failed. In responses to other operations, the total includes unassigned
    copies.
    """
    shards = answer.get("_shards") or {}
    is_search = "timed_out" in answer or "count" in answer
    return is_search and shards.get("successful", 0) < shards.get("total", 0)


def _failures(answer: Json) -> Iterator[Json]:
    """The shard failures that the response lists; there may be more."""
    listed = (answer.get("_shards") or {}).get("failures")
    yield from (failure for failure in listed or () if isinstance(failure, dict))


def _missing_clusters(clusters: Json) -> str:
    """Names of the remote clusters that a response lacks, with a reason if the engine gives one."""
    details = clusters.get("details") or {}
    missing = {name: one for name, one in details.items() if one.get("status") not in ("successful", "running")}
    if not missing:
        return f"{clusters.get('skipped') or clusters.get('failed') or clusters.get('partial')} remote clusters"
    named = [name if name != "(local)" else "the local cluster" for name in missing]
    reason = next((text for one in missing.values() if (text := _first_reason(one))), "")
    return ", ".join(named) + (f": {reason}" if reason else "")


def _first_reason(part: Json) -> str:
    failures = part.get("failures") or []
    return root_cause(failures[0].get("reason", failures[0]))[1] if failures else ""


@contextmanager
def reading_response(failure: Callable[[Exception], EsSbertError]) -> Iterator[None]:
    """Turn the exceptions of code that reads a response of another form into one error.

    The block must only read: a mistake in building a request is not the server's.

    Args:
        failure: Returns the error to raise.
    """
    try:
        yield
    except UsageError:  # a ValueError that is not about the response
        raise
    except (LookupError, TypeError, AttributeError, ValueError) as error:
        raise failure(error) from error
