"""Refusals that come before anything is fetched or started."""

from __future__ import annotations

import socket
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from es_sbert.engines.local import ENGINES, purge_stopped, running_engines, start_engine
from es_sbert.engines.local.engine_home import EngineHome
from es_sbert.engines.local.server_process import settings_file
from es_sbert.errors import LocalEngineError, UsageError
from tests.conftest import free_port
from tests.unit.engines.local.test_state import engine


@pytest.fixture
def taken_port() -> Iterator[int]:
    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))
        server.listen()
        yield server.getsockname()[1]


def test_unknown_engine_is_rejected(home: Path) -> None:
    with pytest.raises(LocalEngineError, match="unknown engine 'solr'"):
        start_engine("solr")
    assert not home.exists()


def test_port_of_another_program_is_rejected(home: Path, taken_port: int) -> None:
    with pytest.raises(LocalEngineError, match=f"port {taken_port} is in use by another program") as caught:
        start_engine("es9", port=taken_port)
    assert f"--port {taken_port + 1}" in caught.value.remedy
    assert not list(home.glob("dist/*"))
    assert not list(home.glob("state/*"))


def test_port_of_another_engine_names_the_down_command(home: Path, taken_port: int) -> None:
    layout = EngineHome(home)
    layout.create(None)
    layout.write_state(engine("es8", taken_port))
    with pytest.raises(LocalEngineError, match=f"port {taken_port} is in use by es8") as caught:
        start_engine("es9", port=taken_port)
    assert "es-sbert engine down es8" in caught.value.remedy


def test_invalid_heap_is_rejected(home: Path) -> None:
    with pytest.raises(UsageError, match="'lots' is not a heap size"):
        start_engine("es9", heap="lots")


