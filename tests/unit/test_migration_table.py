"""docs/reliability.md shows the migrations that are kept, and they lost nothing."""

from __future__ import annotations

from dataclasses import replace

import pytest

from benchmarks.common import replaced
from benchmarks.migration import ENGINES, MAKER, NAME, PAGE, kept, section


def test_the_page_shows_what_is_kept() -> None:
    """After a run without --write, or an edit by hand: python -m benchmarks.migration --write."""
    page = PAGE.read_text(encoding="utf-8")
    assert replaced(page, NAME, section(), maker=MAKER) == page


@pytest.mark.parametrize("engine", ENGINES)
def test_ten_migrations_beside_writers_lost_nothing(engine: str) -> None:
    one = kept()[engine]
    assert one.good
    assert one.migrations >= 10
    assert one.operations > 1000
    assert one.retried > 0
    assert (one.scripted > 0) is (engine != "es9")


def test_a_run_with_a_difference_or_a_document_that_was_not_found_is_not_good() -> None:
    one = kept()["es9"]
    assert not replace(one, differences=1).good
    assert not replace(one, not_found=1).good
