"""From a recipe's settings to an objective, or only to what it wants of the data."""

from __future__ import annotations

from es_sbert.training.data.shape import Shape
from es_sbert.training.objectives import settings
from es_sbert.training.objectives.cosent import CoSentLoss
from es_sbert.training.objectives.distillation import MarginMSELoss, VectorDistillationLoss
from es_sbert.training.objectives.in_batch import InBatchNegativesLoss
from es_sbert.training.objectives.matryoshka import MatryoshkaLoss
from es_sbert.training.objectives.objective import Objective
from es_sbert.training.objectives.regression import CosineSimilarityLoss
from es_sbert.training.objectives.settings import ObjectiveSpec
from es_sbert.training.objectives.softmax import SoftmaxLoss
from es_sbert.training.objectives.triplet import TripletLoss

_CLASSES: dict[type[ObjectiveSpec], type[Objective]] = {
    settings.Softmax: SoftmaxLoss,
    settings.Regression: CosineSimilarityLoss,
    settings.Triplet: TripletLoss,
    settings.InBatch: InBatchNegativesLoss,
    settings.CoSent: CoSentLoss,
    settings.VectorDistillation: VectorDistillationLoss,
    settings.MarginDistillation: MarginMSELoss,
}


def objective_shape(spec: ObjectiveSpec) -> Shape:
    """What the objective of a recipe wants of the data: known before the model is opened."""
    kind = _CLASSES[type(spec)]
    return Shape(
        roles=kind.roles,
        repeats_last=kind.repeats_last,
        label=kind.label,
        score_range=spec.range if isinstance(spec, settings.Regression) else kind.score_range,
        distinct=kind.distinct,
        classes=spec.classes if isinstance(spec, settings.Softmax) else (),
        taught=getattr(spec, "teacher", None) is not None,
    )


def build_objective(spec: ObjectiveSpec, dimensions: int) -> Objective:
    """Make the objective of a recipe; weights of heads come from torch's random numbers.

    Args:
        spec: From the recipe.
        dimensions: Of the sentence vectors.

    Raises:
        RecipeInvalid: a Matryoshka dimension exceeds `dimensions`.
    """
    if spec.matryoshka is None:
        return _build(spec, dimensions)
    return MatryoshkaLoss(lambda dimension: _build(spec, dimension), spec.matryoshka, dimensions)


def _build(spec: ObjectiveSpec, dimensions: int) -> Objective:
    match spec:
        case settings.Softmax():
            return SoftmaxLoss(spec, dimensions)
        case settings.Regression():
            return CosineSimilarityLoss(spec)
        case settings.Triplet():
            return TripletLoss(spec)
        case settings.InBatch():
            return InBatchNegativesLoss(spec)
        case settings.CoSent():
            return CoSentLoss(spec)
        case settings.VectorDistillation():
            return VectorDistillationLoss()
        case settings.MarginDistillation():
            return MarginMSELoss()
