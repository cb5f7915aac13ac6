"""Watch the nodes of a cluster that is reached at several addresses, and move requests away from those that fail.

The official clients' pools choose the node of each request (round robin), leave out a node whose connection failed, and
try it again after a while. This module adds two things. First, a request without a response is aborted if the node does
not answer a health request either: a stopped process or a hung machine keeps its connections open. Second, a node that
failed has to answer a health request before it gets the next request.

With one address, none of this is used.
"""

from __future__ import annotations

import logging
import socket
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, TypeVar

import orjson
from elastic_transport import HttpHeaders, NodeConfig, TransportError
from urllib3.exceptions import ConnectTimeoutError, NewConnectionError, ReadTimeoutError

from es_sbert.engines.detection import EngineNode, cluster_uuid
from es_sbert.engines.error_mapping import ForeignNodeError, NodeSilentError, exception_chain
from es_sbert.engines.rest import is_repeatable
from es_sbert.engines.retry import RetryPolicy
from es_sbert.errors import EngineUnreachable
from es_sbert.messages import log_event

T = TypeVar("T")

_HEALTH = {"accept": "application/json", "connection": "close"}

# Seconds without a response after which the node is checked, and again after each check that it passes.
UNANSWERED_SECONDS = 5.0
# Timeout of a health request in seconds, and number of attempts: garbage collection can stop a node for seconds.
HEALTH_SECONDS, HEALTH_ATTEMPTS = 3.0, 2
# Timeout of a connection to a node in seconds: a machine that is switched off does not refuse one.
_CONNECT_SECONDS = 10.0
# Waits of a client's pool before it tries a node again: the first, doubled with every failure, and the longest.
NODE_BACKOFF = RetryPolicy(0, first=1.0, ceiling=30.0)

_NEVER_SENT = (NewConnectionError, ConnectTimeoutError)


def may_repeat(error: EngineUnreachable, method: str, path: str) -> bool:
    """Whether a request that failed on one node may be sent to another at once.

    A request that was never sent may; so may a read whose connection broke. A write may not: the node may have carried
    it out. A request that a healthy node does not answer in time is not repeated: it would overload the next node too.
    """
    causes = exception_chain(error)
    if any(isinstance(cause, _NEVER_SENT) for cause in causes):
        return True
    silent = next((cause for cause in causes if isinstance(cause, NodeSilentError)), None)
    if silent is not None and not silent.sent:
        return True
    if silent is None and any(isinstance(cause, ReadTimeoutError) for cause in causes):
        return False
    return is_repeatable(method, path)


class _WatchedNode:
    """One node: whether its last request failed, and whether it answers.

    Args:
        config: Address, TLS settings and credentials of the node.

    Attributes:
        url: Address without credentials.
        is_suspect: Whether the node has failed and not answered a request since.
        is_foreign: Whether it was found to belong to another cluster.
    """

    def __init__(self, config: NodeConfig) -> None:
        self._node = EngineNode(replace(config, headers={}, connections_per_node=2))
        self._credentials = dict(config.headers or {})
        self.url = self._node.base_url
        self.is_suspect = self.is_foreign = False
        self._lock = threading.Lock()
        self._checked, self._answered = 0.0, True

    def answers(self, attempts: int = 1) -> bool:
        """Whether the node answers a health request without credentials; a refusal is a response too."""
        asked = time.monotonic()
        with self._lock:
            # Threads that waited for the lock share the result: one after the other, they would wait for minutes.
            if self._checked < asked:
                self._answered = any(self._ask({}) is not None for _ in range(attempts))
                self._checked = time.monotonic()
            return self._answered

    def cluster_uuid(self) -> str | None:
        """The UUID of the node's cluster; None if it does not tell."""
        try:
            return cluster_uuid(orjson.loads(self._ask(self._credentials) or b""))
        except orjson.JSONDecodeError:
            return None

    def _ask(self, headers: dict[str, str]) -> bytes | None:
        # Use a new connection each time: a firewall may have dropped an idle one.
        asked = HttpHeaders(headers | _HEALTH)
        try:
            return self._node.perform_request("GET", "/", headers=asked, request_timeout=HEALTH_SECONDS)[1]
        except TransportError:  # the callers count it as no answer
            return None

    def close(self) -> None:
        self._node.close()


@dataclass(eq=False)
class _Flight:
    """A request in progress.

    Attributes:
        node: The node that it was sent to.
        next_check: Time of the next check of the node, by the monotonic clock.
        connection: The connection that carries the request, once there is one.
        is_broken_off: Whether the watch has aborted the request.
    """

    node: _WatchedNode
    next_check: float
    connection: Any = None
    is_broken_off: bool = False

    def break_off(self) -> None:
        self.is_broken_off = True
        # Only wake the reader: another thread may use the connection by now, and closing TLS properly needs a response.
        sock = getattr(self.connection, "sock", None)
        if sock is not None and self.connection.flight is self:
            with suppress(OSError):  # it is closed already
                socket.socket.shutdown(sock, socket.SHUT_RDWR)


