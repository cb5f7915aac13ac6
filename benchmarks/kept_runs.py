"""What the comparisons share: the fields of a run, runs kept by kind of processor, goals, options, and their pages."""

from __future__ import annotations

import json
import os
import platform
import statistics
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, ClassVar, Generic, Self, TypeVar

import click

from benchmarks.common import machine, replaced
from benchmarks.encode_peers.processor import KINDS, Processor
from es_sbert.config import cache_folder

C = TypeVar("C", bound=Callable[..., Any])

ROOT = Path(__file__).parents[1]
RESULTS_PAGE = ROOT / "docs/results.md"
_BUSY = 0.05  # share of the processors that other programs use


@dataclass(frozen=True)
class Goal:
    """A goal and what was found; `met` is None if it was not measured."""

    text: str
    met: bool | None

    def __str__(self) -> str:
        return f"{self.text}: {'not measured' if self.met is None else 'met' if self.met else 'MISSED'}"


@dataclass(kw_only=True)
class ComparisonRun(ABC):
    """One run of a comparison.

    Attributes:
        date: ISO format.
        commit: Of es-sbert; None outside of a repository.
        rounds, threads: How it was run.
        processor: Fields of `processor.Processor`.
        python: Version.
        load: Load average of the minute before.
    """

    # Field → the class of its members.
    MEMBERS: ClassVar[dict[str, type[Any]]] = {}

    date: str
    commit: str | None
    rounds: int
    threads: int
    processor: dict[str, Any]
    python: str
    load: float

    @classmethod
    def from_json(cls, fields: dict[str, Any]) -> Self:
        """A run that `as_json` has turned into JSON."""
        members = {name: [member(**one) for one in fields[name]] for name, member in cls.MEMBERS.items()}
        return cls(**fields | members)

    def as_json(self) -> Any:
        """The fields as a JSON value."""
        return rounded_numbers(asdict(self))

    @property
    @abstractmethod
    def title(self) -> str:
        """What was measured, for the heading; a new run replaces that of the same title without minor versions."""

    @abstractmethod
    def text(self) -> str:
        """The part of the page: what was run where, and the tables."""

    @abstractmethod
    def goals(self) -> Iterator[Goal]:
        """The goals for es-sbert."""

    def conditions(self, others: Sequence[float] = ()) -> str:
        """Where and when it was run, and how busy other programs kept the machine.

        Args:
            others: Shares of the processors that other programs used.
        """
        text = f"{processor_text(self.processor)}; {self.date}, commit {self.commit}, {self.rounds} rounds."
        if not others:
            return f"{text} Load average before the run: {self.load:.1f}."
        busy = statistics.median(others)
        return f"{text} The machine was {'busy' if busy > _BUSY else 'quiet'} (other programs: {busy:.0%})."


R = TypeVar("R", bound=ComparisonRun)


@dataclass(frozen=True)
class Section(Generic[R]):
    """A section of a page, made of the runs that a folder keeps by kind of processor.

    Attributes:
        run_type: Of the runs.
        folder: With a file for each kind of processor.
        name, maker: As the markers of the page have them.
        page: That has the section.
        level: Of its headings.
    """

    run_type: type[R]
    folder: Path
    name: str
    maker: str
    page: Path = RESULTS_PAGE
    level: str = "###"

    def kept(self) -> dict[str, list[R]]:
        """Kind of processor → its runs, best kind first."""
        return {
            kind: [self.run_type.from_json(run) for run in found["runs"]]
            for kind, found in read_kinds(self.folder).items()
        }

    def keep(self, run: R) -> None:
        """Add a run to those of its kind of processor, in place of that of the same title."""
        kind = run.processor["kind"]
        others = [other for other in self.kept().get(kind, []) if _major(other.title) != _major(run.title)]
        runs = sorted([*others, run], key=lambda one: one.title)
        write_kind(self.folder, kind, {"runs": [one.as_json() for one in runs]})

    def text(self) -> str:
        """The section, of all runs that are kept."""
        found = [(KINDS[kind], run) for kind, runs in self.kept().items() for run in runs]
        parts = [f"{self.level} {run.title}: {kind}\n\n{run.text()}{_missed(run)}" for kind, run in found]
        return "\n\n".join(parts) or "Nothing has been measured yet."

    def write(self) -> None:
        """Write the section into its page."""
        write_section(self.page, self.name, self.text(), maker=self.maker)

    def show_kept(self, *, write: bool) -> None:
        """What the options --kept and --write do."""
        if write:
            self.write()
        click.echo(self.text())

    def finish(self, runs: Iterable[R], *, write: bool) -> None:
        """Print the runs as they end; with `write` keep them, and write the section."""
        for run in runs:
            if write:
                self.keep(run)
                self.write()
            click.echo("\n\n".join([run.text(), *(f"Goal: {goal}" for goal in run.goals())]))


def _missed(run: ComparisonRun) -> str:
    missed = [goal.text for goal in run.goals() if goal.met is False]
    return f"\n\nGoals that were missed: {'; '.join(missed)}." if missed else ""


def _major(title: str) -> str:
    """A title without the minor versions of an engine."""
    return title.partition(".")[0]


def failure(reason: str) -> str:
    """The reason for missing figures, in a cell of a table."""
    return "not measured: " + reason.replace("|", "\\|").replace("\n", " ")


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


def rounded_numbers(value: Any) -> Any:
    """A JSON value with numbers of at most four decimals."""
    if isinstance(value, dict):
        return {name: rounded_numbers(one) for name, one in value.items()}
    if isinstance(value, list | tuple):
        return [rounded_numbers(one) for one in value]
    return round(value, 4) if isinstance(value, float) else value


def read_kinds(folder: Path) -> dict[str, Any]:
    """Kind of processor → what its file in a folder holds, best kind first."""
    found = {path.stem: json.loads(path.read_text(encoding="utf-8")) for path in folder.glob("*.json")}
    order = list(KINDS)
    return {kind: found[kind] for kind in sorted(found, key=order.index)}


def write_kind(folder: Path, kind: str, value: Any) -> None:
    """Replace the file of a kind of processor."""
    folder.mkdir(parents=True, exist_ok=True)
    text = json.dumps(value, indent=1, ensure_ascii=False) + "\n"
    (folder / f"{kind}.json").write_text(text, encoding="utf-8")


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
    click.option("--write", is_flag=True, help="Keep the run, and write what it found into docs/."),
    click.option("--kept", is_flag=True, help="Run nothing; show, or write, what is kept."),
)


def run_options(command: C) -> C:
    """The options that all comparisons have."""
    for option in reversed(_OPTIONS):
        command = option(command)
    return command


def peers_folder(environments: Path | None) -> Path:
    """The folder of the peers' environments."""
    return (environments or cache_folder() / "benchmark-peers").absolute()


def report(line: str) -> None:
    """Print a line about the progress of a run."""
    click.echo(line, err=True)
