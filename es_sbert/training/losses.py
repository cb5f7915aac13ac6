"""The training objectives (losses) over the sentence vectors of a batch.

Softmax, cosine regression, triplet, in-batch negatives, CoSENT, distillation and Matryoshka; `build_objective` makes
one from its settings. Gradients stay finite for vectors that are zero or equal.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, mse_loss

from es_sbert.errors import RecipeInvalid
from es_sbert.runtime.siamese_encoder import normalize_vectors
from es_sbert.training import recipe as settings
from es_sbert.training.recipe import ObjectiveSpec, PairFeature, TripletDistance
from es_sbert.training.training_examples import ExampleSchema, LabelKind


def pairwise_cosine(u: Tensor, v: Tensor) -> Tensor:
    """Compute cos(u, v) row by row; 0 where a vector is zero.

    Args:
        u, v: *Shape:* ``(batch, dimensions)``.

    Returns:
        *Shape:* ``(batch,)``.
    """
    return (normalize_vectors(u) * normalize_vectors(v)).sum(dim=-1)


def pairwise_distance(u: Tensor, v: Tensor, distance: TripletDistance) -> Tensor:
    """Compute the distance row by row: ‖u − v‖₂, ‖u − v‖₁ or 1 − cos(u, v).

    Args:
        u, v: *Shape:* ``(batch, dimensions)``.
        distance: The kind of distance.

    Returns:
        *Shape:* ``(batch,)``.
    """
    match distance:
        case TripletDistance.EUCLIDEAN:
            # The root of a sum of squares has an infinite gradient at u = v; that of vector_norm is 0.
            norms: Tensor = torch.linalg.vector_norm(u - v, dim=-1)
            return norms
        case TripletDistance.MANHATTAN:
            return (u - v).abs().sum(dim=-1)
        case TripletDistance.COSINE:
            return 1 - pairwise_cosine(u, v)


class Objective(nn.Module, ABC):
    """A loss over the sentence vectors of a batch.

    A subclass declares its columns and labels in `schema` and computes the loss in `compute`.

    Args:
        spec: Its settings.

    Attributes:
        schema: Its columns, in the order of the vectors that `forward` takes, and its labels. The parts that depend on
            the settings (the classes, the range of scores) are only in `objective_schema`.
    """

    schema: ExampleSchema

    def __init__(self, spec: Any = None) -> None:
        super().__init__()
        self.spec = spec

    def forward(self, vectors: Sequence[Tensor], labels: Tensor | None) -> Tensor:
        """Compute the loss, averaged over the batch; in float32, under autocast too.

        Args:
            vectors: One tensor for each text column, each ``(batch, dimensions)``, as the encoder returns them (of
                unit length only if the model normalizes).
            labels: ``(batch,)`` float32 scores, ``(batch,)`` int64 classes, ``(batch, dimensions)`` float32
                vectors, or None, depending on the label kind of `schema`.

        Returns:
            A scalar, float32.
        """
        if labels is not None and self.schema.label is not LabelKind.CLASS:
            labels = labels.float()
        # Near 1 bfloat16 has steps of 0.004: cosines times a scale of 20 would be logits in steps of 0.08. The
        # products here are small compared with the encoder's, so float32 costs almost nothing.
        with torch.autocast(vectors[0].device.type, enabled=False):
            return self.compute([column.float() for column in vectors], labels)

    @abstractmethod
    def compute(self, vectors: Sequence[Tensor], labels: Tensor | None) -> Tensor:
        """Compute the loss of float32 vectors, as `forward` describes it; called with autocast off."""


class SoftmaxLoss(Objective):
    """Cross-entropy of softmax(W_t (u, v, |u − v|)) (Reimers and Gurevych 2019, section 3).

    W_t ∈ ℝ^{k×fn} for k classes, f features and vectors of n values; the other choices of features are those of the
    paper's ablation (section 6). The formula has no bias, but the authors' code does, and so does this. The weights are
    initialized as in `torch.nn.Linear` and discarded after training.

    Args:
        spec: The features in their order, and the classes.
        dimensions: Length of the sentence vectors.
    """

    spec: settings.SoftmaxSpec
    schema = ExampleSchema(("sentence1", "sentence2"), LabelKind.CLASS)

    def __init__(self, spec: settings.SoftmaxSpec, dimensions: int) -> None:
        super().__init__(spec)
        self.classifier = nn.Linear(len(spec.features) * dimensions, len(spec.classes))

    def compute(self, vectors: Sequence[Tensor], labels: Tensor | None) -> Tensor:
        u, v = vectors
        features = [_PAIR_FEATURES[name](u, v) for name in self.spec.features]  # each (batch, dimensions)
        return cross_entropy(self.classifier(torch.cat(features, dim=-1)), cast(Tensor, labels))


# Each from and to (batch, dimensions).
_PAIR_FEATURES: dict[PairFeature, Callable[[Tensor, Tensor], Tensor]] = {
    PairFeature.U: lambda u, v: u,
    PairFeature.V: lambda u, v: v,
    PairFeature.DIFFERENCE: lambda u, v: (u - v).abs(),
    PairFeature.PRODUCT: lambda u, v: u * v,
}


class CosineSimilarityLoss(Objective):
    """Mean of (cos(u, v) − s)², s the gold score (Reimers and Gurevych 2019, section 3)."""

    schema = ExampleSchema(("sentence1", "sentence2"), LabelKind.SCORE)

    def compute(self, vectors: Sequence[Tensor], labels: Tensor | None) -> Tensor:
        u, v = vectors
        return mse_loss(pairwise_cosine(u, v), cast(Tensor, labels))


class TripletLoss(Objective):
    """Mean of max(d(a, p) − d(a, n) + ε, 0) (Reimers and Gurevych 2019, section 3; there Euclidean, ε = 1).

    The settings have the distance d and the margin ε, in the units of d.
    """

    spec: settings.TripletSpec
    schema = ExampleSchema(("anchor", "positive", "negative"))

    def compute(self, vectors: Sequence[Tensor], labels: Tensor | None) -> Tensor:
        anchor, positive, negative = vectors
        nearer = pairwise_distance(anchor, positive, self.spec.distance)  # (batch,)
        farther = pairwise_distance(anchor, negative, self.spec.distance)  # (batch,)
        return (nearer - farther + self.spec.margin).relu().mean()


class MultipleNegativesRankingLoss(Objective):
    """Mean of −log( exp(λ cos(aᵢ, pᵢ)) / Σ_d exp(λ cos(aᵢ, d)) ), d over all positives and hard negatives of the batch.

    Multiple negatives ranking loss (Henderson et al. 2017, arXiv 1705.00652), there on dot products;
    with cosines and a temperature 1/λ it is InfoNCE (van den Oord et al. 2018, arXiv 1807.03748).

    Symmetric: the mean of this and of −log( exp(λ cos(aᵢ, pᵢ)) / Σⱼ exp(λ cos(aⱼ, pᵢ)) ), from each positive to all
    anchors (as in CLIP, Radford et al. 2021, arXiv 2103.00020). Hard negatives belong to no anchor and take part in
    the first half only.

    A text that occurs twice in a batch would be its own negative; `distinct` prevents that. The settings have the
    scale λ, and whether the loss is symmetric.
    """

    spec: settings.InBatchSpec
    schema = ExampleSchema(("anchor", "positive", "negative"), repeats_last=True, distinct=True)

    def compute(self, vectors: Sequence[Tensor], labels: Tensor | None) -> Tensor:
        anchors = normalize_vectors(vectors[0])  # (batch, dimensions)
        # candidates: (batch · (1 + negatives), dimensions), positives first
        candidates = normalize_vectors(torch.cat(list(vectors[1:])))
        logits = self.spec.scale * anchors @ candidates.T  # (batch, batch · (1 + negatives))
        targets = torch.arange(len(anchors), device=anchors.device)  # (batch,): aᵢ's positive is candidate i
        loss = cross_entropy(logits, targets)
        if not self.spec.symmetric:
            return loss
        return (loss + cross_entropy(logits[:, : len(anchors)].T, targets)) / 2


class CoSENTLoss(Objective):
    """log(1 + Σ exp(λ (cosᵢ − cosⱼ))), the sum over all i, j of the batch with a gold score sᵢ < sⱼ.

    Consistent sentence embedding (Su 2022, kexue.fm/archives/8847; Huang et al. 2024, IEEE/ACM TASLP 32). It is what
    Spearman's ρ measures, made smooth: only the order of the scores counts, and pairs of equal scores are ignored. It
    is a sum over the batch, not a mean over examples: a larger batch has more pairs and a larger loss. The settings
    have the scale λ.
    """

    spec: settings.CoSentSpec
    schema = ExampleSchema(("sentence1", "sentence2"), LabelKind.SCORE)

    def compute(self, vectors: Sequence[Tensor], labels: Tensor | None) -> Tensor:
        assert labels is not None  # the schema has them
        u, v = vectors
        cosines = self.spec.scale * pairwise_cosine(u, v)  # (batch,)
        excess = cosines[:, None] - cosines[None, :]  # (batch, batch): cosᵢ − cosⱼ
        excess = excess.masked_fill(labels[:, None] >= labels[None, :], -torch.inf)
        # log(1 + Σ exp(x)) is the logsumexp of all x and a 0, which also keeps a batch of equal scores finite.
        return torch.cat([excess.flatten(), excess.new_zeros(1)]).logsumexp(dim=0)


def check_dimensions(student: int, teacher: int) -> None:
    """Check that the vectors of student and teacher have the same length.

    Args:
        student, teacher: Dimensions of the sentence vectors.

    Raises:
        RecipeInvalid: the lengths differ.
    """
    if student != teacher:
        raise RecipeInvalid(
            f"the teacher's vectors have {teacher} dimensions, the student's {student}",
            f"Add a Dense layer of that width to the student in the recipe, model: dense: {{out_features: {teacher}}}, "
            f"or use a teacher with {student} dimensions.",
        )


class VectorDistillationLoss(Objective):
    """Mean over columns, examples and dimensions of (v − t)², t the teacher's vector of the first column's text.

    With translations in the other columns, their vectors are trained toward that of the source: multilingual
    knowledge distillation (Reimers and Gurevych 2020, arXiv 2004.09813, section 2). One column is plain distillation.
    """

    schema = ExampleSchema(("source", "target"), LabelKind.VECTOR, repeats_last=True)

    def compute(self, vectors: Sequence[Tensor], labels: Tensor | None) -> Tensor:
        assert labels is not None  # the schema has them
        check_dimensions(vectors[0].shape[1], labels.shape[1])
        students = torch.stack(list(vectors))  # (columns, batch, dimensions)
        return mse_loss(students, labels.expand_as(students))


class MarginMSELoss(Objective):
    """Mean of (λ (a · p − a · n) − m)², m the teacher's margin between its scores of (a, p) and (a, n).

    Margin-MSE (Hofstätter et al. 2020, arXiv 2010.02666). The dot product is unbounded like a cross-encoder's score.
    For vectors of unit length it is the cosine, whose margin is at most 2: the scale λ brings it to the teacher's.
    """

    schema = ExampleSchema(("anchor", "positive", "negative"), LabelKind.SCORE)

    def __init__(self, spec: settings.MarginDistillationSpec | None = None) -> None:
        super().__init__(spec)
        self._scale = 1.0 if spec is None else spec.scale

    def compute(self, vectors: Sequence[Tensor], labels: Tensor | None) -> Tensor:
        anchor, positive, negative = vectors
        margins = self._scale * (anchor * (positive - negative)).sum(dim=-1)  # (batch,)
        return mse_loss(margins, cast(Tensor, labels))


class MatryoshkaLoss(Objective):
    """Σ_d L_d(first d values of each vector) (Kusupati et al. 2022, arXiv 2205.13147, equation 1).

    Each d has a separate objective, with a separate head if the objective has one. A teacher's vectors are
    truncated like the student's. Truncated vectors are not normalized again: objectives over cosines do not depend on
    their length. Roles and labels are those of the wrapped objective.

    Args:
        objectives: The objective of each d.
        spec: The d.
    """

    spec: settings.MatryoshkaSpec

    def __init__(self, objectives: Sequence[Objective], spec: settings.MatryoshkaSpec) -> None:
        super().__init__(spec)
        self.objectives = nn.ModuleList(objectives)
        self.schema = objectives[0].schema

    def compute(self, vectors: Sequence[Tensor], labels: Tensor | None) -> Tensor:
        teacher_vectors = labels if self.schema.label is LabelKind.VECTOR else None
        if teacher_vectors is not None:
            # Truncated vectors of student and teacher have the same length even if the full vectors do not.
            check_dimensions(vectors[0].shape[1], teacher_vectors.shape[1])
        total = vectors[0].new_zeros(())  # scalar
        objectives = cast(Iterable[Objective], self.objectives)
        for objective, dimension in zip(objectives, self.spec.dimensions, strict=True):
            cut = [column[:, :dimension] for column in vectors]  # each (batch, dimension)
            gold = labels if teacher_vectors is None else teacher_vectors[:, :dimension]
            total = total + objective.compute(cut, gold)
        return total


_LOSSES: dict[type[ObjectiveSpec], type[Objective]] = {
    settings.SoftmaxSpec: SoftmaxLoss,
    settings.RegressionSpec: CosineSimilarityLoss,
    settings.TripletSpec: TripletLoss,
    settings.InBatchSpec: MultipleNegativesRankingLoss,
    settings.CoSentSpec: CoSENTLoss,
    settings.VectorDistillationSpec: VectorDistillationLoss,
    settings.MarginDistillationSpec: MarginMSELoss,
}


def objective_schema(spec: ObjectiveSpec) -> ExampleSchema:
    """Return the columns and labels that an objective needs, which are known before the model is opened."""
    return replace(
        _LOSSES[type(spec)].schema,
        score_range=spec.range if isinstance(spec, settings.RegressionSpec) else None,
        classes=spec.classes if isinstance(spec, settings.SoftmaxSpec) else (),
        taught=getattr(spec, "teacher", None) is not None,
    )


def build_objective(spec: ObjectiveSpec, dimensions: int) -> Objective:
    """Build an objective over sentence vectors; heads are initialized with torch's random numbers.

    Args:
        spec: Settings from the recipe.
        dimensions: Length of the sentence vectors.

    Raises:
        RecipeInvalid: a Matryoshka dimension exceeds `dimensions`.
    """
    if spec.matryoshka is None:
        return _build_loss(spec, dimensions)
    longest = max(spec.matryoshka.dimensions)
    if longest > dimensions:
        raise RecipeInvalid(
            f"matryoshka uses the first {longest} dimensions, but the vectors have {dimensions}",
            f"Set matryoshka's dimensions to {dimensions} or less, or give the model a Dense layer: "
            f"dense: {{out_features: {longest}}}.",
        )
    return MatryoshkaLoss([_build_loss(spec, cut) for cut in spec.matryoshka.dimensions], spec.matryoshka)


def _build_loss(spec: ObjectiveSpec, dimensions: int) -> Objective:
    if isinstance(spec, settings.SoftmaxSpec):
        return SoftmaxLoss(spec, dimensions)
    return _LOSSES[type(spec)](spec)
