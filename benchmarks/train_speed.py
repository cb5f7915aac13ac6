"""Sentence pairs a second while training, beside sentence-transformers' trainer on the same machine and data.

    python -m benchmarks.train_speed --data DATA [--device cuda] [--precision bf16] [--batch 16] [--rounds 3]

Cosine regression on STSb-train, both trainers in turn, each in a process of its own; the time is that of the steps
alone, without opening the model, measuring or saving.
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

from benchmarks.common import machine, read_tsv, spread, table

SIDES = ("sentence-transformers", "es-sbert")


@click.command()
@click.option("--data", type=click.Path(exists=True, path_type=Path), required=True, help="Folder of the data sets.")
@click.option("--model", default="all-MiniLM-L6-v2", show_default=True)
@click.option("--device", type=click.Choice(["cpu", "cuda"]), default="cpu", show_default=True)
@click.option("--precision", type=click.Choice(["fp32", "bf16", "fp16"]), default="bf16", show_default=True)
@click.option("--batch", type=int, default=16, show_default=True)
@click.option("--steps", type=int, default=120, show_default=True, help="Steps of a round.")
@click.option("--rounds", type=int, default=3, show_default=True)
@click.option("--side", type=click.Choice(SIDES), help="Train one side in this process (what the others call).")
def main(data: Path, model: str, device: str, precision: str, batch: int, steps: int, rounds: int, side: str | None
         ) -> None:  # fmt: skip
    """Print a table of pairs a second."""
    if side is not None:
        train = _ours if side == "es-sbert" else _theirs
        click.echo(json.dumps(train(data, model, device, precision, batch, steps)))
        return
    rates: dict[str, list[float]] = {name: [] for name in SIDES}
    for _ in range(rounds):
        for name in SIDES:
            command = [sys.executable, "-m", "benchmarks.train_speed", "--data", str(data), "--model", model,
                       "--device", device, "--precision", precision, "--batch", str(batch), "--steps", str(steps),
                       "--side", name]  # fmt: skip
            done = subprocess.run(command, check=True, capture_output=True, text=True)
            rates[name].append(json.loads(done.stdout.splitlines()[-1])["pairs_per_second"])
    ratios = [ours / theirs for ours, theirs in zip(rates["es-sbert"], rates["sentence-transformers"], strict=True)]
    click.echo(table(
        ["", "pairs/s", "× sentence-transformers"],
        [["sentence-transformers' trainer", spread(rates["sentence-transformers"]), "1.00"],
         ["es-sbert train", spread(rates["es-sbert"]), spread(ratios, 2)]],
    ))  # fmt: skip
    click.echo(json.dumps({**machine(), **_gpu(device)}), err=True)


def _gpu(device: str) -> dict[str, Any]:
    if device == "cpu":
        return {}
    import torch

    return {"gpu": torch.cuda.get_device_name()}


class StepClock:
    """Pairs a second from the end of the tenth step to the end of the last: what comes before warms up."""

    def __init__(self) -> None:
        self.began = self.ended = 0.0
        self.steps = 0

    def step(self, number: int) -> None:
        self.ended = time.perf_counter()
        if number == 10:
            self.began = self.ended
        self.steps = number - 10

    def rate(self, batch: int) -> dict[str, float]:
        return {"pairs_per_second": self.steps * batch / (self.ended - self.began)}


def _clock_callback(clock: StepClock) -> Any:
    import torch
    from transformers import TrainerCallback

    class Ticks(TrainerCallback):
        def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
            if torch.cuda.is_available():
                torch.cuda.synchronize()
            clock.step(state.global_step)

    return Ticks()


def _theirs(data: Path, model: str, device: str, precision: str, batch: int, steps: int) -> dict[str, float]:
    from datasets import Dataset
    from sentence_transformers import (
        SentenceTransformer,
        SentenceTransformerTrainer,
        SentenceTransformerTrainingArguments,
    )
    from sentence_transformers.sentence_transformer.losses import CosineSimilarityLoss

    from es_sbert.bundle.resolve import resolve_model

    network = SentenceTransformer(str(resolve_model(model)), device=device)
    rows = list(read_tsv(data / "sts/stsb-en-train.tsv.gz"))
    examples = Dataset.from_dict({
        "sentence1": [row["sentence1"] for row in rows], "sentence2": [row["sentence2"] for row in rows],
        "score": [float(row["score"]) / 5 for row in rows],
    })  # fmt: skip
    clock = StepClock()
    with tempfile.TemporaryDirectory() as folder:
        arguments = SentenceTransformerTrainingArguments(
            folder, max_steps=steps, per_device_train_batch_size=batch, learning_rate=2e-5, bf16=precision == "bf16",
            fp16=precision == "fp16", use_cpu=device == "cpu", save_strategy="no", report_to="none", disable_tqdm=True,
        )  # fmt: skip
        SentenceTransformerTrainer(network, arguments, examples, loss=CosineSimilarityLoss(network),
                                   callbacks=[_clock_callback(clock)]).train()  # fmt: skip
    return clock.rate(batch)


def _ours(data: Path, model: str, device: str, precision: str, batch: int, steps: int) -> dict[str, float]:
    changes = {"model.base": model, "stages.0.dev": "null"}
    return train_timed(data, changes, device=device, precision=precision, batch=batch, steps=steps)[1].rate(batch)


def train_timed(data: Path, changes: dict[str, str], *, device: str, precision: str, batch: int,
                steps: int) -> tuple[Any, StepClock]:  # fmt: skip
    """Train by the recipe `stsb-regression`, cut after so many steps, without exporting anything.

    Returns:
        The finished run (`es_sbert.training.run.Trained`), and the time of its steps.
    """
    from es_sbert.training import stage
    from es_sbert.training.load import load_recipe
    from es_sbert.training.run import train
    from es_sbert.training.trainer import TaskTrainer

    clock = StepClock()

    class Timed(TaskTrainer):
        def __init__(self, *args: Any, **kwargs: Any) -> None:
            super().__init__(*args, **kwargs)
            self.add_callback(_clock_callback(clock))

    stage.TaskTrainer = Timed  # type: ignore[misc]
    changes = changes | {
        "stages.0.epochs": str(steps * batch / 5749), "stages.0.batch": str(batch), "precision": precision,
        "export.precisions": "[]", "export.sts": "null",
    }  # fmt: skip
    with tempfile.TemporaryDirectory() as folder:
        done = train(load_recipe("stsb-regression", changes), Path(folder) / "out", data_folder=data, device=device)
    return done, clock


if __name__ == "__main__":
    main()
