"""The engine's nodes: choose the node of the next request, and exclude nodes that do not answer.

A node that refuses connections or stops answering is excluded. After its backoff it gets a health request, and is used
again when it answers. If all nodes are excluded, requests try them anyway.
"""

from __future__ import annotations

import asyncio
import json
import socket
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from typing import Any

import aiohttp
from yarl import URL

from es_sbert.engines.address import Address
from es_sbert.engines.detection import cluster_uuid
from es_sbert.engines.node_watch import FIRST_BACKOFF_SECONDS, HEALTH_ATTEMPTS, MAX_BACKOFF_SECONDS
from es_sbert.gateway.settings import Limits

# Idle seconds before the first probe of a connection, seconds between probes, and number of probes. Firewalls silently
# drop idle connections, and a request on such a connection would get no response.
_KEEPALIVE = {"TCP_KEEPIDLE": 30, "TCP_KEEPALIVE": 30, "TCP_KEEPINTVL": 10, "TCP_KEEPCNT": 3}


class NodeSilent(TimeoutError):
    """A node has left a request unanswered, and does not answer a health request either."""


class ForeignNode(aiohttp.ClientConnectionError):
    """A node belongs to another cluster than the others, so nothing is sent to it."""


class UpstreamNode:
    """One node.

    Args:
        address: Address of the node.
        number: Its position among the addresses, from 1. Shown instead of the address where that is not public.

    Attributes:
        url: Address without credentials.
        is_alive: Whether it gets requests.
        is_foreign: Whether it belongs to another cluster than the others.
        is_known_until: Monotonic time until which its cluster is known.
    """

    def __init__(self, address: Address, number: int) -> None:
        self.address = address
        self.url = address.url
        self.number = number
        self.is_alive = True
        self.is_foreign = False
        self.is_known_until = 0.0
        self.failures = 0
        self.retry_at = 0.0
        self.health_check: asyncio.Task[bool] | None = None


