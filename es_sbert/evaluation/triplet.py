"""Triplets: is the anchor closer to the positive than to the negative? (Reimers and Gurevych 2019, section 4.4)"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from es_sbert.errors import SourceError
from es_sbert.evaluation.similarity import Similarity, paired_similarity

# As the paper's triplet objective, which has no dot product.
DISTANCES = (Similarity.COSINE, Similarity.EUCLIDEAN, Similarity.MANHATTAN)


def triplet_accuracy(
    anchors: NDArray[np.float32], positives: NDArray[np.float32], negatives: NDArray[np.float32]
) -> dict[Similarity, float]:
    """Share of triplets × 100 with d(anchor, positive) < d(anchor, negative), by each distance.

    A tie is a failure: a model that gives all texts one vector has the accuracy 0.

    Args:
        anchors, positives, negatives: *Shape:* ``(triplets, dimensions)``.

    Raises:
        SourceError: there are no triplets.
        ModelError: a value is not a finite number.
        ValueError: the shapes differ.
    """
    if not len(anchors):
        raise SourceError("there are no triplets to measure", "Give at least one.")
    return {
        each: 100
        * float(np.mean(paired_similarity(each, anchors, positives) > paired_similarity(each, anchors, negatives)))
        for each in DISTANCES
    }
