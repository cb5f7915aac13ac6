"""The engine's nodes: choose the node of the next request, and exclude nodes that do not answer.

A node that refuses connections or stops answering is excluded. After its backoff it gets a health request, and is used
again when it answers. If all nodes are excluded, requests try them anyway.
"""

from __future__ import annotations

import asyncio
import json
import logging
import socket
import time
from collections.abc import AsyncIterator, Callable, Collection, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from typing import Any

import aiohttp
from yarl import URL

from es_sbert.engines.address import Address
from es_sbert.engines.detection import cluster_uuid
from es_sbert.engines.node_watch import HEALTH_ATTEMPTS, NODE_BACKOFF
from es_sbert.gateway.errors import ThrottledLog
from es_sbert.gateway.settings import Limits

logger = logging.getLogger(__name__)

# Seconds for which the cluster of a node is known: no engine restarts in that time.
_CLUSTER_KNOWN_SECONDS = 1.0
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


class UpstreamNodes:
    """Chooses the node of each request, round robin among those that are alive, and checks nodes that do not answer.

    Health requests have separate connections and no credentials; any response counts.

    Args:
        addresses: Of the nodes, at least one.
        own_credentials: The gateway's own, to ask for clusters.
        limits: Timeouts.
        log: For what only the operator may see.
        clock: Monotonic seconds.

    Attributes:
        all: All nodes.
    """

    def __init__(
        self,
        addresses: Sequence[Address],
        own_credentials: Mapping[str, str],
        limits: Limits,
        log: ThrottledLog,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.all = [UpstreamNode(address, number) for number, address in enumerate(addresses, 1)]
        self._own_credentials = own_credentials
        self._limits = limits
        self._log = log
        self._clock = clock
        self._next = 0
        self._cluster: str | None = None  # the UUID of the first cluster that was found
        self._session: aiohttp.ClientSession | None = None
        self._revivals: set[asyncio.Task[None]] = set()

    def open(self, tls: Any) -> None:
        """Create the HTTP session, in a running event loop.

        Args:
            tls: TLS settings as for aiohttp.
        """
        connector = aiohttp.TCPConnector(limit=0, ssl=tls, force_close=True)
        self._session = aiohttp.ClientSession(connector=connector, cookie_jar=aiohttp.DummyCookieJar())

    async def close(self) -> None:
        for revival in self._revivals:
            revival.cancel()
        if self._session is not None:
            await self._session.close()

    def choose(self, tried: Collection[UpstreamNode] = ()) -> UpstreamNode | None:
        """Choose the node of the next request; None if all were tried.

        A dead node gets a health request, in the background, when its backoff is over.

        Args:
            tried: Nodes on which this request has failed.
        """
        now = self._clock()
        for node in self.all:
            if not node.is_alive and node.retry_at <= now and node.health_check is None:
                node.retry_at = float("inf")  # one check at a time, however many requests arrive
                revival = asyncio.create_task(self._revive(node))
                self._revivals.add(revival)
                revival.add_done_callback(self._revivals.discard)
        untried = [node for node in self.all if node not in tried]
        alive = [node for node in untried if node.is_alive]
        if not alive:
            return min(untried, key=lambda node: node.retry_at, default=None)
        self._next += 1
        return alive[self._next % len(alive)]

    def mark_dead(self, node: UpstreamNode, error: Exception | None = None) -> None:
        """Exclude a node for a while; a single node is always tried.

        Args:
            error: Logged.
        """
        node.is_alive = False
        node.failures += 1
        backoff = NODE_BACKOFF.longest_wait(node.failures)
        node.retry_at = self._clock() + backoff
        if isinstance(error, ForeignNode):
            message = "%s belongs to another cluster than the other addresses, so nothing is sent to it. "
            message += "Give nodes of one cluster after --upstream; restart the gateway if the cluster was replaced."
            self._log.warning(message, node.url, kind=f"{node.url} foreign")
        elif error is not None and len(self.all) > 1:
            reason = "has stopped answering" if isinstance(error, NodeSilent) else "cannot be reached"
            message = "%s %s and is excluded. It is tried again after %s seconds."
            self._log.warning(message, node.url, reason, f"{backoff:g}", kind=node.url)

    def mark_alive(self, node: UpstreamNode) -> None:
        """Use a node again."""
        if not node.is_alive and len(self.all) > 1:
            logger.info("%s answers again", node.url)
        node.is_alive, node.failures = True, 0

    @asynccontextmanager
    async def end_if_silent(self, node: UpstreamNode) -> AsyncIterator[None]:
        """End the wait for a node that has stopped answering. Use it around a request.

        If no response arrives for a while, the node is checked, and then again at intervals until the block ends. A
        slow node answers these checks, so the request itself may take any time.

        Raises:
            NodeSilent: the node does not answer.
        """
        loop, interval = asyncio.get_running_loop(), self._limits.unanswered_seconds
        checks: list[asyncio.Task[None]] = []

        async def check_until_silent() -> None:
            while await self._answers(node, HEALTH_ATTEMPTS):
                await asyncio.sleep(interval)
            scope.reschedule(loop.time())

        # Do not create the task earlier: most requests end before this point and need only a timer.
        timer = loop.call_later(interval, lambda: checks.append(asyncio.create_task(check_until_silent())))
        scope = asyncio.timeout(None)
        try:
            async with scope:
                yield
        except TimeoutError as error:
            if not scope.expired():
                raise
            raise NodeSilent(node.url) from error
        finally:
            timer.cancel()
            for check in checks:
                check.cancel()

    async def check_cluster(self, node: UpstreamNode, credentials: Mapping[str, str]) -> None:
        """Refuse a connection to a node that belongs to another cluster: writes would be spread over both.

        All connections are checked, because a node that comes back may be another one.

        Args:
            credentials: The caller's, for a gateway that has none.

        Raises:
            ForeignNode: the node belongs to another cluster.
            aiohttp.ClientConnectorError, aiohttp.ConnectionTimeoutError: the node did not respond.
        """
        if time.monotonic() < node.is_known_until:
            return
        try:
            await self._identify(node, self._own_credentials or credentials)
        except TimeoutError as error:
            raise aiohttp.ConnectionTimeoutError(node.url) from error
        if node.is_foreign:
            raise ForeignNode(node.url)
        node.is_known_until = time.monotonic() + _CLUSTER_KNOWN_SECONDS

    async def _revive(self, node: UpstreamNode) -> None:
        is_usable = await self._answers(node, 1)
        if is_usable and node.is_foreign:
            with suppress(aiohttp.ClientError, TimeoutError):  # the node stays foreign until it answers
                await self._identify(node, self._own_credentials)
            is_usable = not node.is_foreign
        if is_usable:
            self.mark_alive(node)
        else:
            self.mark_dead(node)

    async def _identify(self, node: UpstreamNode, credentials: Mapping[str, str]) -> None:
        """Set `is_foreign` of a node. A node that does not tell its cluster, or not with these credentials, is not.

        Raises:
            aiohttp.ClientConnectorError, TimeoutError: the node did not respond.
        """
        try:
            async with self._get_root(node, credentials) as reply:
                uuid = cluster_uuid(json.loads(await reply.read()))
        except aiohttp.ClientConnectorError:
            raise
        except (aiohttp.ClientError, ValueError):
            uuid = None  # the connection broke, or this is another program
        self._cluster = self._cluster or uuid
        node.is_foreign = uuid not in (None, self._cluster)

    async def _answers(self, node: UpstreamNode, attempts: int) -> bool:
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
                async with self._get_root(node, {}):
                    return True  # the head is enough: a body may be slow or cut off
        return False

    @asynccontextmanager
    async def _get_root(self, node: UpstreamNode, headers: Mapping[str, str]) -> AsyncIterator[aiohttp.ClientResponse]:
        assert self._session is not None, "open"
        url = URL(f"{node.url}/", encoded=True)
        async with (
            asyncio.timeout(self._limits.health_seconds),
            self._session.get(url, headers=headers, allow_redirects=False) as reply,
        ):
            yield reply


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
