"""What a training run is: a recipe of one model and one or several stages, frozen and checked."""

from __future__ import annotations

from enum import StrEnum
from typing import Literal

from pydantic import Field, PositiveFloat, PositiveInt, model_validator

from es_sbert.bundle.model import Activation, Pooling, Precision
from es_sbert.training.objectives.settings import ObjectiveSpec, Regression, Settings


class Kind(StrEnum):
    """What is trained: two texts apart, together, or in between."""

    BI_ENCODER = "bi-encoder"
    CROSS_ENCODER = "cross-encoder"
    POLY_ENCODER = "poly-encoder"


class NeighboursSpec(Settings):
    """Take each text of a data set with one of its nearest, in place of the pairs that stand in the file.

    Attributes:
        model: Says what is near: name, folder or hub id of a sentence encoder.
        among: How many nearest texts the partner is drawn from.
        seed: Of the draw.
    """

    model: str = "all-MiniLM-L6-v2"
    among: PositiveInt = 10
    seed: int = 1


class DataSpec(Settings):
    """One file (or datasets folder) of examples.

    Attributes:
        path: JSONL, CSV, TSV (each also .gz or .zst), Parquet, or a folder written by `datasets`. A relative path
            counts from the data folder of the run.
        name: For messages and the log; the file's name by default.
        columns: Role of the objective → column of the file. The last role of objectives that repeat it may have a
            list of columns. Labels have the roles `score` or `class`.
        score_range: The lowest and highest gold score of the data; a score outside is an error.
        prompts: Role → name of the model's prompt that is put in front of the texts of that column.
        skip: Leave out the first so many examples.
        limit: Take only so many.
        objective: Overrides the stage's. Data sets without one of their own share the stage's, heads included.
        neighbours: Pairs of near texts in place of those of the file; only where a `teacher` scores them.
    """

    path: str
    name: str | None = None
    columns: dict[str, str | tuple[str, ...]]
    score_range: tuple[float, float] | None = None
    prompts: dict[str, str] = Field(default_factory=dict)
    skip: int = Field(0, ge=0)
    limit: PositiveInt | None = None
    objective: ObjectiveSpec | None = None
    neighbours: NeighboursSpec | None = None


class DevSpec(Settings):
    """What a model is measured on: a stage's dev set chooses the best checkpoint, a recipe's test set nothing.

    Attributes:
        task: `sts`: Spearman's ρ of scores (roles sentence1, sentence2, score); `triplet`: accuracy (anchor,
            positive, negative); `pairs`: reciprocal rank of each anchor's positive among all positives
            (anchor, positive); `duplicates`: average precision (sentence1, sentence2, class 0 or 1).
        path, columns: As for training data.
        skip: Leave out the first so many examples.
        limit: Take only so many.
    """

    task: Literal["sts", "triplet", "pairs", "duplicates"] = "sts"
    path: str
    columns: dict[str, str]
    skip: int = Field(0, ge=0)
    limit: PositiveInt | None = None


class Lora(Settings):
    """Train low-rank updates of the transformer's matrices instead of the matrices (Hu et al. 2021, arXiv 2106.09685).

    The updates are merged into the weights at the end of the run.
    """

    rank: PositiveInt = 16
    alpha: PositiveInt = 32
    dropout: float = Field(0.05, ge=0, lt=1)
    targets: tuple[str, ...] = ()  # names of the modules; empty: every linear layer of the transformer


