"""Settings of the objectives in a recipe. No torch."""

from __future__ import annotations

from collections.abc import Sequence
from enum import StrEnum
from typing import Annotated, Any, ClassVar, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, PositiveFloat, PositiveInt, model_validator

SENTENCE_TRANSFORMERS = "train with sentence-transformers: es-sbert reads the model folder that it saves"
"""What to do instead of training that es-sbert no longer has."""


class RecipeSettings(BaseModel):
    """Part of a recipe. It is frozen, and rejects unknown keys and numbers that are not finite."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    # Settings of earlier versions, their defaults there, and what they were, with what to do instead. Interrupted runs
    # have recorded the defaults.
    removed: ClassVar[tuple[tuple[str, object, str], ...]] = ()

    @model_validator(mode="before")
    @classmethod
    def _without_removed_settings(cls, given: Any) -> Any:
        if not isinstance(given, dict):
            return given
        for name, default, what in cls.removed:
            if given.get(name, default) != default:
                raise ValueError(f"es-sbert no longer has {name} ({what})")
        return {key: value for key, value in given.items() if key not in {name for name, *_ in cls.removed}}


def _check_unique(setting: str, values: Sequence[object]) -> None:
    if len(set(values)) != len(values):
        raise ValueError(f"{setting} has a repeated value: {', '.join(map(str, values))}")


class PairFeature(StrEnum):
    """A feature of a pair's sentence vectors u and v for the softmax objective."""

    U = "u"
    V = "v"
    DIFFERENCE = "|u-v|"
    PRODUCT = "u*v"


class TripletDistance(StrEnum):
    """Distance of the triplet objective."""

    EUCLIDEAN = "euclidean"
    MANHATTAN = "manhattan"
    COSINE = "cosine"


class MatryoshkaSpec(RecipeSettings):
    """Apply the objective to the first d values of each vector as well (Kusupati et al. 2022, arXiv 2205.13147).

    Attributes:
        dimensions: The d, each at most the model's dimensions; the largest is usually the whole vector.
        weights: Weight of the loss for each dimension; 1 by default.
    """

    dimensions: tuple[PositiveInt, ...] = Field(min_length=1)
    weights: tuple[PositiveFloat, ...] | None = None

    @model_validator(mode="after")
    def _as_many_weights(self) -> MatryoshkaSpec:
        if self.weights is not None and len(self.weights) != len(self.dimensions):
            raise ValueError(f"{len(self.weights)} weights for {len(self.dimensions)} dimensions")
        _check_unique("dimensions", self.dimensions)
        return self


class _ObjectiveSpec(RecipeSettings):
    matryoshka: MatryoshkaSpec | None = None


class SoftmaxSpec(_ObjectiveSpec):
    """Cross-entropy of a softmax classifier over features of the pair (the paper's classification objective)."""

    kind: Literal["softmax"]
    features: tuple[PairFeature, ...] = Field((PairFeature.U, PairFeature.V, PairFeature.DIFFERENCE), min_length=1)
    classes: tuple[str, ...] = Field(min_length=2)  # the labels of the data, in the order of their numbers

    @model_validator(mode="after")
    def _each_once(self) -> SoftmaxSpec:
        _check_unique("features", self.features)
        _check_unique("classes", self.classes)
        return self


class RegressionSpec(_ObjectiveSpec):
    """Mean squared error between cos(u, v) and the gold score (the paper's regression objective).

    Attributes:
        range: The range to which the data's `score_range` is mapped.
    """

    removed = (("teacher", None, f"Augmented SBERT; {SENTENCE_TRANSFORMERS}"),)

    kind: Literal["regression"]
    range: tuple[float, float] = (0.0, 1.0)

    @model_validator(mode="after")
    def _within_reach_of_a_cosine(self) -> RegressionSpec:
        low, high = self.range
        if not -1 <= low < high <= 1:
            raise ValueError(f"range [{low:g}, {high:g}] must ascend and lie within [-1, 1], the range of cosines")
        return self


class TripletSpec(_ObjectiveSpec):
    """max(d(a, p) − d(a, n) + margin, 0) (the paper's triplet objective)."""

    kind: Literal["triplet"]
    distance: TripletDistance = TripletDistance.EUCLIDEAN
    margin: PositiveFloat = 1.0


class InBatchSpec(_ObjectiveSpec):
    """Cross-entropy over cosines to all positives and hard negatives of the batch (Henderson et al. 2017).

    Attributes:
        scale: Factor of the cosines: the inverse of the temperature.
        symmetric: Whether to compute the loss from the positives to the anchors as well.
    """

    kind: Literal["in-batch"]
    scale: PositiveFloat = 20.0
    symmetric: bool = False


class CoSentSpec(_ObjectiveSpec):
    """log(1 + Σ exp(scale · (cos(i) − cos(j)))) over pairs i with a lower gold score than j (Su 2022)."""

    kind: Literal["cosent"]
    scale: PositiveFloat = 20.0


class VectorDistillationSpec(_ObjectiveSpec):
    """Mean squared error to a teacher's vectors, also across languages (Reimers and Gurevych 2020, arXiv 2004.09813).

    Attributes:
        teacher: Model that embeds the first text column; the vectors of all columns are trained toward its vectors.
        teacher_prompt: The teacher's prompt for the texts that it embeds.
    """

    kind: Literal["vector-distillation"]
    teacher: str
    teacher_prompt: Literal["query", "document"] | None = None


class MarginDistillationSpec(_ObjectiveSpec):
    """Mean squared error between score margins of student and teacher (Hofstätter et al. 2020, arXiv 2010.02666).

    Attributes:
        teacher: A cross-encoder that scores the pairs; None if the data has the margins (role `score`).
        scale: Factor of the student's margins. Margins of unit vectors are at most 2, those of many cross-encoders 10
            and more.
    """

    kind: Literal["margin-distillation"]
    teacher: str | None = None
    scale: PositiveFloat = 1.0


def _refuse_denoising(given: Any) -> Any:
    if isinstance(given, dict) and given.get("kind") == "denoising":
        raise ValueError(f"es-sbert no longer has the objective denoising (TSDAE); {SENTENCE_TRANSFORMERS}")
    return given


ObjectiveSpec = Annotated[
    SoftmaxSpec
    | RegressionSpec
    | TripletSpec
    | InBatchSpec
    | CoSentSpec
    | VectorDistillationSpec
    | MarginDistillationSpec,
    Field(discriminator="kind"),
    BeforeValidator(_refuse_denoising),
]
