"""What comes before anything is fetched or started, and what `engine down` selects."""

from __future__ import annotations

import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from es_sbert.engines.local import find_servers, start_engine
from es_sbert.engines.local.engine_home import EngineHome
from es_sbert.errors import LocalEngineError, UsageError
from tests.raised import raises, record
from tests.unit.engines.local.notes import engine


@pytest.fixture
def layout(home: Path) -> EngineHome:
    layout = EngineHome(home)
    layout.create(None)
    return layout


@pytest.fixture
def taken_port() -> Iterator[int]:
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield server.getsockname()[1]


def test_unknown_engine_and_heap_are_rejected(home: Path) -> None:
    for name in ("solr", "es8", "opensearch2"):
        with raises(UsageError, "name", name):
            start_engine(name)
    with raises(UsageError, "heap", "1t"):
        start_engine("es9", heap="1t")
    assert not home.exists()


def test_port_in_use_is_refused_before_a_download(layout: EngineHome, taken_port: int) -> None:
    with raises(LocalEngineError, "port", taken_port) as caught:
        start_engine("es9", port=taken_port)
    record(caught.value)
    assert not list(layout.dist.iterdir())


def down(*arguments: str) -> subprocess.CompletedProcess[str]:
    program = [sys.executable, "-m", "es_sbert", "engine", "down", *arguments]
    done = subprocess.run(program, capture_output=True, text=True, check=False, stdin=subprocess.DEVNULL)
    assert "Traceback" not in done.stderr
    return done


def test_purge_removes_only_data_of_the_stopped_servers_that_are_named(layout: EngineHome) -> None:
    for name in ("es9-9200", "es9-9201", "es9-backup", "es9-small-9200"):
        (layout.servers / name / "data").mkdir(parents=True)
    layout.write_state(engine("es9", 9201))  # this very process, thus alive

    def folders() -> list[str]:
        return sorted(path.name for path in layout.servers.iterdir())

    assert down("es9", "--port", "9300", "--purge", "--yes").returncode == 0
    asked = down("es9", "--port", "9200", "--purge")
    assert (asked.returncode, len(folders())) == (2, 4)
    assert "--purge removes the data of es9 on port 9200 (stopped)" in asked.stderr
    assert "Add --yes" in asked.stderr
    assert down("es9", "--port", "9200", "--purge", "--yes").returncode == 0
    assert folders() == ["es9-9201", "es9-backup", "es9-small-9200"]
    assert down("es9-small", "--purge", "--yes").returncode == 0
    assert folders() == ["es9-9201", "es9-backup"]


def test_several_servers_are_listed_instead_of_stopped(layout: EngineHome) -> None:
    for port in (9200, 9201):
        layout.work("es9", port).mkdir()
    assert "No such server is running: es9 on port 9200 (stopped)" in down().stderr
    refused = down("es9", "--purge", "--yes")
    assert "several servers match: es9 on port 9200 (stopped), es9 on port 9201 (stopped)" in refused.stderr
    for port in (9200, 9201):
        layout.write_state(engine("es9", port))
    refused = down()
    assert refused.returncode == 2
    assert "es9 on port 9200 (running), es9 on port 9201 (running)" in refused.stderr
    for port in (9200, 9201):
        layout.forget("es9", port)
    assert down("--all", "--purge", "--yes").returncode == 0
    assert not list(layout.servers.iterdir())


def test_only_folders_of_servers_are_purged(layout: EngineHome) -> None:
    servers = ("es9-9200", "es9-small-9201", "opensearch-9202", "opensearch-ml-9203")
    copies = ("es9-9200-20261101", "es9-20261101", "notes-2026", "es9-9200-2")
    for name in (*servers, *copies):
        (layout.servers / name / "data").mkdir(parents=True)
    assert sorted(f"{each.name}-{each.port}" for each in find_servers()) == sorted(servers)
    assert down("--all", "--purge", "--yes").returncode == 0
    assert sorted(path.name for path in layout.servers.iterdir()) == sorted(copies)
