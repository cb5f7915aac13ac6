"""Every row of docs/clients.md names a test that exists, and runs on the engines that the row names."""

from __future__ import annotations

import re
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
_ROW = re.compile(
    r"^\| (?P<client>[^|]+) \| (?P<engines>[^|]+) \| (?P<ways>[^|]+) \| `(?P<test>[^`]+)` \|$", re.MULTILINE
)
_ENGINES = {"Elasticsearch 9": "es9", "Elasticsearch 8": "es8", "OpenSearch 3": "opensearch"}


@dataclass(frozen=True)
class Row:
    """A row of the table.

    Attributes:
        engines: As fixtures call them; none where the client speaks to no engine.
        test: As pytest calls it, perhaps without its parameters.
    """

    client: str
    engines: frozenset[str]
    ways: frozenset[str]
    test: str


def _rows() -> list[Row]:
    found = _ROW.finditer((ROOT / "docs/clients.md").read_text(encoding="utf-8"))
    return [
        Row(
            match["client"],
            frozenset(_ENGINES[name] for name in match["engines"].split(", ") if name != "any"),
            frozenset(match["ways"].split(", ")),
            match["test"],
        )
        for match in found
    ]


def test_the_table_is_read_whole() -> None:
    text = (ROOT / "docs/clients.md").read_text(encoding="utf-8")
    table = [line for line in text.partition("\n## ")[0].splitlines() if line.startswith("|")]
    assert len(_rows()) == len(table) - 2  # heading and rule
    assert {way for row in _rows() for way in row.ways} <= set("abcd")


@pytest.mark.slow
def test_every_row_has_its_test(request: pytest.FixtureRequest) -> None:
    rows = _rows()
    collected = _collected(request, sorted({row.test.partition("::")[0] for row in rows}))
    for row in rows:
        tests = [test for test in collected if test == row.test or test.startswith(f"{row.test}[")]
        assert tests, row
        for engine in row.engines if _by_engine(tests) else ():
            assert any(engine in re.split(r"[\[\]-]", test) for test in tests), (engine, row)


def _collected(request: pytest.FixtureRequest, files: list[str]) -> list[str]:
    """Tests of some files: those that this run has collected, where it has all files and chose nothing among them."""
    chosen = request.config.option.keyword or request.config.option.markexpr
    here = [item.nodeid for item in request.session.items]
    if not chosen and {test.partition("::")[0] for test in here} >= set(files):
        return here
    command = [sys.executable, "-m", "pytest", "--collect-only", "-q", "-p", "no:cacheprovider", *files]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stdout + done.stderr
    return [line for line in done.stdout.splitlines() if "::" in line]


def _by_engine(tests: list[str]) -> bool:
    """Whether the tests have engines as parameters; those that do not run on several by themselves."""
    return any(engine in re.split(r"[\[\]-]", test) for test in tests for engine in _ENGINES.values())
