"""What a run found: ratios and goals, the results that are kept by kind of processor, and their tables."""

from __future__ import annotations

import re
import statistics
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Self, TypeVar

from benchmarks.common import spread, table
from benchmarks.encode_peers.contenders import AUTO, REFERENCE
from benchmarks.encode_peers.processor import KINDS
from benchmarks.encode_peers.texts import PARAGRAPHS, SHORT, STSB
from benchmarks.kept_runs import ROOT, Goal, load_text, processor_text, read_kinds, rounded_numbers, write_kind
from es_sbert.config import DEFAULT_MODEL

RESULTS = ROOT / "benchmarks/results/encode"
IMAGES = ROOT / "docs/images"
PAGE = ROOT / "docs/results.md"
NAME = "encode"
MAKER = "benchmarks.encode_peers"

GOALS = {STSB: 1.5, SHORT: 1.5, PARAGRAPHS: 1.2}
LARGEST_LOSS = 0.5
_SAME_VECTORS = 0.95  # mean cosine with the reference below which a contender does something else


@dataclass
class ContenderResult:
    """What was measured of one contender.

    Attributes:
        label: Of the contender.
        ours: Whether it is es-sbert.
        environment: Name of its environment; empty for es-sbert.
        details: What it chose or was told (`int8`, `onnx/model.onnx`, …).
        reason: Why there are no figures; empty otherwise.
        versions: Its packages.
        rho: Spearman's ρ × 100 on STSb test.
        cosines: Set → mean cosine with the vectors of the reference.
        speeds: Set → texts a second, one figure a round.
        start_seconds: From the start of the process to the first vector, one a round.
        megabytes: Most memory that the process took, one a round.
        others: Shares of the processors that other programs used, one a set and round.
    """

    label: str
    ours: bool
    environment: str = ""
    details: str = ""
    reason: str = ""
    versions: dict[str, str] = field(default_factory=dict)
    rho: float = 0.0
    cosines: dict[str, float] = field(default_factory=dict)
    speeds: dict[str, list[float]] = field(default_factory=dict)
    start_seconds: list[float] = field(default_factory=list)
    megabytes: list[float] = field(default_factory=list)
    others: list[float] = field(default_factory=list)


@dataclass
class Run:
    """One run of the benchmark.

    Attributes:
        model: Its name.
        date: ISO format.
        commit: Of es-sbert; None outside of a repository.
        rounds, threads: How it was run.
        processor: Fields of `processor.Processor`.
        python: Version.
        load: Load average of the minute before.
        sets: Name → number of texts and their mean tokens.
        contenders: Their results.
    """

    model: str
    date: str
    commit: str | None
    rounds: int
    threads: int
    processor: dict[str, Any]
    python: str
    load: float
    sets: dict[str, dict[str, float]]
    contenders: list[ContenderResult]

    @classmethod
    def from_json(cls, fields: Mapping[str, Any]) -> Self:
        """A run that `asdict` has turned into JSON."""
        contenders = [ContenderResult(**contender) for contender in fields["contenders"]]
        return cls(**{**fields, "contenders": contenders})

    @property
    def measured(self) -> list[ContenderResult]:
        """The contenders that have figures."""
        return [contender for contender in self.contenders if not contender.reason]

    def named(self, label: str) -> ContenderResult | None:
        """A contender that has figures; None if it has none."""
        return next((contender for contender in self.measured if contender.label == label), None)


def fastest_peer(run: Run, name: str) -> ContenderResult | None:
    """The peer with the highest median on a set; None if no peer was measured."""
    peers = [contender for contender in run.measured if not contender.ours]
    return max(peers, key=lambda peer: statistics.median(peer.speeds[name]), default=None)


def ratio(contender: ContenderResult, base: ContenderResult, name: str) -> float:
    """Median of the ratios within the rounds."""
    pairs = zip(contender.speeds[name], base.speeds[name], strict=True)
    return statistics.median(own / other for own, other in pairs)


def loss(run: Run, contender: ContenderResult) -> float | None:
    """Points of ρ below fp32 (sentence-transformers', else es-sbert's own); None if neither was measured."""
    own = [other for other in run.measured if other.ours and other.details == "fp32"]
    reference = run.named(REFERENCE) or next(iter(own), None)
    return None if reference is None else reference.rho - contender.rho


def goals(run: Run) -> Iterator[Goal]:
    """The goals for es-sbert `auto`."""
    auto = run.named(AUTO)
    for name, least in GOALS.items():
        peer = fastest_peer(run, name)
        if auto is None or peer is None:
            yield Goal(f"{name}: ≥ {least} × the fastest peer", None)
        else:
            found = ratio(auto, peer, name)
            yield Goal(f"{name}: {found:.2f} × {peer.label}, goal ≥ {least}", found >= least)
    below = None if auto is None else loss(run, auto)
    if below is None:
        yield Goal(f"ρ ≤ {LARGEST_LOSS} below fp32", None)
    else:
        yield Goal(f"ρ: {below:.2f} below fp32, goal ≤ {LARGEST_LOSS}", round(below, 2) <= LARGEST_LOSS)


