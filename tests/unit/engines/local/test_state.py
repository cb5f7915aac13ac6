"""Notes about running servers."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from es_sbert.engines.local.engine_home import EngineHome, RunningEngine
from es_sbert.engines.local.server_process import process_identity
from es_sbert.errors import LocalEngineError


def engine(
    name: str = "es9", port: int = 9200, started: str | None = None, cluster_ports: tuple[int, ...] = ()
) -> RunningEngine:
    """A note about this very test process, which is alive."""
    return RunningEngine(
        name=name,
        version="9.5.0",
        port=port,
        url=f"http://localhost:{port}",
        pid=os.getpid(),
        started=started or process_identity(os.getpid()) or "",
        work=Path("/w"),
        log=Path("/w/logs/console.log"),
        cluster_ports=cluster_ports,
    )


@pytest.fixture
def home(tmp_path: Path) -> EngineHome:
    home = EngineHome(tmp_path)
    home.state.mkdir()
    return home


def test_state_round_trip(home: EngineHome) -> None:
    home.write_state(engine())
    assert home.read_state("es9", 9200) == engine()
    assert home.read_state("es9", 9201) is None
    assert [path.name for path in home.state.iterdir()] == ["es9-9200.json"]


def test_unreadable_state_raises(home: EngineHome, tmp_path: Path) -> None:
    assert EngineHome(tmp_path / "none").running_engines() == []
    other = EngineHome(tmp_path / "other")
    other.home.mkdir()
    other.state.write_text("in the way")
    with pytest.raises(LocalEngineError, match="state cannot be read: Not a directory"):
        other.running_engines()
    (home.state / "es9-9200.json").mkdir()
    with pytest.raises(LocalEngineError, match=r"es9-9200\.json cannot be read: Is a directory"):
        home.running_engines()


def test_running_engines_are_sorted_by_name_and_port(home: EngineHome) -> None:
    for each in (engine("opensearch", 9210), engine("es9", 10000), engine("es9", 9200)):
        home.write_state(each)
    assert [(each.name, each.port) for each in home.running_engines()] == [
        ("es9", 9200),
        ("es9", 10000),
        ("opensearch", 9210),
    ]


def test_state_of_a_dead_process_is_ignored(home: EngineHome) -> None:
    home.write_state(engine(started="another boot/1"))
    assert home.read_state("es9", 9200) is None
    assert home.running_engines() == []


def test_remove_state_is_idempotent(home: EngineHome) -> None:
    home.write_state(engine())
    home.forget("es9", 9200)
    home.forget("es9", 9200)
    assert list(home.state.iterdir()) == []


def test_missing_folder_has_no_running_engines(tmp_path: Path) -> None:
    assert EngineHome(tmp_path / "never made").running_engines() == []


@pytest.mark.parametrize("text", ["", "{", "[]", '{"name": "es9"}'])
def test_broken_state_file_is_named(home: EngineHome, text: str) -> None:
    (home.state / "es9-9200.json").write_text(text)
    with pytest.raises(LocalEngineError, match=r"es9-9200\.json is not the state") as caught:
        home.running_engines()
    assert "remove the file" in caught.value.remedy