class NodeWatch:
    """Watches the nodes of one client. Thread-safe."""

    def __init__(self) -> None:
        self._nodes: list[_WatchedNode] = []
        self.local = threading.local()  # `url` and `flight` of this thread's last request
        self._lock = threading.Lock()
        self._flights: set[_Flight] = set()
        self._thread: threading.Thread | None = None
        self._closed = threading.Event()
        self._cluster: str | None = None

    def add(self, config: NodeConfig, pool: Any) -> None:
        """Start watching a node.

        Args:
            pool: The urllib3 pool by which the client sends requests to the node.
        """
        node = _WatchedNode(config)
        self._nodes.append(node)
        base = pool.ConnectionCls
        pool.ConnectionCls = type(base.__name__, (_WatchedConnection, base), {"watch": self})
        pool.urlopen = partial(self._request, node, pool.urlopen)

    def send(self, call: Callable[[], T], method: str, path: str) -> T:
        """Return the result of a call that sends one request; repeat it with other nodes if `may_repeat` allows it.

        Args:
            call: Sends the request to the node that the client's pool chooses next.
        """
        for _ in self._nodes[1:]:
            try:
                return call()
            except EngineUnreachable as error:
                if not may_repeat(error, method, path):
                    raise
        return call()

    @property
    def last_url(self) -> str:
        """Address of the node to which this thread sent its last request; empty before the first."""
        return getattr(self.local, "url", "")

    def _request(self, node: _WatchedNode, urlopen: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """Send one request to a node, and watch it.

        Raises:
            NodeSilentError: the node does not answer, and the request was not sent, or was aborted.
        """
        self.local.url = node.url
        if node.is_suspect and not node.answers():
            raise NodeSilentError(node.url, sent=False)
        flight = self.local.flight = _Flight(node, time.monotonic() + UNANSWERED_SECONDS)
        with self._lock:
            self._flights.add(flight)
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="node-watch", daemon=True)
                self._thread.start()
        try:
            response = urlopen(*args, **kwargs)
        except Exception as error:
            node.is_suspect = True
            if flight.is_broken_off and not isinstance(error, _NEVER_SENT):
                raise NodeSilentError(node.url, sent=True) from error
            raise
        finally:
            with self._lock:
                self._flights.discard(flight)
        node.is_suspect = False
        return response

    def check_cluster(self, flight: _Flight) -> None:
        """Check the cluster of a node before a new connection to it: a node that comes back may be another one.

        The first cluster that is found is the right one.

        Raises:
            ForeignNodeError: the node belongs to another cluster.
        """
        node, uuid = flight.node, flight.node.cluster_uuid()
        with self._lock:
            self._cluster = self._cluster or uuid
        if uuid not in (None, self._cluster):
            message = f"{node.url} belongs to another cluster than the other addresses, so nothing is sent to it"
            if not node.is_foreign:
                node.is_foreign = True
                log_event("foreign_node", message, logging.WARNING, url=node.url)
            raise ForeignNodeError(flight.connection, message)

    def _run(self) -> None:
        """Check the nodes of requests without a response, until there are no requests."""
        while not self._closed.wait(min(1.0, UNANSWERED_SECONDS / 5)):
            with self._lock:
                if not self._flights:
                    self._thread = None
                    return
                due = [flight for flight in self._flights if flight.next_check <= time.monotonic()]
            for node in {flight.node for flight in due}:
                is_silent = not node.answers(HEALTH_ATTEMPTS)
                # If no other node answers either, the fault may be on this side, and another node would not help.
                if is_silent and any(other.answers() for other in self._nodes if other is not node):
                    node.is_suspect = True
                    with self._lock:
                        for flight in self._flights.intersection(due):
                            if flight.node is node:
                                flight.break_off()
            for flight in due:
                flight.next_check = time.monotonic() + UNANSWERED_SECONDS

    def close(self) -> None:
        self._closed.set()
        for node in self._nodes:
            node.close()


class _WatchedConnection:
    """Mixin for a urllib3 connection: records the request that it carries, and limits the time to connect."""

    watch: NodeWatch
    flight: _Flight
    timeout: Any
    sock: Any

    def connect(self) -> None:
        self._note_flight()
        self.watch.check_cluster(self.flight)
        # Limit the time to connect: the timeout of a request is too long, and a connection is made quickly, or never.
        allowed = self.timeout
        self.timeout = min(allowed, _CONNECT_SECONDS) if isinstance(allowed, int | float) else _CONNECT_SECONDS
        try:
            super().connect()  # type: ignore[misc]
        finally:
            self.timeout = allowed
        self.sock.settimeout(allowed)

    def request(self, *args: Any, **kwargs: Any) -> Any:
        self._note_flight()
        return super().request(*args, **kwargs)  # type: ignore[misc]

    def _note_flight(self) -> None:
        self.flight = self.watch.local.flight
        self.flight.connection = self
