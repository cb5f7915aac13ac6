"""Admission control: limits on concurrent requests, buffered bytes and connections.

Also the bearer keys of the gateway's own endpoints.
"""

from __future__ import annotations

import hmac
import ipaddress
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Protocol

from pydantic import SecretStr
from starlette.requests import Request

from es_sbert.errors import Overloaded
from es_sbert.gateway.settings import Limits

try:
    import resource
except ImportError:  # Windows, which has no limit of open files
    resource = None  # type: ignore[assignment]

# Pages that work even on surplus connections, under any host name, and without admission control.
HEALTH_PATHS = ("/healthz", "/readyz")
_RETRY_SOON = "Send the request again in a moment."
# An IPv6 network of this size counts as one client: a household has at least 2^64 addresses.
_CLIENT_PREFIX_V6 = 64
_MAX_CONNECTIONS = 10_000
# Open files that are reserved for files, the log, the listening socket, and surplus connections.
_RESERVED_FILES = 256
_MAX_SURPLUS = 64


class AdmissionControl:
    """Limits concurrent requests and the memory of their bodies. For one event loop.

    Args:
        limits: `concurrency` and `max_buffered_bytes` are used here.

    Attributes:
        requests: Number of requests whose body is complete.
        buffered_bytes: Bytes of all bodies in memory.
    """

    def __init__(self, limits: Limits) -> None:
        self.limits = limits
        self.requests = 0
        self.buffered_bytes = 0

    @property
    def full(self) -> str | None:
        """The reason why a request would be refused now; None if it would be accepted."""
        limit = self.limits.concurrency
        return None if self.requests < limit else f"the gateway is at its limit of {limit:,} concurrent requests"

    @contextmanager
    def slot(self) -> Iterator[RequestSlot]:
        """Provide the slot of one request, and release it at the end."""
        slot = RequestSlot(self)
        try:
            yield slot
        finally:
            self.requests -= slot.acquired
            self.buffered_bytes -= slot.reserved


class RequestSlot:
    """The share of one request in an `AdmissionControl`.

    Args:
        admission: Counts the requests.

    Attributes:
        acquired: Whether it counts as a request. It counts once its body is complete, so that clients that send slowly
            do not block others.
        reserved: Bytes of its body in memory.
    """

    def __init__(self, admission: AdmissionControl) -> None:
        self._admission = admission
        self.acquired = False
        self.reserved = 0

    def acquire(self) -> None:
        """Count the request.

        Raises:
            Overloaded: the gateway is at its limit of concurrent requests.
        """
        if self.acquired:
            return
        if self._admission.full is not None:
            raise Overloaded(self._admission.full, _RETRY_SOON)
        self._admission.requests += 1
        self.acquired = True

    def reserve(self, size: int) -> None:
        """Reserve memory for `size` bytes of a request body.

        Raises:
            Overloaded: the memory for request bodies is used up.
        """
        limit = self._admission.limits.max_buffered_bytes
        if self._admission.buffered_bytes + size > limit:
            raise Overloaded(f"the gateway is at its limit of {limit:,} bytes of request bodies", _RETRY_SOON)
        self._admission.buffered_bytes += size
        self.reserved += size


class ClientConnection(Protocol):
    """A client's connection.

    Attributes:
        address: IP address of the client; empty if it has none.
    """

    address: str

    def refuse(self, error: Overloaded) -> None:
        """Respond with an error and close the connection."""


class ConnectionLimiter:
    """Limits open connections, in total and per client.

    Beyond the limits, a few surplus connections are accepted, so that health checks work: the gateway reads one request
    and refuses any other. When there are too many of these, the oldest is closed.

    Args:
        limits: `connections` and `client_connections` are used here.

    Attributes:
        on_refused: Called for each surplus connection.
        draining: Whether the server is about to end. Requests are still answered, but `/readyz` fails, and each
            response closes its connection, so that clients open the next one to another gateway.
    """

    def __init__(self, limits: Limits) -> None:
        self._limit = limits.connections or default_connection_limit()
        self._client_limit = limits.client_connections
        self._by_client: Counter[str] = Counter()
        self._open: dict[ClientConnection, str] = {}
        self._surplus: dict[ClientConnection, Overloaded] = {}
        self.on_refused: Callable[[], None] = lambda: None
        self.draining = False

    @property
    def open(self) -> int:
        """Number of open connections, without surplus ones."""
        return len(self._open)

    @property
    def full(self) -> str | None:
        """The reason why a connection would be refused now; None if it would be accepted."""
        return None if self.open < self._limit else f"the gateway is at its limit of {self._limit:,} connections"

    def add(self, connection: ClientConnection) -> Overloaded | None:
        """Count a new connection.

        Returns:
            The error for any request but a health check; None if the connection is within the limits.
        """
        client = client_network(connection.address)
        if self.full is not None:
            error = Overloaded(self.full, _RETRY_SOON)
        elif self._by_client[client] >= self._client_limit:
            error = Overloaded(
                f"{self._client_limit:,} connections are open from your address, which is the limit",
                "Use fewer connections and keep them open. Behind a reverse proxy, start the gateway with a higher "
                "--max-connections-per-client.",
            )
        else:
            self._open[connection] = client
            self._by_client[client] += 1
            return None
        self.on_refused()
        self._surplus[connection] = error
        if len(self._surplus) > _MAX_SURPLUS:
            oldest = next(iter(self._surplus))
            oldest.refuse(self._surplus.pop(oldest))
        return error

    def remove(self, connection: ClientConnection) -> None:
        """Remove a closed connection."""
        self._surplus.pop(connection, None)
        client = self._open.pop(connection, None)
        if client is not None:
            self._by_client[client] -= 1
            if not self._by_client[client]:
                del self._by_client[client]


def client_network(address: str) -> str:
    """The client that a connection counts for: its IPv4 address, or its IPv6 /64 network."""
    try:
        parsed = ipaddress.ip_address(address.partition("%")[0])
    except ValueError:  # the address of a Unix socket
        return address
    if isinstance(parsed, ipaddress.IPv4Address):
        return str(parsed)
    if parsed.ipv4_mapped is not None:
        return str(parsed.ipv4_mapped)
    return str(ipaddress.ip_network((parsed, _CLIENT_PREFIX_V6), strict=False))


def default_connection_limit() -> int:
    """Number of client connections that the limit of open files allows; each may need one more, to the engine."""
    if sys.platform != "win32" and resource is not None:
        soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
        if soft != resource.RLIM_INFINITY:
            return max(1, min(_MAX_CONNECTIONS, (soft - _RESERVED_FILES) // 2))
    return _MAX_CONNECTIONS


def raise_open_file_limit() -> None:
    """Raise this process's limit of open files for many connections, as far as the system allows."""
    if sys.platform != "win32" and resource is not None:
        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        target = 2 * _MAX_CONNECTIONS + _RESERVED_FILES
        if hard != resource.RLIM_INFINITY:
            target = min(target, hard)
        if soft != resource.RLIM_INFINITY and soft < target:
            resource.setrlimit(resource.RLIMIT_NOFILE, (target, hard))


def has_bearer_key(request: Request, key: SecretStr | None) -> bool:
    """Whether a request has the bearer key; always true if the key is None."""
    if key is None:
        return True
    scheme, _, token = request.headers.get("authorization", "").partition(" ")
    # Constant-time comparison, so that the time of a response does not reveal the key.
    equal = hmac.compare_digest(token.strip().encode(), key.get_secret_value().encode())
    return scheme.lower() == "bearer" and equal
