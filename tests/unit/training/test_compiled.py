"""torch.compile changes nothing but the speed: not the gradients, not the names of weights, not the measurements."""

import shutil
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from es_sbert.errors import TrainingError
from es_sbert.training import training_stage
from es_sbert.training.recipe import ModelKind
from es_sbert.training.torch_compiler import compile_transformer, eager_mode, translate_compiler_errors
from tests.unit.checkpoints import write_checkpoint
from tests.unit.training.support import STILL, cut_at, recipe, train_here, write_recipe

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("no_pictures")]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Of one layer: the time goes into tracing, and the second one would be traced like the first."""
    folder = tmp_path_factory.mktemp("model") / "model"
    return write_checkpoint(folder, "bert", hidden=32, heads=4, layers=1, max_tokens=32, config=STILL)


@pytest.fixture(autouse=True)
def traced_only(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Graphs of forward and backward are traced and run by torch's own kernels: new ones would take a minute to make.

    Returns:
        What torch has counted: the graphs that it traced (`stats`), and where it had to leave one (`graph_break`).
    """
    from torch._dynamo.utils import counters

    torch.compiler.reset()
    counters.clear()
    monkeypatch.setattr(training_stage, "compile_transformer", partial(compile_transformer, backend="aot_eager"))
    return counters


def settings(model: Path, **stage: Any) -> dict[str, Any]:
    return recipe(model, epochs=0.5, **stage) | {"compile": True, "export": {"precisions": []}}


@pytest.mark.parametrize(
    ("kind", "changes"),
    [
        (ModelKind.CROSS_ENCODER, {"gradient_checkpointing": True}),
        (ModelKind.BI_ENCODER, {"mini_batch": 3}),
    ],
    ids=["cross-encoder, gradient checkpointing", "bi-encoder, mini-batches"],
)
@pytest.mark.filterwarnings("ignore:.*gradient_checkpointing.*:FutureWarning")
def test_compiled_run_equals_an_eager_run(
    folder: Path, model: Path, kind: ModelKind, changes: dict[str, Any], traced_only: Any
) -> None:
    its = settings(model, **changes)
    its["model"]["kind"] = str(kind)
    path = write_recipe(folder, its)
    compiled = train_here(path, folder / "compiled", keep_checkpoints=True)
    # Neither sizes nor lengths, which differ from batch to batch, were compiled into the graphs, and no layer is split.
    assert 1 <= traced_only["stats"]["unique_graphs"] <= 4
    assert not traced_only["graph_break"]
    plain = train_here(write_recipe(folder, its | {"compile": False}), folder / "plain", keep_checkpoints=True)
    losses = [[row["loss"] for row in run.stages[0].course if "loss" in row] for run in (compiled, plain)]
    assert len(losses[0]) == 8
    assert losses[0] == pytest.approx(losses[1], abs=1e-4)
    for place in (".", "training/pairs/checkpoint-8"):
        names = [set(load_file(folder / run / place / "model.safetensors")) for run in ("compiled", "plain")]
        assert names[0] == names[1]


# peft asks transformers in a way that transformers 5 deprecates.
@pytest.mark.filterwarnings("ignore:`is_gradient_checkpointing` is deprecated:FutureWarning")
def test_lora_of_a_compiled_network_is_merged(folder: Path, model: Path, traced_only: Any) -> None:
    its = settings(model)
    its["model"]["lora"] = {"rank": 4}
    train_here(write_recipe(folder, its), folder / "out")
    assert traced_only["stats"]["unique_graphs"] >= 1
    before, after = load_file(model / "model.safetensors"), load_file(folder / "out/model.safetensors")
    assert before.keys() == after.keys()
    name = "encoder.layer.0.attention.self.query.weight"
    assert not torch.equal(before[name], after[name])


def test_compiled_run_resumes(folder: Path, model: Path) -> None:
    path = write_recipe(folder, settings(model, checkpoints_per_epoch=4))
    train_here(path, folder / "whole")
    with cut_at(6):
        train_here(path, folder / "cut")
    train_here(path, folder / "cut", resume=True)
    whole, cut = (load_file(folder / name / "model.safetensors") for name in ("whole", "cut"))
    for name, tensor in whole.items():
        torch.testing.assert_close(cut[name], tensor, atol=1e-5, rtol=1e-4)


@pytest.mark.skipif(shutil.which("g++") is None, reason="needs g++")
def test_default_torch_compiler_compiles_the_network(
    folder: Path, monkeypatch: pytest.MonkeyPatch, traced_only: Any
) -> None:
    monkeypatch.setattr(training_stage, "compile_transformer", compile_transformer)
    small = write_checkpoint(folder / "small", hidden=16, heads=2, layers=1, max_tokens=32, config=STILL)
    path = write_recipe(folder, settings(small, dev=None))
    compiled = train_here(path, folder / "compiled")
    assert traced_only["stats"]["unique_graphs"] >= 1
    plain = train_here(write_recipe(folder, settings(small, dev=None) | {"compile": False}), folder / "plain")
    losses = [[row["loss"] for row in run.stages[0].course if "loss" in row] for run in (compiled, plain)]
    assert losses[0] == pytest.approx(losses[1], abs=1e-4)


def test_evaluation_does_not_compile(traced_only: Any) -> None:
    network = torch.nn.Linear(2, 2)
    network.compile(backend="aot_eager")
    with torch.inference_mode(), eager_mode(compiled=True):
        network(torch.ones(3, 2))
    assert traced_only["stats"]["unique_graphs"] == 0
    network(torch.ones(3, 2))
    assert traced_only["stats"]["unique_graphs"] == 1


def test_missing_compiler_error_has_a_remedy(folder: Path, model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(graph: object, inputs: object) -> None:
        raise FileNotFoundError("no g++ here")

    monkeypatch.setattr(training_stage, "compile_transformer", partial(compile_transformer, backend=broken))
    with pytest.raises(
        TrainingError, match="torch.compile cannot compile the network here: .*no g\\+\\+ here"
    ) as caught:
        train_here(write_recipe(folder, settings(model)), folder / "out")
    assert "g++" in caught.value.remedy
    assert "compile: false" in caught.value.remedy
    with pytest.raises(RuntimeError, match="shapes"), translate_compiler_errors(compiled=True):
        raise RuntimeError("mat1 and mat2 shapes cannot be multiplied")
