"""Admission control: limits on concurrent requests, buffered bytes, connections and slow request bodies.

Also checks the bearer keys of the gateway's own endpoints.
"""

from __future__ import annotations

import asyncio
import hmac
import ipaddress
import sys
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Protocol

from pydantic import SecretStr
from starlette.requests import Request
from starlette.types import Message, Receive

from es_sbert.errors import Overloaded
from es_sbert.gateway.errors import RequestTimeout
from es_sbert.gateway.settings import Limits

try:
    import resource
except ImportError:  # Windows, which has no limit of open files
    resource = None  # type: ignore[assignment]

_RETRY_SOON = "Send the request again in a moment."
# Of addresses of IPv6 a household has at least 2^64.
_CLIENT_PREFIX_V6 = 64
_MAX_CONNECTIONS = 10_000
# Files, the log, the listening socket, and connections that are only refused.
_RESERVED_FILES = 256
_MAX_SURPLUS = 64


class AdmissionControl:
    """Limits requests and the memory of their bodies. For one event loop.

    Args:
        limits: `concurrency` and `max_buffered_bytes` of these.
    """

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self._most_requests = limits.concurrency
        self._most_bytes = limits.max_buffered_bytes
        self._requests = 0
        self._bytes = 0

    @property
    def buffered_bytes(self) -> int:
        """Bytes of bodies in memory."""
        return self._bytes

    @property
    def full(self) -> str | None:
        """Why a request would be refused now; None where it would be taken."""
        if self._requests < self._most_requests:
            return None
        return f"{self._most_requests:,} requests are being answered, and no more are taken at once"

    @contextmanager
    def slot(self) -> Iterator[RequestSlot]:
        """Around one request: at its end, what it takes is given back."""
        slot = RequestSlot(self, self._limits)
        try:
            yield slot
        finally:
            self._requests -= slot.acquired
            self._bytes -= slot.reserved

    def _acquire(self) -> None:
        if self.full is not None:
            raise Overloaded(self.full, _RETRY_SOON)
        self._requests += 1

    def _reserve(self, size: int) -> None:
        if self._bytes + size > self._most_bytes:
            raise Overloaded(
                f"the bodies of other requests take up the {self._most_bytes:,} bytes that there are for them",
                _RETRY_SOON,
            )
        self._bytes += size


class BodyTimer:
    """The time that a caller has to send a body. Only what is spent waiting for the caller counts: neither what the
    gateway does between two parts, nor what a slow engine takes to read them.

    Args:
        limits: `idle_seconds`, `body_seconds`, `body_rate` and `body_grace_seconds` of these.
    """

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self._waited = 0.0

    async def next(self, receive: Receive, received: int) -> Message:
        """The next message.

        Args:
            received: Bytes that came before.

        Raises:
            RequestTimeout: it did not come in time.
        """
        limits = self._limits
        in_all = limits.body_seconds - self._waited
        at_rate = limits.body_grace_seconds + received / limits.body_rate - self._waited
        start = time.monotonic()
        try:
            async with asyncio.timeout(min(limits.idle_seconds, in_all, at_rate)):
                return await receive()
        except TimeoutError:
            if limits.idle_seconds <= min(in_all, at_rate):
                why = f"nothing of the request's body came for {limits.idle_seconds:g} seconds"
            elif in_all <= at_rate:
                why = f"the request's body did not come within {limits.body_seconds:g} seconds"
            else:
                why = f"the request's body came at less than {limits.body_rate:,g} bytes a second"
            raise RequestTimeout(
                why,
                "Send it again, in smaller requests, or start the gateway with other limits: --body-timeout and "
                "--min-body-rate.",
            ) from None
        finally:
            self._waited += time.monotonic() - start


class RequestSlot:
    """What one request takes of an `AdmissionControl`.

    Args:
        admission: Counts it.
        limits: For the time that its body may take.

    Attributes:
        timer: Of its body.
        acquired: Whether it counts as a request. Not before its body is complete, or slow senders would keep others
            out.
        reserved: Bytes of its body that are kept in memory.
    """

    def __init__(self, admission: AdmissionControl, limits: Limits) -> None:
        self._admission = admission
        self.timer = BodyTimer(limits)
        self.acquired = False
        self.reserved = 0

    def acquire(self) -> None:
        """Count as a request from now on.

        Raises:
            Overloaded: as many as may be are being answered.
        """
        if not self.acquired:
            self._admission._acquire()
            self.acquired = True

    def reserve(self, size: int) -> None:
        """Keep so many more bytes of a body in memory.

        Raises:
            Overloaded: there is no room for them.
        """
        self._admission._reserve(size)
        self.reserved += size


