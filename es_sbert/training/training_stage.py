"""Train one stage: from its data and a start model to the best model on its dev set."""

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
from transformers import TrainingArguments

from es_sbert.errors import SourceError
from es_sbert.exporters.export import staged_folder
from es_sbert.training.callbacks import (
    CheckpointSchedule,
    MetricsLogCallback,
    ProgressBarCallback,
    ResumableEarlyStopping,
    course,
)
from es_sbert.training.data.epoch_plan import EpochPlan, PlannedDataset, batch_count, number_texts
from es_sbert.training.data.examples import DevData, Examples
from es_sbert.training.data.sampler import MixedBatchSampler
from es_sbert.training.objectives.losses import objective_schema
from es_sbert.training.objectives.settings import ObjectiveSpec
from es_sbert.training.open_task import open_task
from es_sbert.training.recipe import ModelSpec, Recipe, StageSpec
from es_sbert.training.run_folder import RunFolder, last_complete_checkpoint, remove_incomplete_checkpoints, write_json
from es_sbert.training.trainer import TaskTrainer, compile_transformer, dev_name, dev_score, triplet_distance
from es_sbert.training.training_device import NumberFormat, TrainingPrecision, float32_matmul_precision
from es_sbert.training.training_errors import translate_disk_errors

# Rows of the log of one run, about.
_LOG_ROWS = 200

# Steps between two of them at least. A row makes the host wait for a GPU; on a CPU it costs nothing.
_MIN_LOG_STEPS = {"cpu": 1, "cuda": 10}

# When to measure and save is decided by `es_sbert.training.callbacks`, which knows where epochs end.
_DISABLED = 10**9


def log_interval(steps: float, device: Literal["cpu", "cuda"]) -> int:
    """Steps between two rows of the log of a run of so many steps."""
    return max(_MIN_LOG_STEPS[device], round(steps / _LOG_ROWS))


def training_arguments(
    stage: StageSpec,
    folder: Path,
    *,
    device: Literal["cpu", "cuda"],
    precision: NumberFormat,
    seed: int,
    steps_per_epoch: int,
    resuming: bool,
) -> TrainingArguments:
    """Arguments of one stage.

    Args:
        stage: The stage.
        folder: Where checkpoints go.
        device: What to run on; several CUDA devices only through torchrun.
        precision: Number format of the transformer's products.
        seed: Of everything random.
        steps_per_epoch: Optimiser steps of one epoch.
        resuming: Whether the run goes on from a checkpoint.
    """
    measured = stage.dev is not None
    arguments = TrainingArguments(
        output_dir=str(folder),
        num_train_epochs=stage.epochs,
        per_device_train_batch_size=stage.batch,
        gradient_accumulation_steps=stage.accumulation,
        learning_rate=stage.learning_rate,
        lr_scheduler_type="linear",
        warmup_steps=stage.warmup,
        weight_decay=stage.weight_decay,
        max_grad_norm=stage.max_grad_norm,
        bf16=precision == "bf16",
        fp16=precision == "fp16",
        seed=seed,
        use_cpu=device == "cpu",
        eval_strategy="steps" if measured else "no",
        eval_steps=_DISABLED if measured else None,
        save_strategy="steps",
        save_steps=_DISABLED,
        load_best_model_at_end=measured,
        metric_for_best_model="dev" if measured else None,
        greater_is_better=True if measured else None,
        # The row of step 0: what training started from.
        eval_on_start=measured and not resuming,
        logging_steps=log_interval(steps_per_epoch * stage.epochs, device),
        logging_nan_inf_filter=False,
        report_to="none",
        disable_tqdm=True,
        # Only heads that a batch does not use get no gradient, and only where data sets have different objectives.
        ddp_find_unused_parameters=any(data.objective is not None for data in stage.data),
        # A transformer's buffers are constants, the same in every process.
        ddp_broadcast_buffers=False,
        remove_unused_columns=False,
        dataloader_pin_memory=device == "cuda",
    )
    if arguments.n_gpu > 1:
        # One process on several cards would copy the network to each at every step; torchrun does it properly.
        arguments._n_gpu = 1
    return arguments


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
    stage: StageSpec,
    start: ModelSpec,
    data: StageData,
    workspace: RunFolder,
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
    sampler = build_batch_sampler(recipe, stage, data, task.lengths, state, report)
    steps_per_epoch = -(-len(sampler) // stage.accumulation)
    if state.is_main_process:
        remove_incomplete_checkpoints(folder)
    state.wait_for_everyone()
    checkpoint = last_complete_checkpoint(folder) if resume else None
    arguments = training_arguments(
        stage,
        folder,
        device=device,
        precision=precision.products,
        seed=recipe.seed,
        steps_per_epoch=steps_per_epoch,
        resuming=checkpoint is not None,
    )
    name = dev_name(stage.dev) if stage.dev else None
    bar = ProgressBarCallback(stage.name, name, report)
    callbacks = [
        CheckpointSchedule(steps_per_epoch, stage.checkpoints_per_epoch, measured=stage.dev is not None),
        MetricsLogCallback(workspace.log(stage.name), title=f"{recipe.name}: {stage.name}", dev_name=name),
        bar,
        ResumableEarlyStopping(stage.patience),
    ]
    dev, distance = data.dev, triplet_distance(data.objectives)
    measure = None if dev is None else lambda: dev_score(task.measured(), dev, distance)
    trainer = TaskTrainer(task, data.examples, sampler, stage, arguments, measure, callbacks, compiled=recipe.compile)
    began = time.monotonic()
    done_before = 0 if checkpoint is None else int(checkpoint.name.rpartition("-")[2])
    try:
        with float32_matmul_precision(precision, device):
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
        write_json(workspace.result(stage.name), asdict(result))
        with staged_folder(folder / "model") as place, translate_disk_errors(folder):
            task.save(place, name=recipe.name)
    state.wait_for_everyone()
    return result


def build_batch_sampler(
    recipe: Recipe,
    stage: StageSpec,
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
        PlannedDataset(lengths(examples), number_texts(examples) if objective_schema(objective).distinct else None)
        for examples, objective in zip(data.examples, data.objectives, strict=True)
    ]
    plan = EpochPlan(
        planned, stage.batch, mixing=stage.mixing, epochs=stage.epochs, seed=recipe.seed, smart=stage.smart_batching
    )
    for examples, its, found in zip(data.examples, planned, plan.counts(), strict=True):
        if its.distinct is not None:
            _check_negatives(examples, stage.batch, found, report)
    return MixedBatchSampler(plan, process=state.process_index, processes=state.num_processes)


def _check_negatives(examples: Examples, batch: int, batches: int, report: Callable[[str], None]) -> None:
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


def describe_data(examples: Sequence[Examples]) -> str:
    """Names and sizes of data sets in one line."""
    return ", ".join(f"{each.name} ({len(each):,})" for each in examples)


def finished_stage_model(folder: Path) -> Path | None:
    """The model of a stage that is through, else None."""
    return folder / "model" if (folder / "model").is_dir() else None
