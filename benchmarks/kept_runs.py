"""What the comparisons share: the conditions of a run, results kept by kind of processor, goals, and their options."""

from __future__ import annotations

import json
import os
import platform
import statistics
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, TypeVar

import click

from benchmarks.common import machine, replaced
from benchmarks.encode_peers.processor import KINDS, Processor
from es_sbert.config import cache_folder

C = TypeVar("C", bound=Callable[..., Any])

ROOT = Path(__file__).parents[1]
_BUSY = 0.05  # share of the processors that other programs use


@dataclass(frozen=True)
class Goal:
    """A goal and what was found; `met` is None if it was not measured."""

    text: str
    met: bool | None

    def __str__(self) -> str:
        return f"{self.text}: {'not measured' if self.met is None else 'met' if self.met else 'MISSED'}"


def conditions(processor: Processor) -> dict[str, Any]:
    """The fields of a run that say when, where and with what it began."""
    return {
        "date": datetime.now(UTC).date().isoformat(),
        "commit": machine()["commit"],
        "processor": asdict(processor) | {"features": list(processor.features)},
        "python": platform.python_version(),
        "load": os.getloadavg()[0],
    }


def processor_text(processor: dict[str, Any]) -> str:
    """Name, instructions and cores of a run's processor."""
    return f"{processor['name']} ({', '.join(processor['features'])}), {processor['cores']} cores"


def load_text(load: float, others: Sequence[float]) -> str:
    """How busy other programs kept the machine.

    Args:
        load: Load average of the minute before the run.
        others: Shares of the processors that other programs used during it.
    """
    before = f"The load average before the run was {load:.1f}."
    if not others:
        return before
    busy = statistics.median(others)
    return (
        f"{before} Other programs took {busy:.0%} of the processors (median; at most {max(others):.0%}): the machine "
        f"was {'busy' if busy > _BUSY else 'quiet'}."
    )


def rounded_numbers(value: Any, rounded: Callable[[float], float] = lambda number: round(number, 4)) -> Any:
    """A JSON value with rounded numbers, by default to four decimals."""
    if isinstance(value, dict):
        return {name: rounded_numbers(one, rounded) for name, one in value.items()}
    if isinstance(value, list | tuple):
        return [rounded_numbers(one, rounded) for one in value]
    return rounded(value) if isinstance(value, float) else value


def read_kinds(folder: Path) -> dict[str, Any]:
    """Kind of processor → what its file in a folder holds, best kind first."""
    found = {path.stem: json.loads(path.read_text(encoding="utf-8")) for path in folder.glob("*.json")}
    order = list(KINDS)
    return {kind: found[kind] for kind in sorted(found, key=order.index)}


def write_kind(folder: Path, kind: str, value: Any) -> None:
    """Replace the file of a kind of processor."""
    folder.mkdir(parents=True, exist_ok=True)
    write_json(folder / f"{kind}.json", value)


def write_json(path: Path, value: Any) -> None:
    """Write a JSON value for people to read."""
    path.write_text(json.dumps(value, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")


def write_section(page: Path, name: str, section: str, *, maker: str) -> None:
    """Replace the section of a page that a benchmark makes."""
    page.write_text(replaced(page.read_text(encoding="utf-8"), name, section, maker=maker), encoding="utf-8")


_OPTIONS = (
    click.option("--only", multiple=True, metavar="TEXT", help="Only those with this in their name, for a trial."),
    click.option(
        "--environments",
        type=click.Path(file_okay=False, path_type=Path),
        help="Folder of the peers' environments. Default: benchmark-peers in ES_SBERT_CACHE.",
    ),
    click.option("--json", "json_file", type=click.Path(dir_okay=False, path_type=Path), help="Write the run here."),
    click.option("--write", is_flag=True, help="Keep the run, and write what it found into docs/."),
    click.option("--kept", is_flag=True, help="Run nothing; show, or write, what is kept."),
    click.option("--check", is_flag=True, help="End with 1 if a goal is missed or was not measured."),
)


def run_options(command: C) -> C:
    """The options that all comparisons have."""
    for option in reversed(_OPTIONS):
        command = option(command)
    return command


def peers_folder(environments: Path | None) -> Path:
    """The folder of the peers' environments."""
    return (environments or cache_folder() / "benchmark-peers").absolute()
