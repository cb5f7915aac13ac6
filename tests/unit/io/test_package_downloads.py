"""Finding Maven, and what is quoted of its complaints (the real Maven is in tests/engine)."""

from __future__ import annotations

from pathlib import Path

import pytest

from es_sbert.errors import DownloadFailed
from es_sbert.io.package_downloads import Artifact, Wheel, fetch_wheel, find_maven


def make_mvn(folder: Path) -> str:
    folder.mkdir(parents=True)
    (folder / "mvn").write_text("#!/bin/sh\necho '[ERROR] no such artifact'\necho '[ERROR]'\necho Advice\n")
    (folder / "mvn").chmod(0o755)
    return str(folder / "mvn")


def test_maven_home_precedes_path(tmp_path: Path) -> None:
    on_path = make_mvn(tmp_path / "path")
    at_home = make_mvn(tmp_path / "maven" / "bin")
    environ = {"PATH": str(tmp_path / "path")}
    assert find_maven(environ, print).program == on_path
    assert find_maven({**environ, "MAVEN_HOME": str(tmp_path / "maven")}, print).program == at_home


def test_failed_downloads_quote_the_reason(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(DownloadFailed, match="is not on PATH"):
        find_maven({"PATH": str(tmp_path)}, print)
    maven = find_maven({"PATH": str(Path(make_mvn(tmp_path / "path")).parent)}, print)
    with pytest.raises(DownloadFailed, match=r"cannot fetch g:a:1:zip:\n    no such artifact\n  Check that Maven"):
        maven.fetch(Artifact("g", "a", "1", 1), tmp_path)
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    with pytest.raises(DownloadFailed, match=r"pip cannot fetch none-such==1:\n    ERROR: .*none-such"):
        fetch_wheel(Wheel("none-such", "1", 1), tmp_path, print)
