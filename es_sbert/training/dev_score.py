"""The dev score of a model: one number, higher is better, by which the best checkpoint is chosen."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from es_sbert.errors import RecipeInvalid
from es_sbert.evaluation.evaluated_models import PairScorer, SentenceEmbedder
from es_sbert.evaluation.pair_metrics import (
    Similarity,
    correlate,
    duplicates,
    paired_similarity,
    triplet_accuracy,
    unit_rows,
)
from es_sbert.training.data.read_examples import DevData
from es_sbert.training.objectives.settings import ObjectiveSpec, TripletDistance, TripletSpec
from es_sbert.training.recipe import DevSpec

_METRIC_NAMES = {
    "sts": "Spearman's ρ × 100",
    "triplet": "accuracy × 100",
    "pairs": "reciprocal rank × 100",
    "duplicates": "average precision × 100",
}

# Anchors whose positives are ranked at a time: (block, positives) cosines are held.
_ANCHOR_BLOCK = 1024


def dev_name(spec: DevSpec, data: Literal["dev", "test"] = "dev") -> str:
    """What the score on a set of data is, for people."""
    return f"{data} {_METRIC_NAMES[spec.task]}"


def dev_score(model: SentenceEmbedder | PairScorer, data: DevData, distance: Similarity = Similarity.COSINE) -> float:
    """Measure a model on dev data, × 100.

    Args:
        model: What is trained, as it is.
        data: The dev data.
        distance: What triplets are measured by.

    Raises:
        RecipeInvalid: a cross- or poly-encoder with a task that needs sentence vectors.
        ModelError: the model gives values that are not finite.
    """
    if isinstance(model, SentenceEmbedder):
        return _score_vectors([model.embed(texts) for texts in data.texts], data, distance)
    if data.task not in ("sts", "duplicates"):
        raise RecipeInvalid(
            f"dev.task {data.task} needs sentence vectors, which a cross- or poly-encoder does not give",
            "Use dev.task: sts or duplicates.",
        )
    return _score_pairs(model.score(*data.texts), data)


def _score_vectors(vectors: list[NDArray[np.float32]], data: DevData, distance: Similarity) -> float:
    if data.task == "triplet":
        return triplet_accuracy(*vectors)[distance]
    if data.task == "pairs":
        return reciprocal_rank(*vectors)
    return _score_pairs(paired_similarity(Similarity.COSINE, *vectors), data)


def _score_pairs(scores: NDArray[np.floating], data: DevData) -> float:
    assert data.gold is not None, "read_dev gives labels for these tasks"
    if data.task == "sts":
        return correlate(scores, data.gold.astype(np.float64)).spearman
    return duplicates(scores, data.gold.astype(np.int64)).average_precision


def reciprocal_rank(anchors: NDArray[np.float32], positives: NDArray[np.float32]) -> float:
    """Mean reciprocal rank × 100 of each anchor's own positive among all positives by cosine.

    A tie counts against the model: a positive stands behind all that are as close.

    Args:
        anchors, positives: *Shape:* ``(pairs, dimensions)``.
    """
    first, second = unit_rows(anchors.astype(np.float64)), unit_rows(positives.astype(np.float64))
    total = 0.0
    for start in range(0, len(first), _ANCHOR_BLOCK):
        cosines = first[start : start + _ANCHOR_BLOCK] @ second.T  # (block, pairs)
        own = cosines[np.arange(len(cosines)), np.arange(start, start + len(cosines))]  # (block,)
        total += float((1 / (cosines >= own[:, None]).sum(axis=1)).sum())
    return 100 * total / len(first)


def triplet_distance(objectives: Iterable[ObjectiveSpec]) -> Similarity:
    """What a stage's dev triplets are measured by: the distance that all its triplets are trained by, else cosine."""
    distances = {objective.distance for objective in objectives if isinstance(objective, TripletSpec)}
    if len(distances) != 1:
        return Similarity.COSINE
    return {
        TripletDistance.EUCLIDEAN: Similarity.EUCLIDEAN,
        TripletDistance.MANHATTAN: Similarity.MANHATTAN,
        TripletDistance.COSINE: Similarity.COSINE,
    }[distances.pop()]
