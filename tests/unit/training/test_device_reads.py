"""A training step copies nothing back to the host: it would wait for the GPU, and the GPU then for the host.

It is told on a CPU. transformers reads the padding mask, to leave out one that hides nothing; that is not es-sbert's.
"""

from __future__ import annotations

import traceback
from pathlib import Path
from typing import Any, Self

import numpy as np
import pytest
import torch
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

from es_sbert.training import trainer
from es_sbert.training.bi_encoder_task import open_task
from es_sbert.training.losses import objective_schema
from es_sbert.training.recipe import DataSpec, ModelSpec, ObjectiveSpec, StageSpec
from es_sbert.training.trainer import TaskTrainer
from es_sbert.training.training_errors import LossCheck
from es_sbert.training.training_examples import Examples
from tests.unit.training.objectives.samples import ALL_SPECS, SPECS, labels_for, settings
from tests.unit.training.support import recipe, train_here, write_model, write_recipe

# Operators whose result the host needs before it can go on: values, or shapes that depend on values. `lift_fresh` is
# what becomes of `torch.tensor([1, 2], device=…)`: a copy from memory that is not page-locked.
_READS = {
    "_local_scalar_dense", "is_nonzero", "equal", "nonzero", "masked_select", "lift_fresh", "_unique", "_unique2",
    "unique_dim", "unique_consecutive", "repeat_interleave", "bincount",
}  # fmt: skip
_INDEXING = {"index", "_unsafe_index", "index_put", "index_put_", "_index_put_impl_"}


# Copies that a CPU makes without an operator. `numpy` is none of them: a tensor on a GPU does not have it.
_COPIES = (torch.Tensor.tolist, torch.Tensor.cpu)


class DeviceReads:
    """Notes where values of tensors are read while it is active.

    Attributes:
        found: One entry a read: the operator and the lines that led to it.
    """

    def __init__(self) -> None:
        self.found: list[str] = []
        self._modes = _Operators(self.found), _Methods(self.found)

    def __enter__(self) -> Self:
        for mode in self._modes:
            mode.__enter__()
        return self

    def __exit__(self, *error: Any) -> None:
        for mode in reversed(self._modes):
            mode.__exit__(*error)


class _Operators(TorchDispatchMode):
    def __init__(self, found: list[str]) -> None:
        super().__init__()
        self._found = found

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = func.overloadpacket.__name__
        if name in _READS or (name in _INDEXING and _by_mask(args[1])):
            self._found.append(_place(name))
        return func(*args, **(kwargs or {}))


class _Methods(TorchFunctionMode):
    def __init__(self, found: list[str]) -> None:
        super().__init__()
        self._found = found

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func in _COPIES:
            self._found.append(_place(func.__name__))
        return func(*args, **(kwargs or {}))


def _place(name: str) -> str:
    lines = [f"{line.filename}:{line.lineno}" for line in traceback.extract_stack() if not _torch(line.filename)]
    return f"{name}: {' > '.join(lines[-4:])}"


def _by_mask(indices: Any) -> bool:
    """Whether an index is a mask: which elements it takes is known to the device alone."""
    return any(isinstance(index, torch.Tensor) and index.dtype in (torch.bool, torch.uint8) for index in indices)


def _torch(file: str) -> bool:
    return "/torch/" in file or file.startswith("<")


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


@pytest.mark.slow
def test_no_training_step_reads_from_the_device(folder: Path, model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found: list[str] = []
    losses, training_step = [], TaskTrainer.training_step

    def watched_step(*args: Any, **kwargs: Any) -> torch.Tensor:
        with DeviceReads() as reads:
            losses.append(training_step(*args, **kwargs))
        found.extend(reads.found)
        return losses[-1]

    monkeypatch.setattr(TaskTrainer, "training_step", watched_step)
    # As on a GPU.
    monkeypatch.setattr(trainer, "LossCheck", lambda device: LossCheck(device, delay=8))
    train_here(write_recipe(folder, recipe(model, accumulation=2, dev=None)), folder / "out")
    assert len(losses) == 16
    assert without_mask_reads(found) == []
