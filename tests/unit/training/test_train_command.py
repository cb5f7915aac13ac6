"""Whole runs on the command line: from a recipe to a bundle, and what goes wrong."""

import json
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import numpy as np
import pytest
import torch
from click.testing import CliRunner, Result
from safetensors.torch import load_file
from torch import Tensor

from es_sbert.bundle.bundle import open_encoder_bundle
from es_sbert.bundle.sentence_model import read_sentence_model
from es_sbert.bundle.variants import Variant
from es_sbert.cli.main import cli
from es_sbert.cli.train import train_summary
from es_sbert.errors import OutOfMemory, SourceError
from es_sbert.evaluation.pair_metrics import Similarity, correlate, paired_similarity
from es_sbert.exporters.export_bundle import export_bundle
from es_sbert.runtime.siamese_encoder import open_siamese_encoder
from es_sbert.training.bi_encoder_task import BiEncoderTask
from es_sbert.training.run_folder import RunFolder
from es_sbert.training.training_run import TrainingResult
from es_sbert.training.training_stage import StageResult
from tests.raised import raises_as_recorded
from tests.unit.training.support import Cut, read_json, recipe, train_here, write_recipe

pytestmark = pytest.mark.slow


def rho(folder: Path, dev: Path) -> float:
    """ρ × 100 of a model's cosines, by torch."""
    rows = [line.split("\t") for line in dev.read_text().splitlines()[1:]]
    encoder = open_siamese_encoder(folder)
    cosines = paired_similarity(Similarity.COSINE, *(encoder.embed([row[column] for row in rows]) for column in (0, 1)))
    return correlate(cosines, np.array([float(row[2]) for row in rows])).spearman


def test_training_writes_a_bundle_with_better_dev_scores(folder: Path, model: Path) -> None:
    settings = recipe(model, epochs=3, checkpoints_per_epoch=2) | {"export": {"precisions": ["fp32"]}}
    output = folder / "out"
    trained = train_here(write_recipe(folder, settings), output)
    bundle = open_encoder_bundle(output)
    assert list(bundle.manifest.variants) == ["fp32"]
    assert bundle.manifest.name == "tiny"
    assert bundle.manifest.fingerprint == trained.fingerprint
    before, after = rho(model, folder / "dev.tsv"), rho(output, folder / "dev.tsv")
    assert after > before + 5

    log = (output / "training/pairs-log.csv").read_text().splitlines()
    assert log[0] == "step,epoch,loss,learning_rate,grad_norm,dev"
    measured = {int(row.split(",")[0]): float(row.split(",")[5]) for row in log[1:] if row.split(",")[5]}
    assert sorted(measured) == [0, 8, 16, 24, 32, 40, 48]  # 128 pairs in batches of 8, twice an epoch
    assert not list((output / "training").rglob("checkpoint-*"))
    # What stands in the folder is the best checkpoint.
    assert after == pytest.approx(max(measured.values()), abs=1e-3)
    assert "best_dev: " in (output / "README.md").read_text()
    # There is nothing to resume; and another variant leaves the logs where they are.
    again = train_here(output.parent / "recipe.yaml", output, resume=True)
    assert (again.stages, again.fingerprint) == ((), trained.fingerprint)
    export_bundle(read_sentence_model(output, "tiny"), output, [Variant.INT8], force=True)
    assert set(open_encoder_bundle(output).manifest.variants) == {"fp32", "int8"}
    assert (output / "training/pairs-log.csv").read_text().splitlines() == log

    notes = read_json(output / "training.json")
    assert notes["recipe"]["stages"][0]["batch"] == 8
    assert set(notes["data"]) == {"train.tsv", "dev.tsv"}
    assert notes["stages"][0]["best_dev"] == pytest.approx(max(measured.values()))
    assert notes["stages"][0]["start_dev"] == pytest.approx(measured[0])


def test_stages_run_in_sequence(folder: Path, model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    settings = recipe(model)
    first = dict(settings["stages"][0], name="first", objective={"kind": "cosent"}, dev=None)
    settings["stages"].insert(0, first)
    settings["model"]["dense"] = {"out_features": 12}
    path = write_recipe(folder, settings)
    with monkeypatch.context() as patch:
        patch.setattr(RunFolder, "publish", Mock(side_effect=Cut))  # it removes the models of the stages
        with pytest.raises(Cut):
            train_here(path, folder / "out")
    dense = "model/2_Dense/model.safetensors"
    first_layer, last = (
        load_file(folder / "out/training" / stage / dense)["linear.weight"].numpy() for stage in ("first", "pairs")
    )
    # The second stage starts from the first one's Dense layer, and not from a new one.
    assert 0 < np.abs(first_layer - last).max() < 0.1
    train_here(path, folder / "out", resume=True)
    assert [stage["name"] for stage in read_json(folder / "out/training.json")["stages"]] == ["first", "pairs"]
    assert not (folder / "out/training/first/model").exists()


def test_invalid_data_stops_the_run_before_writing(folder: Path, model: Path) -> None:
    path = write_recipe(folder, recipe(model))
    lines = (folder / "train.tsv").read_text().splitlines()
    lines[7] = "a sentence\tanother\t7"
    (folder / "train.tsv").write_text("\n".join(lines) + "\n")
    with raises_as_recorded(SourceError):
        train_here(path, folder / "out")
    (folder / "train.tsv").unlink()
    with raises_as_recorded(SourceError):
        train_here(path, folder / "out")
    assert not (folder / "out").exists()


def test_out_of_memory_names_the_setting_to_lower(folder: Path, model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """torch's own allocator refuses what a batch needs: 32 TB for each example."""
    forward = BiEncoderTask.forward

    def hungry(task: BiEncoderTask, name: str, batch: Any) -> Tensor:
        torch.empty(len(batch["passes"][0][0]["ids"]) << 45, dtype=torch.uint8)
        return forward(task, name, batch)

    monkeypatch.setattr(BiEncoderTask, "forward", hungry)
    path = write_recipe(folder, recipe(model, batch=60, dev=None))
    with raises_as_recorded(OutOfMemory):
        train_here(path, folder / "out")


def test_train_command_reports_the_result(folder: Path, model: Path) -> None:
    path = write_recipe(folder, recipe(model) | {"export": {"precisions": ["fp32"]}})

    def said(*arguments: object) -> Result:
        result = CliRunner().invoke(cli, ["train", str(path), "--device", "cpu", *map(str, arguments)])
        assert result.exit_code == 0, result.output
        return result

    assert "quickstart " in said("--list").stdout
    assert said("--check").stdout == "pairs: 128 examples, 30 for dev\n"
    done = said("-o", folder / "out", "--set", "stages.0.epochs=0.5", "--seed", "7", "--json")
    printed = json.loads(done.stdout)
    assert printed["stages"][0]["steps"] == 8
    assert printed["fingerprint"] == open_encoder_bundle(folder / "out").manifest.fingerprint
    assert read_json(folder / "out/training.json")["recipe"]["seed"] == 7
    assert "step 8 of 8" in done.stderr


def test_summary_names_the_best_score_and_its_gain() -> None:
    for start, shown in ((70.0, "70.00 → 75.50 (+5.50)"), (80.0, "80.00 → 75.50 (no better than the model it ")):
        stage = StageResult("pairs", 128, 16, "dev ρ", start, 75.5, 8, 1.0, 100.0, [])
        assert f"dev ρ: {shown}" in train_summary(TrainingResult(Path("out"), (stage,), None), 60)
