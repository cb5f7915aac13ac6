"""Stored runs of faults, and the table made from them."""

from __future__ import annotations

import json
import re
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from benchmarks.common import table
from tests.faults.catalog import FAULTS
from tests.faults.fault import EVERY_ENGINE, Fault

RESULTS = Path(__file__).parents[1] / "results" / "reliability"
PAGE = Path(__file__).parents[2] / "docs" / "reliability.md"
NAME = "faults"
MAKER = "benchmarks.reliability"
_ENDS = ("indexed", "updated", "unchanged", "dead", "left")


@dataclass(frozen=True)
class FaultRun:
    """One load that a fault happened to.

    Attributes:
        commands: That it took to the end.
        read, indexed, updated, unchanged, skipped, dead, left: The last command's counts.
        retries: What it had to send again.
        documents: In the index.
        doubled, lost, stale: See `tests.faults.compare`.
        seconds: All of it.
    """

    commands: int
    read: int
    indexed: int
    updated: int
    unchanged: int
    skipped: int
    dead: int
    left: int
    retries: int
    documents: int
    doubled: int
    lost: int
    seconds: float
    stale: int = 0  # runs that were kept before it was counted have it in `lost`

    @property
    def good(self) -> bool:
        return (
            not self.doubled
            and not self.lost
            and not self.stale
            and self.read == self.skipped + sum(getattr(self, name) for name in _ENDS)
        )


def path_of(fault: Fault, engine: str) -> Path:
    """Where the runs of a fault are kept."""
    return RESULTS / engine / (re.sub(r"\W+", "-", fault.name.lower()).strip("-") + ".json")


def keep(fault: Fault, engine: str, runs: list[FaultRun], about: dict[str, Any]) -> None:
    """Write the runs of a fault."""
    path = path_of(fault, engine)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(about | {"runs": [asdict(run) for run in runs]}, indent=1) + "\n")


def section() -> str:
    """The table of all runs that are kept: a row for each fault, with the runs on all engines."""
    rows = []
    for fault in FAULTS:
        kept = [path for engine in EVERY_ENGINE if (path := path_of(fault, engine)).exists()]
        runs = [FaultRun(**run) for path in kept for run in json.loads(path.read_text())["runs"]]
        if runs:
            rows.append([fault.name, f"{sum(run.good for run in runs)} of {len(runs)}", *_spans(runs)])
    header = ["fault", "exact", "commands", "sent again", "doubled, lost, stale"]
    return table(header, rows)


def _spans(runs: list[FaultRun]) -> list[str]:
    names = ("commands", "retries")
    spans = [(min(values), max(values)) for values in ([getattr(run, name) for run in runs] for name in names)]
    wrong = [sum(getattr(run, name) for run in runs) for name in ("doubled", "lost", "stale")]
    shown = [f"{low:,}" if low == high else f"{low:,}–{high:,}" for low, high in spans]
    return [*shown, ", ".join(map(str, wrong))]
