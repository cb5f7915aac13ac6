"""Training recipes: their settings, and how they are read from YAML files.

A recipe names one model and one or several stages, each with an objective. It is frozen, and unknown settings are
errors. This module does not import torch, so that recipes can be checked without it.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from enum import StrEnum
from importlib import resources
from pathlib import Path
from typing import Annotated, Any, Literal, Self

import yaml
from pydantic import BaseModel, ConfigDict, Field, PositiveFloat, PositiveInt, ValidationError, model_validator

from es_sbert.bundle.modules import Activation, Pooling
from es_sbert.bundle.variants import Variant
from es_sbert.errors import RecipeInvalid, error_summary
from es_sbert.messages import setting


class RecipeSettings(BaseModel):
    """Part of a recipe. It is frozen, and rejects unknown keys and numbers that are not finite."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)


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
    """

    dimensions: tuple[PositiveInt, ...] = Field(min_length=1)

    @model_validator(mode="after")
    def _each_once(self) -> MatryoshkaSpec:
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

    kind: Literal["regression"]
    range: tuple[float, float] = (0.0, 1.0)

    @model_validator(mode="after")
    def _range_fits_cosines(self) -> RegressionSpec:
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

    A margin is the teacher's score of anchor and positive minus that of anchor and negative.

    Attributes:
        teacher: A cross-encoder that scores the pairs; None if the data has the margins (role `score`).
        scale: Factor of the student's margins. Margins of unit vectors are at most 2, those of many cross-encoders 10
            and more.
    """

    kind: Literal["margin-distillation"]
    teacher: str | None = None
    scale: PositiveFloat = 1.0


ObjectiveSpec = Annotated[
    SoftmaxSpec
    | RegressionSpec
    | TripletSpec
    | InBatchSpec
    | CoSentSpec
    | VectorDistillationSpec
    | MarginDistillationSpec,
    Field(discriminator="kind"),
]


class HardNegativesSpec(RecipeSettings):
    """Mine hard negatives for pairs without any, among the positives of all pairs.

    Attributes:
        model: Name, folder or hub id of the sentence encoder that ranks the positives for each anchor.
        count: Negatives per pair. Objectives with one negative have a row for each.
        ranks: First and last rank of the candidates, from 1.
        margin: Minimum difference between the cosine of the positive and that of a negative; closer texts are probably
            relevant too. If too few candidates remain, random positives of other pairs are added. None keeps all
            candidates.
        seed: Seed of the random positives.
    """

    model: str = "all-MiniLM-L6-v2"
    count: PositiveInt = 1
    ranks: tuple[PositiveInt, PositiveInt] = (1, 50)
    margin: float | None = Field(default=0.05, ge=0, le=2)
    seed: int = Field(default=1, ge=0)

    @model_validator(mode="after")
    def _ranks_in_order(self) -> Self:
        if self.ranks[0] > self.ranks[1]:
            raise ValueError(f"ranks {list(self.ranks)} are not in ascending order")
        return self


class SourceSpec(RecipeSettings):
    """A file of rows.

    Attributes:
        path: JSONL, CSV, TSV (each also .gz or .zst), or Parquet. A relative path counts from the data folder of the
            run.
        skip: Skip this many examples at the start.
        limit: Use at most this many.
    """

    path: str
    skip: int = Field(default=0, ge=0)
    limit: PositiveInt | None = None


class DataSpec(SourceSpec):
    """One source of examples.

    Attributes:
        name: Name for messages and the log; the name of the file by default.
        columns: Role of the objective → column of the source. The last role of objectives that repeat it may have a
            list of columns. Labels have the roles `score` or `class`.
        score_range: The lowest and highest gold score of the data; a score outside is an error.
        prompts: Role → name of the model's prompt for the texts of that column.
        objective: Overrides the stage's. Data sets without an objective share the stage's, heads included.
        hard_negatives: Mine negatives for pairs of the objectives in-batch and triplet.
    """

    name: str | None = None
    columns: dict[str, str | tuple[str, ...]]
    score_range: tuple[float, float] | None = None
    prompts: dict[str, str] = Field(default_factory=dict)
    objective: ObjectiveSpec | None = None
    hard_negatives: HardNegativesSpec | None = None

    @property
    def trained_columns(self) -> dict[str, str | tuple[str, ...]]:
        """`columns`, together with those of mined negatives."""
        if self.hard_negatives is None:
            return self.columns
        mined = tuple(f"negative {number}" for number in range(1, self.hard_negatives.count + 1))
        return self.columns | {"negative": mined}


