"""Clusters of three local nodes: they form one cluster, and `start_cluster` gets lost nodes back.

`test_cluster_faults.py` kills, freezes and starts single nodes.
"""

from __future__ import annotations

from collections.abc import Callable
from urllib.error import HTTPError

import pytest

from tests.cluster import NODES, Cluster

pytestmark = pytest.mark.long


def test_three_nodes_form_one_cluster(engine_cluster: Cluster) -> None:
    engine_cluster.wait_until("green")
    states = [engine_cluster.call("/_cluster/state/master_node,nodes", node=node) for node in range(NODES)]
    assert len({state["cluster_uuid"] for state in states}) == 1
    assert len({state["master_node"] for state in states}) == 1
    ports = {node["name"].rpartition("-")[2] for node in states[0]["nodes"].values()}
    assert ports == {url.rpartition(":")[2] for url in engine_cluster.urls}


def test_two_killed_nodes_are_restored(es9_cluster: Cluster, fresh_index: Callable[[str], str]) -> None:
    index = fresh_index(es9_cluster.urls[2])
    es9_cluster.call(f"/{index}/_doc/1?refresh=true", "PUT", {"text": "precious"})
    with es9_cluster.restored() as cluster:
        cluster.kill(0, 1)
        with pytest.raises((HTTPError, TimeoutError)):  # one of three is no majority
            cluster.call(f"/{index}/_settings?master_timeout=1s", "PUT", {"refresh_interval": "5s"}, node=2)
    assert es9_cluster.call(f"/{index}/_doc/1", node=0)["_source"] == {"text": "precious"}
