"""One stage of a run: from read data and a model folder to the folder of a better model."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Literal

import accelerate
import numpy as np
import transformers
from numpy.typing import NDArray

from es_sbert.errors import SourceError
from es_sbert.exporters.staging import staged
from es_sbert.training.arguments import training_arguments
from es_sbert.training.checkpoints import last_complete, remove_incomplete
from es_sbert.training.compiled import compile_transformer
from es_sbert.training.data.batches import batch_count, text_numbers
from es_sbert.training.data.dev import DevData
from es_sbert.training.data.examples import Examples
from es_sbert.training.data.mixing import EpochPlan, Planned
from es_sbert.training.data.sampler import MixedBatchSampler
from es_sbert.training.dev import dev_name, dev_score, triplet_distance
from es_sbert.training.failures import disk_errors_explained
from es_sbert.training.history import History, course
from es_sbert.training.objectives.build import objective_shape
from es_sbert.training.objectives.settings import ObjectiveSpec
from es_sbert.training.open_task import open_task
from es_sbert.training.precision import TrainingPrecision, float32_products
from es_sbert.training.progress import ProgressBar
from es_sbert.training.recipe import ModelSpec, Recipe, Stage
from es_sbert.training.schedule import End, Schedule
from es_sbert.training.trainer import TaskTrainer
from es_sbert.training.workspace import Workspace, note


@dataclass(frozen=True)
class StageData:
    """What a stage is trained and measured on.

    Attributes:
        examples: One entry a data set.
        objectives: The objective of each.
        dev: The dev set, if there is one.
    """

    examples: tuple[Examples, ...]
    objectives: tuple[ObjectiveSpec, ...]
    dev: DevData | None


@dataclass(frozen=True)
class StageResult:
    """How a stage went.

    Attributes:
        name: Of the stage.
        examples: Of all data sets.
        steps: Optimiser steps done.
        dev_name: What the dev score is; None without a dev set.
        start_dev: The dev score of the model that the stage started from; None without a dev set.
        best_dev, best_step: The best dev score and its step; None without a dev set.
        seconds: Wall time of this call (after a resume: since then).
        examples_per_second: Over the steps of this call, measurements and saving included.
        course: Rows of the log.
    """

    name: str
    examples: int
    steps: int
    dev_name: str | None
    start_dev: float | None
    best_dev: float | None
    best_step: int | None
    seconds: float
    examples_per_second: float
    course: list[dict[str, float]]


def train_stage(
    recipe: Recipe,
    stage: Stage,
    start: ModelSpec,
    data: StageData,
    workspace: Workspace,
    device: Literal["cpu", "cuda"],
    precision: TrainingPrecision,
    *,
    resume: bool,
    report: Callable[[str], None],
) -> StageResult:
    """Train one stage and write its best model to `workspace.stage(name)/model`.

    Args:
        recipe: The run's recipe.
        stage: The stage.
        start: The model that it starts from.
        data: Read and checked.
        workspace: Of the run.
        device: What to train on.
        precision: Number formats of the run.
        resume: Go on from the last whole checkpoint, if there is one.
        report: Told a line for every measurement.

    Raises:
        SourceError: pairs that cannot be negatives of each other, where that is all there is.
        TrainingError, ModelError, OutputError: see there; checkpoints that were written whole stay.
    """
    folder = workspace.stage(stage.name)
    state = accelerate.PartialState(cpu=device == "cpu")
    transformers.set_seed(recipe.seed)
    task = open_task(start, stage, data.examples, data.objectives)
    if recipe.compile:
        compile_transformer(task.encoder)
    sampler = batch_sampler(recipe, stage, data, task.lengths, state, report)
    steps_per_epoch = -(-len(sampler) // stage.accumulation)
    if state.is_main_process:
        remove_incomplete(folder)
    state.wait_for_everyone()
    checkpoint = last_complete(folder) if resume else None
    arguments = training_arguments(
        stage, folder, device=device, precision=precision.products, seed=recipe.seed,
        steps_per_epoch=steps_per_epoch, resuming=checkpoint is not None,
    )  # fmt: skip
    name = dev_name(stage.dev) if stage.dev else None
    bar = ProgressBar(stage.name, name, report)
    callbacks = [
        Schedule(steps_per_epoch, stage.checkpoints_per_epoch, measured=stage.dev is not None),
        History(workspace.log(stage.name), title=f"{recipe.name}: {stage.name}", dev_name=name),
        bar,
        End(stage.patience),
    ]
    dev, distance = data.dev, triplet_distance(data.objectives)
    measure = None if dev is None else lambda: dev_score(task.measured(), dev, distance)
    trainer = TaskTrainer(task, data.examples, sampler, stage, arguments, measure, callbacks, compiled=recipe.compile)
    began = time.monotonic()
    done_before = 0 if checkpoint is None else int(checkpoint.name.rpartition("-")[2])
    try:
        with float32_products(precision, device):
            trainer.train(resume_from_checkpoint=None if checkpoint is None else str(checkpoint))
    finally:
        bar.stop()
    seconds = time.monotonic() - began
    steps = trainer.state.global_step
    rows = course(trainer.state.log_history)
    result = StageResult(
        name=stage.name,
        examples=sum(map(len, data.examples)),
        steps=steps,
        dev_name=name,
        start_dev=next((row["dev"] for row in rows if row["step"] == 0 and "dev" in row), None),
        best_dev=trainer.state.best_metric,
        best_step=trainer.state.best_global_step if stage.dev is not None else None,
        seconds=seconds,
        examples_per_second=(steps - done_before) * sampler.examples / steps_per_epoch / seconds,
        course=rows,
    )
    if state.is_main_process:
        # A stage whose model stands there is through and is not looked at again: what is said of it comes first.
        note(workspace.result(stage.name), asdict(result))
        with staged(folder / "model") as place, disk_errors_explained(folder):
            task.save(place, name=recipe.name)
    state.wait_for_everyone()
    return result


def batch_sampler(
    recipe: Recipe,
    stage: Stage,
    data: StageData,
    lengths: Callable[[Examples], NDArray[np.int64]],
    state: accelerate.PartialState,
    report: Callable[[str], None],
) -> MixedBatchSampler:
    """The batches of a stage, of which each process gets its part.

    Args:
        recipe, stage, data: What is trained.
        lengths: Tokens of the examples of a data set (`TrainingTask.lengths`).
        state: Which process this is.
        report: Told where repeated texts make batches smaller than asked for.

    Raises:
        SourceError: every batch of in-batch negatives is one pair.
    """
    planned = [
        Planned(lengths(examples), text_numbers(examples) if objective_shape(objective).distinct else None)
        for examples, objective in zip(data.examples, data.objectives, strict=True)
    ]
    plan = EpochPlan(
        planned, stage.batch, mixing=stage.mixing, epochs=stage.epochs, seed=recipe.seed, smart=stage.smart_batching
    )
    for examples, its, found in zip(data.examples, planned, plan.counts(), strict=True):
        if its.distinct is not None:
            _check_company(examples, stage.batch, found, report)
    return MixedBatchSampler(plan, process=state.process_index, processes=state.num_processes)


def _check_company(examples: Examples, batch: int, batches: int, report: Callable[[str], None]) -> None:
    """Say where repeated texts make batches of in-batch negatives smaller than asked for.

    Raises:
        SourceError: every batch is one pair: no text is there to be told from its positive.
    """
    if len(examples.texts) == 2 and batches == len(examples):
        raise SourceError(
            f"{examples.path}: no two of its {len(examples):,} pairs can stand in one batch, so that there are no "
            f"negatives (pairs of one batch share no text; batch: {batch})",
            "Give pairs with different texts on both sides, hard negatives (the role negative), or a larger batch; "
            "for texts with labels take the objective softmax.",
        )
    if batches > batch_count(len(examples), batch):
        report(
            f"{examples.name}: texts repeat and stand in batches of their own: {batches:,} batches of "
            f"{len(examples) / batches:.1f} pairs on average, with as many negatives, not of {batch}"
        )


def data_names(examples: Sequence[Examples]) -> str:
    """Names and sizes of data sets in one line."""
    return ", ".join(f"{each.name} ({len(each):,})" for each in examples)


def stage_model(folder: Path) -> Path | None:
    """The model of a stage that is through, else None."""
    return folder / "model" if (folder / "model").is_dir() else None
