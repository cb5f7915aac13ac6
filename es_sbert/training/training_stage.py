"""Train one stage: from its data and a start model to the model with the best dev score."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Literal

import accelerate
import numpy as np
import transformers
from numpy.typing import NDArray
from transformers import TrainerCallback, TrainerState, TrainingArguments

from es_sbert.errors import SourceError
from es_sbert.filesystem import staged_folder
from es_sbert.messages import pluralize
from es_sbert.training.batch_sampler import EpochPlan, MixedBatchSampler, PlannedDataset, batch_count, number_texts
from es_sbert.training.bi_encoder_task import open_task
from es_sbert.training.losses import objective_schema
from es_sbert.training.recipe import ModelSpec, Recipe, StageSpec
from es_sbert.training.run_folder import RunFolder, last_complete_checkpoint, remove_checkpoints, write_json
from es_sbert.training.trainer import (
    MetricsLogCallback,
    ProgressBarCallback,
    StageSchedule,
    TaskTrainer,
    dev_metric_name,
    metrics_history,
)
from es_sbert.training.training_device import TrainingPrecision, float32_matmul_precision
from es_sbert.training.training_errors import translate_disk_errors
from es_sbert.training.training_examples import Examples, StageData

# Approximate number of log rows of one run.
_LOG_ROWS = 200

# Minimum steps between two log rows. A row makes the host wait for a GPU; on a CPU it costs nothing.
_MIN_LOG_STEPS = {"cpu": 1, "cuda": 10}

# `StageSchedule` decides when to evaluate and save: it knows where epochs end.
_DISABLED = 10**9


def log_interval(steps: float, device: Literal["cpu", "cuda"]) -> int:
    """Steps between two log rows of a run of `steps` steps."""
    return max(_MIN_LOG_STEPS[device], round(steps / _LOG_ROWS))


@dataclass(frozen=True)
class StageResult:
    """Result of a stage.

    Attributes:
        name: Name of the stage.
        examples: Examples of all data sets.
        steps: Optimizer steps.
        dev_name: Name of the dev metric; None without a dev set.
        start_dev: Dev score of the start model; None without a dev set.
        best_dev, best_step: Best dev score and its step; None without a dev set.
        seconds: Wall time of this call (after a resume: since then).
        examples_per_second: Throughput over the steps of this call, including evaluation and saving.
        course: Log rows, see `metrics_history`.
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


@dataclass(frozen=True)
class RunSettings:
    """The settings that all stages of a run share.

    Attributes:
        recipe: The recipe.
        folder: Folder of the run.
        device: Device to train on.
        precision: Number formats.
        resume: Whether to resume from the last complete checkpoint, if there is one.
        report: Called with progress messages.
    """

    recipe: Recipe
    folder: RunFolder
    device: Literal["cpu", "cuda"]
    precision: TrainingPrecision
    resume: bool
    report: Callable[[str], None]


class OneGpuArguments(TrainingArguments):
    """Arguments of a process that uses one GPU, even if there are several; torchrun starts a process for each.

    On several GPUs, one process would copy the network to each of them at every step.
    """

    @property
    def n_gpu(self) -> int:
        """The GPUs of this process."""
        gpus: int = super().n_gpu
        return min(1, gpus)


