"""Finding a JDK among folders that look like one."""

from __future__ import annotations

from pathlib import Path

import pytest

from es_sbert.engines.local.server_process import REQUIRED_MODULES, find_jdk
from es_sbert.errors import LocalEngineError
from tests.raised import raises_as_recorded

RELEASES = range(21, 1000)


def make_jdk(home: Path, version: str, *, lacking: str = "") -> Path:
    """A folder with a `java` and the file `release`."""
    modules = sorted(REQUIRED_MODULES - {lacking})
    (home / "bin").mkdir(parents=True)
    (home / "bin" / "java").touch(0o755)
    (home / "release").write_text(f'IMPLEMENTOR="Nobody"\nJAVA_VERSION="{version}"\nMODULES="{" ".join(modules)}"\n')
    return home


def test_environment_precedes_default_jdk_locations(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    es = make_jdk(tmp_path / "es", "21.0.1")
    java = make_jdk(tmp_path / "java", "22.0.1")
    make_jdk(tmp_path / ".jdks" / "jdk", "25.0.1")
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "java").symlink_to(make_jdk(tmp_path / "path", "23.0.1") / "bin" / "java")
    monkeypatch.setenv("HOME", str(tmp_path))
    environ = {"ES_JAVA_HOME": str(es), "JAVA_HOME": str(java), "PATH": str(tmp_path / "bin")}
    found = []
    for name in (*environ, "none"):
        found.append(find_jdk(RELEASES, environ, None, ["~/.jdks/*"]).version)
        environ.pop(name, None)
    assert found == [21, 22, 23, 25]


@pytest.mark.parametrize(
    ("versions", "releases", "named", "chosen"),
    [
        (("21.0.9", "25.0.1", "24.0.2", "31.0.0"), RELEASES, "", 25),
        (("17.0.1", "31.0.0", "29.0.0"), RELEASES, "", 29),
        (("21.0.9", "25.0.1"), range(17, 24), "25.0.1", 21),
    ],
    ids=["the newest tested one", "the oldest untested one, without a tested one", "not one that is too new"],
)
def test_choice_among_installed_releases(
    tmp_path: Path, versions: tuple[str, ...], releases: range, named: str, chosen: int
) -> None:
    for version in versions:
        make_jdk(tmp_path / version, version)
    environ = {"JAVA_HOME": str(tmp_path / named)} if named else {}
    assert find_jdk(releases, environ, None, [str(tmp_path / "*")]).version == chosen


def test_every_rejected_jdk_is_explained(tmp_path: Path) -> None:
    for name, version in (("old", "17.0.1"), ("unnamed", "x"), ("ancient", "1.8.0_412")):
        make_jdk(tmp_path / "all" / name, version)
    make_jdk(tmp_path / "all" / "small", "25.0.1", lacking="jdk.incubator.vector")
    (make_jdk(tmp_path / "all" / "broken", "25.0.1") / "release").unlink()
    with raises_as_recorded(LocalEngineError):
        find_jdk(RELEASES, {"JAVA_HOME": str(tmp_path / "nowhere")}, None, [str(tmp_path / "all" / "*")])
