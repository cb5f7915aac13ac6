"""What a run of `benchmarks.pairs` found: its goal and its tables."""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar

from benchmarks.common import spread, table
from benchmarks.kept_runs import ROOT, ComparisonRun, Goal, Section, failure

OURS = "`es-sbert pairs`"
GOAL = 5.0  # seconds; what the paper needed with a V100
_PARTS = ("start", "embedding", "comparing")


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


@dataclass(kw_only=True)
class PairsRun(ComparisonRun):
    """One run of the benchmark.

    Attributes:
        model: Its name.
        texts: Number of sentences.
        contenders: Their results, es-sbert first.
        cross_encoder: Pairs a second; None if not measured.
    """

    MEMBERS: ClassVar[dict[str, type[Any]]] = {"contenders": PairsResult}

    model: str
    texts: int
    contenders: list[PairsResult]
    cross_encoder: float | None

    @property
    def title(self) -> str:
        """The model."""
        return self.model

    def goals(self) -> Iterator[Goal]:
        """The goal for the whole command."""
        ours = self.contenders[0]
        text = f"{OURS} on {self.texts:,} sentences, goal ≤ {GOAL:g} s on two cores"
        yield Goal(text, None if ours.reason else statistics.median(ours.seconds) <= GOAL)

    def text(self) -> str:
        """What was run where, and the table."""
        others = [share for result in self.contenders for share in result.others]
        return "\n\n".join([self.conditions(others), self.contenders_table()])

    def contenders_table(self) -> str:
        """A row for each contender, and one for the cross-encoder."""
        ours = self.contenders[0]
        rows: list[list[str]] = []
        for result in self.contenders:
            if result.reason:
                rows.append([result.label, failure(result.reason), *[""] * 4])
                continue
            label = f"{result.label} ({result.details})" if result.details else result.label
            factor = "" if ours.reason else f"{_ratio(result, ours):.2f}"
            parts = [spread(result.parts[name], 2) if name in result.parts else "" for name in _PARTS]
            rows.append([label, spread(result.seconds, 2), factor, *parts])
        if self.cross_encoder is not None:
            took = self.texts * (self.texts - 1) // 2 / self.cross_encoder
            label = f"cross-encoder of the same size, {self.cross_encoder:,.0f} pairs/s, scaled"
            factor = "" if ours.reason else f"{took / statistics.median(ours.seconds):,.0f}"
            rows.append([label, f"{took:,.0f}", factor, "", "", ""])
        return table(["", "start to result, s", "× es-sbert", *(f"{name}, s" for name in _PARTS)], rows)


def _ratio(result: PairsResult, ours: PairsResult) -> float:
    """The median of the ratios within the rounds."""
    return statistics.median(one / other for one, other in zip(result.seconds, ours.seconds, strict=True))


SECTION = Section(PairsRun, ROOT / "benchmarks/results/pairs", "pairs", "benchmarks.pairs")
