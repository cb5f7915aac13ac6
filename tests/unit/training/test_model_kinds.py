"""Runs of every kind of model and setting, in this process: what comes out, and that it learnt."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.torch import load_file, save_file
from sentence_transformers import CrossEncoder

from es_sbert.bundle.cross_encoder_model import read_cross_encoder
from es_sbert.errors import ModelError, UsageError
from es_sbert.training.example_augmentation import TorchPairScorer
from tests.raised import raises_as_recorded
from tests.unit.checkpoints import write_cross_encoder
from tests.unit.exporters.comparison import edit
from tests.unit.training.support import STILL, cut_at, recipe, train_here, write_model, write_recipe

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_model(tmp_path_factory.mktemp("model") / "model", config=STILL)


def train(folder: Path, settings: dict[str, Any], **options: Any) -> Path:
    """Run a recipe and check that the dev score rose."""
    output = folder / "out"
    trained = train_here(write_recipe(folder, settings), output, **options)
    measured = [row["dev"] for row in trained.stages[-1].course if "dev" in row]
    assert max(measured) > measured[0] + 2
    return output


def test_stage_settings_are_accepted(folder: Path, model: Path) -> None:
    objective = {"kind": "cosent", "matryoshka": {"dimensions": [8, 32]}}
    small = {"batch": 4, "mini_batch": 3, "accumulation": 2, "smart_batching": False}
    train(folder, recipe(model, epochs=2, objective=objective, **small))


def test_half_precision_training_saves_float32(folder: Path, model: Path) -> None:
    settings = recipe(model, epochs=2) | {"precision": "bf16"}
    output = train(folder, settings)
    # The weights themselves stay float32.
    assert {str(tensor.dtype) for tensor in load_file(output / "model.safetensors").values()} == {"torch.float32"}


def test_several_data_sets_with_their_own_objectives(folder: Path, model: Path) -> None:
    lines = (folder / "train.tsv").read_text().splitlines()
    rows = [line.split("\t") for line in lines[1:]]
    triplets = [{"a": row[0], "p": row[0] + " again", "n": "otherwise " + row[1]} for row in rows[:100]]
    (folder / "triplets.jsonl").write_text("\n".join(map(json.dumps, triplets)) + "\n")
    classes = [{"x": row[0], "y": row[1], "label": "same" if int(row[2]) > 2 else "other"} for row in rows[:90]]
    (folder / "classes.jsonl").write_text("\n".join(map(json.dumps, classes)) + "\n")
    settings = recipe(model, epochs=2)
    settings["stages"][0]["data"] += [
        {
            "path": "triplets.jsonl",
            "columns": {"anchor": "a", "positive": "p", "negative": "n"},
            "objective": {"kind": "triplet", "distance": "cosine", "margin": 0.1},
        },
        {
            "path": "classes.jsonl",
            "columns": {"sentence1": "x", "sentence2": "y", "class": "label"},
            "objective": {"kind": "softmax", "classes": ["other", "same"]},
        },
    ]
    output = train(folder, settings)
    notes = json.loads((output / "training.json").read_text())
    assert notes["stages"][0]["examples"] == 128 + 100 + 90
    assert notes["stages"][0]["steps"] == 2 * (16 + 13 + 12)


def margin_recipe(folder: Path, model: Path, teacher: Path) -> Path:
    """Write a recipe that distills a cross-encoder, and its triplets."""
    rows = [line.split("\t") for line in (folder / "train.tsv").read_text().splitlines()[1:61]]
    triplets = [{"anchor": row[0], "positive": row[0], "negative": row[1]} for row in rows]
    (folder / "triplets.jsonl").write_text("\n".join(map(json.dumps, triplets)) + "\n")
    settings = recipe(model, epochs=2, dev=None)
    settings["stages"][0] |= {
        "data": [{"path": "triplets.jsonl", "columns": {role: role for role in triplets[0]}}],
        "objective": {"kind": "margin-distillation", "teacher": str(teacher)},
    }
    return write_recipe(folder, settings)


def test_teacher_margins_are_those_of_its_scores_and_kept_for_a_resumed_run(folder: Path, model: Path) -> None:
    teacher = write_cross_encoder(folder / "teacher")
    path = margin_recipe(folder, model, teacher)
    with cut_at(9):  # of 16, after the checkpoint of the first epoch
        train_here(path, folder / "out")
    triplets = [json.loads(line) for line in (folder / "triplets.jsonl").read_text().splitlines()]
    reference = CrossEncoder(str(teacher), device="cpu", local_files_only=True)
    right, wrong = (
        reference.predict([(each["anchor"], each[role]) for each in triplets]) for role in ("positive", "negative")
    )
    np.testing.assert_allclose(np.load(folder / "out/training/pairs/teacher-0.npy"), right - wrong, atol=1e-6)
    teacher.rename(folder / "gone")
    losses = [row["loss"] for row in train_here(path, folder / "out", resume=True).stages[0].course if "loss" in row]
    assert losses[-1] < losses[0]


@pytest.mark.parametrize("labels", [3, 1])
def test_teacher_without_one_trained_score_is_refused(folder: Path, model: Path, labels: int) -> None:
    teacher = write_cross_encoder(folder / "teacher", labels=labels, layers=1)
    weights = load_file(teacher / "model.safetensors")
    encoder = {name: tensor for name, tensor in weights.items() if not name.startswith("classifier")}
    save_file(encoder, teacher / "model.safetensors", metadata={"format": "pt"})
    with raises_as_recorded(ModelError):
        train_here(margin_recipe(folder, model, teacher), folder / "out")


def test_teacher_refuses_a_text_with_a_token_without_a_vector(folder: Path) -> None:
    teacher = write_cross_encoder(folder / "teacher", layers=1)
    weights = load_file(teacher / "model.safetensors")
    weights["bert.embeddings.word_embeddings.weight"] = weights["bert.embeddings.word_embeddings.weight"][:550]
    save_file(weights, teacher / "model.safetensors", metadata={"format": "pt"})
    edit(teacher / "config.json", vocab_size=550)
    vocabulary = read_cross_encoder(teacher).tokenizer_json()["model"]["vocab"]
    with raises_as_recorded(UsageError):
        TorchPairScorer(teacher, "cpu").score(["the"], [max(vocabulary, key=vocabulary.get)])
