"""Learning from a teacher: its sentence vectors, or the margins between its scores."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn.functional import mse_loss

from es_sbert.errors import RecipeInvalid
from es_sbert.training.data.shape import LabelKind
from es_sbert.training.objectives.objective import Objective
from es_sbert.training.objectives.similarity import pairwise_dot


def check_widths(student: int, teacher: int) -> None:
    """Make sure that student and teacher have vectors of one length.

    Args:
        student, teacher: Dimensions of the sentence vectors.

    Raises:
        RecipeInvalid: they differ.
    """
    if student != teacher:
        raise RecipeInvalid(
            f"the teacher's vectors have {teacher} dimensions, the student's {student}",
            f"Give the student a Dense layer of that width in the recipe, model: dense: {{out_features: {teacher}}}, "
            f"or choose a teacher of {student} dimensions.",
        )


class VectorDistillationLoss(Objective):
    """Mean over columns, examples and dimensions of (v − t)², t the teacher's vector of the first column's text.

    With translations in the other columns, their vectors fall on that of the source: multilingual knowledge
    distillation (Reimers and Gurevych 2020, arXiv 2004.09813, section 2). With one column it is plain distillation.
    """

    roles = ("source", "target")
    repeats_last = True
    label = LabelKind.VECTOR

    def compute(self, vectors: Sequence[Tensor], labels: Tensor | None) -> Tensor:
        assert labels is not None  # forward has checked it
        check_widths(vectors[0].shape[1], labels.shape[1])
        students = torch.stack(list(vectors))  # (columns, batch, dimensions)
        return mse_loss(students, labels.expand_as(students))


class MarginMSELoss(Objective):
    """Mean of ((a · p − a · n) − m)², m the teacher's margin between its scores of (a, p) and (a, n).

    Margin-MSE (Hofstätter et al. 2020, arXiv 2010.02666). The dot product is as free in size as a
    cross-encoder's score; of vectors of unit length it is the cosine, and margins beyond 2 are out of its reach.
    """

    roles = ("anchor", "positive", "negative")
    label = LabelKind.SCORE

    def compute(self, vectors: Sequence[Tensor], labels: Tensor | None) -> Tensor:
        anchor, positive, negative = vectors
        return mse_loss(pairwise_dot(anchor, positive - negative), labels)
