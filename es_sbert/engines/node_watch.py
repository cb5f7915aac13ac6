"""Watch the nodes of a cluster that is reached at several addresses, and move requests away from those that fail.

The official clients' pools choose the node of each request (round robin), leave out a node whose connection failed, and
try it again after a while. This module adds two things. First, a request without a response is aborted if the node does
not answer a health request either: a stopped process or a hung machine keeps its connections open. Second, a node that
failed has to answer a health request before it gets the next request.

With one address, none of this is used.
"""

from __future__ import annotations

import dataclasses
import logging
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any, TypeVar

import orjson
from elastic_transport import ConnectionError as TransportConnectionError
from elastic_transport import HttpHeaders, NodeConfig, TransportError, Urllib3HttpNode
from urllib3.exceptions import ConnectTimeoutError, HTTPError, NewConnectionError, ReadTimeoutError

from es_sbert.engines.detection import cluster_uuid
from es_sbert.engines.error_mapping import ForeignNodeError, NodeSilentError, exception_chain
from es_sbert.engines.rest import is_repeatable
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
# Seconds without requests after which the thread ends.
_IDLE_SECONDS = 10.0
# Waits of a client's pool before it tries a node again: the first, doubled with every failure, and the longest.
FIRST_BACKOFF_SECONDS, MAX_BACKOFF_SECONDS = 1.0, 30.0

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


class WatchedNode:
    """One node: whether its last request failed, and whether it answers.

    Args:
        config: Address, TLS settings and credentials of the node. Health requests have no credentials: a refusal is a
            response too.
        seconds: Timeout of a health request in seconds.

    Attributes:
        url: Address without credentials.
        is_suspect: Whether the node has failed and not answered a request since.
    """

    def __init__(self, config: NodeConfig, seconds: float) -> None:
        self._node = Urllib3HttpNode(dataclasses.replace(config, headers={}, connections_per_node=2, _extras={}))
        self._headers = dict(config.headers or {})
        self._seconds = seconds
        self.url = self._node.base_url
        self.is_suspect = False
        self._lock = threading.Lock()
        self._checked, self._answered = 0.0, True

    def answers(self, attempts: int = 1) -> bool:
        """Whether the node answers a health request; any response counts.

        Args:
            attempts: Number of health requests to try.
        """
        asked = time.monotonic()
        with self._lock:
            # Threads that waited for the lock share the result.
            if self._checked < asked:
                self._answered = any(self._answers_once() for _ in range(attempts))
                self._checked = time.monotonic()
            return self._answered

    def _answers_once(self) -> bool:
        # Use a new connection each time: a firewall may have dropped an idle one.
        try:
            self._node.perform_request("GET", "/", headers=HttpHeaders(_HEALTH), request_timeout=self._seconds)
        except TransportError:  # the caller counts it as no answer
            return False
        return True

    def cluster_uuid(self) -> str | None:
        """The UUID of the node's cluster; None if it does not tell."""
        headers = HttpHeaders(self._headers | _HEALTH)
        try:
            _, raw = self._node.perform_request("GET", "/", headers=headers, request_timeout=self._seconds)
            return cluster_uuid(orjson.loads(raw))
        except (TransportError, orjson.JSONDecodeError):
            return None

    def close(self) -> None:
        self._node.close()


