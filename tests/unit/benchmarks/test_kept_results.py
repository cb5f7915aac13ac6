"""The pages show what benchmarks/results holds, and a run that lost a document is not a good one."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import pytest

from benchmarks import cluster_faults, model_choice, pairs_results
from benchmarks.common import replaced
from benchmarks.encode_peers import results as encode
from benchmarks.ingest_peers import results as ingest
from benchmarks.kept_runs import RESULTS_PAGE, Section, read_kinds
from benchmarks.reliability import kept as reliability
from benchmarks.search_peers import results as search
from benchmarks.tables.__main__ import TABLES, section
from benchmarks.tables.lab import Lab
from benchmarks.tables.profiles import PROFILES
from es_sbert.bundle.catalog import MODELS

# Page, markers and benchmark → the section as the benchmark writes it.
_SECTIONS: dict[tuple[Path, str, str], Callable[[], str]] = {
    (cluster_faults.PAGE, cluster_faults.NAME, cluster_faults.MAKER): cluster_faults.section,
    (reliability.PAGE, reliability.NAME, reliability.MAKER): reliability.section,
    (model_choice.PAGE, model_choice.NAME, model_choice.MAKER): lambda: model_choice.section(
        read_kinds(model_choice.RESULTS)
    ),
}
_COMPARISONS: list[Section[Any]] = [encode.SECTION, ingest.SECTION, search.SECTION, pairs_results.SECTION]
_SECTIONS |= {(one.page, one.name, one.maker): one.text for one in _COMPARISONS}


@pytest.mark.parametrize("place", _SECTIONS, ids=lambda place: place[2])
def test_pages_match_kept_results(place: tuple[Path, str, str]) -> None:
    """After an edit by hand, run the benchmark with --write."""
    path, name, maker = place
    page = path.read_text(encoding="utf-8")
    assert replaced(page, name, _SECTIONS[place](), maker=maker) == page


@pytest.mark.parametrize("name", list(TABLES))
def test_results_page_matches_kept_tables(name: str, tmp_path: Path) -> None:
    """After an edit by hand: python -m benchmarks.tables --data DATA --kept --write."""
    page = RESULTS_PAGE.read_text(encoding="utf-8")
    lab = Lab(tmp_path / "data", tmp_path / "work", PROFILES["cpu"], run=False)
    assert replaced(page, f"cpu {name}", section(name, TABLES[name], lab), maker="benchmarks.tables") == page


def test_page_has_license_size_and_limits_of_every_model_of_the_catalog() -> None:
    page = model_choice.PAGE.read_text()
    for model in MODELS.values():
        numbers = dict(re.findall(r"(\d+) (dimensions|layers|tokens)", model.summary)[i][::-1] for i in (0, 2))
        row = f"| {model.name} | {model.license} | {model.megabytes} | {numbers['dimensions']} | {numbers['tokens']} |"
        assert row in page, row


def test_gpu_results_name_no_folder_of_their_machine() -> None:
    for path in (RESULTS_PAGE.parents[1] / "benchmarks/results/gpu").iterdir():
        assert not re.search(r'"(?:[^"]* )?/\w', path.read_text(encoding="utf-8"))


@pytest.mark.parametrize("wrong", ["lost", "doubled", "stale", "read"])
def test_fault_run_with_a_loss_is_not_good(wrong: str) -> None:
    run = reliability.FaultRun(**dict.fromkeys((field.name for field in fields(reliability.FaultRun)), 0))
    assert run.good
    assert not replace(run, **{wrong: 1}).good
