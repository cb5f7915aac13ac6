"""Sentence pairs a second while training, compared with sentence-transformers' trainer on the same machine and data.

    python -m benchmarks.train_speed --data DATA [--device cuda] [--precision bf16] [--batch 16]

Cosine regression on STSb-train, the trainers alternate, each in its own process, in the same precision (on
CUDA with TF32 for what bf16 and fp16 leave in float32). The time is that of the steps alone: without opening the model,
measuring or saving. The GPU is waited for at the first and the last of them only. Prints rates and ratios as JSON.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import click

from benchmarks.common import read_tsv

THEIRS, OURS = "sentence-transformers' trainer", "es-sbert train"

# Steps before the clock starts: pools of memory fill.
_WARM_UP = 10

_EXAMPLES = 5749  # of STSb-train


@click.command()
@click.option("--data", type=click.Path(exists=True, path_type=Path), required=True, help="Folder of the data sets.")
@click.option("--model", default="all-MiniLM-L6-v2", show_default=True)
@click.option("--device", type=click.Choice(["cpu", "cuda"]), default="cpu", show_default=True)
@click.option("--precision", type=click.Choice(["fp32", "bf16", "fp16"]), default="bf16", show_default=True)
@click.option("--batch", type=int, default=16, show_default=True)
@click.option("--steps", type=int, default=120, show_default=True, help="Steps of a round.")
@click.option("--rounds", type=int, default=3, show_default=True)
@click.option("--side", type=click.Choice([THEIRS, OURS]), help="Train once, here (what the others call).")
def main(rounds: int, side: str | None, **options: Any) -> None:
    """Print pairs a second of both sides, a number for each round, and their ratios within a round."""
    if side is not None:
        click.echo(json.dumps((_theirs if side == THEIRS else _ours)(**options)))
        return
    rates: dict[str, list[float]] = {THEIRS: [], OURS: []}
    settings = [str(part) for name, value in options.items() for part in (f"--{name}", value)]
    for _ in range(rounds):
        for side in rates:
            command = [sys.executable, "-m", "benchmarks.train_speed", *settings, "--side", side]
            done = subprocess.run(command, capture_output=True, text=True)
            if done.returncode:
                raise click.ClickException(f"{side}: {done.stderr[-2000:]}")
            rates[side].append(json.loads(done.stdout.splitlines()[-1])["pairs_per_second"])
    ratios = {side: [ours / theirs for ours, theirs in zip(rates[side], rates[THEIRS], strict=True)] for side in rates}
    click.echo(json.dumps({"batch": options["batch"], "pairs_per_second": rates, "ratio": ratios}))


def _clock_callback() -> Any:
    """Notes the pairs a second from the end of the warm-up to the end of the last step."""
    import torch
    from transformers import TrainerCallback

    class Clock(TrainerCallback):
        began = ended = 0.0

        def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
            # A checkpoint is only written when the clock has stopped.
            control.should_save = control.should_save and state.global_step == state.max_steps
            if state.global_step not in (_WARM_UP, state.max_steps):
                return  # if the card was waited for at every step, it would never get ahead
            if torch.cuda.is_available():
                torch.cuda.synchronize()
            self.began, self.ended = self.ended, time.perf_counter()
            self.steps = state.global_step - _WARM_UP

        def rate(self, batch: int) -> dict[str, float]:
            return {"pairs_per_second": self.steps * batch / (self.ended - self.began)}

    return Clock()


def _theirs(data: Path, model: str, device: str, precision: str, batch: int, steps: int) -> dict[str, float]:
    import torch
    from datasets import Dataset
    from sentence_transformers import (
        SentenceTransformer,
        SentenceTransformerTrainer,
        SentenceTransformerTrainingArguments,
    )
    from sentence_transformers.sentence_transformer.losses import CosineSimilarityLoss

    from es_sbert.bundle.model_lookup import resolve_model

    if device == "cuda" and precision != "fp32":
        torch.set_float32_matmul_precision("high")  # TF32, as es-sbert sets it
    network = SentenceTransformer(str(resolve_model(model)), device=device)
    rows = list(read_tsv(data / "sts/stsb-en-train.tsv.gz"))
    examples = Dataset.from_dict(
        {
            "sentence1": [row["sentence1"] for row in rows],
            "sentence2": [row["sentence2"] for row in rows],
            "score": [float(row["score"]) / 5 for row in rows],
        }
    )
    clock = _clock_callback()
    with tempfile.TemporaryDirectory() as folder:
        arguments = SentenceTransformerTrainingArguments(
            folder,
            max_steps=steps,
            per_device_train_batch_size=batch,
            learning_rate=2e-5,
            bf16=precision == "bf16",
            fp16=precision == "fp16",
            use_cpu=device == "cpu",
            save_strategy="no",
            report_to="none",
            disable_tqdm=True,
        )
        SentenceTransformerTrainer(
            network, arguments, examples, loss=CosineSimilarityLoss(network), callbacks=[clock]
        ).train()
    return clock.rate(batch)


def _ours(data: Path, model: str, device: str, precision: str, batch: int, steps: int) -> dict[str, float]:
    """Train by the recipe `stsb-regression`, cut after so many steps, without exporting anything."""
    from es_sbert.training import train_model, training_stage
    from es_sbert.training.recipe import load_recipe
    from es_sbert.training.trainer import TaskTrainer

    clock = _clock_callback()

    class Timed(TaskTrainer):
        def __init__(self, *args: Any, **kwargs: Any) -> None:
            super().__init__(*args, **kwargs)
            self.add_callback(clock)

    training_stage.TaskTrainer = Timed  # type: ignore[misc]
    changes = {
        "model.base": model,
        "stages.0.dev": "null",
        "stages.0.epochs": str(steps / -(-_EXAMPLES // batch)),
        "stages.0.batch": str(batch),
        "precision": precision,
        "export.precisions": "[]",
    }
    with tempfile.TemporaryDirectory() as folder:
        train_model(load_recipe("stsb-regression", changes), Path(folder) / "out", data_folder=data, device=device)
    return clock.rate(batch)


if __name__ == "__main__":
    main()
