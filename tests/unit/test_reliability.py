"""docs/reliability.md shows the runs that are kept, and they are good ones."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from benchmarks.common import replaced
from benchmarks.reliability.kept import MAKER, NAME, PAGE, FaultRun, path_of, section
from tests.faults.catalogue import FAULTS
from tests.faults.fault import Fault


def test_the_page_shows_what_is_kept() -> None:
    """After a run without --write, or an edit by hand: python -m benchmarks.reliability --kept --write."""
    page = PAGE.read_text(encoding="utf-8")
    assert replaced(page, NAME, section(), maker=MAKER) == page


def test_faults_have_names_of_their_own() -> None:
    assert len({path_of(fault, "es9") for fault in FAULTS}) == len(FAULTS)


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.name)
def test_every_fault_passed_three_times_in_a_row_wherever_it_applies(fault: Fault) -> None:
    for engine in fault.engines:
        kept = json.loads(path_of(fault, engine).read_text())
        runs = [FaultRun(**run) for run in kept["runs"]]
        assert len(runs) >= 3
        assert all(run.good for run in runs), engine


def test_a_run_that_lost_or_doubled_or_does_not_add_up_is_not_good() -> None:
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
    assert not replace(run, lost=1).good
    assert not replace(run, doubled=1).good
    assert not replace(run, read=11).good