def merged(kept: Sequence[Run], run: Run) -> list[Run]:
    """The runs of a kind of processor with a new one, which replaces that of its model; the default model first."""
    runs = [*(other for other in kept if other.model != run.model), run]
    return sorted(runs, key=lambda one: (one.model != DEFAULT_MODEL, one.model))


def kept(folder: Path = RESULTS) -> dict[str, list[Run]]:
    """Kind of processor → the runs that are kept, best kind first."""
    return read_runs(folder, Run)


def keep(run: Run, folder: Path = RESULTS) -> None:
    """Add a run to those of its kind of processor."""
    kind = run.processor["kind"]
    write_runs(folder, kind, merged(kept(folder).get(kind, []), run))


_R = TypeVar("_R", bound=Run)


def read_runs(folder: Path, run_type: type[_R]) -> dict[str, list[_R]]:
    """Kind of processor → the runs in a folder, best kind first."""
    return {kind: [run_type.from_json(run) for run in found["runs"]] for kind, found in read_kinds(folder).items()}


def write_runs(folder: Path, kind: str, runs: Sequence[Run]) -> None:
    """Replace the runs of a kind of processor."""
    write_kind(folder, kind, {"runs": [as_json(one) for one in runs]})


def as_json(run: Run) -> Any:
    """The fields of a run as a JSON value."""
    return rounded_numbers(asdict(run))


def image_name(run: Run) -> str:
    """File name of the run's plot."""
    model = "" if run.model == DEFAULT_MODEL else "-" + re.sub(r"[^\w.-]+", "-", run.model)
    return f"encode-{run.processor['kind']}{model}.svg"


def section(runs_by_kind: Mapping[str, Sequence[Run]]) -> str:
    """The part of docs/results.md: a table for each kind of processor and model."""
    if not runs_by_kind:
        return "No processor has been measured yet."
    parts = [
        f"### {KINDS[kind]}: {run.model}\n\n{run_text(run)}" for kind, runs in runs_by_kind.items() for run in runs
    ]
    return "\n\n".join(parts)


def run_text(run: Run) -> str:
    """What was run where, the table, the plot, the goals and the versions."""
    parts = [_conditions(run), run_table(run), f"![Texts a second of each contender](images/{image_name(run)})"]
    if different := _different_vectors(run):
        parts.append(different)
    parts.append("Goals:\n" + "\n".join(f"- {goal}" for goal in goals(run)))
    parts.append("Versions:\n" + "\n".join(f"- {line}" for line in version_lines(run)))
    return "\n\n".join(parts)


def _conditions(run: Run) -> str:
    others = [share for contender in run.measured for share in contender.others]
    sets = "; ".join(
        f"{name}: {figures['texts']:,.0f} texts of {figures['tokens']:.0f} tokens" for name, figures in run.sets.items()
    )
    return (
        f"{processor_text(run.processor)}, {run.threads} threads each; {run.date}, Python {run.python}, commit "
        f"{run.commit}, rounds: {run.rounds}. {load_text(run.load, others)}\n{sets}."
    )


def run_table(run: Run) -> str:
    """A row for each contender, the fastest first; those without figures last."""
    names = list(run.sets)
    bases = {name: fastest_peer(run, name) for name in names}
    header = [""]
    for name in names:
        header += [f"{name}/s", "× fastest peer"]
    rows: list[list[str]] = []
    for contender in sorted(run.measured, key=lambda one: -statistics.median(one.speeds[names[0]])):
        row = [_label(contender)]
        for name in names:
            base = bases[name]
            found = "" if base is None else f"{ratio(contender, base, name):.2f}"
            row += [spread(contender.speeds[name]), f"**{found}**" if base is contender else found]
        below = loss(run, contender)
        row += [f"{contender.rho:.2f}", "" if below is None else f"{below + 0.0:.2f}".replace("-0.00", "0.00")]
        rows.append([*row, f"{max(contender.megabytes):,.0f}", spread(contender.start_seconds, 1)])
    for contender in run.contenders:
        if contender.reason:
            reason = contender.reason.replace("|", "\\|").replace("\n", " ")
            rows.append([contender.label, f"not measured: {reason}", *[""] * (2 * len(names) + 3)])
    return table([*header, "STSb ρ × 100", "ρ below fp32", "memory, MB", "start, s"], rows)


def _label(contender: ContenderResult) -> str:
    # What `auto` chose.
    chosen = f" ({contender.details})" if contender.ours and contender.details not in contender.label else ""
    return f"{contender.label}{chosen}"


def _different_vectors(run: Run) -> str:
    found = [
        f"{contender.label} on {name} ({cosine:.3f})"
        for contender in run.measured
        for name, cosine in contender.cosines.items()
        if cosine < _SAME_VECTORS
    ]
    return f"Mean cosines with the vectors of fp32 below {_SAME_VECTORS}: {', '.join(found)}." if found else ""


def version_lines(run: Run) -> Iterator[str]:
    """A line for each environment, with the versions of its packages."""
    shown = set()
    for contender in run.measured:
        name = contender.environment or "es-sbert"
        if name not in shown:
            shown.add(name)
            yield f"{name}: {', '.join(f'{package} {version}' for package, version in contender.versions.items())}"
