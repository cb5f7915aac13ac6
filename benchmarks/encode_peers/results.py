"""What a run found: ratios, goals and tables."""

from __future__ import annotations

import statistics
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, ClassVar

from benchmarks.common import spread, table
from benchmarks.encode_peers.contenders import AUTO, REFERENCE
from benchmarks.encode_peers.texts import PARAGRAPHS, SHORT, STSB
from benchmarks.kept_runs import ROOT, ComparisonRun, Goal, Section, failure

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


@dataclass(kw_only=True)
class ContendersRun(ComparisonRun):
    """A run of contenders with speeds.

    Attributes:
        model: Its name.
        sets: Name → number of texts and their mean tokens.
        contenders: Their results.
    """

    MEMBERS: ClassVar[dict[str, type[Any]]] = {"contenders": ContenderResult}

    model: str
    sets: dict[str, dict[str, float]]
    contenders: list[ContenderResult]

    @property
    def measured(self) -> list[ContenderResult]:
        """The contenders that have figures."""
        return [contender for contender in self.contenders if not contender.reason]

    @property
    def others(self) -> list[float]:
        """Shares of the processors that other programs used."""
        return [share for contender in self.measured for share in contender.others]

    def named(self, label: str) -> ContenderResult | None:
        """A contender that has figures; None if it has none."""
        return next((contender for contender in self.measured if contender.label == label), None)

    def fastest_first(self, name: str) -> list[ContenderResult]:
        """The contenders that have figures, by their median on a set."""
        return sorted(self.measured, key=lambda one: -statistics.median(one.speeds[name]))

    def fastest_peer(self, name: str) -> ContenderResult | None:
        """The peer with the highest median on a set; None if no peer was measured."""
        return next((one for one in self.fastest_first(name) if not one.ours), None)

    def speed_cells(self, contender: ContenderResult, name: str) -> list[str]:
        """Speed on a set, and its ratio to the fastest peer."""
        base = self.fastest_peer(name)
        found = "" if base is None else f"{ratio(contender, base, name):.2f}"
        return [spread(contender.speeds[name]), f"**{found}**" if base is contender else found]

    def failures(self, columns: int) -> list[list[str]]:
        """The rows of the contenders without figures."""
        return [
            [contender.label, failure(contender.reason), *[""] * (columns - 2)]
            for contender in self.contenders
            if contender.reason
        ]


def ratio(contender: ContenderResult, base: ContenderResult, name: str) -> float:
    """Median of the ratios within the rounds."""
    pairs = zip(contender.speeds[name], base.speeds[name], strict=True)
    return statistics.median(own / other for own, other in pairs)


class Run(ContendersRun):
    """One run of the comparison of encoders."""

    @property
    def title(self) -> str:
        """The model."""
        return self.model

    def loss(self, contender: ContenderResult) -> float | None:
        """Points of ρ below fp32 (sentence-transformers', else es-sbert's own); None if neither was measured."""
        own = [other for other in self.measured if other.ours and other.details == "fp32"]
        reference = self.named(REFERENCE) or next(iter(own), None)
        return None if reference is None else reference.rho - contender.rho

    def goals(self) -> Iterator[Goal]:
        """The goals for es-sbert `auto`."""
        auto = self.named(AUTO)
        for name, least in GOALS.items():
            peer = self.fastest_peer(name)
            if auto is None or peer is None:
                yield Goal(f"{name}: ≥ {least} × the fastest peer", None)
            else:
                found = ratio(auto, peer, name)
                yield Goal(f"{name}: {found:.2f} × {peer.label}, goal ≥ {least}", found >= least)
        below = None if auto is None else self.loss(auto)
        if below is None:
            yield Goal(f"ρ ≤ {LARGEST_LOSS} below fp32", None)
        else:
            yield Goal(f"ρ: {below:.2f} below fp32, goal ≤ {LARGEST_LOSS}", round(below, 2) <= LARGEST_LOSS)

    def text(self) -> str:
        """What was run where, and the table."""
        sets = "; ".join(
            f"{name}: {found['texts']:,.0f} texts of {found['tokens']:.0f} tokens" for name, found in self.sets.items()
        )
        different = [
            f"{contender.label} on {name} ({cosine:.3f})"
            for contender in self.measured
            for name, cosine in contender.cosines.items()
            if cosine < _SAME_VECTORS
        ]
        parts = [f"{self.conditions(self.others)} {sets}.", self.run_table()]
        if different:
            parts.append(f"Mean cosines with the vectors of fp32 below {_SAME_VECTORS}: {', '.join(different)}.")
        return "\n\n".join(parts)

    def run_table(self) -> str:
        """A row for each contender, the fastest first; those without figures last."""
        header = ["", *(column for name in self.sets for column in (f"{name}/s", "× fastest peer"))]
        header += ["STSb ρ × 100", "memory, MB", "start, s"]
        rows = []
        for contender in self.fastest_first(next(iter(self.sets))):
            chosen = f" ({contender.details})" if contender.ours and contender.details not in contender.label else ""
            row = [contender.label + chosen]
            for name in self.sets:
                row += self.speed_cells(contender, name)
            row += [f"{contender.rho:.2f}", f"{max(contender.megabytes):,.0f}"]
            rows.append([*row, f"{statistics.median(contender.start_seconds):.1f}"])
        return table(header, rows + self.failures(len(header)))


SECTION = Section(Run, ROOT / "benchmarks/results/encode", "encode", "benchmarks.encode_peers")
