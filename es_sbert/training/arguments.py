"""A stage of a recipe as transformers' TrainingArguments."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from transformers import TrainingArguments

from es_sbert.training.precision import Format
from es_sbert.training.recipe import Stage

# Rows of the log of one run, about.
_LOG_ROWS = 200

# Steps between two of them at least. A row makes the host wait for a GPU; on a CPU it costs nothing.
_LOG_STEPS = {"cpu": 1, "cuda": 10}

# When to measure and save is decided by `es_sbert.training.schedule`, which knows where epochs end.
_NEVER = 10**9


def log_interval(steps: float, device: Literal["cpu", "cuda"]) -> int:
    """Steps between two rows of the log of a run of so many steps."""
    return max(_LOG_STEPS[device], round(steps / _LOG_ROWS))


def training_arguments(
    stage: Stage,
    folder: Path,
    *,
    device: Literal["cpu", "cuda"],
    precision: Format,
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
        eval_steps=_NEVER if measured else None,
        save_strategy="steps",
        save_steps=_NEVER,
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
