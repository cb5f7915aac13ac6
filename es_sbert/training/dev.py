"""The dev score: one number, the higher the better, that chooses the best checkpoint."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from es_sbert.errors import RecipeInvalid
from es_sbert.evaluation.duplicates import duplicates
from es_sbert.evaluation.models import Embedder, PairScorer
from es_sbert.evaluation.similarity import Similarity, paired_similarity, unit_rows
from es_sbert.evaluation.sts import correlate
from es_sbert.evaluation.triplet import triplet_accuracy
from es_sbert.training.data.dev import DevData
from es_sbert.training.objectives.settings import Distance, ObjectiveSpec, Triplet
from es_sbert.training.recipe import DevSpec

_NAMES = {
    "sts": "Spearman's ρ × 100",
    "triplet": "accuracy × 100",
    "pairs": "reciprocal rank × 100",
    "duplicates": "average precision × 100",
}

# Anchors whose positives are ranked at a time: (block, positives) cosines are held.
_BLOCK = 1024


def dev_name(spec: DevSpec, data: Literal["dev", "test"] = "dev") -> str:
    """What the score on a set of data is, for people."""
    return f"{data} {_NAMES[spec.task]}"


def dev_score(model: Embedder | PairScorer, data: DevData, distance: Similarity = Similarity.COSINE) -> float:
    """Measure a model on dev data, × 100.

    Args:
        model: What is trained, as it is.
        data: The dev data.
        distance: What triplets are measured by.

    Raises:
        RecipeInvalid: a cross- or poly-encoder with a task that needs sentence vectors.
        ModelError: the model gives values that are not finite.
    """
    if isinstance(model, Embedder):
        return _of_vectors([model.embed(texts) for texts in data.texts], data, distance)
    if data.task not in ("sts", "duplicates"):
        raise RecipeInvalid(
            f"dev.task {data.task} needs sentence vectors, which a cross- or poly-encoder does not give",
            "Use dev.task: sts or duplicates.",
        )
    return _of_scores(model.score(*data.texts), data)


def _of_vectors(vectors: list[NDArray[np.float32]], data: DevData, distance: Similarity) -> float:
    if data.task == "triplet":
        return triplet_accuracy(*vectors)[distance]
    if data.task == "pairs":
        return reciprocal_rank(*vectors)
    return _of_scores(paired_similarity(Similarity.COSINE, *vectors), data)


def _of_scores(scores: NDArray[np.floating], data: DevData) -> float:
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
    for start in range(0, len(first), _BLOCK):
        cosines = first[start : start + _BLOCK] @ second.T  # (block, pairs)
        own = cosines[np.arange(len(cosines)), np.arange(start, start + len(cosines))]  # (block,)
        total += float((1 / (cosines >= own[:, None]).sum(axis=1)).sum())
    return 100 * total / len(first)


def triplet_distance(objectives: Iterable[ObjectiveSpec]) -> Similarity:
    """What a stage's dev triplets are measured by: the distance that all its triplets are trained by, else cosine."""
    distances = {objective.distance for objective in objectives if isinstance(objective, Triplet)}
    if len(distances) != 1:
        return Similarity.COSINE
    return {
        Distance.EUCLIDEAN: Similarity.EUCLIDEAN,
        Distance.MANHATTAN: Similarity.MANHATTAN,
        Distance.COSINE: Similarity.COSINE,
    }[distances.pop()]
