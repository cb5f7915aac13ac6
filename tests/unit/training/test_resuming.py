"""Runs that were cut off, by a kill, a full disk or a failure between two steps, go on to the same end."""

import errno
import resource
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import numpy as np
import pytest
from safetensors.torch import load_file

from es_sbert.errors import CheckpointInvalid, OutputError, UsageError
from es_sbert.filesystem import file_lock
from es_sbert.training import train_model
from es_sbert.training.bi_encoder_task import BiEncoderTask
from es_sbert.training.recipe import load_recipe
from es_sbert.training.run_folder import last_complete_checkpoint
from tests.raised import raises, raises_as_recorded, record
from tests.unit.training.support import Cut, cut_at, read_json, recipe, train_here, write_pairs, write_recipe

pytestmark = pytest.mark.slow


# Ends its own process by SIGKILL when it begins a step: at the same place on any machine, however fast.
_KILLED = """
import os, signal, sys
from es_sbert.cli.main import main
from es_sbert.training.trainer import TaskTrainer

begin, step = TaskTrainer.training_step, int(sys.argv.pop(1))

def training_step(trainer, *args, **kwargs):
    if trainer.state.global_step + 1 == step:
        os.kill(os.getpid(), signal.SIGKILL)
    return begin(trainer, *args, **kwargs)

TaskTrainer.training_step = training_step
main()
"""


def same_model(one: Path, other: Path) -> bool:
    """Whether two folders hold the same weights to the last bit, and runs of the same course."""
    expected, found = (load_file(folder / "model.safetensors") for folder in (one, other))
    logs = [(folder / "training/pairs-log.csv").read_text() for folder in (one, other)]
    return (
        expected.keys() == found.keys()
        and all(np.array_equal(found[name].numpy(), tensor.numpy()) for name, tensor in expected.items())
        and logs[0] == logs[1]
    )


def test_a_killed_run_resumes_to_the_same_weights(folder: Path, model: Path) -> None:
    """Dropout, shuffling, warm-up, Adam and the best checkpoint all go on as if nothing had happened."""
    path = write_recipe(folder, recipe(model, epochs=2, checkpoints_per_epoch=3, accumulation=2))
    train_here(path, folder / "whole")
    # Of 16 steps: after the first checkpoint, and once more before the last.
    arguments = ["train", path, "-o", folder / "killed", "--device", "cpu"]
    command = [sys.executable, "-c", _KILLED, "5", *map(str, arguments)]
    killed = subprocess.run(command, capture_output=True, text=True, timeout=600)
    assert killed.returncode == -signal.SIGKILL, killed.stderr
    first = last_complete_checkpoint(folder / "killed/training/pairs")
    with cut_at(15):
        train_here(path, folder / "killed", resume=True)
    assert first != last_complete_checkpoint(folder / "killed/training/pairs")
    assert first is not None
    assert not (folder / "killed/modules.json").exists()
    train_here(path, folder / "killed", resume=True)
    assert same_model(folder / "whole", folder / "killed")


