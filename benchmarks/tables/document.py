"""Puts tables into docs/results.md, between markers that stay there."""

from __future__ import annotations

import re
from pathlib import Path

RESULTS = Path(__file__).parents[2] / "docs/results.md"


def replaced(text: str, name: str, section: str) -> str:
    """The page with a section in the place of its markers' content.

    Raises:
        ValueError: the page has no such markers.
    """
    start, end = f"<!-- {name}: made by benchmarks.tables -->", f"<!-- end of {name} -->"
    pattern = re.compile(re.escape(start) + ".*?" + re.escape(end), re.DOTALL)
    if not pattern.search(text):
        raise ValueError(f"{RESULTS} has no markers for {name}: {start} … {end}")
    return pattern.sub(lambda _: f"{start}\n{section}\n{end}", text)
