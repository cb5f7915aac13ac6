"""What a run found: the share of the limit, the results that are kept by processor and engine, and their tables."""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from benchmarks.common import spread, table
from benchmarks.encode_peers.processor import KINDS
from benchmarks.encode_peers.results import (
    ContenderResult,
    Run,
    fastest_peer,
    ratio,
    read_runs,
    version_lines,
    write_runs,
)
from benchmarks.ingest_peers.contenders import OWN
from benchmarks.kept_runs import ROOT, Goal, load_text, processor_text

RESULTS = ROOT / "benchmarks/results/ingest"
IMAGES = ROOT / "docs/images"
PAGE = ROOT / "docs/results.md"
NAME = "ingest peers"
MAKER = "benchmarks.ingest_peers"

# Names of speeds: of the load, and of the whole process with its start.
LOAD, WHOLE = "documents", "documents with start"
# Names of limits of es-sbert.
EMBEDDING, BULK = "embedding alone", "bulk alone"
LEAST_SHARE = 0.9


@dataclass
class LoadRun(Run):
    """One run against one engine.

    Attributes:
        engine: Product and version.
        index_type: Of all indices.
        limits: Name → documents a second, one figure a round.
        settings: Contender → how it is called.
    """

    engine: str = ""
    index_type: str = ""
    limits: dict[str, list[float]] = field(default_factory=dict)
    settings: dict[str, str] = field(default_factory=dict)

    @property
    def engine_key(self) -> str:
        """Product and major version, such as `elasticsearch-9`."""
        return self.engine.partition(".")[0].lower().replace(" ", "-")


def harmonic_limit(embedding: float, bulk: float) -> float:
    """Documents per second if each document is embedded and sent, one after the other."""
    return 1 / (1 / embedding + 1 / bulk)


def limit_share(run: LoadRun) -> float | None:
    """Median of es-sbert's speed as a share of the limit within the rounds; None if it was not measured."""
    own = run.named(OWN)
    if own is None or not run.limits.get(BULK):
        return None
    rounds = zip(own.speeds[LOAD], run.limits[EMBEDDING], run.limits[BULK], strict=True)
    return statistics.median(speed / harmonic_limit(embedding, bulk) for speed, embedding, bulk in rounds)


def goals(run: LoadRun) -> Iterator[Goal]:
    """The goal for es-sbert."""
    share = limit_share(run)
    if share is None:
        yield Goal(f"es-sbert ≥ {LEAST_SHARE:.0%} of the limit", None)
    else:
        yield Goal(f"es-sbert: {share:.0%} of the limit, goal ≥ {LEAST_SHARE:.0%}", round(share, 2) >= LEAST_SHARE)


def merged(kept: Sequence[LoadRun], run: LoadRun) -> list[LoadRun]:
    """The runs of a kind of processor with a new one, which replaces that of its model and engine."""
    key = (run.model, run.engine_key)
    return sorted(
        [*(other for other in kept if (other.model, other.engine_key) != key), run],
        key=lambda one: (one.model, one.engine_key),
    )


def kept(folder: Path = RESULTS) -> dict[str, list[LoadRun]]:
    """Kind of processor → the runs that are kept, best kind first."""
    return read_runs(folder, LoadRun)


def keep(run: LoadRun, folder: Path = RESULTS) -> None:
    """Add a run to those of its kind of processor."""
    kind = run.processor["kind"]
    write_runs(folder, kind, merged(kept(folder).get(kind, []), run))


def image_name(run: LoadRun) -> str:
    """File name of the run's plot."""
    return f"ingest-{run.processor['kind']}-{run.engine_key}.svg"


def section(runs_by_kind: Mapping[str, Sequence[LoadRun]]) -> str:
    """The part of docs/results.md: a table for each kind of processor and engine."""
    if not any(runs_by_kind.values()):
        return "No engine has been measured yet."
    return "\n\n".join(
        f"### {run.engine}, {KINDS[kind]}\n\n{run_text(run)}" for kind, runs in runs_by_kind.items() for run in runs
    )


def run_text(run: LoadRun) -> str:
    """What was run where, the table, the plot, the limits, the goal, the settings and the versions."""
    parts = [_conditions(run), run_table(run)]
    if run.measured:
        parts.append(f"![Documents a second of each contender](images/{image_name(run)})")
    if run.limits.get(BULK):
        parts.append(limit_table(run))
    parts.append("Goals:\n" + "\n".join(f"- {goal}" for goal in goals(run)))
    parts.append("Settings:\n" + "\n".join(f"- {label}: {text}" for label, text in run.settings.items()))
    parts.append("Versions:\n" + "\n".join(f"- {line}" for line in version_lines(run)))
    return "\n\n".join(parts)


def _conditions(run: LoadRun) -> str:
    documents = run.sets[LOAD]
    return (
        f"{processor_text(run.processor)}, {run.threads} threads each, with {run.engine} on the same machine; "
        f"{run.model}; {run.date}, Python {run.python}, commit {run.commit}, rounds: {run.rounds}. "
        f"{load_text(run.load, [])}\n"
        f"{documents['texts']:,.0f} documents of {documents['tokens']:.0f} tokens, index type {run.index_type}."
    )


def run_table(run: LoadRun) -> str:
    """A row for each contender, the fastest first; those without figures last."""
    base = fastest_peer(run, LOAD)
    rows = []
    for contender in sorted(run.measured, key=lambda one: -statistics.median(one.speeds[LOAD])):
        found = "" if base is None else f"{ratio(contender, base, LOAD):.2f}"
        row = [_label(contender), spread(contender.speeds[LOAD]), f"**{found}**" if base is contender else found]
        row += [spread(contender.speeds[WHOLE]), spread(contender.start_seconds, 1)]
        rows.append([*row, f"{max(contender.megabytes):,.0f}"])
    for contender in run.contenders:
        if contender.reason:
            reason = contender.reason.replace("|", "\\|").replace("\n", " ")
            rows.append([contender.label, f"failed: {reason}", "", "", "", ""])
    return table(["", "documents/s", "× fastest peer", "with start, documents/s", "start, s", "memory, MB"], rows)


def _label(contender: ContenderResult) -> str:
    return f"{contender.label} ({contender.details})" if contender.details else contender.label


def limit_table(run: LoadRun) -> str:
    """The limits of es-sbert, and its speed as a share of them."""
    limits = [
        harmonic_limit(embedding, bulk) for embedding, bulk in zip(run.limits[EMBEDDING], run.limits[BULK], strict=True)
    ]
    own, share = run.named(OWN), limit_share(run)
    rows = [[name, spread(run.limits[name])] for name in (EMBEDDING, BULK)]
    rows.append(["limit: 1 / (1 / embedding + 1 / bulk)", spread(limits)])
    if own is not None and share is not None:
        rows += [[OWN, spread(own.speeds[LOAD])], ["share of the limit", f"{share:.0%}"]]
    return table(["es-sbert", "documents/s"], rows)
