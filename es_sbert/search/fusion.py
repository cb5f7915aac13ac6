"""Reciprocal rank fusion (Cormack, Clarke and Büttcher 2009, doi 10.1145/1571941.1572114)."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

from es_sbert.errors import UsageError

RANK_CONSTANT = 60  # of the paper

Key = TypeVar("Key", bound=Hashable)


@dataclass(frozen=True)
class Fused(Generic[Key]):
    """A document of at least one ranking.

    Attributes:
        key: The document.
        score: Sum over the rankings that hold it of weight / (constant + rank).
        ranks: Ranking → rank in it, from 1.
    """

    key: Key
    score: float
    ranks: dict[str, int]


def reciprocal_rank_fusion(rankings: Mapping[str, Sequence[Key]], *, weights: Mapping[str, float] | None = None,
                           constant: int = RANK_CONSTANT) -> list[Fused[Key]]:  # fmt: skip
    """Rankings as one, best first; of equal scores, the one that an earlier ranking holds higher.

    Args:
        rankings: Name → documents, best first, each once.
        weights: By ranking; 1 where not given.
        constant: The larger, the less the first ranks stand out.

    Raises:
        UsageError: a constant below 1, or a weight that is not above 0.
    """
    if not constant >= 1:
        raise UsageError(f"the rank constant is {constant}", f"Give at least 1; {RANK_CONSTANT} is usual.")
    given = weights or {}
    for name, weight in given.items():
        if not 0.0 < weight < float("inf"):
            raise UsageError(f"the weight of {name} is {weight:g}", "Give a number above 0.")
    ranks: dict[Key, dict[str, int]] = {}
    for name, ranking in rankings.items():
        for rank, key in enumerate(ranking, start=1):
            ranks.setdefault(key, {})[name] = rank
    fused = [
        Fused(key, sum(given.get(name, 1.0) / (constant + rank) for name, rank in own.items()), own)
        for key, own in ranks.items()
    ]
    return sorted(fused, key=lambda document: -document.score)
