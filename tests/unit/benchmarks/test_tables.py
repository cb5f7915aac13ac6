"""The paper's tables: what is kept, how it is rendered, and that the page shows it."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from benchmarks.tables import document, lab
from benchmarks.tables.lab import Lab, NotRun, cells, figure, shown
from benchmarks.tables.mlm import masked
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


def test_incomplete_model_folder_is_rebuilt(own_results: Path) -> None:
    running = make_lab(own_results, run=True)

    def fail(folder: Path) -> None:
        folder.mkdir()
        raise SystemExit("out of power")

    with pytest.raises(SystemExit):
        running.folder("tuned", fail)
    with pytest.raises(NotRun):
        make_lab(own_results, run=False).folder("tuned", fail)
    made = running.folder("tuned", lambda folder: folder.mkdir())
    assert made.is_dir()
    assert running.folder("tuned", fail) == made


def test_missing_results_are_shown_as_not_run() -> None:
    def missing() -> list[str]:
        raise NotRun("x")

    assert cells(2, missing) == ["not run", "not run"]
    assert cells(1, lambda: ["1.00"]) == ["1.00"]
    assert shown([85.5]) == "85.50"
    assert shown([85.0, 86.0, 87.0]) == "86.00 ± 1.00"


def test_figure_by_data_and_part() -> None:
    report = {
        "rows": [{"data": "a", "part": "all", "figures": {"x": 1.5}}, {"data": "a", "part": "b", "figures": {"x": 2.5}}]
    }
    assert figure(report, "a", "x") == 1.5
    assert figure(report, "a", "x", "b") == 2.5
    with pytest.raises(KeyError):
        figure(report, "c", "x")


def test_a_page_without_markers_is_refused() -> None:
    with pytest.raises(ValueError, match="no markers for cpu sts"):
        document.replaced("# page\n", "cpu sts", "table")


def test_masking_follows_the_bert_rules() -> None:
    random = np.random.default_rng(0)
    ids = random.integers(10, 100, (500, 40))
    real = (np.arange(40) < random.integers(3, 41, (500, 1))).astype(np.int64)
    inputs, labels = masked(ids, real, 4, 100, random)
    chosen = labels != -100
    ends = np.zeros_like(chosen)
    ends[:, 0] = True
    ends[np.arange(500), real.sum(axis=1) - 1] = True
    assert not (chosen & (ends | (real == 0))).any()
    assert np.array_equal(labels[chosen], ids[chosen])
    assert np.array_equal(inputs[~chosen], ids[~chosen])
    share = chosen.sum() / (real.astype(bool) & ~ends).sum()
    assert share == pytest.approx(0.15, abs=0.02)
    assert (inputs[chosen] == 4).mean() == pytest.approx(0.8, abs=0.04)
    assert (inputs[chosen] == ids[chosen]).mean() == pytest.approx(0.1, abs=0.03)
