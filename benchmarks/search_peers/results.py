"""What a run found: percentiles, goals, the results that are kept by kind of processor and engine, and their tables."""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from benchmarks.common import spread, table
from benchmarks.encode_peers.processor import KINDS
from benchmarks.kept_runs import ROOT, Goal, load_text, processor_text, read_kinds, rounded_numbers, write_kind
from benchmarks.query_parts import PARTS

RESULTS = ROOT / "benchmarks/results/search"
PAGE = ROOT / "docs/results.md"
NAME = "search"
MAKER = "benchmarks.search_peers"

EMBEDDING = "one query's embedding, warm"
OWN_TIME = "the gateway's own time of a semantic query"
COLD_SEARCH = "es-sbert search, from the start of the process to the hits"
# Figure → most, unit and decimals.
GOALS = {EMBEDDING: (2.0, "ms", 2), OWN_TIME: (1.5, "ms", 2), COLD_SEARCH: (0.8, "s", 2)}


@dataclass
class Cell:
    """A path to the hits of an index type with a number of clients; one figure a round in each list.

    Attributes:
        index_type, path, clients: What was measured.
        reason: Why there are no figures; empty otherwise.
        answers: Number of answers.
        rates: Queries a second.
        p50, p95, p99: Percentiles of the latency, ms.
        shares: `client`, `gateway`, `engine` or `others` → shares of all logical processors.
    """

    index_type: str
    path: str
    clients: int
    reason: str = ""
    answers: list[int] = field(default_factory=list)
    rates: list[float] = field(default_factory=list)
    p50: list[float] = field(default_factory=list)
    p95: list[float] = field(default_factory=list)
    p99: list[float] = field(default_factory=list)
    shares: dict[str, list[float]] = field(default_factory=dict)

    def __str__(self) -> str:
        shares = ", ".join(f"{name} {values[-1]:.0%}" for name, values in self.shares.items())
        return (
            f"{self.index_type}, {self.path}, clients: {self.clients}: {self.rates[-1]:,.0f}/s, "
            f"{self.p50[-1]:.1f}/{self.p95[-1]:.1f}/{self.p99[-1]:.1f} ms; {shares}"
        )


@dataclass
class LoadedIndex:
    """An index as it was searched.

    Attributes:
        index_type: Its type.
        seconds: To load, merge and refresh it.
        segments: How many it had.
        recall: Path → recall@10.
    """

    index_type: str
    seconds: float
    segments: int
    recall: dict[str, float] = field(default_factory=dict)


@dataclass
class Run:
    """One run on one engine.

    Attributes:
        engine: Name and version.
        model, variant: Of es-sbert.
        date: ISO format.
        commit: Of es-sbert; None outside of a repository.
        rounds, seconds, threads: How it was run.
        documents, queries: Numbers of them.
        processor: Fields of `processor.Processor`.
        python: Version.
        load: Load average of the minute before.
        indices: In the order of the run.
        cells: All of them.
        figures: Name → one figure a round: the goals', and the parts of a query through the gateway.
        versions: Environment → package → version.
    """

    engine: str
    model: str
    variant: str
    date: str
    commit: str | None
    rounds: int
    seconds: float
    threads: int
    documents: int
    queries: int
    processor: dict[str, Any]
    python: str
    load: float
    indices: list[LoadedIndex]
    cells: list[Cell]
    figures: dict[str, list[float]]
    versions: dict[str, dict[str, str]]

    @classmethod
    def from_json(cls, fields: Mapping[str, Any]) -> Run:
        """A run that `asdict` has turned into JSON."""
        indices = [LoadedIndex(**one) for one in fields["indices"]]
        cells = [Cell(**one) for one in fields["cells"]]
        return cls(**{**fields, "indices": indices, "cells": cells})

    @property
    def engine_key(self) -> str:
        """Name and major version, such as `Elasticsearch 9`."""
        return self.engine.partition(".")[0]


def goals(run: Run) -> Iterator[Goal]:
    """The goals for es-sbert."""
    for name, (most, unit, digits) in GOALS.items():
        values = run.figures.get(name)
        if values:
            text = f"{name}: {spread(values, digits)} {unit}, goal ≤ {most:g} {unit}"
            yield Goal(text, statistics.median(values) <= most)
        else:
            yield Goal(f"{name}: goal ≤ {most:g} {unit}", None)


