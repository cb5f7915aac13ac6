"""A cluster of several nodes for tests: where its shards are, and nodes that are killed, frozen and started again."""

from __future__ import annotations

import json
import os
import signal
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

from es_sbert.engines.local import RunningEngine, start_engine, stop_engine
from tests.conftest import build_of, free_ports, port_is_free, transport_port
from tests.engine_builds import find_build, with_settings
from tests.memory import folder_in_memory

NODES = 3
_HEAP = "384m"  # of a node
_STARTED_WITHIN = 500.0  # seconds; a loaded machine takes minutes
# A node that does not answer is removed from the cluster after some seconds instead of half a minute, and a new master
# does not wait for it.
_FAULT_DETECTION = {
    **{
        f"cluster.fault_detection.{check}_check.{setting}": value
        for check in ("leader", "follower")
        for setting, value in (("interval", "500ms"), ("timeout", "3s"), ("retry_count", "2"))
    },
    "cluster.publish.timeout": "5s",
}


class Cluster:
    """A cluster of which only the addresses are known.

    Nodes are numbered from 0, in the order of their addresses.
    """

    def __init__(self, urls: Sequence[str]) -> None:
        self.urls = tuple(urls)

    @property
    def url(self) -> str:
        """All addresses, separated by commas."""
        return ",".join(self.urls)

    def call(self, path: str, method: str = "GET", body: Any = None, *, node: int | None = None) -> Any:
        """The JSON that a node answers; HTTP errors are raised."""
        asked = self._reachable_urls() if node is None else (self.urls[node],)
        for url in asked[:-1]:
            try:
                return _call(url, path, method, body)
            except urllib.error.HTTPError:
                raise
            except OSError:
                continue  # this node does not run
        return _call(asked[-1], path, method, body)

    def wait_until(
        self, status: str = "green", *, nodes: int = NODES, index: str = "", node: int | None = None
    ) -> None:
        """Wait until the cluster has a number of nodes and its shards are allocated.

        pytest's own timeout ends this if that never happens.
        """
        while True:
            with suppress(OSError):  # HTTP errors among them, as of a node without a master
                health = self.call(f"/_cluster/health/{index}", node=node)
                if health["number_of_nodes"] == nodes and not health["timed_out"]:
                    if health["status"] == "green" and not health["relocating_shards"]:
                        return
                    if status == "yellow" and health["status"] in ("yellow", "green"):
                        return
            time.sleep(0.1)

    def node_of_primary(self, index: str, shard: int = 0) -> int:
        """The node that holds the primary of a shard."""
        rows = self.call(f"/_cat/shards/{index}?format=json")
        [name] = [row["node"] for row in rows if (row["shard"], row["prirep"]) == (str(shard), "p") and row["node"]]
        return self._number(name)

    def node_of_master(self) -> int:
        """The elected master, which OpenSearch calls cluster manager."""
        state = self.call("/_cluster/state/master_node,nodes")
        return self._number(state["nodes"][state["master_node"]]["name"])

    def restored(self) -> AbstractContextManager[OwnCluster]:
        """For a test that breaks the cluster; skipped where the processes are not those of this test run."""
        pytest.skip("needs a cluster whose nodes the tests have started")

    def _number(self, name: str) -> int:
        """Of a node by its name, which ends with its HTTP port."""
        return [url.rpartition(":")[2] for url in self.urls].index(name.rpartition("-")[2])

    def _reachable_urls(self) -> tuple[str, ...]:
        """Addresses of nodes that answer or refuse at once."""
        return self.urls


