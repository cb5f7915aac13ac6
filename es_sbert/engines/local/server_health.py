"""Check whether ports are free and what listens on them, and wait until started servers are ready."""

from __future__ import annotations

import http.client
import json
import socket
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from es_sbert.engines.local import server_process
from es_sbert.engines.local.engine_home import RunningEngine
from es_sbert.errors import LocalEngineError

ProgressCallback = Callable[[str], None]
_POLL = 0.25
_RED_STATUS_SECONDS = 30.0
_LOG_LINES = 15


@dataclass(frozen=True)
class ClusterHealth:
    """The health of a cluster, as a server reports it.

    Attributes:
        status: `green`, `yellow` or `red`.
        nodes: Number of nodes that have joined.
    """

    status: str
    nodes: int


def cluster_health(port: int) -> ClusterHealth | None:
    """Request the health of the cluster from the server on a port; None if the server does not answer."""
    health = _get_json(port, "/_cluster/health") or {}
    status, nodes = health.get("status"), health.get("number_of_nodes")
    # A node without a master answers with an error, whose status is a number.
    return ClusterHealth(status, nodes) if isinstance(status, str) and isinstance(nodes, int) else None


def port_is_free(port: int) -> bool:
    """Whether a server could listen on the port right now.

    Raises:
        PermissionError: the port is reserved for root, as ports below 1024 may be.
    """
    with socket.socket() as probe:
        # Set the option that the servers set: a port whose last connection was closed a moment ago counts as free.
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((server_process.LOOPBACK, port))
        except PermissionError:
            raise
        except OSError:
            return False
    return True


def listening_version(port: int) -> str | None:
    """The version of the search engine that listens on a port; None if another program does."""
    # Use the nodes API, because builds without the rest-root module do not answer `GET /`.
    nodes = (_get_json(port, "/_nodes/_local?filter_path=nodes.*.version,nodes.*.build_type") or {}).get("nodes")
    if not isinstance(nodes, dict) or not nodes:
        return None
    return str(next(iter(nodes.values())).get("version", "of unknown version"))


def count_indices(port: int) -> int | None:
    """Count the indices of the server on a port, without hidden ones; None if the server does not answer."""
    indices = (_get_json(port, "/_resolve/index/*") or {}).get("indices")
    return len(indices) if isinstance(indices, list) else None


def _get_json(port: int, path: str) -> dict[str, Any] | None:
    connection = http.client.HTTPConnection(server_process.LOOPBACK, port, timeout=2.0)
    try:
        connection.request("GET", path)
        answer = json.loads(connection.getresponse().read())
    except (OSError, http.client.HTTPException, ValueError):
        # Refused, cut off or not JSON: all mean "no search engine answers here (yet)", which is the result.
        return None
    finally:
        connection.close()
    return answer if isinstance(answer, dict) else None


def wait_until_ready(
    engines: Sequence[RunningEngine], timeout: float, progress: ProgressCallback, *, nodes: int | None
) -> float:
    """Wait until all servers answer, the nodes have joined and the indices are open; returns the seconds it took.

    A server whose indices stay red, because one of them is broken, counts as ready after a while: the engine itself
    works, and is needed to repair or delete them.

    Args:
        nodes: Number of nodes that each server must see; None for any number.

    Raises:
        LocalEngineError: a server ended, or the servers are not ready in time.
    """
    begin = time.monotonic()
    answered: float | None = None
    told = begin
    while True:
        health = {engine: cluster_health(engine.port) for engine in engines}
        now = time.monotonic()
        missing = [engine for engine, seen in health.items() if seen is None or nodes not in (None, seen.nodes)]
        if not missing:
            answered = answered or now
            red = any(seen is not None and seen.status == "red" for seen in health.values())
            if not red or now - answered > _RED_STATUS_SECONDS:
                return now - begin
        for engine in engines:
            if not engine.is_alive:
                raise _startup_failure(engine)
        if now - begin > timeout:
            raise _startup_timeout(missing or engines, health, timeout)
        if now - told >= 10:
            told = now
            progress(f"Still waiting ({now - begin:.0f} s) …")
        time.sleep(_POLL)


def _startup_timeout(
    missing: Sequence[RunningEngine], health: dict[RunningEngine, ClusterHealth | None], timeout: float
) -> LocalEngineError:
    engine = missing[0]
    seen = health[engine]
    what = (
        f"does not answer on port {engine.port}"
        if seen is None
        else f"on port {engine.port} is in a cluster of {seen.nodes} instead of {len(engine.cluster_ports)} nodes"
    )
    return LocalEngineError(
        f"{engine.name} {engine.version} {what} after {timeout:g} s" + _log_tail(engine.log),
        "Allow a slow machine more time (`timeout=600`), or look for the reason in the log.",
    )


def _startup_failure(engine: RunningEngine) -> LocalEngineError:
    code = server_process.process_exit_code(engine.pid)
    with_code = "" if code is None else f" with exit code {code}"
    node = f" on port {engine.port}" if engine.cluster_ports else ""
    return LocalEngineError(
        f"{engine.name} {engine.version}{node} exited{with_code} during startup" + _log_tail(engine.log),
        'See the log for the cause. Most often, there is too little memory: set a smaller heap (`heap="512m"`). If the '
        f"data is from another version or damaged, start afresh: `{engine.down_command} --purge`",
    )


def _log_tail(log: Path) -> str:
    try:
        lines = log.read_text(encoding="utf-8", errors="replace").splitlines()
    except FileNotFoundError:
        return f"; it wrote no log ({log})"
    return f"; the last lines of {log}:\n" + "\n".join(f"    {line}" for line in lines[-_LOG_LINES:])
