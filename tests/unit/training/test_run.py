"""Whole runs on the command line: from a recipe to a bundle, killed, resumed, and what goes wrong."""

import json
import resource
import shutil
import signal
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from safetensors.torch import load_file

from es_sbert.bundle.checkpoint import read_model
from es_sbert.bundle.model import Precision
from es_sbert.bundle.store import open_bundle
from es_sbert.errors import ModelNotFound, RecipeInvalid, SourceError, TrainingDiverged
from es_sbert.evaluation.similarity import Similarity, paired_similarity
from es_sbert.evaluation.sts import correlate
from es_sbert.exporters.export import export_bundle
from es_sbert.networks.folder import open_siamese
from tests.unit.training.support import (
    command,
    environment,
    read_json,
    recipe,
    run,
    train_here,
    write_model,
    write_pairs,
    write_recipe,
)

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_model(tmp_path_factory.mktemp("model") / "model")


def rho(folder: Path, dev: Path) -> float:
    """ρ × 100 of a model's cosines, by torch."""
    rows = [line.split("\t") for line in dev.read_text().splitlines()[1:]]
    encoder = open_siamese(folder)
    cosines = paired_similarity(Similarity.COSINE, *(encoder.embed([row[column] for row in rows]) for column in (0, 1)))
    return correlate(cosines, np.array([float(row[2]) for row in rows])).spearman


def test_a_recipe_becomes_a_bundle_that_ranks_dev_better(folder: Path, model: Path) -> None:
    settings = recipe(model, epochs=3, checkpoints_per_epoch=2)
    output = folder / "out"
    trained = train_here(write_recipe(folder, settings), output)
    bundle = open_bundle(output)
    assert list(bundle.manifest.variants) == ["fp32"]
    assert bundle.manifest.name == "tiny"
    assert bundle.manifest.fingerprint == trained.fingerprint
    before, after = rho(model, folder / "dev.tsv"), rho(output, folder / "dev.tsv")
    assert after > before + 5

    log = (output / "training/pairs-log.csv").read_text().splitlines()
    assert log[0] == "step,epoch,loss,learning_rate,grad_norm,dev"
    measured = {int(row.split(",")[0]): float(row.split(",")[5]) for row in log[1:] if row.split(",")[5]}
    assert sorted(measured) == [0, 15, 30, 45, 60, 75, 90]  # 240 pairs in batches of 8, twice an epoch
    assert (output / "training/pairs-log.png").read_bytes().startswith(b"\x89PNG")
    assert not list((output / "training").rglob("checkpoint-*"))
    # What stands in the folder is the best checkpoint.
    assert after == pytest.approx(max(measured.values()), abs=1e-3)
    assert "best dev score" in (output / "README.md").read_text()
    # There is nothing to resume; and another variant leaves the logs where they are.
    again = train_here(output.parent / "recipe.yaml", output, resume=True)
    assert (again.stages, again.fingerprint) == ((), trained.fingerprint)
    export_bundle(read_model(output, "tiny"), output, [Precision.INT8], force=True)
    assert set(open_bundle(output).manifest.variants) == {"fp32", "int8"}
    assert (output / "training/pairs-log.csv").read_text().splitlines() == log

    notes = read_json(output / "training.json")
    assert notes["recipe"]["stages"][0]["batch"] == 8
    assert set(notes["data"]) == {"train.tsv", "dev.tsv"}
    assert notes["stages"][0]["best_dev"] == pytest.approx(max(measured.values()))


