"""In which number formats a run computes: what the recipe says, else what the device has."""

from pathlib import Path

import pytest
import torch

from es_sbert.errors import CheckpointInvalid, DeviceError
from es_sbert.training import train_model
from es_sbert.training.recipe import load_recipe
from es_sbert.training.training_stage import (
    TrainingPrecision,
    choose_training_device,
    choose_training_precision,
    float32_matmul_precision,
)
from tests.raised import raises_as_recorded
from tests.unit.training.support import cut_at, recipe, train_here, write_recipe


@pytest.mark.parametrize(
    ("wanted", "device", "has_bf16", "expected", "said"),
    [
        ("auto", "cuda", True, TrainingPrecision("bf16", tf32=True), "bf16, TF32 for the rest"),
        ("auto", "cuda", False, TrainingPrecision("fp32", tf32=True), "TF32"),
        ("auto", "cpu", False, TrainingPrecision("fp32", tf32=False), "fp32"),
        # What is asked for is kept, whatever the card has.
        ("fp32", "cuda", True, TrainingPrecision("fp32", tf32=False), "fp32"),
    ],
)
def test_choose_training_precision(
    wanted: str, device: str, has_bf16: bool, expected: TrainingPrecision, said: str
) -> None:
    chosen = choose_training_precision(wanted, device, has_bf16=has_bf16)
    assert chosen == expected
    assert str(chosen) == said


def test_fp16_on_cpu_and_devices_that_torch_lacks_are_rejected(monkeypatch: pytest.MonkeyPatch) -> None:
    with raises_as_recorded(DeviceError):
        choose_training_precision("fp16", "cpu", has_bf16=False)
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    for device in ("cuda:1", "cuda"):
        with raises_as_recorded(DeviceError):
            choose_training_device(device)


@pytest.mark.parametrize(("tf32", "inside"), [(True, "high"), (False, "highest")])
def test_precision_of_products_is_restored_after_a_run(tf32: bool, inside: str) -> None:
    before = torch.get_float32_matmul_precision()
    with float32_matmul_precision(TrainingPrecision("fp32", tf32=tf32), "cuda"):
        assert torch.get_float32_matmul_precision() == inside
    assert torch.get_float32_matmul_precision() == before


@pytest.mark.slow
def test_resumed_run_keeps_its_precision(folder: Path, model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where the recipe leaves it open: a run of a card with bf16 may go on where `auto` means another format."""
    path = write_recipe(folder, recipe(model, epochs=0.2))
    with monkeypatch.context() as card, cut_at(2):
        card.setattr(
            "es_sbert.training.training_run.choose_training_precision",
            lambda *_, **__: TrainingPrecision("bf16", tf32=False),
        )
        train_here(path, folder / "out")
    assert train_here(path, folder / "out", resume=True).precision == "bf16"
    # One that is stated is another recipe's.
    other = load_recipe(str(path), {"precision": "fp32"})
    with cut_at(2):
        train_here(path, folder / "other")
    with raises_as_recorded(CheckpointInvalid):
        train_model(other, folder / "other", data_folder=folder, device="cpu", resume=True)
