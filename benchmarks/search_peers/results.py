"""What a run found: percentiles, goals and tables."""

from __future__ import annotations

import statistics
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, ClassVar

from benchmarks.common import spread, table
from benchmarks.kept_runs import ROOT, ComparisonRun, Goal, Section, failure

EMBEDDING = "one query's embedding, warm"
COLD_SEARCH = "es-sbert search, from the start of the process to the hits"
# Figure → most and unit.
GOALS = {EMBEDDING: (2.0, "ms"), COLD_SEARCH: (0.8, "s")}


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


@dataclass(kw_only=True)
class Run(ComparisonRun):
    """One run on one engine.

    Attributes:
        engine: Name and version.
        model, variant: Of es-sbert.
        seconds: Of a cell.
        documents, queries: Numbers of them.
        indices: In the order of the run; the first has the cells of all paths.
        cells: All of them.
        figures: Name of a goal → one figure a round.
        versions: Environment → package → version.
    """

    MEMBERS: ClassVar[dict[str, type[Any]]] = {"indices": LoadedIndex, "cells": Cell}

    engine: str
    model: str
    variant: str
    seconds: float
    documents: int
    queries: int
    indices: list[LoadedIndex]
    cells: list[Cell]
    figures: dict[str, list[float]]
    versions: dict[str, dict[str, str]]

    @property
    def title(self) -> str:
        """The engine."""
        return self.engine

    def goals(self) -> Iterator[Goal]:
        """The goals for es-sbert."""
        for name, (most, unit) in GOALS.items():
            values = self.figures.get(name)
            text = f"{name}: {spread(values, 2)} {unit}, goal ≤ {most:g} {unit}" if values else name
            yield Goal(text, statistics.median(values) <= most if values else None)
        for cell in self.cells:
            if cell.reason:
                yield Goal(f"{cell.index_type}, {cell.path}, clients: {cell.clients}: {cell.reason}", False)

    def text(self) -> str:
        """What was run where, all paths on the first index, and the other index types."""
        others = [share for cell in self.cells for share in cell.shares.get("others", [])]
        about = f"{self.documents:,} documents, {self.model} ({self.variant})."
        return "\n\n".join([f"{self.conditions(others)} {about}", self.paths_table(), self.index_table()])

    def paths_table(self) -> str:
        """A row for each path and number of clients on the first index."""
        rows = []
        for cell in self.cells:
            if cell.index_type != self.indices[0].index_type:
                continue
            if cell.reason:
                rows.append([cell.path, cell.clients, failure(cell.reason), *[""] * 4])
                continue
            latencies = [spread(values, 1) for values in (cell.p50, cell.p95, cell.p99)]
            rows.append([cell.path, cell.clients, spread(cell.rates), *latencies, _shares(cell)])
        header = ["queries/s", "p50, ms", "p95, ms", "p99, ms", "CPU: client, gateway, engine"]
        return table([self.indices[0].index_type, "clients", *header], rows)

    def index_table(self) -> str:
        """A row for each index: how it was made, and the rate with one client and the recall of each own path."""
        paths = list(dict.fromkeys(path for index in self.indices[1:] or self.indices for path in index.recall))
        rates = {(cell.index_type, cell.path): cell.rates for cell in self.cells if cell.clients == 1 and cell.rates}
        rows = []
        for index in self.indices:
            row = [index.index_type, f"{index.seconds:,.0f}"]
            for path in paths:
                found = rates.get((index.index_type, path))
                recall = f"{index.recall[path]:.3f}" if path in index.recall else ""
                row += [f"{statistics.median(found):,.0f}" if found else "", recall]
            rows.append(row)
        columns = [column for path in paths for column in (f"{path}: queries/s", "recall@10")]
        return table(["index type", "loaded in, s", *columns], rows)


def _shares(cell: Cell) -> str:
    names = [name for name in ("client", "gateway", "engine") if name in cell.shares]
    return ", ".join(f"{statistics.median(cell.shares[name]):.0%}" for name in names)


SECTION = Section(Run, ROOT / "benchmarks/results/search", "search", "benchmarks.search_peers", level="####")
