"""Puts tables into docs/results.md, between markers that stay there."""

from __future__ import annotations

from pathlib import Path

from benchmarks import common

RESULTS = Path(__file__).parents[2] / "docs/results.md"


def replaced(text: str, name: str, section: str) -> str:
    """The page with a section in the place of its markers' content.

    Raises:
        ValueError: the page has no such markers.
    """
    return common.replaced(text, name, section, maker="benchmarks.tables")
