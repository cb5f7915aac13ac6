"""A training step copies nothing back to the host: it would wait for the GPU, and the GPU then for the host.

transformers reads the padding mask, to leave out one that hides nothing; that is not es-sbert's.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from transformers import TrainerCallback

from es_sbert.training import train, trainer, training_stage
from es_sbert.training.bi_encoder_task import open_task
from es_sbert.training.losses import objective_schema
from es_sbert.training.recipe import DataSpec, ModelSpec, ObjectiveSpec, StageSpec, load_recipe
from es_sbert.training.trainer import TaskTrainer
from es_sbert.training.training_errors import LossCheck
from es_sbert.training.training_examples import Examples
from tests.unit.training.device_reads import DeviceReads, StepReads
from tests.unit.training.objectives.samples import ALL_SPECS, SPECS, labels_for, settings
from tests.unit.training.support import recipe, write_model, write_recipe

FIRST = ["a man plays a guitar", "the cat sleeps", "rain", "two dogs run in the park", "x"]
SECOND = ["someone makes music", "a cat is asleep on the mat", "it is raining hard today", "stocks fell", "a b"]
THIRD = ["nothing", "at all", "of the kind", "has ever been said", "here"]


def reads_of_a_step(base: Path, objective: ObjectiveSpec, mini_batch: int | None) -> list[str]:
    """What forward and backward of one batch read."""
    schema = objective_schema(objective)
    labels = labels_for(schema.label, batch=5, dimensions=32)
    texts = (FIRST, SECOND, THIRD)[: len(schema.roles)]
    examples = Examples("some", Path("some.tsv"), texts, None if labels is None else labels.numpy(), np.arange(5))
    its_stage = StageSpec(data=(DataSpec(path="some.tsv", columns={}),), objective=objective, mini_batch=mini_batch)
    task = open_task(ModelSpec(base=str(base)), its_stage, [examples], [objective]).train()
    batch = task.collate(examples, range(5))
    with DeviceReads() as reads:
        task("some", batch).backward()
    assert any(parameter.grad is not None and parameter.grad.any() for parameter in task.parameters())
    return without_mask_reads(reads.found)


def without_mask_reads(found: list[str]) -> list[str]:
    return [read for read in found if "transformers/masking_utils.py" not in read]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_model(tmp_path_factory.mktemp("model") / "model")


@pytest.mark.parametrize("mini_batch", [None, 2])
@pytest.mark.parametrize("name", [*SPECS, "matryoshka of in-batch"])
def test_bi_encoder_objectives_do_not_read_from_the_device(model: Path, name: str, mini_batch: int | None) -> None:
    assert reads_of_a_step(model, settings(ALL_SPECS[name]), mini_batch) == []


MASK = torch.tensor([True, False])


@pytest.mark.parametrize(
    "read",
    [
        lambda: bool(MASK.all()),
        lambda: int(MASK.sum()),
        lambda: float(MASK.sum()),
        lambda: MASK.sum().item(),
        lambda: MASK.tolist(),
        lambda: MASK.cpu(),
        lambda: MASK[MASK],
        lambda: MASK.nonzero(),
        lambda: torch.masked_select(MASK, MASK),
        lambda: torch.tensor([1, 2]),
    ],
)
def test_device_read_is_detected(read: Callable[[], object]) -> None:
    """What the other tests rely on."""
    with DeviceReads() as reads:
        read()
    assert reads.found


def test_on_device_operations_are_not_reads() -> None:
    values = torch.ones(2, requires_grad=True)
    with DeviceReads() as reads:
        torch.where(MASK, 1.0, values).masked_fill(MASK, 0).softmax(dim=0)[torch.arange(2)].sum().backward()
    assert reads.found == []


def watched_run(folder: Path, model: Path, watch: TrainerCallback) -> None:
    """A run of 16 steps whose gradients are accumulated and clipped, with a callback."""

    class Watched(TaskTrainer):
        def __init__(self, *args: Any, **kwargs: Any) -> None:
            super().__init__(*args, **kwargs)
            self.add_callback(watch)

    watched = recipe(model, epochs=2, accumulation=2, dev=None)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(training_stage, "TaskTrainer", Watched)
        path = write_recipe(folder, watched)
        train(load_recipe(str(path)), folder / "out", data_folder=folder, device="cpu")


@pytest.mark.slow
def test_no_training_step_reads_from_the_device(folder: Path, model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The loss is looked at as on a GPU; the optimizer and the learning rate step on."""
    monkeypatch.setattr(trainer, "LossCheck", lambda device: LossCheck(device, delay=8))
    with StepReads() as reads:
        watched_run(folder, model, reads)
    assert reads.steps == 16
    assert without_mask_reads(reads.found) == []
