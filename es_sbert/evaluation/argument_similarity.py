"""Argument similarity: do two sentences make the same argument? Within topics and across topics.

The paper uses the AFS corpus (Reimers and Gurevych 2019, section 4.3): similarity without training, 10-fold
cross-validation, and training on some topics with evaluation on others. Here the UKP aspect corpus (Reimers et al.
2019, arXiv 1906.09821) replaces it. Its labels are read as grades:

    HS      highly similar                              2
    SS      somewhat similar                            1
    NS      not similar                                 0
    DTORCD  different topic, or relation not decidable  0

DTORCD pairs are kept: dropping them would hide pairs that a model gets wrong.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from sklearn.model_selection import GroupKFold, LeaveOneGroupOut, StratifiedKFold
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.svm import SVR

from es_sbert.errors import SourceError
from es_sbert.evaluation.pair_metrics import Correlation, correlate

GRADES = {"NS": 0.0, "DTORCD": 0.0, "SS": 1.0, "HS": 2.0}
FOLDS = 10
# The corpus has 28 topics: folds of seven.
TOPIC_FOLDS = 4

FoldRows = NDArray[np.int64]
# Called with rows to train on and rows to score; gives scores of the latter, ``(pairs,)``.
TrainAndScore = Callable[[FoldRows, FoldRows], NDArray[np.floating]]


@dataclass(frozen=True)
class FoldSplit:
    """One fold.

    Attributes:
        train, test: Row numbers, *shape* ``(pairs,)`` each, rising; no row stands in both.
    """

    train: FoldRows
    test: FoldRows


@dataclass(frozen=True)
class FoldedCorrelation:
    """Correlations over folds.

    Attributes:
        mean: Mean of r and of ρ over the folds.
        folds: Of each fold, in order.
    """

    mean: Correlation
    folds: tuple[Correlation, ...]


def grades(labels: Sequence[str]) -> NDArray[np.float64]:
    """Labels as grades, *shape* ``(pairs,)``.

    Raises:
        SourceError: a label that is none of the four.
    """
    unknown = sorted(set(labels) - set(GRADES))
    if unknown:
        raise SourceError(f"unknown label {unknown[0]!r}", f"Use {', '.join(GRADES)}.")
    return np.array([GRADES[label] for label in labels], dtype=np.float64)


def random_splits(labels: Sequence[str], *, folds: int = FOLDS, seed: int = 0) -> list[FoldSplit]:
    """Folds of all topics, shuffled by the seed, each with about the same share of every label.

    Raises:
        SourceError: fewer pairs of the rarest label than folds.
    """
    rarest, count = min(Counter(labels).items(), key=lambda entry: entry[1], default=("any", 0))
    if count < folds:
        raise SourceError(
            f"{folds} folds need {folds} pairs of every label; there are {count} of {rarest}",
            "Give more pairs (a larger --limit), or use fewer folds.",
        )
    splitter = StratifiedKFold(folds, shuffle=True, random_state=seed)
    return [FoldSplit(train, test) for train, test in splitter.split(np.zeros(len(labels)), np.array(labels))]


def topic_splits(topics: Sequence[str], *, folds: int | None = TOPIC_FOLDS, seed: int = 0) -> list[FoldSplit]:
    """Folds that share no topic: what is scored is of topics that were not trained on.

    Args:
        topics: Topic of each pair.
        folds: How many groups of topics, chosen by the seed; None: every topic is a fold of its own.
        seed: For grouping the topics.

    Raises:
        SourceError: fewer topics than folds, or only one.
    """
    distinct = sorted(set(topics))
    if len(distinct) < max(2, folds or 2):
        raise SourceError(
            f"{len(distinct)} topics cannot be parted into {folds or 'several'} folds",
            "Give pairs of more topics (a larger --limit), or use fewer folds.",
        )
    splitter = LeaveOneGroupOut() if folds is None else GroupKFold(folds, shuffle=True, random_state=seed)
    rows = np.zeros(len(topics))  # (pairs,)
    return [FoldSplit(train, test) for train, test in splitter.split(rows, groups=np.array(topics))]


def cross_validate(
    splits: Sequence[FoldSplit], gold: NDArray[np.floating], train_and_score: TrainAndScore
) -> FoldedCorrelation:
    """Train on each fold's rows, score its others, and average the correlations over the folds.

    Args:
        splits: Folds, see `random_splits` and `topic_splits`.
        gold: *Shape:* ``(all pairs,)``.
        train_and_score: Trains anew at every call.

    Raises:
        SourceError: a fold whose gold scores do not differ.
        ModelError: a score is not a finite number.
        ValueError: there are no folds, or scores of another number of pairs.
    """
    if not splits:
        raise ValueError("there are no folds")
    found = tuple(correlate(np.asarray(train_and_score(each.train, each.test)), gold[each.test]) for each in splits)
    mean = Correlation(
        pearson=float(np.mean([fold.pearson for fold in found])),
        spearman=float(np.mean([fold.spearman for fold in found])),
    )
    return FoldedCorrelation(mean, found)


def fit_svr(features: NDArray[np.float32], gold: NDArray[np.floating]) -> TrainAndScore:
    """A support vector regression on given features: the baseline of Misra et al. 2016, for `cross_validate`.

    Features are standardised on the rows trained on; kernel and constants are scikit-learn's defaults.

    Args:
        features: *Shape:* ``(all pairs, features)``.
        gold: *Shape:* ``(all pairs,)``.
    """

    def train_and_score(train: FoldRows, test: FoldRows) -> NDArray[np.floating]:
        model = make_pipeline(StandardScaler(), SVR()).fit(features[train], gold[train])
        scores: NDArray[np.floating] = model.predict(features[test])  # (test pairs,)
        return scores

    return train_and_score
