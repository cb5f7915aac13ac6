"""The runs that are kept, one for each kind of processor, and their tables in docs/scale.md."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from benchmarks.common import table
from benchmarks.encode_peers.processor import KINDS
from benchmarks.kept_runs import ROOT, load_text, processor_text, read_kinds, rounded_numbers, write_kind
from benchmarks.scale.cells import Cell
from benchmarks.scale.laws import LAWS, LogCurve, Point, fit_log_curve, neighbor_exponents, overall_exponent
from benchmarks.scale.plan import GIGABYTE, Cluster, Costs, is_graph, machines_for_node, plan
from es_sbert.engines.engine_info import EngineInfo, EngineType
from es_sbert.index.mapping import OPENSEARCH_TYPES, IndexType

RESULTS = ROOT / "benchmarks/results/scale"
PAGE = ROOT / "docs/scale.md"
NAME, MAKER = "scale", "benchmarks.scale"

MACHINES = (1, 10, 100)
DOCUMENTS = (100_000_000, 1_000_000_000)
_SECOND = 1e6  # microseconds
_SMALLEST = 0.005  # that two decimals show
# Parts of the costs of a document: name → what it is.
_STAGES = {
    "read": "read: lines, JSON, documents, repeated ids",
    "detect": "detect changes",
    "tokenize": "tokenize",
    "embed": "embed",
    "pack": "pack: vectors, metadata, bulk lines",
    "write": "write: send, read answers, record outcomes",
}


@dataclass
class Run:
    """What was measured on one kind of processor.

    Attributes:
        processor: Fields of `encode_peers.processor.Processor`.
        engine: `engine_type` and `version`; empty without an engine.
        date: Of the last measurement, ISO format.
        commit: Of es-sbert; None outside of a repository.
        limit: Seconds that a cell could take.
        load: Load average of the minute before.
        cells: By part and size.
        costs: See `cells.measure_costs`; empty if they were not measured.
    """

    processor: dict[str, Any]
    engine: dict[str, Any]
    date: str
    commit: str | None
    limit: float
    load: float
    cells: list[Cell]
    costs: dict[str, float]

    @classmethod
    def from_json(cls, fields: Mapping[str, Any]) -> Run:
        """A run that `asdict` has turned into JSON."""
        return cls(**{**fields, "cells": [Cell(**cell) for cell in fields["cells"]]})

    def of(self, part: str) -> list[Cell]:
        """The cells of a part by size, with those that were not measured."""
        return sorted((cell for cell in self.cells if cell.part == part), key=lambda cell: cell.size)

    def points(self, part: str, figure: str) -> list[Point]:
        """Sizes and one figure of a part's cells: an attribute, or one of `figures`."""
        values = [(cell.size, cell.figures.get(figure, getattr(cell, figure, None))) for cell in self.of(part)]
        return [(size, value) for size, value in values if value is not None]

    @property
    def engine_info(self) -> EngineInfo | None:
        """The engine; None if there was none."""
        if not self.engine:
            return None
        return EngineInfo(EngineType(self.engine["engine_type"]), tuple(self.engine["version"]), "")


def merged(old: Run | None, new: Run) -> Run:
    """The new run, with what only the old one has measured: parts that were left out, costs, and the engine."""
    if old is None:
        return new
    parts = {cell.part for cell in new.cells}
    cells = [*(cell for cell in old.cells if cell.part not in parts), *new.cells]
    order = {part: number for number, part in enumerate(LAWS)}
    cells.sort(key=lambda cell: (order[cell.part], cell.size))
    fields = {**vars(new), "cells": cells, "costs": new.costs or old.costs, "engine": new.engine or old.engine}
    return Run(**fields)


def kept(folder: Path = RESULTS) -> dict[str, Run]:
    """Kind of processor → the run that is kept, best kind first."""
    return {kind: Run.from_json(run) for kind, run in read_kinds(folder).items()}


def keep(run: Run, folder: Path = RESULTS) -> None:
    """Add a run to what is kept of its kind of processor."""
    kind = run.processor["kind"]
    run = merged(kept(folder).get(kind), run)
    # Costs are of very different size.
    write_kind(folder, kind, rounded_numbers(asdict(run), lambda number: float(f"{number:.5g}")))


