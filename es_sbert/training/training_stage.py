"""Train one stage: from its data and a start model to the model with the best dev score; device and precision."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from typing import Literal

import numpy as np
import torch
import transformers
from numpy.typing import NDArray
from transformers import TrainingArguments

from es_sbert.errors import DeviceError, SourceError
from es_sbert.filesystem import staged_folder
from es_sbert.messages import pluralize, setting
from es_sbert.training.batch_sampler import MixedBatchSampler, PlannedDataset, batch_count, number_texts
from es_sbert.training.bi_encoder_task import open_task
from es_sbert.training.losses import objective_schema
from es_sbert.training.recipe import ModelSpec, NumberFormat, Recipe, StageSpec
from es_sbert.training.run_folder import RunFolder, last_complete_checkpoint, remove_checkpoints, write_json
from es_sbert.training.trainer import (
    METRIC_NAMES,
    MetricsLogCallback,
    ProgressBarCallback,
    StageSchedule,
    TaskTrainer,
    metrics_history,
)
from es_sbert.training.training_errors import translate_disk_errors
from es_sbert.training.training_examples import Examples, StageData

# Approximate number of log rows of one run.
_LOG_ROWS = 200

# Minimum steps between two log rows. A row makes the host wait for a GPU; on a CPU it costs nothing.
_MIN_LOG_STEPS = {"cpu": 1, "cuda": 10}

# `StageSchedule` decides when to evaluate and save: it knows where epochs end.
_DISABLED = 10**9


def choose_training_device(name: str) -> Literal["cpu", "cuda"]:
    """Choose the device to train on.

    Raises:
        DeviceError: the name is unknown, or is `cuda` but torch cannot use CUDA.
    """
    if name not in ("auto", "cpu", "cuda"):
        raise DeviceError(
            f"training runs on cpu or cuda, not on {name!r}",
            "To choose a card, set CUDA_VISIBLE_DEVICES.",
        ).about("device", name)
    if name == "cuda" and not torch.cuda.is_available():
        raise DeviceError(
            "torch cannot use CUDA here",
            f"Install torch for your CUDA version, or leave {setting('device', 'cuda')} out.",
        ).about("device", name)
    return "cuda" if name != "cpu" and torch.cuda.is_available() else "cpu"


@dataclass(frozen=True)
class TrainingPrecision:
    """Number formats of a run; weights and optimizer stay float32.

    Attributes:
        products: Number format of the transformer's matrix products (autocast).
        tf32: Whether products that stay in float32 (the objective, Dense layers, all of them with `products` fp32) are
            computed in TF32, which keeps 10 bits of 23. Cards before compute capability 8.0 do not have it.
    """

    products: NumberFormat
    tf32: bool

    def __str__(self) -> str:
        if not self.tf32:
            return self.products
        return "TF32" if self.products == "fp32" else f"{self.products}, TF32 for the rest"


def choose_training_precision(
    requested: Literal["auto", "fp32", "bf16", "fp16"], device: Literal["cpu", "cuda"], *, has_bf16: bool
) -> TrainingPrecision:
    """Choose the number formats of a run.

    `auto` is bf16 on a card that computes in it and TF32 on one that does not, as bf16 has the range of float32 and
    needs no loss scaling; on a CPU it is fp32. An explicit precision is kept: fp32 is IEEE float32
    throughout, without TF32.

    Args:
        requested: Precision of the recipe.
        device: Device of the run.
        has_bf16: Whether the GPU has native bf16; False on a CPU.

    Raises:
        DeviceError: fp16 is requested on a CPU.
    """
    if device == "cpu" and requested == "fp16":  # transformers would silently train in fp32
        raise DeviceError(
            "training in fp16 requires a CUDA device", "Set precision: bf16 or fp32, or train on a CUDA device."
        ).about("precision", requested)
    best: NumberFormat = "bf16" if device == "cuda" and has_bf16 else "fp32"
    return TrainingPrecision(best if requested == "auto" else requested, tf32=device == "cuda" and requested != "fp32")


def has_native_bf16() -> bool:
    """Whether the current card computes bf16 natively; torch emulates it on others, slower than fp32."""
    return bool(torch.cuda.is_available() and torch.cuda.is_bf16_supported(including_emulation=False))


@contextmanager
def float32_matmul_precision(precision: TrainingPrecision, device: Literal["cpu", "cuda"]) -> Iterator[None]:
    """Set whether float32 products on a card use TF32 inside the block; torch's setting is restored afterwards.

    A CPU, and a program that has set torch's precisions for each backend on its own, keep their settings.
    """
    before = None
    if device == "cuda":
        with suppress(RuntimeError):  # torch raises an error if the settings of its backends differ
            before = torch.get_float32_matmul_precision()
    if before is None:
        yield
        return
    torch.set_float32_matmul_precision("high" if precision.tf32 else "highest")
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(before)


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
    """Arguments of a run that uses one GPU, even if there are several.

    On several GPUs, transformers would copy the network to each of them at every step.
    """

    @property
    def n_gpu(self) -> int:
        """The GPUs of this process."""
        gpus: int = super().n_gpu
        return min(1, gpus)


def train_stage(run: RunSettings, stage: StageSpec, data: StageData, start: ModelSpec) -> StageResult:
    """Train one stage from the model `start`, and write its best model to `folder.stage(name)/model`.

    Args:
        run: Settings of the run.
        stage: The stage.
        data: Its data, read and checked.
        start: The model to start from.

    Raises:
        SourceError: no batch of in-batch negatives can hold two pairs.
        TrainingError, ModelError, OutputError: training failed. Complete checkpoints are kept.
    """
    folder, dev_name = run.folder.stage(stage.name), f"dev {METRIC_NAMES[stage.dev.task]}" if stage.dev else None
    transformers.set_seed(run.recipe.seed)
    task = open_task(start, stage, data.examples, data.objectives)
    sampler = build_batch_sampler(run.recipe, stage, data, task.lengths, run.report)
    remove_checkpoints(folder, keep_complete=True)
    checkpoint = last_complete_checkpoint(folder) if run.resume else None
    steps_per_epoch = -(-len(sampler) // stage.accumulation)
    bar = ProgressBarCallback(stage.name, dev_name, run.report)
    callbacks = [StageSchedule(stage, steps_per_epoch), MetricsLogCallback(run.folder.log(stage.name)), bar]
    arguments = _trainer_arguments(run, stage, steps_per_epoch, resuming=checkpoint is not None)
    trainer = TaskTrainer(task, data, sampler, stage, arguments, callbacks)
    began = time.monotonic()
    try:
        with float32_matmul_precision(run.precision, run.device):
            trainer.train(resume_from_checkpoint=None if checkpoint is None else str(checkpoint))
    finally:
        bar.stop()
    seconds, state = time.monotonic() - began, trainer.state
    first_step = 0 if checkpoint is None else int(checkpoint.name.rpartition("-")[2])
    history = metrics_history(state.log_history)
    result = StageResult(
        name=stage.name,
        examples=sum(map(len, data.examples)),
        steps=state.global_step,
        dev_name=dev_name,
        start_dev=next((row["dev"] for row in history if row["step"] == 0 and "dev" in row), None),
        best_dev=state.best_metric,
        best_step=state.best_global_step if stage.dev is not None else None,
        seconds=seconds,
        examples_per_second=(state.global_step - first_step) * (sampler.examples / steps_per_epoch) / seconds,
        course=history,
    )
    # Write the result before the model: a stage with a model counts as finished and is skipped on resume.
    write_json(run.folder.result(stage.name), asdict(result))
    with staged_folder(folder / "model") as model_folder, translate_disk_errors(folder):
        task.save(model_folder, name=run.recipe.name)
    return result


def _trainer_arguments(
    run: RunSettings, stage: StageSpec, steps_per_epoch: int, *, resuming: bool
) -> TrainingArguments:
    measured = stage.dev is not None
    return OneGpuArguments(
        output_dir=str(run.folder.stage(stage.name)),
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
        logging_steps=max(_MIN_LOG_STEPS[run.device], round(steps_per_epoch * stage.epochs / _LOG_ROWS)),
        logging_nan_inf_filter=False,
        report_to="none",
        disable_tqdm=True,
        remove_unused_columns=False,
        dataloader_pin_memory=run.device == "cuda",
    )


def build_batch_sampler(
    recipe: Recipe,
    stage: StageSpec,
    data: StageData,
    lengths: Callable[[Examples], NDArray[np.int64]],
    report: Callable[[str], None],
) -> MixedBatchSampler:
    """Plan the batches of a stage.

    Args:
        recipe, stage, data: The recipe, the stage and its data.
        lengths: Token counts of the examples of a data set (`BiEncoderTask.lengths`).
        report: Called if repeated texts make batches smaller than `stage.batch`.

    Raises:
        SourceError: no batch of in-batch negatives can hold two pairs.
    """
    planned = [
        PlannedDataset(lengths(examples), number_texts(examples) if objective_schema(objective).distinct else None)
        for examples, objective in zip(data.examples, data.objectives, strict=True)
    ]
    smart = stage.smart_batching
    sampler = MixedBatchSampler(planned, stage.batch, epochs=stage.epochs, seed=recipe.seed, smart=smart)
    for examples, dataset, batches in zip(data.examples, planned, sampler.counts, strict=True):
        if dataset.distinct is not None:
            _check_batch_negatives(examples, stage.batch, batches, report)
    return sampler


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
