"""Installing a server from its pieces."""

from __future__ import annotations

import stat
import zipfile
from dataclasses import replace
from pathlib import Path

import pytest

from es_sbert.config import DEFAULT_URL
from es_sbert.engines.local import ENGINES
from es_sbert.engines.local.engine_builds import EngineBuild, Piece
from es_sbert.engines.local.local_engine import install, unpack
from es_sbert.errors import LocalEngineError
from es_sbert.io.package_downloads import Artifact
from tests.raised import raises_as_recorded

SERVER = Artifact("g", "server", "1.0", 1)
MODULES = Artifact("g", "modules", "2.0", 1)
BUILD = EngineBuild(
    name="toy",
    product="Toy",
    version="1.0",
    port=1,
    pieces=(Piece(SERVER, (("server-1.0/", ""),)), Piece(MODULES, (("deep/modules/scripts/", "modules/scripts/"),))),
)


def make_zip(path: Path, members: dict[str, int], *, kind: int = stat.S_IFREG) -> Path:
    """A zip whose members, name → permissions, hold their own names."""
    with zipfile.ZipFile(path, "w") as archive:
        for name, permissions in members.items():
            info = zipfile.ZipInfo(name)
            info.external_attr = ((stat.S_IFDIR if name.endswith("/") else kind) | permissions) << 16
            archive.writestr(info, "" if name.endswith("/") else name)
    return path


class FakeMaven:
    """Hands out zips in place of Maven and counts how often it is asked."""

    def __init__(self, folder: Path, *, without: Artifact | None = None) -> None:
        self.folder = folder
        self.without = without
        self.asked: list[str] = []

    def fetch(self, artifact: Artifact, folder: Path) -> Path:
        self.asked.append(artifact.name)
        if artifact == self.without:
            raise LocalEngineError("not in the repository", "Look elsewhere.")
        members = {
            "server": {"server-1.0/bin/server": 0o755, "server-1.0/config/a.yml": 0o640, "server-1.0/plugins/": 0o755},
            "modules": {"deep/modules/scripts/scripts.jar": 0o644, "deep/modules/other/other.jar": 0o644},
        }
        return make_zip(folder / artifact.file_name, members[artifact.name])


def test_home_has_the_files_of_all_pieces(tmp_path: Path) -> None:
    home = install(BUILD, tmp_path, FakeMaven(tmp_path).fetch, print)
    files = {str(path.relative_to(home)) for path in home.rglob("*") if path.is_file()}
    assert files == {"bin/server", "config/a.yml", "modules/scripts/scripts.jar"}
    assert (home / "plugins").is_dir()
    assert (home / "bin/server").stat().st_mode & 0o777 == 0o755
    assert (home / "config/a.yml").stat().st_mode & 0o777 == 0o644
    assert [path.name for path in tmp_path.iterdir()] == [BUILD.folder_name]


def test_second_install_downloads_nothing(tmp_path: Path) -> None:
    maven = FakeMaven(tmp_path)
    assert install(BUILD, tmp_path, maven.fetch, print) == install(BUILD, tmp_path, maven.fetch, print)
    assert maven.asked == ["server", "modules"]


def test_failed_install_is_cleaned_up_and_can_be_retried(tmp_path: Path) -> None:
    with raises_as_recorded(LocalEngineError):
        install(BUILD, tmp_path, FakeMaven(tmp_path, without=MODULES).fetch, print)
    assert list(tmp_path.iterdir()) == []
    assert install(BUILD, tmp_path, FakeMaven(tmp_path).fetch, print).is_dir()


def test_leftovers_of_a_killed_install_are_replaced(tmp_path: Path) -> None:
    left = tmp_path / f"{BUILD.folder_name}.partial" / "home"
    left.mkdir(parents=True)
    (left / "half-a-file").write_text("…")
    home = install(BUILD, tmp_path, FakeMaven(tmp_path).fetch, print)
    assert not (home / "half-a-file").exists()
    assert [path.name for path in tmp_path.iterdir()] == [BUILD.folder_name]


@pytest.mark.parametrize("name", ["../../evil", "a/../../../evil", "/etc/evil", "//evil", "..\\..\\evil", "C:/evil"])
def test_unsafe_names_write_nothing_outside(tmp_path: Path, name: str) -> None:
    archive = make_zip(tmp_path / "bad.zip", {f"top/{name}": 0o644})
    target = tmp_path / "a" / "target"
    unpack(archive, (("top/", ""),), target)
    assert {path for path in tmp_path.rglob("*") if path.is_file()} == {archive, *target.rglob("*evil")}


def test_symbolic_link_in_zip_becomes_a_file(tmp_path: Path) -> None:
    archive = make_zip(tmp_path / "link.zip", {"top/link": 0o777}, kind=stat.S_IFLNK)
    unpack(archive, (("top/", ""),), tmp_path / "target")
    assert not (tmp_path / "target" / "link").is_symlink()


def test_zip_that_is_damaged_or_lacks_a_folder_is_refused(tmp_path: Path) -> None:
    archive = make_zip(tmp_path / "server.zip", {"top/file": 0o644})
    with raises_as_recorded(LocalEngineError):
        unpack(archive, (("top/", ""), ("modules/", "modules/")), tmp_path / "target")
    archive.write_bytes(archive.read_bytes()[:40])
    with raises_as_recorded(LocalEngineError):
        unpack(archive, (("top/", ""),), tmp_path / "target")


def test_default_engine_uses_the_default_url_port() -> None:
    assert DEFAULT_URL.endswith(f":{ENGINES['es9'].port}")


def test_changed_pieces_change_the_home_folder() -> None:
    build = ENGINES["opensearch"]
    fewer = replace(build, pieces=build.pieces[:-1])
    assert fewer.folder_name != build.folder_name
    assert fewer.folder_name.startswith("opensearch-3.6.0-")