def costs_of(run: Run) -> Costs | None:
    """The costs of the model; None where a part of them was not measured.

    What the engine takes for a document without its vector is what the load of whole documents took, less what a load
    of as many vectors takes.
    """
    curves: dict[str, LogCurve] = {}
    for name, part, figure in (
        ("flat", "search-flat", "engine_cpu"),
        ("hnsw", "search-hnsw", "engine_cpu"),
        ("coordinator", "coordinator", "cpu"),
    ):
        points = [(size, value / _SECOND) for size, value in run.points(part, figure)]
        if not points:
            return None
        curves[name] = fit_log_curve(points)
    if not run.costs:
        return None
    document = run.costs["engine"] / _SECOND - curves["flat"].at(run.costs["documents"])
    return Costs(
        **{name: run.costs[name] / _SECOND for name in _STAGES},
        coordinator=curves["coordinator"],
        flat=curves["flat"],
        hnsw=curves["hnsw"],
        document=max(0.0, document),
        document_bytes=run.costs["document_bytes"],
        words=run.costs["words"],
    )


def section(runs: Mapping[str, Run]) -> str:
    """The part of docs/scale.md: the tables of each kind of processor."""
    if not runs:
        return "No processor has been measured yet."
    return "\n\n".join(f"### {KINDS[kind]}\n\n{run_text(run)}" for kind, run in runs.items())


def run_text(run: Run) -> str:
    """What was run where, and all tables."""
    parts = [
        _conditions(run),
        _growth_table(run, "seconds", "time", "s"),
        _growth_table(run, "megabytes", "memory", "MB"),
    ]
    if skipped := _skipped(run):
        parts.append(skipped)
    if engine := _engine_table(run):
        parts.append(engine)
    parts.append(model_text(run))
    return "\n\n".join(part for part in parts if part)


def _conditions(run: Run) -> str:
    info = run.engine_info
    shared = f", shared with {info.label}" if info else ""
    others = [cell.others for cell in run.cells if cell.others is not None]
    return f"{processor_text(run.processor)}{shared}; {run.date}, commit {run.commit}. {load_text(run.load, others)}"


def _growth_table(run: Run, figure: str, name: str, unit: str) -> str:
    """A row for each part: its values, the exponents between them, and the overall one."""
    parts = [part for part in LAWS if any(getattr(cell, figure) is not None for cell in run.of(part))]
    if not parts:
        return ""
    sizes = sorted({cell.size for cell in run.cells})
    rows = []
    for part in parts:
        law, points = LAWS[part], run.points(part, figure)
        values = dict(points)
        row = [law.title] + ([f"{law.formula}: {law.exponent:g}"] if figure == "seconds" else [])
        row += [_number(values[size]) if size in values else "–" for size in sizes]
        row.append(", ".join(f"{exponent:.2f}" for exponent in neighbor_exponents(points)))
        overall = overall_exponent(points)
        row.append("" if overall is None else f"{overall:.2f}")
        if figure == "megabytes":
            row.append(_per_document(points))
        rows.append(row)
    header = [name] + (["on paper"] if figure == "seconds" else [])
    header += [f"{unit}: n = {size:,}" for size in sizes] + ["exponents", "overall"]
    return table(header + (["bytes a document"] if figure == "megabytes" else []), rows)


def _per_document(points: Sequence[Point]) -> str:
    """Bytes that a document adds, between the two largest numbers; empty for fewer than two."""
    if len(points) < 2:
        return ""
    (smaller, before), (larger, after) = points[-2:]
    return f"{2**20 * (after - before) / (larger - smaller):,.0f}"


def _number(value: float) -> str:
    """Three significant digits."""
    if value >= 100:
        return f"{value:,.0f}"
    return f"{value:.1f}" if value >= 10 else f"{value:.2f}" if value >= 1 else f"{value:.3g}"


def _skipped(run: Run) -> str:
    reasons = [
        f"- {LAWS[cell.part].title}, n = {cell.size:,}: {cell.reason}"
        for part in LAWS
        for cell in run.of(part)
        if cell.reason
    ]
    return f"Not measured, since a cell may take {run.limit:,.0f} s:\n" + "\n".join(reasons) if reasons else ""


def _engine_table(run: Run) -> str:
    """A row for each load of vectors."""
    rows = []
    for part in ("search-flat", "search-hnsw"):
        for cell in run.of(part):
            if cell.seconds is not None:
                found = cell.figures
                rows.append(
                    [
                        part.removeprefix("search-"),
                        f"{cell.size:,}",
                        f"{cell.size / found['sent_seconds']:,.0f}",
                        f"{cell.size / found['settled_seconds']:,.0f}",
                        f"{found['engine_cpu']:,.0f}",
                        f"{found['segments']:.0f}",
                        f"{1000 * cell.seconds:.1f}",
                        f"{1000 * found['p95']:.1f}",
                    ]
                )
    header = [
        *("index type", "vectors", "sent/s", "sent and merged/s", "CPU of the engine, µs a vector", "segments"),
        *("search, ms: median", "95 %"),
    ]
    return table(header, rows) if rows else ""


