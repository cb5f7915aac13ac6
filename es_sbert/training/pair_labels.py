"""Gold scores of pairs, for cross-encoder and poly-encoder."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from es_sbert.errors import RecipeInvalid
from es_sbert.training.data.examples import Examples

# Scores are float32 and were mapped to the range: 1 may have become 1.0000001.
_ROUNDING = 1e-5


def gold_scores(examples: Examples, rows: Sequence[int], allowed: tuple[float, float]) -> Tensor:
    """Gold scores of some rows, *shape* ``(rows,)`` float32.

    Args:
        examples: A data set with scores.
        rows: Which.
        allowed: Lowest and highest score of the objective.

    Raises:
        RecipeInvalid: a score lies outside.
    """
    scores = np.asarray(examples.labels, dtype=np.float32)[list(rows)]  # (rows,)
    low, high = allowed
    outside = np.flatnonzero((scores < low - _ROUNDING) | (scores > high + _ROUNDING))
    if len(outside):
        raise RecipeInvalid(
            f"{examples.origin(rows[int(outside[0])])}: the score {scores[outside[0]]:g} is not between {low:g} "
            f"and {high:g}",
            "Give the data set its score_range, the lowest and highest score of the file; scores are then mapped.",
        )
    return torch.from_numpy(scores)


def to_unit_interval(examples: Examples, rows: Sequence[int], allowed: tuple[float, float]) -> Tensor:
    """Gold scores of some rows as probabilities, *shape* ``(rows,)`` float32: `allowed` mapped to [0, 1].

    Raises:
        RecipeInvalid: a score lies outside `allowed`.
    """
    low, high = allowed
    return ((gold_scores(examples, rows, allowed) - low) / (high - low)).clamp(0, 1)
