"""Duplicate detection: do duplicates score above other pairs, and which threshold parts them best?"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from sklearn.metrics import average_precision_score

from es_sbert.errors import SourceError
from es_sbert.evaluation.similarity import check_finite


@dataclass(frozen=True)
class DuplicatesResult:
    """How well scores part duplicates from other pairs; thresholds apply as score ≥ threshold.

    The thresholds are chosen on the measured pairs themselves: best F1 and accuracy are upper bounds, average
    precision needs no threshold.

    Attributes:
        average_precision: Area under the precision-recall steps × 100.
        f1: Best F1 × 100 over all thresholds; `f1_threshold`, `precision` and `recall` belong to it.
        accuracy: Best share of right decisions × 100 over all thresholds; `accuracy_threshold` belongs to it.
    """

    average_precision: float
    f1: float
    f1_threshold: float
    precision: float
    recall: float
    accuracy: float
    accuracy_threshold: float


def duplicates(scores: NDArray[np.floating], labels: NDArray[np.int64]) -> DuplicatesResult:
    """Measure scores of pairs against labels.

    Args:
        scores: *Shape:* ``(pairs,)``, the higher the more alike.
        labels: *Shape:* ``(pairs,)``: 1 for duplicates, 0 for others.

    Raises:
        SourceError: the labels are not both 0 and 1.
        ModelError: a score is not a finite number.
        ValueError: the shapes differ.
    """
    if scores.shape != labels.shape or scores.ndim != 1:
        raise ValueError(f"scores of the shape {scores.shape} do not belong to labels {labels.shape}")
    check_finite(scores.astype(np.float64))
    if set(labels.tolist()) != {0, 1}:
        raise SourceError(
            "duplicates are measured on pairs of which some are duplicates (1) and some are not (0)",
            "Give a file with both (a larger --limit).",
        )
    cuts = _Cuts.of(scores.astype(np.float64), labels)
    f1 = 2 * cuts.right / (cuts.taken + cuts.duplicates)  # (cuts,): 2PR / (P + R), without dividing by zero
    correct = cuts.right + (len(labels) - cuts.duplicates) - (cuts.taken - cuts.right)  # (cuts,)
    # The first best: where several cuts are as good, the one that calls the fewest pairs duplicates.
    best_f1, best_accuracy = int(f1.argmax()), int(correct.argmax())
    return DuplicatesResult(
        average_precision=100 * float(average_precision_score(labels, scores)),
        f1=100 * float(f1[best_f1]),
        f1_threshold=float(cuts.thresholds[best_f1]),
        precision=100 * float(cuts.right[best_f1] / max(1, cuts.taken[best_f1])),
        recall=100 * float(cuts.right[best_f1] / cuts.duplicates),
        accuracy=100 * float(correct[best_accuracy] / len(labels)),
        accuracy_threshold=float(cuts.thresholds[best_accuracy]),
    )


@dataclass(frozen=True)
class _Cuts:
    """Every way to part the pairs by one threshold, from none to all called duplicates.

    Attributes:
        thresholds: *Shape:* ``(cuts,)``, falling: midway between neighbouring scores.
        taken: *Shape:* ``(cuts,)``: pairs at or above the threshold.
        right: *Shape:* ``(cuts,)``: duplicates among them.
        duplicates: All duplicates.
    """

    thresholds: NDArray[np.float64]
    taken: NDArray[np.int64]
    right: NDArray[np.int64]
    duplicates: int

    @classmethod
    def of(cls, scores: NDArray[np.float64], labels: NDArray[np.int64]) -> _Cuts:
        order = np.argsort(-scores, kind="stable")  # (pairs,)
        falling = scores[order]  # (pairs,)
        # Equal scores cannot be parted: a cut lies behind the last of them.
        ends = np.append(np.flatnonzero(falling[:-1] > falling[1:]), len(scores) - 1)  # (cuts − 1,)
        upper, lower = falling[ends], np.append(falling[ends[:-1] + 1], falling[-1])  # (cuts − 1,) each
        middle = lower + (upper - lower) / 2
        # Rounded onto the lower score, the middle would take that in as well.
        middle = np.where((middle == lower) & (upper > lower), upper, middle)
        return cls(
            thresholds=np.append(np.nextafter(falling[0], np.inf), middle),
            taken=np.append(0, ends + 1),
            right=np.append(0, np.cumsum(labels[order])[ends]),
            duplicates=int(labels.sum()),
        )