class NodeRotation:
    """Chooses the node of each request: round robin among those that are alive.

    Args:
        nodes: At least one.
        revive: Called for each request when a node's backoff is over; must lead to `mark_alive` or `mark_dead`.
        clock: Monotonic seconds.
    """

    def __init__(
        self,
        nodes: Sequence[UpstreamNode],
        revive: Callable[[UpstreamNode], None],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.nodes = nodes
        self._revive = revive
        self._clock = clock
        self._next = 0

    def choose(self, tried: Collection[UpstreamNode] = ()) -> UpstreamNode | None:
        """Choose the node of the next request; None if all were tried.

        Args:
            tried: Nodes on which this request has failed.
        """
        now = self._clock()
        for node in self.nodes:
            if not node.is_alive and node.retry_at <= now:
                self._revive(node)
        untried = [node for node in self.nodes if node not in tried]
        alive = [node for node in untried if node.is_alive]
        if not alive:
            return min(untried, key=lambda node: node.retry_at, default=None)
        self._next += 1
        return alive[self._next % len(alive)]

    def mark_dead(self, node: UpstreamNode) -> float:
        """Exclude a node; return the number of seconds until it is tried again."""
        node.is_alive = False
        node.failures += 1
        backoff = min(MAX_BACKOFF_SECONDS, FIRST_BACKOFF_SECONDS * 2.0 ** min(node.failures - 1, 32))
        node.retry_at = self._clock() + backoff
        return backoff

    def mark_alive(self, node: UpstreamNode) -> bool:
        """Use a node again; return whether it was excluded."""
        was_dead = not node.is_alive
        node.is_alive, node.failures = True, 0
        return was_dead


class HealthChecker:
    """Sends health requests on separate connections and without credentials; any response counts. Asks for clusters.

    Args:
        tls: TLS settings as for aiohttp.
        limits: Timeouts.
    """

    def __init__(self, tls: Any, limits: Limits) -> None:
        self._seconds = limits.health_seconds
        connector = aiohttp.TCPConnector(limit=0, ssl=tls, force_close=True)
        self._session = aiohttp.ClientSession(connector=connector, cookie_jar=aiohttp.DummyCookieJar())

    async def answers(self, node: UpstreamNode, attempts: int = HEALTH_ATTEMPTS) -> bool:
        """Whether the node answers a health request; concurrent callers share one check.

        Args:
            attempts: Number of attempts. More than one, because a garbage collection may pause a node for seconds.
        """
        if node.health_check is None:
            node.health_check = asyncio.create_task(self._answers_one_of(node, attempts))
            node.health_check.add_done_callback(lambda _: setattr(node, "health_check", None))
        return await asyncio.shield(node.health_check)

    async def _answers_one_of(self, node: UpstreamNode, attempts: int) -> bool:
        for _ in range(attempts):
            with suppress(aiohttp.ClientError, TimeoutError):  # counts as no answer
                async with (
                    asyncio.timeout(self._seconds),
                    self._session.get(URL(f"{node.url}/", encoded=True), allow_redirects=False),
                ):
                    return True
        return False

    async def cluster_uuid(self, node: UpstreamNode, credentials: Mapping[str, str]) -> str | None:
        """The UUID of the cluster of a node; None if the node does not tell it, or not with these credentials.

        Raises:
            aiohttp.ClientConnectorError, TimeoutError: the node did not respond.
        """
        url = URL(f"{node.url}/", encoded=True)
        try:
            async with (
                asyncio.timeout(self._seconds),
                self._session.get(url, headers=credentials, allow_redirects=False) as reply,
            ):
                return cluster_uuid(json.loads(await reply.read()))
        except aiohttp.ClientConnectorError:
            raise
        except (aiohttp.ClientError, ValueError):
            return None  # the connection broke, or this is another program

    async def close(self) -> None:
        await self._session.close()


class SilenceWatch:
    """Ends the wait for a node that has stopped answering. Use as a context manager around a request.

    If no response arrives for a while, the node is checked, and then again at intervals until the block ends. A slow
    node answers these checks, so the request itself may take any time.

    Args:
        node: Node to which the request is sent.
        health: Checks the node.
        seconds: Until the first check, and between checks.

    Raises:
        NodeSilent: the node does not answer.
    """

    def __init__(self, node: UpstreamNode, health: HealthChecker, seconds: float) -> None:
        self._node, self._health, self._seconds = node, health, seconds
        self._scope = asyncio.timeout(None)
        self._timer: asyncio.TimerHandle | None = None
        self._check: asyncio.Task[None] | None = None

    async def __aenter__(self) -> None:
        await self._scope.__aenter__()
        self._timer = asyncio.get_running_loop().call_later(self._seconds, self._start_check)

    async def __aexit__(self, kind: Any, error: Any, trace: Any) -> None:
        if self._timer is not None:
            self._timer.cancel()
        if self._check is not None:
            self._check.cancel()
        try:
            await self._scope.__aexit__(kind, error, trace)
        except TimeoutError as timeout:
            raise NodeSilent(self._node.url) from timeout

    def _start_check(self) -> None:
        # Do not create the task earlier: most requests end before this point and need only a timer.
        self._check = asyncio.create_task(self._check_until_silent())

    async def _check_until_silent(self) -> None:
        while await self._health.answers(self._node):
            await asyncio.sleep(self._seconds)
        self._scope.reschedule(asyncio.get_running_loop().time())


def keepalive_socket(info: Any) -> socket.socket:
    """Create a socket with TCP keep-alive, for aiohttp's `socket_factory`."""
    family, kind, proto, _, _ = info
    made = socket.socket(family, kind, proto)
    made.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for name, value in _KEEPALIVE.items():
        # Not every system has all of these options.
        if (option := getattr(socket, name, None)) is not None:
            with suppress(OSError):  # the system's defaults apply
                made.setsockopt(socket.IPPROTO_TCP, option, value)
    return made
