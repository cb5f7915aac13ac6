"""docs/operations.md says what the program does: events, metrics, messages and files are those of the code."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs/operations.md").read_text()
CODE = {path: path.read_text() for path in (ROOT / "es_sbert").rglob("*.py")}


def section(title: str) -> str:
    return PAGE.partition(f"\n## {title}\n")[2].partition("\n## ")[0]


def first_columns(text: str) -> list[str]:
    """What stands in backquotes in the first column of the tables."""
    cells = [line.split("|")[1] for line in text.splitlines() if line.startswith("| `")]
    return [name for cell in cells for name in re.findall(r"`([^`]+)`", cell)]


def test_documented_events_match_the_logged_ones() -> None:
    recorded = {name for text in CODE.values() for name in re.findall(r'\blog_event\(\s*"([a-z_]+)"', text)}
    extra = {"crashed", "log"}  # made by the formatter
    documented = set(first_columns(section("Monitoring").partition("Alert on these:")[0]))
    assert documented == recorded | extra
