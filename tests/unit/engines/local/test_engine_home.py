"""Where things lie, and what is said when the disk refuses."""

from __future__ import annotations

import os
import pwd
from pathlib import Path

import pytest

from es_sbert.engines.local.engine_home import EngineHome
from es_sbert.engines.local.server_process import find_jdk
from es_sbert.errors import LocalEngineError
from tests.raised import raises_as_recorded
from tests.unit.engines.local.notes import engine


@pytest.mark.parametrize(
    ("environ", "root", "home"),
    [
        ({"ES_SBERT_ENGINE_HOME": "/data/engines", "HOME": "/home/ada"}, False, "/data/engines"),
        ({"ES_SBERT_ENGINE_HOME": "/data/engines", "HOME": "/root"}, True, "/data/engines"),
        ({"HOME": "/root"}, True, "/var/lib/es-sbert/engines"),
        ({"HOME": "/home/ada"}, False, "/home/ada/.local/share/es-sbert/engines"),
        ({"HOME": "/home/ada", "XDG_DATA_HOME": "/big/ada"}, False, "/big/ada/es-sbert/engines"),
    ],
)
def test_engine_home_from_environment(environ: dict[str, str], root: bool, home: str) -> None:
    assert EngineHome.from_environment(environ, root=root).home == Path(home)
    with raises_as_recorded(LocalEngineError):
        EngineHome.from_environment({"ES_SBERT_ENGINE_HOME": f"{home}/my engines"}, root=root)


@pytest.mark.parametrize("mode", [0o700, 0o070])
def test_home_and_jdk_closed_to_the_servers_user_are_rejected(tmp_path: Path, mode: int) -> None:
    stranger = pwd.struct_passwd(("stranger", "x", os.getuid() + 4242, os.getgid() + 4242, "", "/", ""))
    jdk = tmp_path / "jdk"
    (jdk / "bin").mkdir(parents=True)
    (jdk / "bin" / "java").touch()
    (tmp_path / "engines").mkdir()
    tmp_path.chmod(mode)
    with raises_as_recorded(LocalEngineError):
        EngineHome(tmp_path / "engines").create(stranger)
    with raises_as_recorded(LocalEngineError):
        find_jdk(range(21, 1000), {"JAVA_HOME": str(jdk)}, stranger, ())
    tmp_path.chmod(0o700)


@pytest.fixture
def home(tmp_path: Path) -> EngineHome:
    home = EngineHome(tmp_path)
    home.state.mkdir()
    return home


def test_state_is_kept_until_it_is_forgotten(home: EngineHome) -> None:
    home.write_state(engine())
    assert home.running("es9", 9200) == engine()
    assert home.running("es9", 9201) is None
    assert [path.name for path in home.state.iterdir()] == ["es9-9200.json"]
    for _ in range(2):
        home.forget("es9", 9200)
    assert list(home.state.iterdir()) == []


def test_state_of_a_dead_process_is_ignored_and_a_broken_one_is_an_error(home: EngineHome) -> None:
    home.write_state(engine(started="another boot/1"))
    assert home.running("es9", 9200) is None
    (home.state / "es9-9200.json").write_text("{}")
    with raises_as_recorded(LocalEngineError):
        home.running("es9", 9200)
