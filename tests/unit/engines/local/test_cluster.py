"""Clusters of several nodes: their settings, and refusals that come before anything is started."""

from __future__ import annotations

import socket
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import yaml

from es_sbert.engines.local import ENGINES, purge_stopped, start_cluster, start_engine
from es_sbert.engines.local.engine_home import EngineHome
from es_sbert.engines.local.server_process import LOOPBACK, cluster_ports, settings_file, transport_port
from es_sbert.errors import LocalEngineError, UsageError
from tests.conftest import free_ports
from tests.unit.engines.local.test_state import engine


@pytest.fixture
def layout(home: Path) -> EngineHome:
    layout = EngineHome(home)
    layout.create(None)
    return layout


@pytest.fixture
def ports() -> tuple[int, int, int]:
    """Free ports for a cluster of three."""
    port = free_ports(3)
    return port, port + 1, port + 2


def data_of_node(layout: EngineHome, port: int, of_cluster: tuple[int, ...], *, version: str | None = None) -> Path:
    """The work folder of an es9 with data, as a node of a cluster or a single server left it."""
    build = ENGINES["es9"] if version is None else replace(ENGINES["es9"], version=version)
    work = layout.work("es9", port)
    for folder in ("conf", "data"):
        (work / folder).mkdir(parents=True)
    (work / "data" / "node.lock").write_text("")
    (work / "conf" / "elasticsearch.yml").write_text(settings_file(build, port, work, of_cluster))
    return work


@pytest.mark.parametrize(("name", "term"), [("es9", "master"), ("opensearch", "cluster_manager")])
def test_settings_of_a_node_name_all_nodes(name: str, term: str) -> None:
    settings = yaml.safe_load(settings_file(ENGINES[name], 9301, Path("/work"), (9300, 9301, 9302)))
    assert "discovery.type" not in settings
    assert settings["node.name"] == f"{name}-9301"
    assert settings[f"cluster.initial_{term}_nodes"] == f"{name}-9300,{name}-9301,{name}-9302"
    assert settings["discovery.seed_hosts"] == "127.0.0.1:9350,127.0.0.1:9351,127.0.0.1:9352"
    assert (settings["http.port"], settings["transport.port"]) == ("9301", "9351")
    assert settings["path.data"] == "/work/data"


def test_settings_of_the_caller_come_last() -> None:
    build = replace(ENGINES["es9"], settings=(("transport.port", "7"),))
    assert yaml.safe_load(settings_file(build, 9300, Path("/work"), (9300, 9301)))["transport.port"] == "7"


@pytest.mark.parametrize("name", ["es9", "es9-small", "opensearch-ml"])
def test_ports_of_the_cluster_are_read_back_from_the_configuration(name: str, tmp_path: Path) -> None:
    build = ENGINES[name]
    assert cluster_ports(build, tmp_path) is None
    file = tmp_path / "conf" / f"{build.product.lower()}.yml"
    file.parent.mkdir()
    for ports in ((9300, 9301), ()):
        file.write_text(settings_file(build, 9300, tmp_path, ports))
        assert cluster_ports(build, tmp_path) == ports


@pytest.mark.parametrize("nodes", [-1, 0, 1, 10])
def test_cluster_size_out_of_range_is_rejected(home: Path, nodes: int) -> None:
    with pytest.raises(UsageError, match=f"a cluster cannot have {nodes} nodes"):
        start_cluster("es9", nodes=nodes)


def test_cluster_with_ports_above_65535_is_rejected(home: Path) -> None:
    with pytest.raises(UsageError, match="port 65500 is too high for a cluster of 3 nodes"):
        start_cluster("es9", port=65500)


def test_single_server_where_a_cluster_runs_is_refused(layout: EngineHome, ports: tuple[int, int, int]) -> None:
    for number, port in enumerate(ports, start=1):
        layout.write_state(engine("es9", port, cluster_ports=ports))
        listed = ", ".join(map(str, ports))
        runs = f"which runs as node {number} of a cluster of 3 nodes on ports {listed}"
        with pytest.raises(LocalEngineError, match=rf"port {port} is in use by es9 9\.5\.0, {runs}") as caught:
            start_engine("es9", port=port)
        assert f"es-sbert engine up es9 --port {ports[0]} --nodes 3" in caught.value.remedy
        assert f"`es-sbert engine down es9 --port {ports[0]}`." in caught.value.remedy
        assert f"es-sbert engine up es9 --port {ports[2] + 1}" in caught.value.remedy