class OwnCluster(Cluster):
    """A cluster whose nodes can be killed, frozen and started again. They keep their numbers, ports and data."""

    def __init__(self, engine: str, *, data: Path | None = None, settings: Mapping[str, str] | None = None) -> None:
        self.engine = engine
        self._build = find_build(build_of(engine))
        first = free_ports(NODES)
        self._ports = range(first, first + NODES)
        term, several = ("cluster_manager", "zen") if engine == "opensearch" else ("master", "multi-node")
        self._data = data
        self._settings = {
            "discovery.type": several,
            "discovery.seed_hosts": ",".join(f"127.0.0.1:{transport_port(port)}" for port in self._ports),
            f"cluster.initial_{term}_nodes": ",".join(f"{self._build.name}-{port}" for port in self._ports),
            **_FAULT_DETECTION,
            **(settings or {}),
        }
        self._frozen: set[int] = set()
        # By number, also those that were stopped.
        self.nodes: list[RunningEngine] = []
        self._start_all()
        super().__init__([node.url for node in self.nodes])

    def _start_all(self) -> None:
        """Start the nodes that do not run, at the same time: each waits for a majority."""
        with ThreadPoolExecutor(NODES) as pool:
            self.nodes = list(pool.map(self._start, range(NODES)))

    def _start(self, number: int) -> RunningEngine:
        port = self._ports[number]
        settings = self._settings | {"transport.port": str(transport_port(port))}
        if self._data is not None:
            settings["path.data"] = str(self._data / str(port))
        return start_engine(with_settings(self._build, settings), port=port, heap=_HEAP, timeout=_STARTED_WITHIN)

    def kill(self, *numbers: int) -> None:
        """SIGKILL to nodes, at the same time; returns when nothing listens on their ports any more."""
        for number in numbers:
            os.killpg(self.nodes[number].pid, signal.SIGKILL)
        for number in numbers:
            self._frozen.discard(number)
            stop_engine(self.nodes[number])  # nothing is left to stop, but its exit status must be collected
            port = self.nodes[number].port
            while not (port_is_free(port) and port_is_free(transport_port(port))):
                time.sleep(0.05)

    def stop(self, number: int) -> None:
        """Stop a node as an operator does."""
        stop_engine(self.nodes[number])

    def start(self, number: int) -> None:
        """Start a stopped node; returns when it has joined the others, with shards still to be recovered.

        With several nodes down, the first start may wait for a majority: use `restore`.
        """
        self.nodes[number] = self._start(number)

    def freeze(self, number: int) -> None:
        """A node keeps its connections, takes new ones, and answers none."""
        os.killpg(self.nodes[number].pid, signal.SIGSTOP)
        self._frozen.add(number)

    def resume(self, number: int) -> None:
        """A frozen node goes on."""
        os.killpg(self.nodes[number].pid, signal.SIGCONT)
        self._frozen.discard(number)

    def restore(self) -> None:
        """Resume and start nodes until all are in the cluster again and every shard is allocated."""
        for number in tuple(self._frozen):
            self.resume(number)
        self._start_all()
        self.wait_until("green")

    def _reachable_urls(self) -> tuple[str, ...]:
        return tuple(url for number, url in enumerate(self.urls) if number not in self._frozen)

    @contextmanager
    def restored(self) -> Iterator[OwnCluster]:
        """For a test that breaks the cluster: all nodes run and all shards are allocated before and afterwards."""
        self.restore()
        try:
            yield self
        finally:
            self.restore()

    def purge(self) -> None:
        """Stop all nodes and remove their data."""
        for number in tuple(self._frozen):
            self.resume(number)
        with ThreadPoolExecutor(NODES) as pool:  # a node that waits for others that are gone takes longer to end
            list(pool.map(lambda node: stop_engine(node, purge=True), self.nodes))


@contextmanager
def own_cluster(engine: str, settings: Mapping[str, str] | None = None) -> Iterator[OwnCluster]:
    """A cluster that is stopped and removed at the end, with its data in memory where that is possible."""
    with folder_in_memory() as folder:
        cluster = OwnCluster(engine, data=folder, settings=settings)
        try:
            yield cluster
        finally:
            cluster.purge()


def _call(url: str, path: str, method: str, body: Any) -> Any:
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(f"{url}{path}", data, {"content-type": "application/json"}, method=method)
    # Without the proxies of the environment: the server is on this machine.
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    with opener.open(request, timeout=60) as response:
        return json.loads(response.read())