class DevSpec(SourceSpec):
    """Data to measure a model on. It chooses the best checkpoint of a stage.

    Attributes:
        task: `sts`: Spearman's ρ of scores (roles sentence1, sentence2, score); `triplet`: accuracy (anchor, positive,
            negative); `pairs`: mean reciprocal rank of an anchor's first positive among the distinct positives of all
            rows (anchor, positive; an anchor or a positive may occur in several rows); `duplicates`: average precision
            (sentence1, sentence2, class 0 or 1); `vectors`: mean cosine to the vectors of the stage's teacher (text),
            for a stage of vector distillation.
        columns: As in training data.
        prompts: Role → the model's prompt for the texts of that column, as `ingest` and `search` use it. Models without
            prompts leave the texts unchanged.
    """

    task: Literal["sts", "triplet", "pairs", "duplicates", "vectors"] = "sts"
    columns: dict[str, str]
    prompts: dict[str, Literal["query", "document"]] = Field(default_factory=dict)

    @model_validator(mode="after")
    def _prompts_of_columns(self) -> Self:
        if unknown := sorted(self.prompts.keys() - self.columns.keys()):
            raise ValueError(f"prompts has roles that are not in columns: {', '.join(unknown)}")
        if self.prompts and self.task == "vectors":
            raise ValueError("the task vectors uses the prompt of the teacher: set teacher_prompt instead of prompts")
        return self


class StageSpec(RecipeSettings):
    """One pass of training; a run's stages follow each other, each from the best weights of the one before.

    The defaults are the paper's (Reimers and Gurevych 2019, section 3.1).

    Attributes:
        name: Name of the stage, and of its folder and log in `OUTPUT/training`.
        batch: Examples of a batch.
        mini_batch: Embed this many examples at a time and recompute them for the gradients, so that
            `batch` may exceed memory (gradient caching, Gao et al. 2021, arXiv 2101.06983).
        accumulation: Batches whose gradients are averaged before a step.
        warmup: Share of all steps over which the learning rate rises from 0; it then falls linearly to 0.
        checkpoints_per_epoch: Number of evenly spaced checkpoints per epoch, each measured on dev.
        smart_batching: Put examples of similar length into one batch.
    """

    name: str = Field(default="stage", pattern=r"^\w[\w -]*$")
    data: tuple[DataSpec, ...] = Field(min_length=1)
    objective: ObjectiveSpec | None = None
    epochs: PositiveFloat = 1
    batch: PositiveInt = 16
    mini_batch: PositiveInt | None = None
    accumulation: PositiveInt = 1
    learning_rate: PositiveFloat = 2e-5
    warmup: float = Field(default=0.1, ge=0, lt=1)
    weight_decay: float = Field(default=0.0, ge=0)
    max_grad_norm: PositiveFloat = 1.0
    smart_batching: bool = True
    dev: DevSpec | None = None
    checkpoints_per_epoch: PositiveInt = 1

    @model_validator(mode="after")
    def _every_data_set_has_an_objective(self) -> StageSpec:
        without = [data.path for data in self.data if data.objective is None and self.objective is None]
        if without:
            raise ValueError(f"no objective for {', '.join(without)}: set one in the stage or the data set")
        if (
            self.dev is not None
            and self.dev.task == "vectors"
            and not isinstance(self.objective_of(self.data[0]), VectorDistillationSpec)
        ):
            raise ValueError("dev.task vectors needs a teacher: use objective vector-distillation for the first data")
        for data in self.data:
            objective = self.objective_of(data)
            if data.hard_negatives:
                _check_hard_negatives(data, objective)
        return self

    def objective_of(self, data: DataSpec) -> ObjectiveSpec:
        """The objective of one of the stage's data sets: its own, else the stage's."""
        objective = data.objective or self.objective
        assert objective is not None, "the validator has made sure of one"
        return objective


