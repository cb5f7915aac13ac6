"""Notes about running servers."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from es_sbert.engines.local.engine_home import RunningEngine, read_state, remove_state, running_states, write_state
from es_sbert.engines.local.server_process import process_identity
from es_sbert.errors import LocalEngineError


def engine(name: str = "es9", port: int = 9200, started: str | None = None) -> RunningEngine:
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
    )


def test_what_is_written_is_read_and_nothing_else_lies_around(tmp_path: Path) -> None:
    write_state(tmp_path, engine())
    assert read_state(tmp_path, "es9", 9200) == engine()
    assert read_state(tmp_path, "es9", 9201) is None
    assert [path.name for path in tmp_path.iterdir()] == ["es9-9200.json"]


def test_notes_that_cannot_be_read_are_not_taken_for_none(tmp_path: Path) -> None:
    assert running_states(tmp_path / "none") == []
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(LocalEngineError, match="file cannot be read: Not a directory"):
        running_states(tmp_path / "file")
    (tmp_path / "es9-9200.json").mkdir()
    with pytest.raises(LocalEngineError, match=r"es9-9200\.json cannot be read: Is a directory"):
        running_states(tmp_path)


def test_servers_are_listed_by_name_and_port(tmp_path: Path) -> None:
    for each in (engine("opensearch", 9210), engine("es9", 10000), engine("es9", 9200)):
        write_state(tmp_path, each)
    assert [(each.name, each.port) for each in running_states(tmp_path)] == [
        ("es9", 9200),
        ("es9", 10000),
        ("opensearch", 9210),
    ]


def test_a_note_about_a_process_that_is_gone_counts_as_none(tmp_path: Path) -> None:
    write_state(tmp_path, engine(started="another boot/1"))
    assert read_state(tmp_path, "es9", 9200) is None
    assert running_states(tmp_path) == []


def test_forgetting_twice_is_no_error(tmp_path: Path) -> None:
    write_state(tmp_path, engine())
    remove_state(tmp_path, engine())
    remove_state(tmp_path, engine())
    assert list(tmp_path.iterdir()) == []


def test_no_folder_means_no_servers(tmp_path: Path) -> None:
    assert running_states(tmp_path / "never made") == []


@pytest.mark.parametrize("text", ["", "{", "[]", '{"name": "es9"}'])
def test_a_broken_note_is_named(tmp_path: Path, text: str) -> None:
    (tmp_path / "es9-9200.json").write_text(text)
    with pytest.raises(LocalEngineError, match=r"es9-9200\.json is not the state") as caught:
        running_states(tmp_path)
    assert "remove the file" in caught.value.remedy
