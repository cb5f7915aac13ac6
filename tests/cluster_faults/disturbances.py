"""What happens to a cluster while a command runs."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from random import Random
from urllib.error import HTTPError

from tests.cluster import NODES, OwnCluster


@dataclass(frozen=True)
class Disturbance:
    """Something that happens to a cluster.

    Attributes:
        name: For people.
        steps: A generator. What runs until its first yield comes before the command; then the fault begins, until the
            second yield; the rest goes on while the command runs.
        pause: Most seconds that the command waits before each request while it goes on, so as not to end before.
    """

    name: str
    steps: Callable[[OwnCluster, str, Random], Iterator[None]]
    pause: float = 0.2


def _killed(cluster: OwnCluster, index: str, random: Random) -> Iterator[None]:
    number = _victim(cluster, index, random)
    yield
    cluster.kill(number)
    yield
    time.sleep(random.uniform(0, 4))
    cluster.start(number)


def _killed_for_good(cluster: OwnCluster, index: str, random: Random) -> Iterator[None]:
    number = _victim(cluster, index, random)
    yield
    cluster.kill(number)
    yield
    cluster.wait_until("yellow", nodes=NODES - 1, index=index)


def _frozen(cluster: OwnCluster, index: str, random: Random) -> Iterator[None]:
    number = _victim(cluster, index, random)
    yield
    cluster.freeze(number)
    yield
    # Shorter and longer than the cluster takes to notice.
    time.sleep(random.uniform(2, 15))
    cluster.resume(number)
    cluster.wait_until("green")


def _restarted_in_turn(cluster: OwnCluster, index: str, random: Random) -> Iterator[None]:
    numbers = random.sample(range(NODES), NODES)
    yield
    for place, number in enumerate(numbers):
        cluster.stop(number)
        if not place:
            yield
        cluster.start(number)
        cluster.wait_until("green")


def _relocated(cluster: OwnCluster, index: str, random: Random) -> Iterator[None]:
    yield
    for place in range(3):
        rows = [row for row in cluster.call(f"/_cat/shards/{index}?format=json") if row["state"] == "STARTED"]
        holders = {
            shard: {row["node"] for row in rows if row["shard"] == shard} for shard in {r["shard"] for r in rows}
        }
        names = set().union(*holders.values())
        movable = [
            (row["shard"], row["node"], sorted(names - holders[row["shard"]]))
            for row in rows
            if row["prirep"] == "p" and names - holders[row["shard"]]
        ]
        if movable:
            shard, source, targets = random.choice(movable)
            move = {"index": index, "shard": int(shard), "from_node": source, "to_node": random.choice(targets)}
            with suppress(HTTPError):  # the cluster is moving it on its own
                cluster.call("/_cluster/reroute", "POST", {"commands": [{"move": move}]})
        if not place:
            yield
        cluster.wait_until("green", index=index)


def _replicas_changed(cluster: OwnCluster, index: str, random: Random) -> Iterator[None]:
    yield
    for place, count in enumerate((0, 1, 0, 1)):
        cluster.call(f"/{index}/_settings", "PUT", {"index.number_of_replicas": count})
        if not place:
            yield
        time.sleep(random.uniform(0, 1))
    cluster.wait_until("green", index=index)


def _victim(cluster: OwnCluster, index: str, random: Random) -> int:
    """A node: any, the master, or the one with most primaries."""
    kind = random.choice(["any", "master", "primaries"])
    if kind == "master":
        return cluster.node_of_master()
    if kind == "primaries":
        rows = cluster.call(f"/_cat/shards/{index}?format=json")
        shards = {int(row["shard"]) for row in rows}
        return Counter(cluster.node_of_primary(index, shard) for shard in sorted(shards)).most_common(1)[0][0]
    return random.randrange(NODES)


KILL = Disturbance("a node killed and started again", _killed)
KILL_FOR_GOOD = Disturbance("a node killed, started after the command", _killed_for_good)
FREEZE = Disturbance("a node frozen", _frozen, pause=0.3)
RESTART = Disturbance("all nodes restarted in turn", _restarted_in_turn, pause=0.5)
RELOCATE = Disturbance("primaries moved", _relocated)
REPLICAS = Disturbance("replicas removed and added", _replicas_changed)
EVERY = (KILL, KILL_FOR_GOOD, FREEZE, RESTART, RELOCATE, REPLICAS)