def _check_hard_negatives(data: DataSpec, objective: ObjectiveSpec) -> None:
    """Check that an objective can use mined negatives, and that the data has no column of negatives.

    Raises:
        ValueError: the objective cannot use mined negatives, or the data has a column `negative`.
    """
    if not isinstance(objective, InBatchSpec | TripletSpec) or "negative" in data.columns:
        raise ValueError(
            f"{data.path}: hard_negatives requires the objective in-batch or triplet, and data without a column "
            "negative"
        )


class DenseSpec(RecipeSettings):
    """A Dense layer after the pooling."""

    out_features: PositiveInt
    activation: Activation = Activation.TANH
    bias: bool = True


class ModelSpec(RecipeSettings):
    """The start model of a run.

    Attributes:
        base: Folder, installed name or hub id of a sentence-transformers model, or of a bare transformer.
        pooling: None keeps the base's, mean where it has none.
        dense: A new layer after the pooling instead of the base's; None keeps the base's.
        normalize: Whether vectors have unit length; None keeps the base's, False for a bare transformer.
        max_tokens: None keeps the base's.
        prompts: Prompt name → text, added to the base's.
        dropout: Dropout of the transformer while it is trained; None keeps the base's.
        layers: Number of the base's layers to keep, evenly spaced; None keeps all.
        static: Start from a table of the base's vectors of single tokens (a StaticEmbedding) instead of its network.
    """

    base: str
    pooling: tuple[Pooling, ...] | None = None
    dense: DenseSpec | None = None
    normalize: bool | None = None
    max_tokens: PositiveInt | None = None
    prompts: dict[str, str] = Field(default_factory=dict)
    dropout: float | None = Field(default=None, ge=0, lt=1)
    layers: PositiveInt | None = None
    static: bool = False


class ExportSpec(RecipeSettings):
    """The ONNX export at the end of the run.

    Attributes:
        precisions: Variants to write; empty: none; left out: those for CPUs that run on the machine.
    """

    precisions: tuple[Variant, ...] | None = None


NumberFormat = Literal["fp32", "bf16", "fp16"]


class Recipe(RecipeSettings):
    """A training run.

    Attributes:
        name: Name of the trained model.
        description: Description for the model card.
        model: The start model of a run.
        stages: In order.
        precision: Number format of the transformer's matrix products in training; weights and optimizer stay float32.
            `auto`: bf16 on a card that supports it, fp32 on a CPU.
        seed: Random seed.
        export: The export at the end.
    """

    name: str = Field(pattern=r"^[A-Za-z0-9][\w.-]*$")
    description: str = ""
    model: ModelSpec
    stages: tuple[StageSpec, ...] = Field(min_length=1)
    precision: Literal["auto", NumberFormat] = "auto"
    seed: int = Field(default=42, ge=0)
    export: ExportSpec = ExportSpec()

    @property
    def sources(self) -> tuple[SourceSpec, ...]:
        """The sources of all data."""
        sources = [source for stage in self.stages for source in (*stage.data, stage.dev)]
        return tuple(source for source in sources if source is not None)

    @model_validator(mode="after")
    def _stages_have_different_names(self) -> Recipe:
        names = [stage.name for stage in self.stages]
        if len(set(names)) != len(names):
            raise ValueError(f"stages need different names, not {', '.join(names)}")
        return self


_SHIPPED_RECIPES = resources.files("es_sbert.training") / "recipes"
_REMEDY = "docs/commands/train.md describes every setting; `es-sbert train --list` names recipes to start from."


def shipped_recipes() -> dict[str, str]:
    """Name → description of the recipes that come with es-sbert."""
    names = sorted(
        entry.name.removesuffix(".yaml") for entry in _SHIPPED_RECIPES.iterdir() if entry.name.endswith(".yaml")
    )
    return {name: load_recipe(name).description for name in names}