@pytest.mark.parametrize("stage", [{"epochs": 0.5, "dev": None}, {"epochs": 1.5}])
def test_run_without_its_saved_model_resumes_without_training(
    folder: Path, model: Path, stage: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    write_pairs(folder / "train.tsv", 48)
    path = write_recipe(folder, recipe(model, **stage))
    train_here(path, folder / "whole")
    with monkeypatch.context() as full:
        full.setattr(BiEncoderTask, "save", Mock(side_effect=OSError(errno.ENOSPC, "No space left on device")))
        with raises_as_recorded(OutputError):
            train_here(path, folder / "full")
    train_here(path, folder / "full", resume=True)
    assert same_model(folder / "whole", folder / "full")
    whole, full_again = (read_json(folder / name / "training.json")["stages"] for name in ("whole", "full"))
    assert [stage["steps"] for stage in whole] == [stage["steps"] for stage in full_again]


def test_stage_report_is_written_before_its_model(folder: Path, model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A stage with a model is not looked at again: a run that stops right behind it must find the rest."""
    path = write_recipe(folder, recipe(model, epochs=0.2))
    with monkeypatch.context() as stopped:
        stopped.setattr("es_sbert.training.training_run.ModelSpec", Mock(side_effect=Cut))  # of the next stage
        with pytest.raises(Cut):
            train_here(path, folder / "out")
    train_here(path, folder / "out", resume=True)
    assert [stage["steps"] for stage in read_json(folder / "out/training.json")["stages"]] == [4]


def test_interrupted_checkpoint_is_skipped(folder: Path, model: Path) -> None:
    write_pairs(folder / "train.tsv", 48)
    path = write_recipe(folder, recipe(model, epochs=2, checkpoints_per_epoch=3))
    with cut_at(7):  # of 12 steps, 6 an epoch
        train_here(path, folder / "out")
    stage = folder / "out/training/pairs"
    # What a kill in the middle of the next save would have left: newer, cut short, without its marker.
    broken = stage / "checkpoint-9999"
    whole = last_complete_checkpoint(stage)
    assert whole is not None
    shutil.copytree(whole, broken)
    (broken / "complete").unlink()
    (broken / "model.safetensors").write_bytes(b"cut short")
    said: list[str] = []
    train_here(path, folder / "out", resume=True, report=said.append)
    assert not broken.exists()
    assert "step 12 of 12" in said[-1]
    assert not any("step 0 of" in line for line in said)  # it went on, it did not start again


def test_full_disk_keeps_the_previous_checkpoint(folder: Path, model: Path) -> None:
    """Files may not grow beyond what the first checkpoint took: the optimizer's state, written later, does not fit."""
    write_pairs(folder / "train.tsv", 48)
    path = write_recipe(folder, recipe(model, epochs=2, dev=None))
    with cut_at(7):  # of 12 steps, 6 an epoch
        train_here(path, folder / "out")
    stage = folder / "out/training/pairs"
    kept = {file.name: file.read_bytes() for file in (stage / "checkpoint-6").iterdir()}
    with file_size_limit(max(map(len, kept.values())) // 2), raises_as_recorded(OutputError):
        train_here(path, folder / "out", resume=True)
    assert {file.name: file.read_bytes() for file in (stage / "checkpoint-6").iterdir()} == kept
    train_here(path, folder / "out", resume=True)


@contextmanager
def file_size_limit(size: int) -> Iterator[None]:
    """Writing beyond so many bytes of a file fails in this process, as on a full disk."""
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, limits[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
        signal.signal(signal.SIGXFSZ, handler)


def test_resume_with_changed_recipe_data_or_models_is_rejected(folder: Path, model: Path) -> None:
    base = shutil.copytree(model, folder / "base")
    path = write_recipe(folder, recipe(base))
    with raises(CheckpointInvalid, "resume"):
        train_here(path, folder / "out", resume=True)
    with cut_at(1):
        train_here(path, folder / "out")
    other = write_recipe(folder / "other", recipe(base, batch=4))
    with raises_as_recorded(CheckpointInvalid):
        train_model(load_recipe(str(other)), folder / "out", data_folder=folder, device="cpu", resume=True)
    write_pairs(folder / "train.tsv", 100)
    with raises_as_recorded(CheckpointInvalid):
        train_here(path, folder / "out", resume=True)
    with raises(UsageError, "output") as caught:
        train_here(path, folder / "out")
    record(caught.value)
    write_pairs(folder / "train.tsv", 128)
    (base / "model.safetensors").write_bytes(b"other weights")
    with raises_as_recorded(CheckpointInvalid):
        train_here(path, folder / "out", resume=True)


def test_concurrent_runs_into_one_folder_are_rejected(folder: Path, model: Path) -> None:
    """Also by --resume, which would remove the checkpoint that the other is writing."""
    path = write_recipe(folder, recipe(model))
    with cut_at(1):
        train_here(path, folder / "out")
    other = file_lock(folder / "out/training/lock", lambda: None)
    with other, raises_as_recorded(UsageError):
        train_here(path, folder / "out", resume=True)