class Stage(Settings):
    """One pass of training; a run's stages follow each other, each from the best weights of the one before.

    The defaults are the paper's (Reimers and Gurevych 2019, section 3.1).

    Attributes:
        name: Also of the stage's folder and log in `OUTPUT/training`.
        batch: Examples of one optimiser step's joint batch, over all processes, before accumulation.
        mini_batch: Make the vectors of so many examples at a time and recompute them for the gradients, so that
            `batch` may exceed memory (gradient caching, Gao et al. 2021, arXiv 2101.06983).
        accumulation: Joint batches whose gradients are averaged before a step.
        mixing: `proportional`: every example once an epoch, batches of all data sets in random order;
            `round-robin`: one batch of each in turn, until the shortest is through.
        warmup: Share of all steps over which the learning rate rises from 0; it then falls linearly to 0.
        checkpoints_per_epoch: How often an epoch is measured on dev and saved, evenly.
        patience: End when so many measurements in a row brought nothing better on dev; None: never.
        smart_batching: Put examples of similar length into one batch.
    """

    name: str = Field("stage", pattern=r"^\w[\w -]*$")
    data: tuple[DataSpec, ...] = Field(min_length=1)
    objective: ObjectiveSpec | None = None
    mixing: Literal["proportional", "round-robin"] = "proportional"
    epochs: PositiveFloat = 1
    batch: PositiveInt = 16
    mini_batch: PositiveInt | None = None
    accumulation: PositiveInt = 1
    learning_rate: PositiveFloat = 2e-5
    warmup: float = Field(0.1, ge=0, lt=1)
    weight_decay: float = Field(0.0, ge=0)
    max_grad_norm: PositiveFloat = 1.0
    smart_batching: bool = True
    gradient_checkpointing: bool = False
    dev: DevSpec | None = None
    checkpoints_per_epoch: PositiveInt = 1
    patience: PositiveInt | None = None

    @model_validator(mode="after")
    def _every_data_set_has_an_objective(self) -> Stage:
        without = [data.path for data in self.data if data.objective is None and self.objective is None]
        if without:
            raise ValueError(f"no objective for {', '.join(without)}: give the stage or the data set one")
        if self.patience is not None and self.dev is None:
            raise ValueError("patience needs dev: nothing says which checkpoint is better")
        for data in self.data:
            objective = self.objective_of(data)
            if data.neighbours and not (isinstance(objective, Regression) and objective.teacher is not None):
                raise ValueError(f"{data.path}: nobody has scored neighbours: use objective regression with a teacher")
        return self

    def objective_of(self, data: DataSpec) -> ObjectiveSpec:
        """The objective of one of the stage's data sets: its own, else the stage's."""
        objective = data.objective or self.objective
        assert objective is not None, "the validator has made sure of one"
        return objective


class DenseSpec(Settings):
    """A Dense layer behind the pooling."""

    out_features: PositiveInt
    activation: Activation = Activation.TANH
    bias: bool = True


class ModelSpec(Settings):
    """What the run starts from.

    Attributes:
        base: Folder, installed name or hub id of a sentence-transformers model, or of a bare transformer.
        kind: What is trained.
        pooling: For a bi-encoder; None keeps the base's, mean where it has none.
        dense: A new layer behind the pooling, in place of the base's; None keeps the base's.
        normalize: Whether vectors have unit length; None keeps the base's, False for a bare transformer.
        max_tokens: None keeps the base's.
        prompts: Prompt name → text, added to the base's.
        codes: For a poly-encoder: how many vectors stand for the first text.
        lora: Train low-rank updates only.
    """

    base: str
    kind: Kind = Kind.BI_ENCODER
    pooling: tuple[Pooling, ...] | None = None
    dense: DenseSpec | None = None
    normalize: bool | None = None
    max_tokens: PositiveInt | None = None
    prompts: dict[str, str] = Field(default_factory=dict)
    codes: PositiveInt = 64
    lora: Lora | None = None


class ExportSpec(Settings):
    """The ONNX export at the end of the run.

    Attributes:
        precisions: Variants to write; empty: none.
        sts: File of gold pairs (sentence1, sentence2, score) on which variants are compared as well.
    """

    precisions: tuple[Precision, ...] = (Precision.FP32, Precision.INT8)
    sts: str | None = None


class Recipe(Settings):
    """A training run.

    Attributes:
        name: Name of the trained model.
        description: For the model card.
        model: What the run starts from.
        stages: In order.
        precision: Number format of the transformer's products while training; weights and optimiser stay float32.
            `auto`: bf16 on a card that has it, fp32 on a CPU.
        compile: Compile the transformer with torch.compile before its first step.
        seed: Of everything random.
        test: Data to measure the base model and the trained model on, at the end. No checkpoint is chosen by it.
        export: What is written at the end.
    """

    name: str = Field(pattern=r"^[A-Za-z0-9][\w.-]*$")
    description: str = ""
    model: ModelSpec
    stages: tuple[Stage, ...] = Field(min_length=1)
    precision: Literal["auto", "fp32", "bf16", "fp16"] = "auto"
    compile: bool = False
    seed: int = Field(42, ge=0)
    test: DevSpec | None = None
    export: ExportSpec = ExportSpec()

    @model_validator(mode="after")
    def _stages_have_different_names(self) -> Recipe:
        names = [stage.name for stage in self.stages]
        if len(set(names)) != len(names):
            raise ValueError(f"stages need different names, not {', '.join(names)}")
        return self
