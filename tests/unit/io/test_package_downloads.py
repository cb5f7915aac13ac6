"""Finding Maven, and what is quoted of its complaints (the real Maven is in tests/engine)."""

from __future__ import annotations

from pathlib import Path

from es_sbert.io.package_downloads import find_maven


def make_mvn(folder: Path) -> str:
    folder.mkdir(parents=True)
    (folder / "mvn").write_text("#!/bin/sh\n")
    (folder / "mvn").chmod(0o755)
    return str(folder / "mvn")


def test_maven_home_precedes_path(tmp_path: Path) -> None:
    on_path = make_mvn(tmp_path / "path")
    at_home = make_mvn(tmp_path / "maven" / "bin")
    environ = {"PATH": str(tmp_path / "path")}
    assert find_maven(environ, print).program == on_path
    assert find_maven({**environ, "MAVEN_HOME": str(tmp_path / "maven")}, print).program == at_home