class _Flight:
    """A request in progress.

    Attributes:
        node: The node that it was sent to.
        next_check: Time of the next check of the node, by the monotonic clock.
        connection: The connection that carries the request, once there is one.
        is_broken_off: Whether the watch has aborted the request.
    """

    def __init__(self, node: WatchedNode, next_check: float) -> None:
        self.node = node
        self.next_check = next_check
        self.connection: Any = None
        self.is_broken_off = False

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
        self._unanswered, self._health, self._attempts = UNANSWERED_SECONDS, HEALTH_SECONDS, HEALTH_ATTEMPTS
        self.nodes: list[WatchedNode] = []
        self._local = threading.local()
        self._lock = threading.Lock()
        self._flights: set[_Flight] = set()
        self._thread: threading.Thread | None = None
        self._closed = threading.Event()
        self._cluster: str | None = None
        self._foreign: set[str] = set()  # addresses that were logged

    def add(self, config: NodeConfig, pool: Any) -> WatchedNode:
        """Start watching a node, and return it.

        Args:
            pool: The node's urllib3 pool, so that requests on its connections can be aborted.
        """
        node = WatchedNode(config, self._health)
        self.nodes.append(node)
        base = pool.ConnectionCls
        pool.ConnectionCls = type(base.__name__, (_WatchedConnection, base), {"watch": self})
        return node

    def send(self, call: Callable[[], T], method: str, path: str) -> T:
        """Return the result of a call that sends one request; repeat it with other nodes if `may_repeat` allows it.

        Args:
            call: Sends the request to the node that the client's pool chooses next.
        """
        left = len(self.nodes)
        while True:
            left -= 1
            try:
                return call()
            except EngineUnreachable as error:
                if not left or not may_repeat(error, method, path):
                    raise

    @property
    def last_url(self) -> str:
        """Address of the node to which this thread sent its last request; empty before the first."""
        return getattr(self._local, "url", "")

    @property
    def current(self) -> _Flight | None:
        """The request that this thread is sending; None if there is none."""
        return getattr(self._local, "flight", None)

    @contextmanager
    def request(self, node: WatchedNode) -> Iterator[None]:
        """Watch one request to a node while the block runs.

        Raises:
            NodeSilentError: the node does not answer, and the request was not sent, or was aborted.
        """
        self._local.url = node.url
        if node.is_suspect and not node.answers():
            raise NodeSilentError(node.url, sent=False)
        flight = _Flight(node, time.monotonic() + self._unanswered)
        self._local.flight = flight
        with self._lock:
            self._flights.add(flight)
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="node-watch", daemon=True)
                self._thread.start()
        try:
            yield
            node.is_suspect = False
        except Exception as error:
            causes = exception_chain(error)
            # Error responses are raised as exceptions too, but the node has answered.
            node.is_suspect = any(isinstance(cause, HTTPError) for cause in causes)
            if flight.is_broken_off and not any(isinstance(cause, _NEVER_SENT) for cause in causes):
                raise NodeSilentError(node.url, sent=True) from error
            raise
        finally:
            self._local.flight = None
            with self._lock:
                self._flights.discard(flight)

    def check_cluster(self, flight: _Flight) -> None:
        """Check the cluster of a node before a new connection to it: a node that comes back may be another one.

        The first cluster that is found is the right one.

        Raises:
            ForeignNodeError: the node belongs to another cluster.
        """
        uuid = flight.node.cluster_uuid()
        with self._lock:
            self._cluster = self._cluster or uuid
        if uuid not in (None, self._cluster):
            url = flight.node.url
            message = f"{url} belongs to another cluster than the other addresses, so nothing is sent to it"
            if url not in self._foreign:
                self._foreign.add(url)
                log_event("foreign_node", message, logging.WARNING, url=url)
            raise ForeignNodeError(flight.connection, message)

    def _run(self) -> None:
        idle_since = time.monotonic()
        while not self._closed.wait(min(1.0, self._unanswered / 5)):
            now = time.monotonic()
            with self._lock:
                if self._flights:
                    idle_since = now
                elif now - idle_since > _IDLE_SECONDS:
                    self._thread = None
                    return
                due = [flight for flight in self._flights if flight.next_check <= now]
            for node in {flight.node for flight in due}:
                is_silent = not node.answers(self._attempts)
                # If no other node answers either, the fault may be on this side, and another node would not help.
                if is_silent and any(other.answers() for other in self.nodes if other is not node):
                    node.is_suspect = True
                    self._break_off([flight for flight in due if flight.node is node])
            for flight in due:
                flight.next_check = time.monotonic() + self._unanswered

    def _break_off(self, flights: list[_Flight]) -> None:
        with self._lock:
            for flight in self._flights.intersection(flights):
                flight.break_off()

    def close(self) -> None:
        self._closed.set()
        for node in self.nodes:
            node.close()


class _WatchedConnection:
    """Mixin for a urllib3 connection: records the request that it carries, and limits the time to connect."""

    watch: NodeWatch
    flight: _Flight | None = None
    timeout: Any
    sock: Any

    def connect(self) -> None:
        self._note_flight()
        if self.flight is not None:
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
        self.flight = self.watch.current
        if self.flight is not None:
            self.flight.connection = self


class WatchedTransportNode(Urllib3HttpNode):
    """A node of elastic-transport; `_extras` of its configuration holds the watch, as `_es_sbert_watch`.

    elastic-transport documents `_extras` as the place for third-party data, whose keys begin with an underscore.
    """

    def __init__(self, config: NodeConfig) -> None:
        super().__init__(config)
        self._watch: NodeWatch = config._extras["_es_sbert_watch"]
        self._watched = self._watch.add(config, self.pool)

    def perform_request(self, *args: Any, **kwargs: Any) -> Any:
        try:
            with self._watch.request(self._watched):
                return super().perform_request(*args, **kwargs)
        except NodeSilentError as error:
            raise TransportConnectionError(str(error), errors=(error,)) from error
