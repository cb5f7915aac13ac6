"""The folder of a run knows what the run was started with, and lets nothing else go on."""

import json
from pathlib import Path
from typing import Any

import pytest

from es_sbert.errors import CheckpointInvalid, ModelNotFound
from es_sbert.training.recipe import Recipe, load_recipe
from es_sbert.training.run_folder import RunFolder, hash_model, last_complete_checkpoint, mark_checkpoint_complete
from es_sbert.training.training_run import find_models
from tests.raised import raises_as_recorded
from tests.unit.training.support import recipe, write_recipe


def write_files(folder: Path, **contents: str) -> Path:
    """A folder in the form of a model's; nothing opens it."""
    (folder / "1_Pooling").mkdir(parents=True)
    files = {"model.safetensors": "w", "config.json": "{}", "1_Pooling/config.json": "{}"}
    for name, content in (files | contents).items():
        (folder / name).write_text(content)
    return folder


@pytest.fixture
def distilling(tmp_path: Path) -> Recipe:
    """A recipe that starts from one model and learns from another, both in the test's folder."""
    settings: dict[str, Any] = recipe(write_files(tmp_path / "base"))
    teacher = str(write_files(tmp_path / "teacher"))
    settings["stages"][0]["data"] = [{"path": "train.tsv", "columns": {"source": "a"}}]
    settings["stages"][0]["objective"] = {"kind": "vector-distillation", "teacher": teacher}
    return load_recipe(str(write_recipe(tmp_path, settings)))


def hold(output: Path, its: Recipe, *, resume: bool) -> None:
    models = {name: hash_model(folder) for name, folder in find_models(its, all_needed=not resume).items()}
    with RunFolder(output).lock(its, {}, models, "fp32", resume=resume):
        pass


def test_run_resumes_with_its_recipe_only(tmp_path: Path, distilling: Recipe) -> None:
    hold(tmp_path / "out", distilling, resume=False)
    assert RunFolder(tmp_path / "out").precision() == "fp32"
    hold(tmp_path / "out", distilling, resume=True)
    for changes in ({"precision": "fp16"}, {"seed": 7}):
        with raises_as_recorded(CheckpointInvalid):
            hold(tmp_path / "out", distilling.model_copy(update=changes), resume=True)


def test_run_of_a_recipe_that_this_version_cannot_run_is_refused(tmp_path: Path, distilling: Recipe) -> None:
    hold(tmp_path / "out", distilling, resume=False)
    path = tmp_path / "out/training/run.json"
    recorded = json.loads(path.read_text())
    recorded["recipe"]["stages"][0]["objective"] = {"kind": "denoising", "ratio": 0.6}
    path.write_text(json.dumps(recorded))
    with raises_as_recorded(CheckpointInvalid):
        hold(tmp_path / "out", distilling, resume=True)


def test_module_left_by_an_interrupted_publication_is_replaced(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path)
    for place in (folder.staging_folder / "1_Pooling/config.json", tmp_path / "1_Pooling/old.json"):
        place.parent.mkdir(parents=True)
        place.touch()
    folder.publish([])
    assert [path.name for path in (tmp_path / "1_Pooling").iterdir()] == ["config.json"]


def test_run_resumes_without_models_that_are_gone(tmp_path: Path, distilling: Recipe) -> None:
    hold(tmp_path / "out", distilling, resume=False)
    (tmp_path / "teacher").rename(tmp_path / "elsewhere")
    hold(tmp_path / "out", distilling, resume=True)
    with raises_as_recorded(ModelNotFound):
        hold(tmp_path / "anew", distilling, resume=False)


def test_model_hash_covers_only_files_that_affect_the_model(tmp_path: Path) -> None:
    model = hash_model(write_files(tmp_path / "model"))
    others = [
        {"model.safetensors": "v"}, {"config.json": "[]"}, {"1_Pooling/config.json": "[]"}, {"tokenizer.json": "{}"},
    ]  # fmt: skip
    hashes = [hash_model(write_files(tmp_path / str(number), **other)) for number, other in enumerate(others)]
    assert len({model, *hashes}) == 5
    exported = write_files(
        tmp_path / "exported", **{"README.md": "A card.", "es_sbert.json": "{}", "es_sbert_reranker.json": "{}"}
    )
    assert hash_model(exported) == model


def test_run_resumes_from_the_complete_checkpoint_of_most_steps(tmp_path: Path) -> None:
    for step in (9, 100, 101):
        (tmp_path / f"checkpoint-{step}").mkdir()
    for step in (9, 100):
        mark_checkpoint_complete(tmp_path / f"checkpoint-{step}")
    assert last_complete_checkpoint(tmp_path) == tmp_path / "checkpoint-100"
