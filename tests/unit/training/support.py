"""A small model and small data for training runs that take seconds."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import yaml
from torch import Tensor

from es_sbert.exporters.parity import parity_sentences
from es_sbert.training import train_model
from es_sbert.training.trainer import TaskTrainer
from es_sbert.training.training_run import TrainingResult
from tests.unit.checkpoints import write_checkpoint

# Without dropout, so that runs which split their batches differently can be compared.
STILL = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}


def write_model(folder: Path, hidden: int = 32, **settings: Any) -> Path:
    """A BERT of two layers as a sentence-transformers folder."""
    return write_checkpoint(folder, "bert", hidden=hidden, heads=4, layers=2, max_tokens=32, **settings)


def write_pairs(path: Path, count: int, *, start: int = 0) -> Path:
    """Scored pairs (0 to 5): the more words two sentences share, the higher."""
    sentences = [text for text in parity_sentences(32) if 3 <= len(text.split()) <= 12]
    lines = ["sentence1\tsentence2\tscore"]
    for number in range(start, start + count):
        first = sentences[number % len(sentences)].replace("\t", " ").replace("\n", " ")
        words = first.split()
        shared = number % 6
        second = " ".join(words[: max(1, len(words) * shared // 5)] + ["otherwise"] * (5 - shared))
        lines.append(f"{first}\t{second}\t{shared}")
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return path


COLUMNS = {"sentence1": "sentence1", "sentence2": "sentence2", "score": "score"}


def recipe(model: Path, **stage: Any) -> dict[str, Any]:
    """A recipe of one stage of cosine regression over train.tsv, measured on dev.tsv; it exports nothing."""
    return {
        "name": "tiny",
        "model": {"base": str(model)},
        "stages": [
            {
                "name": "pairs",
                "data": [{"path": "train.tsv", "columns": COLUMNS, "score_range": [0, 5]}],
                "objective": {"kind": "regression"},
                "batch": 8,
                "learning_rate": 1e-3,
                "dev": {"task": "sts", "path": "dev.tsv", "columns": COLUMNS},
                **stage,
            }
        ],
        "export": {"precisions": []},
    }


def write_recipe(folder: Path, settings: dict[str, Any]) -> Path:
    """Write a recipe beside its data."""
    folder.mkdir(exist_ok=True)
    path = folder / "recipe.yaml"
    path.write_text(yaml.safe_dump(settings), encoding="utf-8")
    return path


def train_here(recipe_file: Path, output: Path, **options: Any) -> TrainingResult:
    """What `es-sbert train RECIPE -o OUTPUT` does, in this process: it need not import torch again."""
    return train_model(recipe_file, output, device="cpu", **options)


class Cut(Exception):
    """A run in this process was stopped: what a kill leaves, without the time of another interpreter."""


@contextmanager
def cut_at(step: int) -> Iterator[None]:
    """End the run inside the block when it begins a step (from 1), whatever it has written by then.

    Raises:
        AssertionError: no run came so far.
    """
    begin = TaskTrainer.training_step

    def training_step(trainer: TaskTrainer, *args: Any, **kwargs: Any) -> Tensor:
        if trainer.state.global_step + 1 == step:
            raise Cut
        return begin(trainer, *args, **kwargs)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(TaskTrainer, "training_step", training_step)
        try:
            yield
        except Cut:
            return
    raise AssertionError(f"no run came to step {step}")


def read_json(path: Path) -> Any:
    return json.loads(path.read_text(encoding="utf-8"))
