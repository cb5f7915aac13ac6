"""The pages show what benchmarks/results holds, and a run that lost a document is not a good one."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from benchmarks import cluster_faults, migration, model_choice, operator_times, students
from benchmarks import pairs_results as pairs
from benchmarks.common import replaced
from benchmarks.compat import kept as compat
from benchmarks.encode_peers import results as encode
from benchmarks.encode_peers.plot import bar_plot
from benchmarks.gpu_check import results as gpu_check
from benchmarks.gpu_check.steps import STEPS
from benchmarks.ingest_peers import results as ingest
from benchmarks.ingest_peers.__main__ import plot as ingest_plot
from benchmarks.reliability import kept as reliability
from benchmarks.reliability.kept import FaultRun
from benchmarks.scale import results as scale
from benchmarks.search_peers import results as search
from benchmarks.tables import document
from benchmarks.tables.__main__ import TABLES, section
from benchmarks.tables.lab import Lab
from benchmarks.tables.profiles import PROFILES

_GPU = Path(__file__).parents[3] / "benchmarks/results/gpu"

# Page, markers and benchmark → the section as the benchmark writes it.
_SECTIONS: dict[tuple[Path, str, str], Callable[[], str]] = {
    (migration.PAGE, migration.NAME, migration.MAKER): migration.section,
    (cluster_faults.PAGE, cluster_faults.NAME, cluster_faults.MAKER): cluster_faults.section,
    (reliability.PAGE, reliability.NAME, reliability.MAKER): reliability.section,
    (encode.PAGE, encode.NAME, encode.MAKER): lambda: encode.section(encode.kept()),
    (operator_times.PAGE, operator_times.NAME, operator_times.MAKER): lambda: operator_times.section(
        operator_times.kept()
    ),
    (scale.PAGE, scale.NAME, scale.MAKER): lambda: scale.section(scale.kept()),
    (search.PAGE, search.NAME, search.MAKER): lambda: search.section(search.kept()),
    (model_choice.PAGE, model_choice.NAME, model_choice.MAKER): lambda: model_choice.section(model_choice.kept()),
    (students.PAGE, students.NAME, students.MAKER): lambda: students.section(students.kept()),
    (pairs.PAGE, pairs.NAME, pairs.MAKER): lambda: pairs.section(pairs.kept()),
    (ingest.PAGE, ingest.NAME, ingest.MAKER): lambda: ingest.section(ingest.kept()),
    (compat.PAGE, compat.NAME, compat.MAKER): lambda: compat.section(compat.kept()),
}


@pytest.mark.parametrize("place", _SECTIONS, ids=lambda place: place[2])
def test_pages_match_kept_results(place: tuple[Path, str, str]) -> None:
    """After an edit by hand, run the benchmark with --write."""
    path, name, maker = place
    page = path.read_text(encoding="utf-8")
    assert replaced(page, name, _SECTIONS[place](), maker=maker) == page


def test_plots_match_kept_results() -> None:
    """After an edit by hand: python -m benchmarks.encode_peers --kept --write, and the same of ingest_peers."""
    for run in (run for runs in encode.kept().values() for run in runs):
        assert (encode.IMAGES / encode.image_name(run)).read_text(encoding="utf-8") == bar_plot(run)
    for load in (load for loads in ingest.kept().values() for load in loads):
        assert (ingest.IMAGES / ingest.image_name(load)).read_text(encoding="utf-8") == ingest_plot(load)


@pytest.mark.parametrize("name", list(TABLES))
def test_results_page_matches_kept_tables(name: str, tmp_path: Path) -> None:
    """After an edit by hand: python -m benchmarks.tables --data DATA --kept --write."""
    page = document.RESULTS.read_text(encoding="utf-8")
    lab = Lab(tmp_path / "data", tmp_path / "work", PROFILES["cpu"], run=False)
    assert document.replaced(page, f"cpu {name}", section(name, TABLES[name], lab)) == page


@pytest.mark.parametrize("path", sorted(_GPU.glob("*.json")), ids=lambda path: path.stem)
def test_gpu_results_say_where_each_step_ran(path: Path) -> None:
    """And name no folder of that machine: of a library, its file name is enough."""
    steps = gpu_check.read(path)["steps"]
    assert set(steps) <= {step.name for step in STEPS}
    assert all("ran_on" in step or gpu_check.NOT_RUN in step for step in steps.values())
    assert not re.search(r'"(?:[^"]* )?/\w', path.read_text(encoding="utf-8"))


@pytest.mark.parametrize("loss", [{"differences": 1}, {"not_found": 1}])
def test_migration_with_a_loss_is_not_good(loss: dict[str, int]) -> None:
    run = migration.kept()["es9"]
    assert run.good
    assert not replace(run, **loss).good


@pytest.mark.parametrize("loss", [{"lost": 1}, {"doubled": 1}, {"read": 11}])
def test_fault_run_with_a_loss_is_not_good(loss: dict[str, int]) -> None:
    run = FaultRun(
        commands=1,
        read=10,
        indexed=5,
        updated=0,
        unchanged=2,
        skipped=1,
        dead=2,
        left=0,
        retries=0,
        documents=7,
        doubled=0,
        lost=0,
        seconds=1.0,
    )
    assert run.good
    assert not replace(run, **loss).good