class ClientConnection(Protocol):
    """A connection of a caller.

    Attributes:
        address: IP address of the other side; empty where there is none.
    """

    address: str

    def refuse(self, error: Overloaded) -> None:
        """Answer with this error and close."""


class ConnectionLimiter:
    """Counts open connections, all and those of each client.

    Beyond the limits, a few connections are taken all the same, so that the health pages can be asked: the gateway
    reads one request on them and refuses any other. The oldest of these makes room for the next.

    Args:
        limits: `connections` and `client_connections` of these.
    """

    def __init__(self, limits: Limits) -> None:
        self._most = limits.connections or default_connection_limit()
        self._most_of_one = limits.client_connections
        self._of_client: Counter[str] = Counter()
        self._open: dict[ClientConnection, str] = {}
        self._surplus: dict[ClientConnection, Overloaded] = {}
        self.refused = 0

    @property
    def open(self) -> int:
        """Connections that count."""
        return len(self._open)

    @property
    def full(self) -> str | None:
        """Why any connection would be refused now; None where it would be taken."""
        return None if self.open < self._most else f"{self._most:,} connections are open, and no more are taken"

    def add(self, connection: ClientConnection) -> Overloaded | None:
        """Count a new connection.

        Returns:
            Why nothing but the health pages may be asked on it; None where anything may.
        """
        client = client_network(connection.address)
        if self.full is not None:
            error = Overloaded(self.full, _RETRY_SOON)
        elif self._of_client[client] >= self._most_of_one:
            error = Overloaded(
                f"{self._most_of_one:,} connections are open from your address, and no more are taken",
                "Use fewer connections and keep them open. Behind a reverse proxy, start the gateway with a higher "
                "--max-connections-per-client.",
            )
        else:
            self._open[connection] = client
            self._of_client[client] += 1
            return None
        self.refused += 1
        self._surplus[connection] = error
        if len(self._surplus) > _MAX_SURPLUS:
            oldest = next(iter(self._surplus))
            oldest.refuse(self._surplus.pop(oldest))
        return error

    def remove(self, connection: ClientConnection) -> None:
        """A connection was closed."""
        self._surplus.pop(connection, None)
        client = self._open.pop(connection, None)
        if client is not None:
            self._of_client[client] -= 1
            if not self._of_client[client]:
                del self._of_client[client]


def client_network(address: str) -> str:
    """Whom a connection counts for: the address, of IPv6 its network of 64 bits."""
    try:
        read = ipaddress.ip_address(address.partition("%")[0])
    except ValueError:
        return address
    if isinstance(read, ipaddress.IPv4Address):
        return str(read)
    if read.ipv4_mapped is not None:
        return str(read.ipv4_mapped)
    return str(ipaddress.ip_network((read, _CLIENT_PREFIX_V6), strict=False))


def default_connection_limit() -> int:
    """How many connections the limit of open files allows: each may need one to the engine."""
    if sys.platform != "win32" and resource is not None:
        soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
        if soft != resource.RLIM_INFINITY:
            return max(1, min(_MAX_CONNECTIONS, (soft - _RESERVED_FILES) // 2))
    return _MAX_CONNECTIONS


def raise_open_file_limit() -> None:
    """Raise this process's limit of open files to what many connections need, as far as the system lets it."""
    if sys.platform != "win32" and resource is not None:
        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        wanted = 2 * _MAX_CONNECTIONS + _RESERVED_FILES
        if hard != resource.RLIM_INFINITY:
            wanted = min(wanted, hard)
        if soft != resource.RLIM_INFINITY and soft < wanted:
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


def has_bearer_key(request: Request, key: SecretStr | None) -> bool:
    """Whether a request has the key; where there is none, every request may."""
    if key is None:
        return True
    scheme, _, token = request.headers.get("authorization", "").partition(" ")
    # Compared in constant time: how long a refusal takes says nothing about the key.
    right = hmac.compare_digest(token.strip().encode(), key.get_secret_value().encode())
    return scheme.lower() == "bearer" and right
