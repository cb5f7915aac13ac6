"""In which number formats a run computes: what the recipe says, else what the device has."""

from pathlib import Path

import pytest
import torch

from es_sbert.errors import CheckpointInvalid, DeviceError
from es_sbert.training import train
from es_sbert.training.recipe import load_recipe
from es_sbert.training.training_stage import TrainingPrecision, choose_training_precision, float32_matmul_precision
from tests.unit.training.support import cut_at, read_json, recipe, train_here, write_recipe


@pytest.mark.parametrize(
    ("wanted", "device", "has_bf16", "expected", "said"),
    [
        ("auto", "cuda", True, TrainingPrecision("bf16", tf32=True), "bf16, TF32 for the rest"),
        ("auto", "cuda", False, TrainingPrecision("fp32", tf32=True), "TF32"),
        ("auto", "cpu", False, TrainingPrecision("fp32", tf32=False), "fp32"),
        # What is asked for is kept, whatever the card has.
        ("fp32", "cuda", True, TrainingPrecision("fp32", tf32=False), "fp32"),
        ("bf16", "cuda", False, TrainingPrecision("bf16", tf32=True), "bf16, TF32 for the rest"),
        ("fp16", "cuda", True, TrainingPrecision("fp16", tf32=True), "fp16, TF32 for the rest"),
        ("bf16", "cpu", False, TrainingPrecision("bf16", tf32=False), "bf16"),
        ("fp32", "cpu", False, TrainingPrecision("fp32", tf32=False), "fp32"),
    ],
)
def test_choose_training_precision(
    wanted: str, device: str, has_bf16: bool, expected: TrainingPrecision, said: str
) -> None:
    chosen = choose_training_precision(wanted, device, has_bf16=has_bf16)
    assert chosen == expected
    assert str(chosen) == said


def test_fp16_on_cpu_is_rejected() -> None:
    with pytest.raises(DeviceError, match="training in fp16 requires a CUDA device"):
        choose_training_precision("fp16", "cpu", has_bf16=False)


@pytest.mark.parametrize("before", ["highest", "high"])
@pytest.mark.parametrize("tf32", [True, False])
def test_float32_matmul_precision_applies_on_cuda_only(before: str, tf32: bool) -> None:
    precision, original = TrainingPrecision("bf16", tf32=tf32), torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision(before)
    try:
        with float32_matmul_precision(precision, "cpu"):
            assert torch.get_float32_matmul_precision() == before
        with float32_matmul_precision(precision, "cuda"):
            assert torch.backends.cuda.matmul.allow_tf32 is tf32
        assert torch.get_float32_matmul_precision() == before
    finally:
        torch.set_float32_matmul_precision(original)


@pytest.mark.skipif(not hasattr(torch.backends.cuda.matmul, "fp32_precision"), reason="torch has one setting only")
def test_per_backend_matmul_precision_is_kept() -> None:
    original = torch.get_float32_matmul_precision()
    torch.backends.cuda.matmul.fp32_precision = "tf32"  # torch no longer names one precision for all
    try:
        with float32_matmul_precision(TrainingPrecision("fp32", tf32=False), "cuda"):
            assert torch.backends.cuda.matmul.fp32_precision == "tf32"
    finally:
        torch.backends.cuda.matmul.fp32_precision = "none"
        torch.set_float32_matmul_precision(original)


@pytest.mark.slow
def test_run_reports_its_precision(folder: Path, model: Path) -> None:
    settings = recipe(model, epochs=0.2)
    path, said = write_recipe(folder, settings), list[str]()
    trained = train_here(path, folder / "out", report=said.append)
    assert "Training pairs on cpu in fp32: train.tsv (128)" in said
    assert trained.precision == read_json(folder / "out/training.json")["precision"] == "fp32"


@pytest.mark.slow
def test_resumed_run_keeps_its_precision(folder: Path, model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where the recipe leaves it open: a run of a card with bf16 may go on where `auto` means another format."""
    settings = recipe(model, epochs=0.2)
    path = write_recipe(folder, settings)
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
    with pytest.raises(CheckpointInvalid, match="another recipe: precision"):
        train(other, folder / "other", data_folder=folder, device="cpu", resume=True)
