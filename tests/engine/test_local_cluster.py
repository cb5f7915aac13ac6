"""Clusters of three local nodes: they form one cluster, lose nodes and get them back."""

from __future__ import annotations

from collections.abc import Callable
from urllib.error import HTTPError

import pytest

from tests.cluster import NODES, Cluster


@pytest.fixture
def index(engine_cluster: Cluster, fresh_index: Callable[[str], str]) -> str:
    """An index with one primary and one replica that holds one document."""
    name = fresh_index(engine_cluster.urls[0])
    settings = {"number_of_shards": 1, "number_of_replicas": 1}
    engine_cluster.call(f"/{name}", "PUT", {"settings": settings})
    engine_cluster.call(f"/{name}/_doc/1?refresh=true", "PUT", {"text": "precious"})
    engine_cluster.wait_until("green", index=name)
    return name


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


def test_frozen_master_is_replaced_and_returns(es9_cluster: Cluster) -> None:
    with es9_cluster.restored() as cluster:
        master = cluster.node_of_master()
        cluster.freeze(master)
        cluster.wait_until("yellow", nodes=NODES - 1)
        assert cluster.node_of_master() != master
        cluster.resume(master)
        cluster.wait_until("green", node=master)


def test_two_killed_nodes_are_restored(es9_cluster: Cluster, fresh_index: Callable[[str], str]) -> None:
    index = fresh_index(es9_cluster.urls[2])
    es9_cluster.call(f"/{index}/_doc/1?refresh=true", "PUT", {"text": "precious"})
    with es9_cluster.restored() as cluster:
        cluster.kill(0, 1)
        with pytest.raises((HTTPError, TimeoutError)):  # one of three is no majority
            cluster.call(f"/{index}/_settings?master_timeout=1s", "PUT", {"refresh_interval": "5s"}, node=2)
    assert es9_cluster.call(f"/{index}/_doc/1", node=0)["_source"] == {"text": "precious"}
