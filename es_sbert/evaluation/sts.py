"""Semantic textual similarity: does the model order pairs as people do?

Spearman's ρ is the paper's measure (Reimers and Gurevych 2019, section 4; Reimers, Beyer and Gurevych 2016 say why
not Pearson's r); both are given, × 100.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy import stats

from es_sbert.errors import SourceError
from es_sbert.evaluation.similarity import Similarity, check_finite, paired_similarity

ALL = "all"


@dataclass(frozen=True)
class Correlation:
    """How well scores agree with gold scores.

    Attributes:
        pearson: Pearson's r × 100.
        spearman: Spearman's ρ × 100; ties have their mean rank.
    """

    pearson: float
    spearman: float


def correlate(scores: NDArray[np.floating], gold: NDArray[np.floating]) -> Correlation:
    """Correlations of a model's scores with gold scores.

    Scores that are all equal order nothing; their correlation, which is undefined, counts as 0.

    Args:
        scores, gold: *Shape:* ``(pairs,)``.

    Raises:
        SourceError: fewer than two pairs, or gold scores that are all equal: there is nothing to agree with.
        ModelError: a score is not a finite number.
        ValueError: the shapes differ.
    """
    if scores.shape != gold.shape or scores.ndim != 1:
        raise ValueError(f"scores of the shape {scores.shape} do not belong to gold scores {gold.shape}")
    predicted, wanted = scores.astype(np.float64), gold.astype(np.float64)  # (pairs,) each
    check_finite(predicted)
    if len(wanted) < 2 or _is_constant(wanted):
        raise SourceError(
            f"{len(wanted)} pairs whose gold scores do not differ cannot be ranked",
            "Give at least two pairs with different scores (a larger --limit).",
        )
    if _is_constant(predicted):
        return Correlation(0.0, 0.0)
    # Rounding in r of almost equal scores: centred first, they keep their digits.
    pearson = stats.pearsonr(predicted - predicted.mean(), wanted - wanted.mean()).statistic
    return Correlation(100 * float(pearson), 100 * float(stats.spearmanr(predicted, wanted).statistic))


def sts(
    first: NDArray[np.float32], second: NDArray[np.float32], gold: NDArray[np.floating]
) -> dict[Similarity, Correlation]:
    """Correlations of every similarity of sentence vectors with gold scores.

    Args:
        first, second: *Shape:* ``(pairs, dimensions)``.
        gold: *Shape:* ``(pairs,)``.

    Raises:
        SourceError, ModelError, ValueError: see `correlate` and `paired_similarity`.
    """
    return {each: correlate(paired_similarity(each, first, second), gold) for each in Similarity}


def parts(subsets: Sequence[str] | None, gold: NDArray[np.floating]) -> dict[str, NDArray[np.int64]]:
    """Rows of all pairs, and of each subset where there are several.

    STS12–16 consist of several sources. The paper, as most do, correlates over all pairs of a year at once.

    Args:
        subsets: Name of each pair's subset; None where there are none.
        gold: *Shape:* ``(pairs,)``; a subset in which they do not differ (a small sample) is left out.

    Returns:
        `all`, then the subsets in the order of the file, each with its rows.
    """
    rows = {ALL: np.arange(len(gold), dtype=np.int64)}  # (pairs,)
    distinct = list(dict.fromkeys(subsets or ()))
    if len(distinct) > 1:
        names = np.array(subsets)  # (pairs,)
        found = {name: np.flatnonzero(names == name) for name in distinct}
        rows |= {name: members for name, members in found.items() if not _is_constant(gold[members])}
    return rows


def _is_constant(values: NDArray[np.floating]) -> bool:
    return bool((values == values[0]).all())