def load_recipe(name: str, overrides: Mapping[str, str] | None = None) -> Recipe:
    """Read and check a recipe.

    Args:
        name: Path of a YAML file, or the name of a shipped recipe.
        overrides: Dotted path of a setting → its value in YAML, such as `stages.0.batch` → `32`.

    Raises:
        RecipeInvalid: the recipe does not exist or is not valid YAML, or settings are unknown, missing or inconsistent.
    """
    source, text = _read_yaml(name)
    try:
        settings = yaml.load(text, _UniqueKeyLoader)
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        location = f", line {mark.line + 1}" if mark else ""
        problem = getattr(error, "problem", None) or error_summary(error)
        raise RecipeInvalid(f"{source}{location}: {problem}", "Correct the YAML at that line.") from error
    if not isinstance(settings, dict):
        raise RecipeInvalid(f"{source} does not contain settings (key: value)", _REMEDY)
    for path, value in (overrides or {}).items():
        _apply_override(settings, path, value)
    try:
        return Recipe.model_validate(settings)
    except ValidationError as error:
        raise RecipeInvalid(f"{source}: {describe_problems(error)}", _REMEDY) from error


def _read_yaml(name: str) -> tuple[str, str]:
    """Read a recipe. Return its name for messages, and its text."""
    path = Path(name)
    shipped = _SHIPPED_RECIPES / f"{name}.yaml"
    if not path.is_file() and "/" not in name and shipped.is_file():
        return f"recipe {name}", shipped.read_text(encoding="utf-8")
    try:
        return name, path.read_text(encoding="utf-8")
    except FileNotFoundError as error:
        raise RecipeInvalid(
            f"there is no recipe {name!r}", "Use a YAML file, or a name that `es-sbert train --list` shows."
        ).about("recipe", name) from error
    except (OSError, UnicodeDecodeError) as error:
        raise RecipeInvalid(f"{name} cannot be read: {error_summary(error)}", "Use a YAML file in UTF-8.") from error


class _UniqueKeyLoader(yaml.SafeLoader):
    """YAML that rejects duplicate keys: PyYAML would silently keep the last one."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Hashable, Any]:
        seen: set[Any] = set()
        for key, _ in node.value:
            if key.value in seen:
                raise yaml.constructor.ConstructorError(None, None, f"duplicate key {key.value!r}", key.start_mark)
            seen.add(key.value)
        return super().construct_mapping(node, deep)


def _apply_override(settings: dict[str, Any], path: str, value: str) -> None:
    *parents, last = path.split(".")
    container: Any = settings
    try:
        for part in parents:
            container = container[int(part)] if isinstance(container, list) else container.setdefault(part, {})
        container[int(last) if isinstance(container, list) else last] = yaml.safe_load(value)
    except (ValueError, IndexError, TypeError, AttributeError, yaml.YAMLError) as error:
        raise RecipeInvalid(
            f"{setting('overrides', {path: value})} does not fit the recipe: {error_summary(error)}",
            f"Write the path of the setting with dots and list indices: {setting('overrides', {'stages.0.batch': 32})}",
        ).about("overrides", {path: value}) from error


def describe_problems(error: ValidationError) -> str:
    """Format all problems and their settings as one line."""
    problems = []
    places = [entry["loc"] for entry in error.errors()]
    for entry in error.errors():
        loc = entry["loc"]
        if entry["type"] == "too_short" and any(other[: len(loc)] == loc != other for other in places):
            continue  # pydantic counts only valid stages, and also reports that there are too few
        place = ".".join(map(str, entry["loc"])) or "the recipe"
        message = entry["msg"].removeprefix("Value error, ")
        if entry["type"] == "extra_forbidden":
            message = "no such setting"
        problems.append(f"{place}: {message}")
    return "; ".join(problems)


def parse_overrides(pairs: Sequence[str]) -> dict[str, str]:
    """Convert `KEY=VALUE` options to a mapping.

    Raises:
        RecipeInvalid: an option has no `=`, or nothing before it.
    """
    parsed = {}
    for pair in pairs:
        key, equals, value = pair.partition("=")
        if not equals or not key:
            raise RecipeInvalid(
                f"{setting('overrides', pair)} is not KEY=VALUE",
                f"Write for instance {setting('overrides', {'stages.0.batch': 32})}",
            ).about("overrides", pair)
        parsed[key] = value
    return parsed