class StageTraining:
    """Trains one stage and writes its best model to `folder.stage(name)/model`.

    Args:
        run: Settings of the run.
        stage: The stage.
        data: Its data, read and checked.
    """

    def __init__(self, run: RunSettings, stage: StageSpec, data: StageData) -> None:
        self.run = run
        self.stage = stage
        self.data = data
        self.folder = run.folder.stage(stage.name)
        self.dev_metric = dev_metric_name(stage.dev) if stage.dev else None
        self.process = accelerate.PartialState(cpu=run.device == "cpu")

    def train(self, start: ModelSpec) -> StageResult:
        """Train from the model `start`.

        Raises:
            SourceError: no batch of in-batch negatives can hold two pairs.
            TrainingError, ModelError, OutputError: training failed. Complete checkpoints are kept.
        """
        transformers.set_seed(self.run.recipe.seed)
        task = open_task(start, self.stage, self.data.examples, self.data.objectives)
        sampler = build_batch_sampler(
            self.run.recipe, self.stage, self.data, task.lengths, self.process, self.run.report
        )
        checkpoint = self._last_checkpoint()
        steps_per_epoch = -(-len(sampler) // self.stage.accumulation)
        bar = ProgressBarCallback(self.stage.name, self.dev_metric, self.run.report)
        callbacks: list[TrainerCallback] = [
            StageSchedule(self.stage, steps_per_epoch),
            MetricsLogCallback(self.run.folder.log(self.stage.name)),
            bar,
        ]
        arguments = self._arguments(steps_per_epoch, resuming=checkpoint is not None)
        trainer = TaskTrainer(task, self.data, sampler, self.stage, arguments, callbacks)
        began = time.monotonic()
        try:
            with float32_matmul_precision(self.run.precision, self.run.device):
                trainer.train(resume_from_checkpoint=None if checkpoint is None else str(checkpoint))
        finally:
            bar.stop()
        seconds = time.monotonic() - began
        first_step = 0 if checkpoint is None else int(checkpoint.name.rpartition("-")[2])
        examples = (trainer.state.global_step - first_step) * (sampler.examples / steps_per_epoch)
        result = self._result(trainer.state, seconds, examples / seconds)
        if self.process.is_main_process:
            # Write the result before the model: a stage with a model counts as finished and is skipped on resume.
            write_json(self.run.folder.result(self.stage.name), asdict(result))
            with staged_folder(self.folder / "model") as model_folder, translate_disk_errors(self.folder):
                task.save(model_folder, name=self.run.recipe.name)
        self.process.wait_for_everyone()
        return result

    def _last_checkpoint(self) -> Path | None:
        if self.process.is_main_process:
            remove_checkpoints(self.folder, keep_complete=True)
        self.process.wait_for_everyone()
        return last_complete_checkpoint(self.folder) if self.run.resume else None

    def _arguments(self, steps_per_epoch: int, *, resuming: bool) -> TrainingArguments:
        run, stage, measured = self.run, self.stage, self.stage.dev is not None
        return OneGpuArguments(
            output_dir=str(self.folder),
            num_train_epochs=stage.epochs,
            per_device_train_batch_size=stage.batch,
            gradient_accumulation_steps=stage.accumulation,
            learning_rate=stage.learning_rate,
            lr_scheduler_type="linear",
            warmup_steps=stage.warmup,
            weight_decay=stage.weight_decay,
            max_grad_norm=stage.max_grad_norm,
            bf16=run.precision.products == "bf16",
            fp16=run.precision.products == "fp16",
            seed=run.recipe.seed,
            use_cpu=run.device == "cpu",
            eval_strategy="steps" if measured else "no",
            eval_steps=_DISABLED if measured else None,
            save_strategy="steps",
            save_steps=_DISABLED,
            load_best_model_at_end=measured,
            metric_for_best_model="dev" if measured else None,
            greater_is_better=True if measured else None,
            # The log row of step 0: the score of the start model.
            eval_on_start=measured and not resuming,
            logging_steps=log_interval(steps_per_epoch * stage.epochs, run.device),
            logging_nan_inf_filter=False,
            report_to="none",
            disable_tqdm=True,
            # A head without gradient occurs only if data sets have different objectives.
            ddp_find_unused_parameters=any(data.objective is not None for data in stage.data),
            # A transformer's buffers are constants, the same in every process.
            ddp_broadcast_buffers=False,
            remove_unused_columns=False,
            dataloader_pin_memory=run.device == "cuda",
        )

    def _result(self, state: TrainerState, seconds: float, examples_per_second: float) -> StageResult:
        history = metrics_history(state.log_history)
        return StageResult(
            name=self.stage.name,
            examples=sum(map(len, self.data.examples)),
            steps=state.global_step,
            dev_name=self.dev_metric,
            start_dev=next((row["dev"] for row in history if row["step"] == 0 and "dev" in row), None),
            best_dev=state.best_metric,
            best_step=state.best_global_step if self.stage.dev is not None else None,
            seconds=seconds,
            examples_per_second=examples_per_second,
            course=history,
        )


def build_batch_sampler(
    recipe: Recipe,
    stage: StageSpec,
    data: StageData,
    lengths: Callable[[Examples], NDArray[np.int64]],
    state: accelerate.PartialState,
    report: Callable[[str], None],
) -> MixedBatchSampler:
    """Plan the batches of a stage; each process gets its part of every batch.

    Args:
        recipe, stage, data: The recipe, the stage and its data.
        lengths: Token counts of the examples of a data set (`BiEncoderTask.lengths`).
        state: State of this process.
        report: Called if repeated texts make batches smaller than `stage.batch`.

    Raises:
        SourceError: no batch of in-batch negatives can hold two pairs.
    """
    planned = [
        PlannedDataset(lengths(examples), number_texts(examples) if objective_schema(objective).distinct else None)
        for examples, objective in zip(data.examples, data.objectives, strict=True)
    ]
    plan = EpochPlan(planned, stage.batch, epochs=stage.epochs, seed=recipe.seed, smart=stage.smart_batching)
    for examples, dataset, batches in zip(data.examples, planned, plan.counts(), strict=True):
        if dataset.distinct is not None:
            _check_batch_negatives(examples, stage.batch, batches, report)
    return MixedBatchSampler(plan, process=state.process_index, processes=state.num_processes)


def _check_batch_negatives(examples: Examples, batch: int, batches: int, report: Callable[[str], None]) -> None:
    """Report if repeated texts make batches of in-batch negatives smaller than `batch`.

    Raises:
        SourceError: every batch would hold a single pair.
    """
    if len(examples.texts) == 2 and batches == len(examples):
        raise SourceError(
            f"{examples.path}: pairs that share a text are never in the same batch, so each batch would hold only "
            f"one of the {pluralize(len(examples), 'pair')} and have no in-batch negatives (batch: {batch})",
            "Add pairs with different texts on both sides, add hard negatives (the role negative), or raise batch. "
            "For texts with class labels use the objective softmax.",
        )
    if batches > batch_count(len(examples), batch):
        report(
            f"{examples.name}: repeated texts go into separate batches: {pluralize(batches, 'batch', 'batches')} of "
            f"{len(examples) / batches:.1f} pairs on average instead of {batch}, and accordingly fewer negatives"
        )
