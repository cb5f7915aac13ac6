"""What a run found: the share of the limit, the goal and tables."""

from __future__ import annotations

import statistics
from collections.abc import Iterator
from dataclasses import dataclass

from benchmarks.common import spread, table
from benchmarks.encode_peers.results import ContendersRun
from benchmarks.ingest_peers.contenders import OWN
from benchmarks.kept_runs import ROOT, Goal, Section

# Names of speeds: of the load, and of the whole process with its start.
LOAD, WHOLE = "documents", "documents with start"
# Names of limits of es-sbert.
EMBEDDING, BULK = "embedding alone", "bulk alone"
LEAST_SHARE = 0.9


@dataclass(kw_only=True)
class LoadRun(ContendersRun):
    """One run against one engine.

    Attributes:
        engine: Product and version.
        index_type: Of all indices.
        limits: Name → documents a second, one figure a round.
        settings: Contender → how it is called.
    """

    engine: str
    index_type: str
    limits: dict[str, list[float]]
    settings: dict[str, str]

    @property
    def title(self) -> str:
        """The engine."""
        return self.engine

    def limit_share(self) -> float | None:
        """Median of es-sbert's speed as a share of the limit within the rounds; None if it was not measured."""
        own = self.named(OWN)
        if own is None or not self.limits.get(BULK):
            return None
        return statistics.median(speed / limit for speed, limit in zip(own.speeds[LOAD], self._limits(), strict=True))

    def _limits(self) -> list[float]:
        return [harmonic_limit(*both) for both in zip(self.limits[EMBEDDING], self.limits[BULK], strict=True)]

    def goals(self) -> Iterator[Goal]:
        """The goal for es-sbert."""
        share = self.limit_share()
        if share is None:
            yield Goal(f"es-sbert ≥ {LEAST_SHARE:.0%} of the limit", None)
        else:
            yield Goal(f"es-sbert: {share:.0%} of the limit, goal ≥ {LEAST_SHARE:.0%}", round(share, 2) >= LEAST_SHARE)

    def text(self) -> str:
        """What was run where, the table and the limit."""
        documents = self.sets[LOAD]
        about = (
            f"{documents['texts']:,.0f} documents of {documents['tokens']:.0f} tokens; {self.model}, index type "
            f"{self.index_type}."
        )
        header = ["", "documents/s", "× fastest peer", "with start, documents/s", "memory, MB"]
        rows = []
        for contender in self.fastest_first(LOAD):
            label = f"{contender.label} ({contender.details})" if contender.details else contender.label
            row = [label, *self.speed_cells(contender, LOAD), spread(contender.speeds[WHOLE])]
            rows.append([*row, f"{max(contender.megabytes):,.0f}"])
        parts = [f"{self.conditions()} {about}", table(header, rows + self.failures(len(header)))]
        share = self.limit_share()
        if share is not None:
            parts.append(
                f"Embedding alone: {spread(self.limits[EMBEDDING])} documents/s; bulk alone: "
                f"{spread(self.limits[BULK])}; limit: {spread(self._limits())}, of which the load reaches {share:.0%}."
            )
        return "\n\n".join(parts)


def harmonic_limit(embedding: float, bulk: float) -> float:
    """Documents per second if each document is embedded and sent, one after the other."""
    return 1 / (1 / embedding + 1 / bulk)


SECTION = Section(LoadRun, ROOT / "benchmarks/results/ingest", "ingest peers", "benchmarks.ingest_peers")
