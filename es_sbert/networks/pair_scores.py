"""From a cross-encoder's logits to one score a pair: the higher, the more alike."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from es_sbert.bundle.cross_encoder import CrossEncoderModel, ScoreActivation
from es_sbert.errors import UsageError

# Names of the class whose probability says how alike two texts are, in data sets and on the hub.
_ALIKE = ("entailment", "duplicate", "is_duplicate", "paraphrase", "equivalent", "similar", "relevant", "1", "true",
          "yes")  # fmt: skip


def pair_scores(logits: Tensor, model: CrossEncoderModel) -> Tensor:
    """One score a pair.

    One logit gives its sigmoid, in [0, 1], or itself where the model was trained so; several give the probability
    of the class that stands for likeness: entailment, duplicate, paraphrase, …

    Args:
        logits: *Shape:* ``(pairs, labels)`` float32.
        model: Whose logits they are.

    Returns:
        *Shape:* ``(pairs,)``.

    Raises:
        UsageError: no class, or more than one, stands for likeness.
    """
    if len(model.labels) > 1:
        return torch.softmax(logits, dim=1)[:, alike(model.labels)]
    return logits[:, 0].sigmoid() if model.activation is ScoreActivation.SIGMOID else logits[:, 0]


def check_pairs(first: Sequence[str], second: Sequence[str]) -> None:
    """Make sure that two columns are pairs.

    Raises:
        UsageError: they differ in length.
    """
    if len(first) != len(second):
        raise UsageError(
            f"{len(first)} first texts and {len(second)} second ones are no pairs", "Give as many of each."
        )


def alike(classes: Sequence[str]) -> int:
    """The number of the class that says that two texts are alike.

    Raises:
        UsageError: no class, or more than one, has such a name.
    """
    found = [number for number, name in enumerate(classes) if name.lower() in _ALIKE]
    if len(found) != 1:
        raise UsageError(
            f"which of the classes {', '.join(classes)} says how alike two texts are is not clear",
            f"Name exactly one of them {', '.join(_ALIKE[:-1])} or {_ALIKE[-1]}, or train with the objective "
            "regression, which gives one score.",
        )
    return found[0]
