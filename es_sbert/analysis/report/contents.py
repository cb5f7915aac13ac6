"""What a report shows."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

import numpy as np
from numpy.typing import NDArray

from es_sbert.errors import UsageError


class ReportKind(StrEnum):
    """Which analysis a report is about."""

    PAIRS = "pairs"
    DUPLICATES = "duplicates"
    CLUSTERS = "clusters"


@dataclass(frozen=True)
class ReportGroup:
    """Texts that belong together: a pair, a group of near-duplicates, or a cluster.

    Attributes:
        name: Keywords, or a number.
        members: Positions of the texts, in the order to show them.
        cosines: Of each member: with the kept text, with the center, or of the pair.
        kept: Of near-duplicates: position of the text that is kept. It is one of the members.
    """

    name: str
    members: Sequence[int]
    cosines: Sequence[float]
    kept: int | None = None


@dataclass(frozen=True)
class Report:
    """An analysis to look at.

    Attributes:
        kind: Which analysis.
        title: Heading of the page.
        facts: Names and values of the summary, e.g. `("model", "all-MiniLM-L6-v2")`.
        ids: Of each text: its id, or `FILE:LINE`.
        texts: The texts; empty where they are not known.
        groups: In the order to show them.
        points: Place of each text on the map. *Shape:* ``(texts, 2)``.
        projection: Method that made the points, e.g. `PCA`.

    Raises:
        UsageError: the parts do not fit together.
    """

    kind: ReportKind
    title: str
    facts: Sequence[tuple[str, str]]
    ids: Sequence[str]
    texts: Sequence[str]
    groups: Sequence[ReportGroup]
    points: NDArray[np.float32]
    projection: str

    def __post_init__(self) -> None:
        count = len(self.ids)
        if len(self.texts) != count or self.points.shape != (count, 2):
            raise UsageError(
                f"{count} ids, {len(self.texts)} texts and points of the shape {self.points.shape} are given",
                "Give an id, a text (or an empty one) and a point for each text.",
            )
        if not np.isfinite(self.points).all():
            raise UsageError("a point holds a value that is not finite", "Project the vectors with `map_points`.")
        for group in self.groups:
            self._check(group)

    def _check(self, group: ReportGroup) -> None:
        if len(group.members) != len(group.cosines) or not len(group.members):
            raise UsageError(
                f"the group {group.name!r} has {len(group.members)} members and {len(group.cosines)} cosines",
                "Give one member at least, and a cosine for each.",
            )
        if min(group.members) < 0 or max(group.members) >= len(self.ids):
            raise UsageError(f"the group {group.name!r} has a member that is no text", "Give positions of texts.")
        if group.kept is not None and group.kept not in group.members:
            raise UsageError(f"the group {group.name!r} keeps a text that is no member", "Keep one of the members.")
        if self.kind is ReportKind.PAIRS and len(group.members) != 2:
            raise UsageError(f"the pair {group.name!r} has {len(group.members)} members", "Give two.")
