"""A loss that is not a number stops the run, whether it is looked at at once or, as on a GPU, some batches later."""

from pathlib import Path

import numpy as np
import pytest
import torch

from es_sbert.errors import TrainingDiverged
from es_sbert.training import trainer
from es_sbert.training.run_folder import last_complete_checkpoint
from es_sbert.training.training_errors import CHECK_DELAY, LossCheck
from es_sbert.training.training_examples import Examples
from tests.raised import raises_as_recorded
from tests.unit.training.support import recipe, train_here, write_recipe

EXAMPLES = Examples("pairs", Path("pairs.tsv"), (["a"] * 90, ["b"] * 90), None, np.arange(2, 92))
CPU = torch.device("cpu")


def batch(step: int) -> np.ndarray:
    return np.array([step, step + 1])


@pytest.mark.parametrize("delay", [1, 3, CHECK_DELAY])
@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf")])
def test_delayed_check_names_the_step_and_batch_of_the_loss(delay: int, value: float) -> None:
    losses = LossCheck(CPU, delay)
    # More steps than there are places for losses on their way: places are used again.
    for step in range(1, 40):
        losses.add(torch.tensor(1 / step), step, EXAMPLES, batch(step))
    losses.add(torch.tensor(value), 40, EXAMPLES, batch(40))
    for step in range(41, 40 + delay):
        losses.add(torch.tensor(float("nan")), step, EXAMPLES, batch(step))
    with raises_as_recorded(TrainingDiverged):
        losses.add(torch.tensor(1.0), 40 + delay, EXAMPLES, batch(0))


@pytest.mark.slow
@pytest.mark.parametrize(
    "stage",
    [{}, {"dev": None}, {"dev": None, "batch": 64}, {"dev": None, "batch": 128}],
    ids=["dev", "no dev", "two steps", "one step"],
)
def test_delayed_loss_check_leaves_no_checkpoint_and_no_model(
    folder: Path, model: Path, monkeypatch: pytest.MonkeyPatch, stage: dict[str, object]
) -> None:
    """A run may log, be measured and end before the look would come: each of them looks first."""
    monkeypatch.setattr(trainer, "LossCheck", lambda device: LossCheck(device, delay=100))
    settings = recipe(model, learning_rate=1e30, warmup=0, max_grad_norm=1e30, **stage)
    output = folder / "out"
    with raises_as_recorded(TrainingDiverged):
        train_here(write_recipe(folder, settings), output)
    assert last_complete_checkpoint(output / "training/pairs") is None
    assert not (output / "training/pairs/model").exists()
    assert not (output / "modules.json").exists()
    log = output / "training/pairs-log.csv"
    assert not log.exists() or "nan" not in log.read_text()