def as_json(run: Run) -> Any:
    """The fields of a run as a JSON value."""
    return rounded_numbers(asdict(run))


def kept(folder: Path = RESULTS) -> dict[str, dict[str, Run]]:
    """Kind of processor → engine → the run that is kept, best kind first."""
    return {
        kind: {engine: Run.from_json(run) for engine, run in sorted(found.items())}
        for kind, found in read_kinds(folder).items()
    }


def keep(run: Run, folder: Path = RESULTS) -> None:
    """Put a run in the place of that of its kind of processor and engine."""
    kind = run.processor["kind"]
    runs = kept(folder).get(kind, {}) | {run.engine_key: run}
    write_kind(folder, kind, {name: as_json(one) for name, one in sorted(runs.items())})


def section(runs_by_kind: Mapping[str, Mapping[str, Run]]) -> str:
    """The part of docs/results.md: tables for each kind of processor and engine."""
    if not runs_by_kind:
        return "No processor has been measured yet."
    parts = [
        f"#### {KINDS[kind]}: {run.engine}\n\n{run_text(run)}"
        for kind, runs in runs_by_kind.items()
        for run in runs.values()
    ]
    return "\n\n".join(parts)


def run_text(run: Run) -> str:
    """What was run where, the tables, the goals and the versions."""
    parts = [_conditions(run)]
    for clients in sorted({cell.clients for cell in run.cells}):
        heading = "One client:" if clients == 1 else f"{clients} clients:"
        parts += [heading, clients_table(run, clients)]
    parts.append(index_table(run))
    if run.figures:
        parts.append(parts_line(run))
    parts.append("Goals:\n" + "\n".join(f"- {goal}" for goal in goals(run)))
    if run.versions:
        lines = (
            f"- {name}: {', '.join(f'{package} {version}' for package, version in versions.items())}"
            for name, versions in run.versions.items()
        )
        parts.append("Versions:\n" + "\n".join(lines))
    return "\n\n".join(parts)


def _conditions(run: Run) -> str:
    others = [share for cell in run.cells for share in cell.shares.get("others", [])]
    return (
        f"{processor_text(run.processor)}; {run.engine}, {run.documents:,} documents, {run.model} ({run.variant}); "
        f"{run.date}, Python {run.python}, commit {run.commit}, rounds: {run.rounds} of {run.seconds:g} s. "
        f"{load_text(run.load, others)}"
    )


def clients_table(run: Run, clients: int) -> str:
    """A row for each index type and path."""
    rows: list[list[str]] = []
    for cell in run.cells:
        if cell.clients != clients:
            continue
        if cell.reason:
            reason = cell.reason.replace("|", "\\|").replace("\n", " ")
            rows.append([cell.index_type, cell.path, f"failed: {reason}", *[""] * 4])
            continue
        latencies = [spread(values, 1) for values in (cell.p50, cell.p95, cell.p99)]
        rows.append([cell.index_type, cell.path, spread(cell.rates), *latencies, _shares(cell)])
    header = ["index type", "path", "queries/s", "p50, ms", "p95, ms", "p99, ms", "CPU: client, gateway, engine"]
    return table(header, rows)


def _shares(cell: Cell) -> str:
    names = [name for name in ("client", "gateway", "engine") if name in cell.shares]
    return ", ".join(f"{statistics.median(cell.shares[name]):.0%}" for name in names)


def index_table(run: Run) -> str:
    """A row for each index: how it was made, and the recall of each path."""
    paths = list(dict.fromkeys(path for index in run.indices for path in index.recall))
    rows = [
        [
            index.index_type,
            f"{index.seconds:,.0f}",
            str(index.segments),
            *(f"{index.recall[path]:.3f}" if path in index.recall else "" for path in paths),
        ]
        for index in run.indices
    ]
    return table(["index type", "loaded in, s", "segments", *(f"recall@10, {path}" for path in paths)], rows)


def parts_line(run: Run) -> str:
    """The parts of a query through the gateway, one client, on the main index type."""
    shown = [f"{part} {spread(run.figures[part], 2)} ms" for part in PARTS if part in run.figures]
    return f"Parts of a semantic query through the gateway, hnsw, one client: {'; '.join(shown)}."