def model_text(run: Run) -> str:
    """The costs and what follows from them; empty where they were not measured."""
    costs, info = costs_of(run), run.engine_info
    if costs is None or info is None:
        return ""
    cluster = Cluster(info)
    return "\n\n".join(
        [
            f"Costs of a document of {costs.words:.0f} words and {run.costs['tokens']:.0f} tokens, measured on "
            f"{run.costs['documents']:,.0f} documents:",
            table(["µs of CPU a document", ""], _cost_rows(costs)),
            f"Documents a second of worker machines with {cluster.worker_cores} cores, and what the engine's data "
            f"nodes with {cluster.node_cores} cores could index in shards of "
            f"{_shard_documents(costs, cluster):,.0f} documents:",
            table(["", "documents/s", "worker machines that it keeps up with"], _balance_rows(costs, cluster)),
            f"The whole load, and the cluster that holds {cluster.copies} copies of each document:",
            table(
                [
                    *("documents", "index type", "memory, GB", "disk, GB", "shards", "data nodes"),
                    *(f"hours: {count} machine{'s' if count > 1 else ''}" for count in MACHINES),
                ],
                _plan_rows(costs, cluster),
            ),
        ]
    )


def _shard_documents(costs: Costs, cluster: Cluster) -> float:
    """Documents of a full shard of type hnsw."""
    found = plan(DOCUMENTS[0], 1, costs, cluster)
    return found.documents / found.shards


def _cost_rows(costs: Costs) -> Iterator[list[str]]:
    for name, meaning in _STAGES.items():
        yield [f"worker: {meaning}", f"{_SECOND * getattr(costs, name):,.1f}"]
    yield ["**worker: all**", f"**{_SECOND * costs.worker:,.1f}**"]
    yield ["coordinator", _curve(costs.coordinator)]
    yield ["engine: vector, flat", _curve(costs.flat)]
    yield ["engine: vector, hnsw", _curve(costs.hnsw)]
    yield ["engine: the rest of the document", f"{_SECOND * costs.document:,.1f}"]


def _curve(curve: LogCurve) -> str:
    base, slope = _SECOND * curve.base, _SECOND * curve.per_log
    return f"{base:,.2f} + {slope:,.2f} · ln n" if slope >= _SMALLEST else f"{base:,.2f}"


def _balance_rows(costs: Costs, cluster: Cluster) -> Iterator[list[str]]:
    for count in MACHINES:
        rate = count * cluster.worker_cores / costs.worker
        yield [f"{count} worker machine{'s' if count > 1 else ''}", f"{rate:,.0f}", ""]
    shard = _shard_documents(costs, cluster)
    for index_type in (IndexType.FLAT, IndexType.HNSW):
        node = cluster.node_cores / costs.engine(index_type, shard)
        yield [
            f"a data node, {index_type}",
            f"{node:,.0f}",
            f"{machines_for_node(costs, cluster, index_type, shard):,.1f}",
        ]
    for documents in DOCUMENTS:
        rate = 1 / costs.coordinator.at(documents)
        machines = rate * costs.worker / cluster.worker_cores
        yield [f"the coordinator, {documents:,} documents", f"{rate:,.0f}", f"{machines:,.1f}"]


def _plan_rows(costs: Costs, cluster: Cluster) -> Iterator[list[str]]:
    types = IndexType if cluster.engine.engine_type is EngineType.ELASTICSEARCH else OPENSEARCH_TYPES
    ordered = sorted(types, key=is_graph, reverse=True)
    for documents in DOCUMENTS:
        for index_type in ordered:
            plans = [plan(documents, machines, costs, cluster, index_type) for machines in MACHINES]
            first = plans[0]
            yield [
                f"{documents:,}",
                str(index_type),
                f"{first.memory / GIGABYTE:,.0f}",
                f"{first.disk / GIGABYTE:,.0f}",
                str(first.shards),
                str(first.nodes),
                *(_hours(found.hours) + ("" if found.limit == "workers" else f" ({found.limit})") for found in plans),
            ]


def _hours(hours: float) -> str:
    return f"{hours:,.0f}" if hours >= 10 else f"{hours:.1f}"