def test_unwritable_home_raises(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_text("in the way")
    monkeypatch.setenv("ES_SBERT_ENGINE_HOME", str(tmp_path / "file" / "engines"))
    with pytest.raises(LocalEngineError, match="cannot write to"):
        start_engine("es9")


def data_of(layout: EngineHome, name: str, port: int, *, version: str | None = None) -> Path:
    """A work folder with data, as a server of that version left it."""
    work = layout.work(name, port)
    (work / "conf").mkdir(parents=True)
    (work / "data").mkdir()
    (work / "data" / "node.lock").write_text("")
    build = ENGINES[name] if version is None else replace(ENGINES[name], version=version)
    (work / "conf" / "elasticsearch.yml").write_text(settings_file(build, port, work))
    return work


def test_data_of_a_later_version_names_the_build_that_opens_it(home: Path) -> None:
    layout, port = EngineHome(home), free_port()
    layout.create(None)
    work = data_of(layout, "es9", port, version="9.5.0")
    with pytest.raises(LocalEngineError, match=rf"{work} holds data of Elasticsearch 9\.5\.0, which") as caught:
        start_engine("es9", port=port)
    small = layout.work("es9-small", port)
    assert f"mv {work} {small} && es-sbert engine up es9-small --port {port}" in caught.value.remedy
    assert f"es-sbert engine down es9 --port {port} --purge" in caught.value.remedy
    assert not list(home.glob("dist/*"))  # said before anything is downloaded
    assert (work / "data" / "node.lock").exists()


def test_data_that_no_build_opens_can_only_be_purged(home: Path) -> None:
    layout, port = EngineHome(home), free_port()
    layout.create(None)
    data_of(layout, "es9", port, version="9.5.0")
    data_of(layout, "es9-small", port, version="10.0.0")
    for name in ("es9", "es9-small"):
        with pytest.raises(LocalEngineError, match="cannot open") as caught:
            start_engine(name, port=port)
        assert caught.value.remedy == f"Remove it: `es-sbert engine down {name} --port {port} --purge`"


def test_running_server_of_another_version_is_kept(home: Path) -> None:
    layout = EngineHome(home)
    layout.create(None)
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        port = closed.getsockname()[1]
        running = engine("es9", port)
        layout.write_state(running)
        said: list[str] = []
        with pytest.raises(LocalEngineError, match=f"does not answer on port {port}"):
            start_engine("es9", port=port, timeout=0.1, progress=said.append)
    assert said[0].startswith(
        f"Elasticsearch {running.version} is already running on port {port}: an earlier `es-sbert engine up` started it"
    )
    assert f"es-sbert now starts {ENGINES['es9'].label} as es9" in said[1]
    assert f"es-sbert engine down es9 --port {port}" in said[1]


def test_fresh_home_has_no_running_engines(home: Path) -> None:
    assert running_engines() == []
    assert not home.exists()


def test_purge_keeps_data_of_builds_with_a_common_prefix(home: Path) -> None:
    layout = EngineHome(home)
    layout.create(None)
    for name in ("opensearch-9210", "opensearch-ml-9211", "es9-9200", "es9-small-9200"):
        (layout.servers / name / "data").mkdir(parents=True)
    assert purge_stopped("opensearch") == [layout.work("opensearch", 9210)]
    assert purge_stopped("opensearch-ml") == [layout.work("opensearch-ml", 9211)]
    assert purge_stopped("es9") == [layout.work("es9", 9200)]
    assert purge_stopped("es9-small") == [layout.work("es9-small", 9200)]


def test_purge_removes_only_data_of_stopped_servers(home: Path) -> None:
    layout = EngineHome(home)
    layout.create(None)
    for name in ("es9-9200", "es9-9201", "es9-backup", "es8-9208"):
        (layout.servers / name / "data").mkdir(parents=True)
    layout.write_state(engine("es9", 9201))  # this very process, thus alive
    assert purge_stopped("es9", port=9300) == []
    assert purge_stopped("es9") == [layout.work("es9", 9200)]
    assert sorted(path.name for path in layout.servers.iterdir()) == ["es8-9208", "es9-9201", "es9-backup"]


def command(*arguments: str) -> subprocess.CompletedProcess[str]:
    program = [sys.executable, "-m", "es_sbert", "engine", *arguments]
    return subprocess.run(program, capture_output=True, text=True, check=False, stdin=subprocess.DEVNULL)


def test_purge_asks_before_data_is_removed_that_an_earlier_up_began(home: Path) -> None:
    layout = EngineHome(home)
    layout.create(None)
    for port, ups in ((9200, 1), (9201, 2)):
        layout.work("es9", port).mkdir()
        layout.write_uses("es9", port, ups)
    refused = command("down", "es9", "--port", "9201", "--purge")
    assert (refused.returncode, layout.work("es9", 9201).exists()) == (2, True)
    assert f"data that was there before the last `engine up`: {layout.work('es9', 9201)}" in refused.stderr
    assert "Add --yes" in refused.stderr
    assert command("down", "es9", "--port", "9200", "--purge").returncode == 0
    assert [path.name for path in layout.servers.iterdir()] == ["es9-9201"]
    assert command("down", "es9", "--port", "9201", "--purge", "--yes").returncode == 0
    assert not list(layout.servers.iterdir())


def test_purge_by_name_alone_removes_no_data_of_several_servers(home: Path) -> None:
    layout = EngineHome(home)
    layout.create(None)
    for port in (9200, 9201):
        (layout.work("es9", port) / "data").mkdir(parents=True)
    refused = command("down", "es9", "--purge")
    assert (refused.returncode, len(list(layout.servers.iterdir()))) == (2, 2)
    assert "several stopped servers have data: es9 on port 9200, es9 on port 9201" in refused.stderr
    assert command("down", "--all", "--purge").returncode == 0
    assert not list(layout.servers.iterdir())


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["down", "es9", "--yes"], "--yes requires --purge"),
        (["up", "solr"], "unknown engine 'solr'"),
        (["up", "--heap", "1"], "'1' is not a heap size"),
        (["down", "es7"], "unknown engine 'es7'"),
        (["down", "es9", "--all"], "NAME and --all cannot be combined"),
    ],
)
def test_command_errors_exit_with_code_2(home: Path, arguments: list[str], said: str) -> None:
    done = command(*arguments)
    assert done.returncode == 2
    assert done.stdout == ""
    assert done.stderr.startswith(f"Error: {said}")
    assert "Traceback" not in done.stderr
