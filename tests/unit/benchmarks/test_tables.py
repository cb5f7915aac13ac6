"""The paper's tables: what is kept, how it is rendered, and that the page shows it."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.tables import lab
from benchmarks.tables.lab import Lab, NotRun
from benchmarks.tables.profiles import PROFILES


@pytest.fixture
def own_results(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(lab, "RESULTS", tmp_path / "results")
    return tmp_path


def make_lab(folder: Path, *, run: bool) -> Lab:
    return Lab(folder / "data", folder / "work", PROFILES["cpu"], run=run)


def test_result_is_computed_once_and_contains_no_local_paths(own_results: Path) -> None:
    running = make_lab(own_results, run=True)
    made = running.kept("sts/some", lambda: {"model": f"{running.work}/tuned", "data": str(running.data)})
    again = make_lab(own_results, run=False).kept("sts/some", lambda: pytest.fail("made twice"))
    assert again["result"] == {"model": "WORK/tuned", "data": "DATA"}
    assert again["machine"]["cpu"]
    assert made["seconds"] >= 0
    with pytest.raises(NotRun):
        make_lab(own_results, run=False).kept("sts/other", dict)
