"""Any objective on the first d values of the vectors as well, so that vectors may be cut short later."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from torch import Tensor, nn

from es_sbert.errors import RecipeInvalid
from es_sbert.training.data.shape import LabelKind
from es_sbert.training.objectives import settings
from es_sbert.training.objectives.distillation import check_widths
from es_sbert.training.objectives.objective import Objective


class MatryoshkaLoss(Objective):
    """Σ_d c_d · L_d(first d values of each vector) (Kusupati et al. 2022, arXiv 2205.13147, equation 1).

    Each d has an objective of its own, with its own head where the objective has one; a teacher's vectors are cut
    with the student's. Vectors are cut, not scaled to unit length again: objectives over cosines do not see the
    difference. It takes the roles and labels of the objective it wraps.

    Args:
        make: Makes the objective for vectors of d dimensions.
        spec: The d and their weights c_d.
        dimensions: Of the whole vectors.

    Raises:
        RecipeInvalid: a d exceeds `dimensions`.
    """

    def __init__(self, make: Callable[[int], Objective], spec: settings.Matryoshka, dimensions: int) -> None:
        super().__init__()
        longest = max(spec.dimensions)
        if longest > dimensions:
            raise RecipeInvalid(
                f"matryoshka asks for the first {longest} dimensions of vectors that have {dimensions}",
                f"Keep matryoshka's dimensions to {dimensions} or less, or give the model a Dense layer: "
                f"dense: {{out_features: {longest}}}.",
            )
        self.dimensions = spec.dimensions
        self.weights = spec.weights or (1.0,) * len(spec.dimensions)
        self.objectives = nn.ModuleList([make(dimension) for dimension in spec.dimensions])
        inner: Objective = self.objectives[0]
        self.roles, self.repeats_last, self.distinct = inner.roles, inner.repeats_last, inner.distinct
        self.label, self.score_range = inner.label, inner.score_range

    def compute(self, vectors: Sequence[Tensor], labels: Tensor | None) -> Tensor:
        if labels is not None and self.label is LabelKind.VECTOR:
            # Once both are cut to d, vectors of different length would pass for equals.
            check_widths(vectors[0].shape[1], labels.shape[1])
        total = vectors[0].new_zeros(())  # scalar
        for objective, dimension, weight in zip(self.objectives, self.dimensions, self.weights, strict=True):
            cut = [column[:, :dimension] for column in vectors]  # each (batch, dimension)
            total = total + weight * objective.compute(cut, self._cut_labels(labels, dimension))
        return total

    def _cut_labels(self, labels: Tensor | None, dimension: int) -> Tensor | None:
        if labels is None or self.label is not LabelKind.VECTOR:
            return labels
        return labels[:, :dimension]  # (batch, dimension)
