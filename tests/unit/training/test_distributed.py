"""Two gloo processes train as one process with the joint batch."""

import subprocess
import sys
from pathlib import Path

import pytest
import torch
import torch.distributed as dist

from es_sbert.training.training_device import gather, processes
from tests.unit.training import gradients
from tests.unit.training.support import STILL, recipe, train_here, write_model, write_pairs, write_recipe

ROOT = Path(__file__).parents[3]


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a model, data and a recipe, what two processes made of it (`two`) and their gradients (`found.pt`).

    Each of them fails the run by its exit code, which torchrun hands on.
    """
    folder = tmp_path_factory.mktemp("distributed")
    model = write_model(folder / "model", config=STILL)
    write_pairs(folder / "train.tsv", 90)
    write_pairs(folder / "dev.tsv", 30, start=90)
    settings = recipe(model, epochs=2, accumulation=2, learning_rate=1e-4)
    arguments = ["train", write_recipe(folder, settings), "--device", "cpu", "-o", folder / "two"]
    done = subprocess.run(
        # Alone on this machine, by a port that it finds itself.
        [
            sys.executable,
            "-m",
            "torch.distributed.run",
            "--standalone",
            "--nproc-per-node",
            "2",
            "-m",
            "tests.unit.training.gradients",
            *map(str, [model, folder / "found.pt", *arguments]),
        ],
        capture_output=True,
        text=True,
        timeout=600,
        cwd=ROOT,
    )
    assert done.returncode == 0, done.stderr[-4000:]
    return folder


def test_single_process_gathers_only_its_rows() -> None:
    local = torch.ones(3, 2)
    assert processes() == 1
    assert gather(local) is local


@pytest.mark.parametrize("sizes", [(), (3,), (2, 3), (3, 3, 3)])
def test_sizes_not_matching_the_processes_are_rejected(monkeypatch: pytest.MonkeyPatch, sizes: tuple[int, ...]) -> None:
    """Gathered by them, rows of other processes would be taken for padding, or the processes would wait forever."""
    monkeypatch.setattr(dist, "is_initialized", lambda: True)
    monkeypatch.setattr(dist, "get_world_size", lambda: 2)
    monkeypatch.setattr(dist, "get_rank", lambda: 0)
    with pytest.raises(ValueError, match="process 0 has 3"):
        gather(torch.ones(3, 2), sizes)


@pytest.mark.long
def test_two_process_gradients_equal_the_joint_batch(trained: Path) -> None:
    found = torch.load(trained / "found.pt", weights_only=True)
    joint = {name: gradients.gradients(trained / "model", name, None) for name in gradients.OBJECTIVES}
    for name, mini_batch in gradients.CASES:
        largest = max(float(gradient.abs().max()) for gradient in joint[name].values())
        assert largest > 1e-4
        # Sums in float32 come in another order with every run, and a gradient is a sum of larger terms.
        rounding = max(2e-6, 2e-6 * largest)
        for key, gradient in joint[name].items():
            place = f"{name}/{mini_batch}/{key}"
            torch.testing.assert_close(
                found[place], gradient, atol=rounding, rtol=1e-4, msg=lambda text, place=place: f"{place}: {text}"
            )


@pytest.mark.slow
def test_two_process_run_equals_a_single_process_run(trained: Path) -> None:
    train_here(trained / "recipe.yaml", trained / "one")
    logs = [(trained / name / "training/pairs-log.csv").read_text().splitlines() for name in ("one", "two")]
    assert len(logs[0]) == len(logs[1]) > 5
    one, two = (
        torch.cat([tensor.flatten() for _, tensor in sorted(_weights(trained / name).items())])
        for name in ("one", "two")
    )
    start = torch.cat([tensor.flatten() for _, tensor in sorted(_weights(trained / "model").items())])
    moved = (one - start).norm()
    assert moved > 0.01
    # Adam divides by the size of a gradient: where that is little more than rounding, so is the sign of a step.
    assert (one - two).norm() < 0.05 * moved


def _weights(folder: Path) -> dict[str, torch.Tensor]:
    from safetensors.torch import load_file

    # A softmax over keys does not see what is added to all of them: the gradient of their bias is rounding alone, which
    # Adam makes whole steps of, in other directions with every run.
    no_gradient = ("pooler", "key.bias")
    stored = load_file(folder / "model.safetensors").items()
    return {name: tensor for name, tensor in stored if not any(part in name for part in no_gradient)}
