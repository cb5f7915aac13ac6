"""The jobs of an index in production, one after another, as benchmarks.production_session does them."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.production_session import JOBS, run_session

pytestmark = pytest.mark.long


def test_every_job_gives_its_numbers(es9_url: str, tmp_path: Path) -> None:
    checks = run_session(es9_url, tmp_path, tickets=300, products=200)
    assert {check.job for check in checks} == set(JOBS)
    assert [check for check in checks if not check.met] == []
