"""The step `objectives`: every objective and kind of model trains on CUDA as it does on the CPU."""

from __future__ import annotations

import json
import math
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from benchmarks.gpu_check.arithmetic import Shape
from benchmarks.gpu_check.card import load_libraries
from benchmarks.gpu_check.context import Context, OutOfTime, say
from benchmarks.gpu_check.results import JSON, goal

_EXAMPLES, _BATCH, _EPOCHS = 96, 16, 2  # 12 steps
_JUDGE = Shape(hidden=32, heads=4, layers=2, intermediate=64)
# Largest difference of the losses of a step, as a share of the CPU's loss: what the order of sums changes in fp32 over
# steps that build on each other, and what bf16 rounds away.
_MOST = {"fp32": 0.001, "bf16": 0.1}


def objectives(context: Context) -> JSON:
    """Losses of each step on CUDA, in fp32 and bf16, against those of the same run on the CPU."""
    load_libraries()
    cases: JSON = {}
    with tempfile.TemporaryDirectory() as made:
        settings = _Settings(Path(made))
        for name, recipe in settings.cases():
            if not context.wants(name):
                continue
            say(f"objectives: {name}")
            try:
                context.check_time(20)
                cases[name] = _compare(recipe, Path(made))
            except OutOfTime as error:
                cases[name] = {"error": str(error)}
            except Exception as error:  # one objective that fails must not hide the others
                cases[name] = {"error": f"{type(error).__name__}: {error}"}
    return {"examples": _EXAMPLES, "batch": _BATCH, "cases": cases}


def _compare(recipe: JSON, folder: Path) -> JSON:
    exact = step_losses(recipe, folder, "cpu", "fp32")
    measured: JSON = {"steps": len(exact), "cpu_losses": exact}
    goals = []
    for precision, most in _MOST.items():
        losses = step_losses(recipe, folder, "cuda", precision)
        measured[f"cuda_{precision}_losses"] = losses
        difference = largest_difference(exact, losses)
        goals.append(goal(f"largest difference of a step's loss, {precision}", difference, at_most=most))
    return {**measured, "goals": goals}


def largest_difference(expected: list[float], found: list[float]) -> float:
    """The largest difference of two runs' losses at a step, as a share of the expected one.

    Runs of different length, without a step, or with a loss that is not finite differ infinitely.
    """
    if not expected or len(expected) != len(found) or not all(map(math.isfinite, (*expected, *found))):
        return math.inf
    # A loss near zero is compared with the run's first one: a share of nothing says nothing.
    floor = abs(expected[0]) / 10
    return max(abs(mine - theirs) / max(abs(theirs), floor, 1e-9) for theirs, mine in zip(expected, found, strict=True))


def step_losses(recipe: JSON, folder: Path, device: str, precision: str) -> list[float]:
    """Train by a recipe, whose data are in *folder*, and return the loss of each step."""
    from es_sbert.training import train
    from es_sbert.training.recipe import Recipe

    with tempfile.TemporaryDirectory() as output, _watched() as losses:
        train(
            Recipe.model_validate({**recipe, "precision": precision, "export": {"precisions": []}}),
            Path(output) / "out",
            data_folder=folder,
            device=device,
        )
    return [float(loss) for loss in losses]


@contextmanager
def _watched() -> Iterator[list[Any]]:
    from es_sbert.training.trainer import TaskTrainer

    losses: list[Any] = []
    step = TaskTrainer.training_step

    def training_step(trainer: Any, *args: Any, **kwargs: Any) -> Any:
        losses.append(step(trainer, *args, **kwargs))
        return losses[-1]

    TaskTrainer.training_step = training_step  # type: ignore[method-assign]
    try:
        yield losses
    finally:
        TaskTrainer.training_step = step  # type: ignore[method-assign]


class _Settings:
    """Models without dropout, whose losses can be compared, small data, and a recipe for each case."""

    def __init__(self, folder: Path) -> None:
        from benchmarks.gpu_check.random_models import write_cross_encoder
        from tests.unit.training.support import STILL, write_model, write_pairs

        self._model = write_model(folder / "model", config=STILL)
        self._teacher = write_model(folder / "teacher", seed=1, config=STILL)
        self._judge = write_cross_encoder(folder / "judge", _JUDGE, vocabulary=1_000)
        pairs = write_pairs(folder / "pairs.tsv", _EXAMPLES).read_text(encoding="utf-8").splitlines()[1:]
        rows = [line.split("\t") for line in pairs]
        tables: dict[str, Callable[[list[str]], JSON]] = {
            "scored": lambda row: {"sentence1": row[0], "sentence2": row[1], "score": float(row[2])},
            "classes": lambda row: {"sentence1": row[0], "sentence2": row[1], "class": "ab"[float(row[2]) > 2]},
            "triplets": lambda row: {
                "anchor": row[0],
                "positive": f"{row[0]} again",
                "negative": f"otherwise {row[1]}",
            },
            "parallel": lambda row: {"source": row[0], "target": row[0][::-1]},
        }
        for name, table in tables.items():
            lines = (json.dumps(table(row)) for row in rows)
            (folder / f"{name}.jsonl").write_text("\n".join(lines) + "\n", encoding="utf-8")

    def cases(self) -> Iterator[tuple[str, JSON]]:
        """Name and recipe."""
        scored = ("sentence1", "sentence2", "score")
        triplet = ("anchor", "positive", "negative")
        distances = {"kind": "triplet", "distance": "euclidean", "margin": 1.0}
        in_batch, regression = {"kind": "in-batch", "scale": 20}, {"kind": "regression"}
        teacher = {"teacher": str(self._teacher)}
        yield "regression", self._recipe("scored", scored, regression)
        yield "cosent", self._recipe("scored", scored, {"kind": "cosent"})
        softmax = {"kind": "softmax", "classes": ["a", "b"]}
        yield "softmax", self._recipe("classes", ("sentence1", "sentence2", "class"), softmax)
        yield "triplet", self._recipe("triplets", triplet, distances)
        yield "in-batch", self._recipe("triplets", triplet, in_batch)
        yield "in-batch, mini-batches", self._recipe("triplets", triplet, in_batch, mini_batch=5)
        matryoshka = {**in_batch, "matryoshka": {"dimensions": [8, 32]}}
        yield "in-batch, matryoshka", self._recipe("triplets", triplet, matryoshka)
        margins = {"kind": "margin-distillation", "teacher": str(self._judge)}
        yield "margin-distillation", self._recipe("triplets", triplet, margins)
        vectors = {"kind": "vector-distillation", **teacher}
        yield "vector-distillation", self._recipe("parallel", ("source", "target"), vectors)
        checkpointed = self._recipe("scored", scored, regression, gradient_checkpointing=True)
        yield "regression, gradient checkpointing", checkpointed
        yield "cross-encoder", self._recipe("scored", scored, regression, kind="cross-encoder")

    def _recipe(self, table: str, roles: tuple[str, ...], objective: JSON, **changes: Any) -> JSON:
        stage = {name: changes.pop(name) for name in ("mini_batch", "gradient_checkpointing") if name in changes}
        ranges = {"score_range": [0, 5]} if "score" in roles else {}
        columns = {role: [role] if role == "target" else role for role in roles}
        return {
            "name": "gpu-check",
            "model": {"base": str(self._model), **changes},
            "stages": [
                {
                    "name": "stage",
                    "data": [{"path": f"{table}.jsonl", "columns": columns, **ranges}],
                    "objective": objective,
                    "batch": _BATCH,
                    "epochs": _EPOCHS,
                    "learning_rate": 1e-3,
                    **stage,
                }
            ],
        }
