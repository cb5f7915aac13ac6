"""docs/clients.md shows the results that are kept, and they have no difference."""

from __future__ import annotations

from benchmarks.common import replaced
from benchmarks.compat.kept import MAKER, NAME, PAGE, kept, section


def test_the_page_shows_what_is_kept() -> None:
    """After a run without --write, or an edit by hand: make compat COMPAT=--write."""
    page = PAGE.read_text(encoding="utf-8")
    assert replaced(page, NAME, section(kept()), maker=MAKER) == page


def test_nothing_differed_in_what_is_kept() -> None:
    results = kept()
    assert "opensearch-yaml" in {result.suite for result in results}
    for result in results:
        assert result.passed > 0
        assert result.tests == result.passed + result.failed + result.skipped.total()
        assert not result.differences
