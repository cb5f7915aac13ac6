"""Where things lie, and what is said when the disk refuses."""

from __future__ import annotations

import os
import pwd
from pathlib import Path
from typing import NoReturn

import pytest

from es_sbert.bundle.model_lookup import resolve_model
from es_sbert.config import cache_folder
from es_sbert.engines.local.engine_home import EngineHome, make_folder, storage_errors
from es_sbert.engines.local.server_process import find_jdk
from es_sbert.errors import LocalEngineError, ModelNotFound, UsageError
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


def test_missing_home_folder_raises_usage_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("HOME", raising=False)
    monkeypatch.setattr("pwd.getpwuid", _unknown)
    with pytest.raises(UsageError, match="no home folder") as caught:
        EngineHome.from_environment({}, root=False)
    assert "ES_SBERT_ENGINE_HOME" in caught.value.remedy
    assert EngineHome.from_environment({"XDG_DATA_HOME": "/big"}, root=False).home == Path("/big/es-sbert/engines")
    monkeypatch.delenv("ES_SBERT_CACHE", raising=False)
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    with pytest.raises(UsageError, match="no home folder") as caught:
        cache_folder()
    assert "ES_SBERT_CACHE" in caught.value.remedy
    with pytest.raises(ModelNotFound, match="no folder '~nobody-at-all/model'"):
        resolve_model("~nobody-at-all/model")


def _unknown(uid: int) -> NoReturn:
    raise KeyError(f"getpwuid(): uid not found: {uid}")


def test_home_with_a_space_is_rejected() -> None:
    with pytest.raises(LocalEngineError, match="has a space") as caught:
        EngineHome.from_environment({"ES_SBERT_ENGINE_HOME": "/data/my engines"}, root=False)
    assert "ES_SBERT_ENGINE_HOME" in caught.value.remedy


def test_home_that_cannot_be_created_raises(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(LocalEngineError, match="cannot write to") as caught:
        EngineHome(tmp_path / "file" / "engines").create(None)
    assert "Not a directory" in caught.value.message
    assert "ES_SBERT_ENGINE_HOME" in caught.value.remedy


@pytest.mark.parametrize("mode", [0o700, 0o070])
def test_home_and_jdk_closed_to_the_servers_user_are_rejected(tmp_path: Path, mode: int) -> None:
    stranger = pwd.struct_passwd(("stranger", "x", os.getuid() + 4242, os.getgid() + 4242, "", "/", ""))
    jdk = tmp_path / "jdk"
    (jdk / "bin").mkdir(parents=True)
    (jdk / "bin" / "java").touch()
    (tmp_path / "engines").mkdir()
    tmp_path.chmod(mode)
    with pytest.raises(LocalEngineError, match="stranger, who cannot enter"):
        EngineHome(tmp_path / "engines").create(stranger)
    with pytest.raises(LocalEngineError, match="the user stranger, who will run the server, cannot enter it"):
        find_jdk(range(21, 1000), {"JAVA_HOME": str(jdk)}, stranger, ())
    tmp_path.chmod(0o700)


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full to meet a full disk")
def test_full_disk_is_reported(tmp_path: Path) -> None:
    with (
        pytest.raises(LocalEngineError, match="No space left on device") as caught,
        storage_errors(tmp_path),
        open("/dev/full", "wb", buffering=0) as device,
    ):
        device.write(b"x")
    assert "Free disk space" in caught.value.remedy


def test_make_folder_ignores_the_umask(tmp_path: Path) -> None:
    before = os.umask(0o077)
    try:
        make_folder(tmp_path / "a" / "b")
    finally:
        os.umask(before)
    assert (tmp_path / "a").stat().st_mode & 0o777 == 0o755
    assert (tmp_path / "a" / "b").stat().st_mode & 0o777 == 0o755


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


def test_state_of_a_dead_process_is_ignored(home: EngineHome) -> None:
    home.write_state(engine(started="another boot/1"))
    assert home.running("es9", 9200) is None


@pytest.mark.parametrize("text", ["", "{", "[]", '{"name": "es9"}', None])
def test_broken_state_file_is_named(home: EngineHome, text: str | None) -> None:
    file = home.state / "es9-9200.json"
    file.mkdir() if text is None else file.write_text(text)
    with pytest.raises(LocalEngineError, match=r"es9-9200\.json cannot be read") as caught:
        home.running("es9", 9200)
    assert "remove the file" in caught.value.remedy
