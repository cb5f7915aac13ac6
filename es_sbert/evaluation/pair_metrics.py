"""Metrics of paired vectors and scores: similarities, STS correlations, triplet accuracy, duplicate detection.

STS reports Spearman's ρ, as the paper does (section 4), and Pearson's r, each × 100.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

import numpy as np
from numpy.typing import NDArray
from scipy import stats
from sklearn.metrics import average_precision_score, roc_curve

from es_sbert.errors import SourceError
from es_sbert.evaluation.evaluated_models import check_finite
from es_sbert.messages import setting


class Similarity(StrEnum):
    """Similarity of two vectors. Distances are negated, so that a higher value is always more similar."""

    COSINE = "cosine"
    EUCLIDEAN = "euclidean"
    MANHATTAN = "manhattan"
    DOT = "dot"


def paired_similarity(
    similarity: Similarity, first: NDArray[np.float32], second: NDArray[np.float32]
) -> NDArray[np.float64]:
    """Compute the similarity of each row of `first` with the same row of `second`, in float64.

    A vector of zeros (a text without a known word) has the cosine 0 with everything.

    Args:
        similarity: The similarity.
        first, second: *Shape:* ``(pairs, dimensions)``.

    Returns:
        *Shape:* ``(pairs,)``.

    Raises:
        ModelError: a value is not a finite number.
        ValueError: the shapes differ.
    """
    if first.shape != second.shape or first.ndim != 2:
        raise ValueError(f"vectors of the shapes {first.shape} and {second.shape} do not form pairs")
    u, v = first.astype(np.float64), second.astype(np.float64)  # (pairs, dimensions) each
    check_finite(u, v)
    match similarity:
        case Similarity.EUCLIDEAN:
            result = -np.linalg.norm(u - v, axis=1)
        case Similarity.MANHATTAN:
            result = -np.abs(u - v).sum(axis=1)
        case Similarity.DOT:
            result = np.einsum("pd,pd->p", u, v)
        case Similarity.COSINE:
            result = np.einsum("pd,pd->p", unit_rows(u), unit_rows(v))
    return np.asarray(result, dtype=np.float64)  # (pairs,)


def unit_rows(vectors: NDArray[np.float64]) -> NDArray[np.float64]:
    """Scale rows to unit length, *shape* ``(rows, dimensions)``; rows of zeros do not change."""
    # Divide by the largest value first, because squares of very large or small values leave the range of float64.
    largest = np.abs(vectors).max(axis=1, keepdims=True, initial=0.0)  # (rows, 1)
    scaled = vectors / np.where(largest == 0, 1.0, largest)  # (rows, dimensions)
    lengths = np.linalg.norm(scaled, axis=1, keepdims=True)  # (rows, 1)
    result: NDArray[np.float64] = scaled / np.where(lengths == 0, 1.0, lengths)
    return result


@dataclass(frozen=True)
class Correlation:
    """Agreement of scores with gold scores.

    Attributes:
        spearman: Spearman's ρ × 100; ties have their mean rank.
        pearson: Pearson's r × 100.
    """

    spearman: float
    pearson: float


def correlate(scores: NDArray[np.floating], gold: NDArray[np.floating]) -> Correlation:
    """Correlate a model's scores with gold scores.

    If all scores are equal, the correlation is undefined and counts as 0.

    Args:
        scores, gold: *Shape:* ``(pairs,)``.

    Raises:
        SourceError: there are fewer than two pairs, or all gold scores are equal.
        ModelError: a score is not a finite number.
        ValueError: the shapes differ.
    """
    if scores.shape != gold.shape or scores.ndim != 1:
        raise ValueError(f"scores of the shape {scores.shape} do not match gold scores of the shape {gold.shape}")
    predicted, expected = scores.astype(np.float64), gold.astype(np.float64)  # (pairs,) each
    check_finite(predicted)
    if len(expected) < 2 or _is_constant(expected):
        raise SourceError(
            f"{len(expected)} pairs with equal gold scores cannot be ranked",
            f"Use at least two pairs with different scores, or set a larger {setting('limit')}.",
        )
    if _is_constant(predicted):
        return Correlation(0.0, 0.0)
    # Center the scores first, so that almost equal ones do not lose their digits to rounding in r.
    pearson = stats.pearsonr(predicted - predicted.mean(), expected - expected.mean()).statistic
    return Correlation(100 * float(stats.spearmanr(predicted, expected).statistic), 100 * float(pearson))


def sts_correlations(
    first: NDArray[np.float32], second: NDArray[np.float32], gold: NDArray[np.floating]
) -> dict[Similarity, Correlation]:
    """Correlate every similarity of sentence vectors with gold scores.

    Args:
        first, second: *Shape:* ``(pairs, dimensions)``.
        gold: *Shape:* ``(pairs,)``.

    Raises:
        SourceError, ModelError, ValueError: see `correlate` and `paired_similarity`.
    """
    return {each: correlate(paired_similarity(each, first, second), gold) for each in Similarity}


def _is_constant(values: NDArray[np.floating]) -> bool:
    return bool((values == values[0]).all())


# The distances of the paper's triplet objective, which does not use the dot product.
DISTANCES = (Similarity.COSINE, Similarity.EUCLIDEAN, Similarity.MANHATTAN)


def triplet_accuracy(
    anchors: NDArray[np.float32], positives: NDArray[np.float32], negatives: NDArray[np.float32]
) -> dict[Similarity, float]:
    """Compute the share of triplets × 100 with d(anchor, positive) < d(anchor, negative), for each distance.

    A tie counts as a failure, so a model that returns the same vector for all texts has the accuracy 0.

    Args:
        anchors, positives, negatives: *Shape:* ``(triplets, dimensions)``.

    Raises:
        ModelError: a value is not a finite number.
        ValueError: the shapes differ.
    """
    return {
        each: 100
        * float(np.mean(paired_similarity(each, anchors, positives) > paired_similarity(each, anchors, negatives)))
        for each in DISTANCES
    }


@dataclass(frozen=True)
class DuplicateMetrics:
    """Separation of duplicates from other pairs by scores; a pair with score ≥ threshold is a duplicate.

    The thresholds are chosen on the measured pairs themselves, so the best F1 and accuracy are upper bounds. Average
    precision does not need a threshold.

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