def _kill_when(process: subprocess.Popen[str], reached: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 240
    while not reached():
        assert process.poll() is None, process.communicate()[1]
        assert time.monotonic() < deadline, "the run got nowhere"
        time.sleep(0.02)
    process.send_signal(signal.SIGKILL)
    process.communicate()
    assert process.returncode == -signal.SIGKILL


def test_a_killed_run_resumes_to_the_same_weights(folder: Path, model: Path) -> None:
    """Dropout, shuffling, warm-up, Adam and the best checkpoint all go on as if nothing had happened."""
    write_pairs(folder / "train.tsv", 1200)
    settings = recipe(model, epochs=2, checkpoints_per_epoch=3, accumulation=2)
    settings["export"] = {"precisions": []}
    path = write_recipe(folder, settings)
    whole = run("train", path, "-o", folder / "whole")
    assert whole.returncode == 0, whole.stderr

    stage = folder / "killed/training/pairs"
    for kills, checkpoint in enumerate((25, 100)):  # in the middle of the first epoch, and of the second
        resume = ["--resume"] if kills else []
        process = subprocess.Popen(command("train", path, "-o", folder / "killed", *resume), env=environment(),
                                   stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)  # fmt: skip
        marker = stage / f"checkpoint-{checkpoint}/complete"
        _kill_when(process, marker.exists)
        assert not (folder / "killed/modules.json").exists()
    resumed = run("train", path, "-o", folder / "killed", "--resume")
    assert resumed.returncode == 0, resumed.stderr
    expected, found = (load_file(folder / name / "model.safetensors") for name in ("whole", "killed"))
    assert expected.keys() == found.keys()
    for name, tensor in expected.items():
        assert np.array_equal(found[name].numpy(), tensor.numpy()), name
    logs = [(folder / name / "training/pairs-log.csv").read_text() for name in ("whole", "killed")]
    assert logs[0] == logs[1]


def test_an_interrupted_save_is_passed_over(folder: Path, model: Path) -> None:
    settings = recipe(model, epochs=2, checkpoints_per_epoch=3)
    settings["export"] = {"precisions": []}
    path = write_recipe(folder, settings)
    process = subprocess.Popen(command("train", path, "-o", folder / "out"), env=environment(), text=True,
                               stdout=subprocess.PIPE, stderr=subprocess.PIPE)  # fmt: skip
    stage = folder / "out/training/pairs"
    _kill_when(process, (stage / "checkpoint-20/complete").exists)
    # What a kill in the middle of the next save would have left: newer, cut short, without its marker.
    broken = stage / "checkpoint-9999"
    shutil.copytree(stage / "checkpoint-20", broken)
    (broken / "complete").unlink()
    (broken / "model.safetensors").write_bytes(b"cut short")
    resumed = run("train", path, "-o", folder / "out", "--resume")
    assert resumed.returncode == 0, resumed.stderr
    assert not broken.exists()
    assert "step 60 of 60" in resumed.stderr
    assert "step 0 of" not in resumed.stderr  # it went on, it did not start again


def test_stages_follow_each_other(folder: Path, model: Path) -> None:
    settings = recipe(model)
    first = dict(settings["stages"][0], name="first", objective={"kind": "cosent"}, dev=None)
    settings["stages"].insert(0, first)
    settings["model"]["dense"] = {"out_features": 12}
    settings["export"] = {"precisions": []}
    train_here(write_recipe(folder, settings), folder / "out", keep_checkpoints=True)
    dense = {
        place: load_file(folder / "out" / place / "2_Dense/model.safetensors")["linear.weight"].numpy()
        for place in ("training/first/model", ".")
    }
    # The second stage starts from the first one's Dense layer, and not from a new one.
    first_layer, last = dense.values()
    assert 0 < np.abs(first_layer - last).max() < 0.1
    assert [stage["name"] for stage in read_json(folder / "out/training.json")["stages"]] == ["first", "pairs"]


# peft asks transformers in a way that transformers 5 deprecates.
@pytest.mark.filterwarnings("ignore:`is_gradient_checkpointing` is deprecated:FutureWarning")
def test_lora_trains_the_updates_alone_and_merges_them(folder: Path, model: Path) -> None:
    settings = recipe(model)
    settings["model"]["lora"] = {"rank": 4}
    settings["export"] = {"precisions": []}
    train_here(write_recipe(folder, settings), folder / "out")
    before, after = load_file(model / "model.safetensors"), load_file(folder / "out/model.safetensors")
    assert before.keys() == after.keys()
    changed = {name for name in before if not np.array_equal(before[name].numpy(), after[name].numpy())}
    assert "encoder.layer.0.attention.self.query.weight" in changed
    assert not any("embeddings" in name or "LayerNorm" in name or "bias" in name for name in changed)


def test_early_stopping_ends_a_run_that_brings_nothing(folder: Path, model: Path) -> None:
    settings = recipe(model, epochs=50, learning_rate=1e-12, patience=2)
    settings["export"] = {"precisions": []}
    (stage,) = train_here(write_recipe(folder, settings), folder / "out").stages
    # Of 1,500: what is measured after the first epoch is no better than what the run started from, or hardly.
    assert stage.steps <= 150


def test_a_loss_that_is_no_number_stops_the_run(folder: Path, model: Path) -> None:
    settings = recipe(model, learning_rate=1e30, warmup=0, max_grad_norm=1e30)
    with pytest.raises(TrainingDiverged, match=r"the loss of step 2 is nan.*train\.tsv, lines ") as caught:
        train_here(write_recipe(folder, settings), folder / "out")
    assert "Lower learning_rate" in caught.value.remedy


def test_a_full_disk_leaves_the_checkpoint_before(folder: Path, model: Path) -> None:
    """Files may not grow beyond what the first checkpoint took: the optimiser's state, written later, does not fit."""
    settings = recipe(model, epochs=2, dev=None)
    settings["export"] = {"precisions": []}
    path = write_recipe(folder, settings)
    process = subprocess.Popen(command("train", path, "-o", folder / "out"), env=environment(), text=True,
                               stdout=subprocess.PIPE, stderr=subprocess.PIPE)  # fmt: skip
    stage = folder / "out/training/pairs"
    _kill_when(process, (stage / "checkpoint-30/complete").exists)
    kept = {file.name: file.read_bytes() for file in (stage / "checkpoint-30").iterdir()}
    largest = max(map(len, kept.values()))

    def limit() -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (largest // 2, largest // 2))
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)

    full = subprocess.run(command("train", path, "-o", folder / "out", "--resume"), env=environment(), text=True,
                          capture_output=True, timeout=300, preexec_fn=limit)  # fmt: skip
    assert full.returncode == 2, full.stderr
    assert "cannot be written" in full.stderr
    assert "--resume" in full.stderr
    assert "Traceback" not in full.stderr
    assert {file.name: file.read_bytes() for file in (stage / "checkpoint-30").iterdir()} == kept
    again = run("train", path, "-o", folder / "out", "--resume")
    assert again.returncode == 0, again.stderr


def test_resuming_another_recipe_or_other_data_is_refused(folder: Path, model: Path) -> None:
    path = write_recipe(folder, recipe(model))
    nothing = run("train", path, "-o", folder / "out", "--resume")
    assert nothing.returncode == 2
    assert "holds no run to go on with" in nothing.stderr
    process = subprocess.Popen(command("train", path, "-o", folder / "out"), env=environment(), text=True,
                               stdout=subprocess.PIPE, stderr=subprocess.PIPE)  # fmt: skip
    _kill_when(process, (folder / "out/training/run.json").exists)
    other = run("train", path, "-o", folder / "out", "--resume", "--set", "stages.0.batch=4")
    assert other.returncode == 2
    assert "another recipe: stages.0.batch" in other.stderr
    write_pairs(folder / "train.tsv", 100)
    changed = run("train", path, "-o", folder / "out", "--resume")
    assert changed.returncode == 2
    assert "other training data: train.tsv" in changed.stderr
    afresh = run("train", path, "-o", folder / "out")
    assert afresh.returncode == 2
    assert "is not empty" in afresh.stderr
    assert "--resume" in afresh.stderr


def test_bad_data_stops_the_run_before_anything_is_written(folder: Path, model: Path) -> None:
    path = write_recipe(folder, recipe(model))
    lines = (folder / "train.tsv").read_text().splitlines()
    lines[7] = "a sentence\tanother\t7"
    (folder / "train.tsv").write_text("\n".join(lines) + "\n")
    with pytest.raises(SourceError, match=r"train\.tsv.*line 8"):
        train_here(path, folder / "out")
    (folder / "train.tsv").unlink()
    with pytest.raises(SourceError, match=r"train\.tsv") as caught:
        train_here(path, folder / "out")
    assert "--data" in caught.value.remedy
    assert not (folder / "out").exists()


def test_gold_pairs_of_the_export_are_read_before_the_training(folder: Path, model: Path) -> None:
    settings = recipe(model)
    settings["export"] = {"sts": "nowhere.tsv"}
    with pytest.raises(SourceError, match=r"nowhere\.tsv"):
        train_here(write_recipe(folder, settings), folder / "gold")
    assert not (folder / "gold").exists()


@pytest.mark.parametrize("missing", ["base", "teacher", "neighbours"])
def test_a_model_that_is_not_there_stops_the_run_before_anything_is_written(
    folder: Path, model: Path, missing: str
) -> None:
    settings = recipe(folder / "nowhere" if missing == "base" else model)
    if missing != "base":
        settings["stages"][0]["objective"] = {"kind": "regression", "teacher": str(folder / "nowhere")}
        settings["stages"][0]["data"] = [
            {"path": "train.tsv", "columns": {"sentence1": "sentence1", "sentence2": "sentence2"}}
        ]
    if missing == "neighbours":
        settings["stages"][0]["objective"]["teacher"] = str(model)
        settings["stages"][0]["data"][0]["neighbours"] = {"model": str(folder / "nowhere")}
    with pytest.raises(ModelNotFound, match="nowhere"):
        train_here(write_recipe(folder, settings), folder / "out")
    assert not (folder / "out").exists()


def test_two_data_sets_of_one_name_are_refused(folder: Path, model: Path) -> None:
    settings = recipe(model)
    settings["stages"][0]["data"] *= 2
    with pytest.raises(RecipeInvalid, match="different names, not train.tsv, train.tsv"):
        train_here(write_recipe(folder, settings), folder / "out")


def test_a_batch_that_does_not_fit_says_which_setting_to_lower(folder: Path, model: Path) -> None:
    """torch's own allocator refuses: memory of this process is limited while a huge batch runs."""
    write_pairs(folder / "train.tsv", 6000)
    settings = recipe(model, batch=6000, dev=None)
    path = write_recipe(folder, settings)

    def limit() -> None:
        resource.setrlimit(resource.RLIMIT_DATA, (1_300_000_000, resource.RLIM_INFINITY))

    done = subprocess.run(command("train", path, "-o", folder / "out"), env=environment(), text=True,
                          capture_output=True, timeout=300, preexec_fn=limit)  # fmt: skip
    assert done.returncode == 2, done.stderr[-2000:]
    assert "does not fit into memory with batch: 6000" in done.stderr
    assert "Lower batch in the recipe to 3000" in done.stderr
    assert "Traceback" not in done.stderr


def test_the_command_says_what_came_of_it(folder: Path, model: Path) -> None:
    path = write_recipe(folder, recipe(model))
    checked = run("train", path, "--check")
    assert checked.stdout == "pairs: 240 examples, 60 for dev\n"
    done = run("train", path, "-o", folder / "out", "--set", "stages.0.epochs=0.5", "--seed", "7", "--json")
    assert done.returncode == 0, done.stderr
    printed = json.loads(done.stdout)
    assert printed["stages"][0]["steps"] == 15
    assert printed["fingerprint"] == open_bundle(folder / "out").manifest.fingerprint
    assert read_json(folder / "out/training.json")["recipe"]["seed"] == 7
    assert "step 15 of 15" in done.stderr
