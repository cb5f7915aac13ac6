"""Fusion of rankings: exact matches first, then by reciprocal rank."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

from es_sbert.search.exact_matches import MatchType

_RANK_CONSTANT = 60  # from the paper on reciprocal rank fusion

RankedKey = TypeVar("RankedKey", bound=Hashable)


@dataclass(frozen=True)
class FusedDocument(Generic[RankedKey]):
    """A document of at least one ranking, or an exact match.

    Attributes:
        key: The document.
        score: See `fuse_rankings`.
        ranks: Ranking → rank in it, from 1; only those that contain it.
        match: How it matches the query exactly; None if it does not.
    """

    key: RankedKey
    score: float
    ranks: dict[str, int]
    match: MatchType | None = None


def fuse_rankings(
    rankings: Mapping[str, Sequence[RankedKey]],
    *,
    depth: int,
    weights: Mapping[str, float],
    matches: Mapping[RankedKey, MatchType],
) -> list[FusedDocument[RankedKey]]:
    """Fuse rankings into one, best first. On equal scores, the rank in the earlier ranking decides.

    The score is the sum of weight / (60 + rank) over the rankings, divided by its highest possible value. A document
    that a ranking lacks has the rank depth + 1 there. Exact matches are first: a phrase adds 4 to the score, all words
    3, literal parts 2, a prefix 1.

    Args:
        rankings: Name → documents, best first, each once.
        depth: Number of documents that each ranking may have.
        weights: Ranking → weight, above 0.
        matches: The exact matches, which may be in no ranking.
    """
    ranks: dict[RankedKey, dict[str, int]] = {}
    for name, ranking in rankings.items():
        for rank, key in enumerate(ranking, start=1):
            ranks.setdefault(key, {})[name] = rank
    for key in matches:
        ranks.setdefault(key, {})
    highest = sum(weights[name] for name in rankings) / (_RANK_CONSTANT + 1)

    def score(key: RankedKey) -> float:
        places = ranks[key]
        sums = sum(weights[name] / (_RANK_CONSTANT + places.get(name, depth + 1)) for name in rankings)
        return sums / highest + (matches[key].added_score if key in matches else 0.0)

    fused = [FusedDocument(key, score(key), places, matches.get(key)) for key, places in ranks.items()]
    return sorted(fused, key=lambda document: -document.score)
