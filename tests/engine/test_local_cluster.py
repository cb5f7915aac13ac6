"""Clusters of three local nodes: they form one cluster, lose nodes and get them back."""

from __future__ import annotations

import os
import signal
import uuid
from collections.abc import Iterator
from urllib.error import HTTPError

import pytest

from tests.cluster import NODES, Cluster
from tests.conftest import free_ports
from tests.engine.test_local_engine import NAME, Home, home  # noqa: F401

pytestmark = [pytest.mark.slow, pytest.mark.engine, pytest.mark.cluster]


@pytest.fixture
def index(engine_cluster: Cluster) -> Iterator[str]:
    """An index with one primary and one replica that holds one document."""
    name = f"test-{uuid.uuid4().hex[:12]}"
    settings = {"number_of_shards": 1, "number_of_replicas": 1}
    engine_cluster.call(f"/{name}", "PUT", {"settings": settings})
    engine_cluster.call(f"/{name}/_doc/1?refresh=true", "PUT", {"text": "precious"})
    engine_cluster.wait_until("green", index=name)
    yield name
    engine_cluster.call(f"/{name}", "DELETE")


def test_three_nodes_form_one_cluster(engine_cluster: Cluster) -> None:
    engine_cluster.wait_until("green")
    states = [engine_cluster.call("/_cluster/state/master_node,nodes", node=node) for node in range(NODES)]
    assert len({state["cluster_uuid"] for state in states}) == 1
    assert len({state["master_node"] for state in states}) == 1
    ports = {node["name"].rpartition("-")[2] for node in states[0]["nodes"].values()}
    assert ports == {url.rpartition(":")[2] for url in engine_cluster.urls}


def test_killed_node_rejoins_with_its_data(engine_cluster: Cluster, index: str) -> None:
    with engine_cluster.restored() as cluster:
        cluster.wait_until("green", index=index)
        killed = cluster.node_of_primary(index)
        [replica] = cluster.nodes_of_replicas(index)
        cluster.kill(killed)
        cluster.wait_until("yellow", nodes=NODES - 1, index=index)
        assert cluster.node_of_primary(index) == replica
        cluster.start(killed)
        cluster.wait_until("green")
        assert sorted([cluster.node_of_primary(index), *cluster.nodes_of_replicas(index)]) == sorted([killed, replica])
        # Not copied anew: the shard was opened from the node's own files.
        [recovery] = [
            shard
            for shard in cluster.call(f"/{index}/_recovery")[index]["shards"]
            if shard["target"]["name"].endswith(cluster.urls[killed].rpartition(":")[2])
        ]
        assert recovery["index"]["files"]["recovered"] == 0
        assert cluster.call(f"/{index}/_doc/1", node=killed)["_source"] == {"text": "precious"}


def test_frozen_master_is_replaced_and_returns(engine_cluster: Cluster, index: str) -> None:
    with engine_cluster.restored() as cluster:
        master = cluster.node_of_master()
        cluster.freeze(master)
        cluster.wait_until("yellow", nodes=NODES - 1, index=index)
        assert cluster.node_of_master() != master
        cluster.resume(master)
        cluster.wait_until("green")
        assert cluster.call(f"/{index}/_doc/1", node=master)["_source"] == {"text": "precious"}


def test_majority_killed_at_once_comes_back(engine_cluster: Cluster, index: str) -> None:
    with engine_cluster.restored() as cluster:
        cluster.kill(0, 1)
        with pytest.raises((HTTPError, TimeoutError)):
            cluster.call(f"/{index}/_doc/2?timeout=1s", "PUT", {"text": "nobody decides"}, node=2)
    assert engine_cluster.call(f"/{index}/_doc/1")["_source"] == {"text": "precious"}


def test_up_restarts_a_killed_node_and_down_purges_all(home: Home) -> None:  # noqa: F811
    port = free_ports(NODES)
    urls = [f"http://localhost:{port + number}" for number in range(NODES)]
    up = ("up", NAME, "--port", str(port), "--nodes", str(NODES))
    first = home.run(*up)
    assert first.stdout == f"{urls[0]}\n"
    assert f"All 3 nodes: {','.join(urls)}" in first.stderr
    assert first.stderr.count("512m heap") == NODES

    def nodes() -> list[dict[str, object]]:
        return [each for number in range(NODES) for each in home.servers(port + number)]

    before = nodes()
    assert [node["cluster_ports"] for node in before] == [[port, port + 1, port + 2]] * NODES
    again = home.run(*up)
    assert again.stdout == first.stdout
    assert again.stderr.count("is already running") == NODES
    assert nodes() == before

    os.killpg(int(str(before[1]["pid"])), signal.SIGKILL)
    listed = home.run("list")
    assert f"port {port + 1}, node 2 of 3, is not running; start it: es-sbert engine {' '.join(up)}" in listed.stderr
    third = home.run(*up)
    assert third.stdout == first.stdout
    assert third.stderr.count("Starting Elasticsearch") == 1
    after = nodes()
    assert [after[0], after[2]] == [before[0], before[2]]
    assert after[1]["started"] != before[1]["started"]

    os.killpg(int(str(before[0]["pid"])), signal.SIGKILL)
    home.run("down", "--port", str(port + 2), "--purge")
    left = [path.name for folder in ("servers", "state") for path in (home.state.parent / folder).iterdir()]
    assert left == []
