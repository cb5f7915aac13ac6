"""Stored results of the suites, and the table made from them."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

from benchmarks.common import table
from benchmarks.compat.outcomes import SuiteResult
from benchmarks.compat.suites import SUITES

RESULTS = Path(__file__).parents[1] / "results" / "compat"
PAGE = Path(__file__).parents[2] / "docs" / "clients.md"
NAME = "other projects' suites"
MAKER = "benchmarks.compat"
_HEADER = (
    "suite",
    "tests from",
    "engine",
    "tests",
    "passed both ways",
    "failed both ways alike",
    "skipped",
    "flaky",
    "differences",
)


def keep(result: SuiteResult, about: dict[str, Any]) -> None:
    """Write the result of a suite."""
    RESULTS.mkdir(parents=True, exist_ok=True)
    path = RESULTS / f"{result.suite}.json"
    path.write_text(json.dumps(about | {"result": result.as_json()}, indent=1, ensure_ascii=False) + "\n")


def kept() -> list[SuiteResult]:
    """Results in the order of the suites."""
    paths = [RESULTS / f"{suite.name}.json" for suite in SUITES]
    return [SuiteResult.from_json(json.loads(path.read_text())["result"]) for path in paths if path.exists()]


def section(results: list[SuiteResult]) -> str:
    """The table of results."""
    titles = {suite.name: suite.title for suite in SUITES}
    rows = [
        (
            titles[one.suite],
            f"`{one.source}`",
            one.engine,
            f"{one.tests:,}",
            f"{one.passed:,}",
            f"{one.failed:,}",
            f"{one.skipped.total():,}",
            len(one.flaky),
            len(one.differences),
        )
        for one in results
    ]
    return table(_HEADER, rows)


def skips(result: SuiteResult, most: int = 8) -> str:
    """Why tests were skipped, the most frequent reasons first."""
    return ", ".join(f"{count} {reason}" for reason, count in Counter(result.skipped).most_common(most))
