"""What a run of `benchmarks.pairs` found: its goal, the results kept by kind of processor, and their tables."""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.common import spread, table
from benchmarks.encode_peers.processor import KINDS
from benchmarks.kept_runs import ROOT, Goal, load_text, processor_text, read_kinds, rounded_numbers, write_kind
from es_sbert.config import DEFAULT_MODEL

RESULTS = ROOT / "benchmarks/results/pairs"
PAGE = ROOT / "docs/results.md"
NAME, MAKER = "pairs", "benchmarks.pairs"

OURS = "`es-sbert pairs`"
GOAL = 5.0  # seconds; what the paper needed with a V100


@dataclass
class PairsResult:
    """What was measured of one contender.

    Attributes:
        label: Of the contender.
        details: Variant, for es-sbert.
        reason: Why there are no figures; empty otherwise.
        seconds: From the start of the process to its result, one a round.
        parts: `start`, `embedding`, `comparing` → seconds, one a round.
        others: Shares of the processors that other programs used, one a round.
        versions: Packages of a peer.
    """

    label: str
    details: str = ""
    reason: str = ""
    seconds: list[float] = field(default_factory=list)
    parts: dict[str, list[float]] = field(default_factory=dict)
    others: list[float] = field(default_factory=list)
    versions: dict[str, str] = field(default_factory=dict)

    def add(self, took: float, parts: Mapping[str, float], share: float | None) -> None:
        """The figures of a round."""
        self.seconds.append(took)
        for name, value in parts.items():
            self.parts.setdefault(name, []).append(value)
        self.others += [] if share is None else [share]


@dataclass
class PairsRun:
    """One run of the benchmark.

    Attributes:
        model: Its name.
        date: ISO format.
        commit: Of es-sbert; None outside of a repository.
        rounds, threads: How it was run.
        texts: Number of sentences.
        processor: Fields of `processor.Processor`.
        python: Version.
        load: Load average of the minute before.
        contenders: Their results, es-sbert first.
        cross_encoder: Pairs a second; None if not measured.
        sizes: Number of texts, seconds and megabytes of `most_similar_pairs` alone.
    """

    model: str
    date: str
    commit: str | None
    rounds: int
    threads: int
    texts: int
    processor: dict[str, Any]
    python: str
    load: float
    contenders: list[PairsResult]
    cross_encoder: float | None
    sizes: list[list[float]]

    @classmethod
    def from_json(cls, fields: Mapping[str, Any]) -> PairsRun:
        """A run that `asdict` has turned into JSON."""
        return cls(**{**fields, "contenders": [PairsResult(**one) for one in fields["contenders"]]})


def goals(run: PairsRun) -> Iterator[Goal]:
    """The goal for the whole command."""
    name = f"{OURS} on {run.texts:,} sentences, from the start of the process to its result"
    [ours] = [result for result in run.contenders if result.label == OURS]
    if ours.reason or not ours.seconds:
        yield Goal(f"{name}: goal ≤ {GOAL:g} s", None)
    else:
        met = statistics.median(ours.seconds) <= GOAL
        yield Goal(f"{name}: {spread(ours.seconds, 2)} s on {run.threads} cores, goal ≤ {GOAL:g} s on two", met)


def kept(folder: Path = RESULTS) -> dict[str, dict[str, PairsRun]]:
    """Kind of processor → model → the run that is kept, best kind and default model first."""
    return {
        kind: {
            model: PairsRun.from_json(found[model])
            for model in sorted(found, key=lambda model: (model != DEFAULT_MODEL, model))
        }
        for kind, found in read_kinds(folder).items()
    }


def keep(run: PairsRun, folder: Path = RESULTS) -> None:
    """Put a run in the place of that of its kind of processor and model."""
    kind = run.processor["kind"]
    runs = kept(folder).get(kind, {}) | {run.model: run}
    write_kind(folder, kind, {model: as_json(one) for model, one in sorted(runs.items())})


def as_json(run: PairsRun) -> Any:
    """The fields of a run as a JSON value."""
    return rounded_numbers(asdict(run))


def section(runs_by_kind: Mapping[str, Mapping[str, PairsRun]]) -> str:
    """The part of docs/results.md: tables for each kind of processor and model."""
    if not runs_by_kind:
        return "No processor has been measured yet."
    return "\n\n".join(
        f"### {KINDS[kind]}: {run.model}, {run.texts:,} sentences\n\n{run_text(run)}"
        for kind, runs in runs_by_kind.items()
        for run in runs.values()
    )


def run_text(run: PairsRun) -> str:
    """What was run where, the tables, the goal and the versions."""
    parts = [_conditions(run), contenders_table(run), sizes_table(run.sizes)]
    parts.append("Goal:\n" + "\n".join(f"- {goal}" for goal in goals(run)))
    versions = [
        f"- {result.label}: {', '.join(f'{name} {version}' for name, version in result.versions.items())}"
        for result in run.contenders
        if result.versions
    ]
    return "\n\n".join(parts + (["Versions:\n" + "\n".join(versions)] if versions else []))


def _conditions(run: PairsRun) -> str:
    others = [share for result in run.contenders for share in result.others]
    return (
        f"{processor_text(run.processor)}, {run.threads} threads each; {run.date}, Python {run.python}, commit "
        f"{run.commit}, rounds: {run.rounds}. {load_text(run.load, others)}"
    )


def contenders_table(run: PairsRun) -> str:
    """A row for each contender, and one for the cross-encoder."""
    ours = run.contenders[0]
    rows: list[list[str]] = []
    for result in run.contenders:
        if result.reason:
            reason = result.reason.replace("|", "\\|").replace("\n", " ")
            rows.append([result.label, f"not measured: {reason}", *[""] * 4])
            continue
        label = f"{result.label} ({result.details})" if result.details else result.label
        parts = [result.parts.get(name) for name in ("start", "embedding", "comparing")]
        shown = ["" if values is None else spread(values, 2) for values in parts]
        rows.append([label, spread(result.seconds, 2), _ratio(result, ours), *shown])
    if run.cross_encoder is not None:
        took = run.texts * (run.texts - 1) // 2 / run.cross_encoder
        label = f"cross-encoder of the same size, {run.cross_encoder:,.0f} pairs/s, scaled"
        factor = "" if ours.reason else f"{took / statistics.median(ours.seconds):,.0f}"
        rows.append([label, f"{took:,.0f}", factor, "", "", ""])
    return table(["", "start to result, s", "× es-sbert", "start, s", "embedding, s", "comparing, s"], rows)


def _ratio(result: PairsResult, ours: PairsResult) -> str:
    """The median of the ratios within the rounds."""
    if ours.reason:
        return ""
    pairs = zip(result.seconds, ours.seconds, strict=True)
    return f"{statistics.median(one / other for one, other in pairs):.2f}"


def sizes_table(sizes: Sequence[Sequence[float]]) -> str:
    """A row for each number of texts, with the exponent to the row before."""
    rows: list[list[str]] = []
    before: Sequence[float] | None = None
    for size in sizes:
        count, took, megabytes = size
        exponent = "" if before is None else f"{np.log(took / before[1]) / np.log(count / before[0]):.2f}"
        rows.append([f"{count:,.0f}", f"{took:,.2f}", f"{megabytes:,.0f}", exponent])
        before = size
    return table(["texts", "comparing, s", "peak memory, MB", "exponent"], rows)
