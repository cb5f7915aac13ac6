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
    elif any(clusters.get(state) for state in ("skipped", "partial", "failed")):
        message = f"answered {action} without all remote clusters (`GET _remote/info`)"
    elif nodes.get("failed"):
        message = f"answered {action} for only {nodes.get('successful')} of {nodes.get('total')} nodes"
    elif answer.get("failed_indices"):
        message = f"answered {action} without some of the indices"
    elif answer.get("acknowledged") is False:
        message = f"has accepted {action}, but not all nodes have applied it within the engine's own time limit"
    else:
        return
    raise RequestFailed(f"{label} {message}", HEALTH_REMEDY, _UNAVAILABLE)


def _shards_failed(answer: Json, label: str, action: str) -> RequestFailed:
    shards = answer["_shards"]
    failures = [failure for failure in shards.get("failures") or () if isinstance(failure, dict)]
    causes = [root_cause(failure.get("reason")) for failure in failures]
    kinds = {kind for kind, _ in causes}
    text = "they have no active copy"
    if failures:
        more = f" (and {len(failures) - 1} more)" if len(failures) > 1 else ""
        first = failures[0]
        where = f"shard {first.get('shard')} of {first['index']}: " if first.get("index") else ""
        text = f"{where}{causes[0][1]}{more}"
    if SEARCH_CONTEXT_MISSING in kinds:
        return point_in_time_lost(label, text)
    is_query = bool(kinds) and kinds <= PERMANENT_TYPES
    return RequestFailed(
        f"{label} answered {action} for only {shards.get('successful')} of {shards.get('total')} shards: {text}",
        "Fix the query, so that every shard can run it." if is_query else HEALTH_REMEDY,
        _BAD_REQUEST if is_query else _UNAVAILABLE,
    )


def _lacks_copies(answer: Json) -> bool:
    """Whether the response to a search or a count lacks shards because they have no active copy.

    OpenSearch does not report such shards as failed. In responses to other operations, the total includes unassigned
    copies.
    """
    shards = answer.get("_shards") or {}
    is_search = "timed_out" in answer or "count" in answer
    return is_search and shards.get("successful", 0) < shards.get("total", 0)


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