def test_cluster_where_a_single_server_runs_is_refused(layout: EngineHome, ports: tuple[int, int, int]) -> None:
    for port in ports[:2]:
        running = engine("es9", port)
        layout.write_state(running)
        with pytest.raises(LocalEngineError, match=f"port {port} is in use by es9 .*, which runs as a single server"):
            start_cluster("es9", port=ports[0])
        layout.forget("es9", port)


def test_cluster_of_another_size_or_port_is_refused(layout: EngineHome, ports: tuple[int, int, int]) -> None:
    layout.write_state(engine("es9", ports[1], cluster_ports=ports))
    for first, nodes in ((ports[0], 2), (ports[1], 3)):
        with pytest.raises(LocalEngineError, match=f"port {ports[1]} .* node 2 of a cluster of 3 nodes") as caught:
            start_cluster("es9", nodes=nodes, port=first)
        assert f"--nodes {nodes}" in caught.value.remedy


def test_cluster_is_refused_if_a_port_of_any_node_is_in_use(home: Path, ports: tuple[int, int, int]) -> None:
    for taken in (ports[2], transport_port(ports[2])):
        with (
            socket.create_server((LOOPBACK, taken)),
            pytest.raises(LocalEngineError, match=f"port {taken} is in use") as caught,
        ):
            start_cluster("es9", port=ports[0])
        assert f"Choose another port: `es-sbert engine up es9 --port {ports[2] + 1} --nodes 3" in caught.value.remedy
    assert not list(home.glob("state/*"))


def test_data_of_a_cluster_is_refused_by_a_single_server(layout: EngineHome, ports: tuple[int, int, int]) -> None:
    work = data_of_node(layout, ports[1], ports)
    with pytest.raises(LocalEngineError, match=f"{work} holds data of a cluster of 3 nodes on ports") as caught:
        start_engine("es9", port=ports[1])
    assert f"Start that: `es-sbert engine up es9 --port {ports[0]} --nodes 3`." in caught.value.remedy
    assert f"es-sbert engine down es9 --port {ports[0]} --purge" in caught.value.remedy


def test_data_of_a_single_server_is_refused_by_a_cluster(layout: EngineHome, ports: tuple[int, int, int]) -> None:
    work = data_of_node(layout, ports[1], ())
    with pytest.raises(LocalEngineError, match=f"{work} holds data of a single server") as caught:
        start_cluster("es9", port=ports[0])
    assert f"Start that: `es-sbert engine up es9 --port {ports[1]}`." in caught.value.remedy


def test_newer_data_of_a_node_cannot_be_moved_to_another_build(layout: EngineHome, ports: tuple[int, int, int]) -> None:
    data_of_node(layout, ports[2], ports, version="9.5.0")
    with pytest.raises(LocalEngineError, match="holds data of Elasticsearch 9.5.0, which") as caught:
        start_cluster("es9", port=ports[0])
    assert caught.value.remedy == f"Remove it: `es-sbert engine down es9 --port {ports[2]} --purge`"


def test_missing_node_of_another_version_is_not_started(layout: EngineHome, ports: tuple[int, int, int]) -> None:
    layout.write_state(engine("es9", ports[0], cluster_ports=ports).model_copy(update={"version": "9.0.0"}))
    with pytest.raises(LocalEngineError, match="running nodes of the cluster are Elasticsearch 9.0.0") as caught:
        start_cluster("es9", port=ports[0])
    assert f"es-sbert engine down es9 --port {ports[0]}" in caught.value.remedy


def test_purge_of_one_port_removes_the_whole_cluster(layout: EngineHome) -> None:
    cluster = (9300, 9301, 9302)
    works = [data_of_node(layout, port, cluster) for port in cluster]
    other = data_of_node(layout, 9303, ())
    assert purge_stopped("es9", 9301) == works
    assert list(layout.servers.iterdir()) == [other]


def test_purge_keeps_data_of_a_stopped_node_while_others_run(layout: EngineHome) -> None:
    cluster = (9300, 9301)
    works = [data_of_node(layout, port, cluster) for port in cluster]
    layout.write_state(engine("es9", 9301, cluster_ports=cluster))
    assert purge_stopped("es9") == []
    assert sorted(layout.servers.iterdir()) == works


def test_list_names_nodes_that_do_not_run(layout: EngineHome) -> None:
    layout.write_state(engine("es9", 9301, cluster_ports=(9300, 9301)))
    done = subprocess.run(
        [sys.executable, "-m", "es_sbert", "engine", "list"], capture_output=True, text=True, check=True
    )
    assert "es9 9.5.0 at http://localhost:9301, node 2 of 2" in done.stdout
    assert "es9 on port 9300, node 1 of 2, is not running" in done.stderr
    assert "es-sbert engine up es9 --port 9300 --nodes 2" in done.stderr