def duplicates(scores: NDArray[np.floating], labels: NDArray[np.int64]) -> DuplicateMetrics:
    """Measure scores of pairs against labels.

    Args:
        scores: *Shape:* ``(pairs,)``; a higher score is more similar.
        labels: *Shape:* ``(pairs,)``: 1 for duplicates, 0 for others.

    Raises:
        SourceError: the labels do not include both 0 and 1.
        ModelError: a score is not a finite number.
        ValueError: the shapes differ.
    """
    if scores.shape != labels.shape or scores.ndim != 1:
        raise ValueError(f"scores of the shape {scores.shape} do not match labels of the shape {labels.shape}")
    check_finite(scores.astype(np.float64))
    if set(labels.tolist()) != {0, 1}:
        raise SourceError(
            "the task needs pairs that are duplicates (1) and pairs that are not (0)",
            f"Use a file with both, or set a larger {setting('limit')}.",
        )
    duplicate_count = int(labels.sum())
    other_count = len(labels) - duplicate_count
    # Every threshold between distinct scores, from "no pair is a duplicate" to "all pairs are".
    false_rate, true_rate, found = roc_curve(labels, scores.astype(np.float64), drop_intermediate=False)
    right = np.rint(true_rate * duplicate_count)  # (thresholds,): duplicates at or above it
    wrong = np.rint(false_rate * other_count)  # (thresholds,): other pairs at or above it
    thresholds = _midway(found[1:])  # (thresholds,)
    f1 = 2 * right / (right + wrong + duplicate_count)  # (thresholds,): 2PR / (P + R), without dividing by zero
    correct = right + other_count - wrong  # (thresholds,)
    # Of several best thresholds, the first is used: it calls the fewest pairs duplicates.
    best_f1, best_accuracy = int(f1.argmax()), int(correct.argmax())
    return DuplicateMetrics(
        average_precision=100 * float(average_precision_score(labels, scores)),
        f1=100 * float(f1[best_f1]),
        f1_threshold=float(thresholds[best_f1]),
        precision=100 * float(right[best_f1] / max(1, right[best_f1] + wrong[best_f1])),
        recall=100 * float(right[best_f1] / duplicate_count),
        accuracy=100 * float(correct[best_accuracy] / len(labels)),
        accuracy_threshold=float(thresholds[best_accuracy]),
    )


def _midway(scores: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return thresholds for descending scores: one above all of them, one between every two, and the last score.

    *Shape:* ``(scores + 1,)``.
    """
    lower = np.append(scores[1:], scores[-1])  # (scores,)
    middle = lower + (scores - lower) / 2
    # Use the higher score if the middle is rounded to the lower one, which would then be included too.
    middle = np.where(middle == lower, scores, middle)
    return np.append(np.nextafter(scores[0], np.inf), middle)
