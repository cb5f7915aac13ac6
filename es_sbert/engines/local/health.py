"""Ask a server on this machine how it is, without any client library and past any proxy."""

from __future__ import annotations

import http.client
import json
import socket
from dataclasses import dataclass
from typing import Any

LOOPBACK = "127.0.0.1"


@dataclass(frozen=True)
class Listener:
    """What answers on a port: a product and its version, or something that is no search engine."""

    description: str
    is_engine: bool


def cluster_status(port: int) -> str | None:
    """`green`, `yellow` or `red`; None as long as the server does not answer."""
    health = _get(port, "/_cluster/health")
    return health.get("status") if health else None


def port_is_free(port: int) -> bool:
    """Whether a server could listen on the port right now.

    Raises:
        PermissionError: ports below 1024 may be reserved for root.
    """
    with socket.socket() as probe:
        # As the servers do: a port whose last connection has just been closed is free.
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((LOOPBACK, port))
        except PermissionError:
            raise
        except OSError:
            return False
    return True


def describe_listener(port: int) -> Listener:
    """What listens on a port that is not free."""
    # The nodes API, because builds without the rest-root module do not answer `GET /`.
    nodes = (_get(port, "/_nodes/_local?filter_path=nodes.*.version,nodes.*.build_type") or {}).get("nodes")
    if isinstance(nodes, dict) and nodes:
        version = next(iter(nodes.values())).get("version", "of unknown version")
        return Listener(f"a search engine {version} that es-sbert did not start", is_engine=True)
    return Listener("another program", is_engine=False)


def _get(port: int, path: str, timeout: float = 2.0) -> dict[str, Any] | None:
    connection = http.client.HTTPConnection(LOOPBACK, port, timeout=timeout)
    try:
        connection.request("GET", path)
        answer = json.loads(connection.getresponse().read())
    except (OSError, http.client.HTTPException, ValueError):
        # Refused, cut off or no JSON: all mean "no search engine answers here (yet)", which is the result.
        return None
    finally:
        connection.close()
    return answer if isinstance(answer, dict) else None
