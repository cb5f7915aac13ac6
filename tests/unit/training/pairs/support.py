"""Toy data for networks that read pairs."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from es_sbert.training.bi_encoder_task import TrainingTask
from es_sbert.training.training_examples import Examples

FIRST = ["a man plays a guitar", "the cat sleeps", "two dogs run in the park", "rain", "a man plays a guitar", "x y z"]
SECOND = [
    "someone makes music",
    "a cat is asleep on the mat",
    "stocks fell",
    "it is raining hard today in the north",
    "the market rose",
    "a b",
]
SCORES = [0.9, 0.8, 0.0, 0.95, 0.1, 0.5]


def examples(
    labels: Sequence[float] | Sequence[int] | None = SCORES, *texts: Sequence[str], name: str = "toy"
) -> Examples:
    """A data set of `texts`, the toy pairs by default; whole numbers are classes."""
    columns = tuple(list(column) for column in texts or (FIRST, SECOND))
    array: Any = None
    if labels is not None:
        array = np.array(labels, dtype=np.int64 if isinstance(labels[0], int) else np.float32)
    lines = np.arange(2, 2 + len(columns[0]), dtype=np.int64)
    return Examples(name=name, path=Path("toy.tsv"), texts=columns, labels=array, lines=lines)


def losses(task: TrainingTask, data: Examples, steps: int, rate: float = 2e-3) -> list[float]:
    """The losses of some steps of Adam on the whole data set, without dropout: so few steps are not drowned by it."""
    optimizer = torch.optim.AdamW(task.parameters(), lr=rate)
    task.eval()
    seen = []
    for _ in range(steps):
        loss = task(data.name, task.collate(data, range(len(data))))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        seen.append(loss.item())
    return seen
