"""Finding a JDK among folders that look like one."""

from __future__ import annotations

from pathlib import Path

import pytest

from es_sbert.engines.local.jdk import REQUIRED_MODULES, find_jdk
from es_sbert.errors import LocalEngineError


def make_jdk(home: Path, version: str, *, lacking: str = "") -> Path:
    """A folder with a `java` and the file `release`."""
    modules = sorted(REQUIRED_MODULES - {lacking})
    (home / "bin").mkdir(parents=True)
    (home / "bin" / "java").touch(0o755)
    (home / "release").write_text(f'IMPLEMENTOR="Nobody"\nJAVA_VERSION="{version}"\nMODULES="{" ".join(modules)}"\n')
    return home


def test_environment_precedes_default_jdk_locations(tmp_path: Path) -> None:
    es = make_jdk(tmp_path / "es", "21.0.1")
    java = make_jdk(tmp_path / "java", "22.0.1")
    path = make_jdk(tmp_path / "path", "23.0.1")
    make_jdk(tmp_path / "usual" / "jdk", "25.0.1")
    places = [str(tmp_path / "usual" / "*")]
    environ = {"ES_JAVA_HOME": str(es), "JAVA_HOME": str(java), "PATH": str(path / "bin")}
    found = []
    for name in list(environ):
        found.append(find_jdk(21, environ, None, places).version)
        del environ[name]
    found.append(find_jdk(21, environ, None, places).version)
    assert found == [21, 22, 23, 25]


def test_java_on_path_is_resolved_through_symlinks(tmp_path: Path) -> None:
    home = make_jdk(tmp_path / "jdk", "21.0.1")
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "java").symlink_to(home / "bin" / "java")
    assert find_jdk(21, {"PATH": str(tmp_path / "bin")}, None, ()).home == home


@pytest.mark.parametrize(
    ("versions", "chosen"),
    [(("21.0.9", "25.0.1", "24.0.2", "31.0.0"), 25), (("17.0.1", "31.0.0", "29.0.0"), 29)],
    ids=["the newest tested one", "the oldest untested one, without a tested one"],
)
def test_choice_among_installed_releases(tmp_path: Path, versions: tuple[str, ...], chosen: int) -> None:
    for version in versions:
        make_jdk(tmp_path / version, version)
    assert find_jdk(21, {}, None, [str(tmp_path / "*")]).version == chosen


def test_release_that_is_too_new_is_passed_over(tmp_path: Path) -> None:
    for version in ("21.0.9", "25.0.1"):
        make_jdk(tmp_path / version, version)
    environ = {"JAVA_HOME": str(tmp_path / "25.0.1")}
    assert find_jdk(17, environ, None, [str(tmp_path / "*")], newest=23).version == 21
    with pytest.raises(LocalEngineError, match="no JDK 17 to 20 was found") as caught:
        find_jdk(17, environ, None, [str(tmp_path / "*")], newest=20)
    assert "Java 25 is too new" in caught.value.message


def test_jdk_locations_expand_the_home_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    home = make_jdk(tmp_path / ".sdkman" / "candidates" / "java" / "21-tem", "21.0.4")
    assert find_jdk(21, {}, None, ["~/.sdkman/candidates/java/*"]).home == home


def test_every_rejected_jdk_is_explained(tmp_path: Path) -> None:
    make_jdk(tmp_path / "all" / "old", "17.0.1")
    make_jdk(tmp_path / "all" / "small", "25.0.1", lacking="jdk.incubator.vector")
    (make_jdk(tmp_path / "all" / "broken", "25.0.1") / "release").unlink()
    make_jdk(tmp_path / "all" / "unnamed", "x")
    make_jdk(tmp_path / "all" / "ancient", "1.8.0_412")
    environ = {"JAVA_HOME": str(tmp_path / "nowhere")}
    with pytest.raises(LocalEngineError) as caught:
        find_jdk(21, environ, None, [str(tmp_path / "all" / "*")])
    message = caught.value.message
    assert message.startswith("no JDK 21 or newer was found; looked at:")
    assert f"{tmp_path / 'nowhere'}: no bin/java in it" in message
    assert "old: Java 17 is too old" in message
    assert "small: Java 25, but without jdk.incubator.vector: not a full JDK" in message
    assert "broken: its file release cannot be read: No such file" in message
    assert "unnamed: its file release has no version" in message
    assert "ancient: Java 8 is too old" in message
    assert "ES_JAVA_HOME" in caught.value.remedy


def test_missing_java_error_says_to_install_it() -> None:
    with pytest.raises(LocalEngineError) as caught:
        find_jdk(21, {"PATH": ""}, None, ())
    assert caught.value.message == "no JDK 21 or newer was found"
    assert "Install one" in caught.value.remedy
