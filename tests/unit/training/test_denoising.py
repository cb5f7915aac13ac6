"""TSDAE: deleted words, the decoder and its tied weights, and runs of the objective denoising."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from sentence_transformers import SentenceTransformer
from sentence_transformers.sentence_transformer.losses import DenoisingAutoEncoderLoss
from sentence_transformers.sentence_transformer.modules import Dense
from torch import Tensor

from es_sbert.errors import RecipeInvalid
from es_sbert.networks.siamese_encoder import open_siamese_encoder
from es_sbert.training import training_stage
from es_sbert.training.denoising_task import DECODER_ARCHITECTURES, DenoisingTask, WordDeletion, open_denoising_task
from es_sbert.training.objective_settings import DenoisingSpec
from es_sbert.training.open_task import open_task
from es_sbert.training.recipe import DataSpec, ModelKind, ModelSpec, StageSpec, load_recipe
from es_sbert.training.torch_compiler import compile_transformer
from es_sbert.training.training_examples import Examples
from tests.unit.checkpoints import write_checkpoint
from tests.unit.training.device_reads import DeviceReads
from tests.unit.training.support import (
    COLUMNS,
    STILL,
    cut_at,
    recipe,
    train_here,
    write_model,
    write_pairs,
    write_recipe,
)

SPEC = DenoisingSpec(kind="denoising")
TEXTS = [
    "a man plays a guitar in the old house",
    "the cat sleeps",
    "rain",
    "two dogs run in the park and a third one follows them slowly",
    "someone makes music",
    "",
]


def examples(texts: list[str] = TEXTS, name: str = "texts") -> Examples:
    return Examples(name, Path("texts.jsonl"), (texts,), None, np.arange(1, len(texts) + 1))


def open_denoising(base: Path, *, seed: int = 0, **changes: Any) -> DenoisingTask:
    """The task as a run opens it."""
    stage = {name: changes.pop(name) for name in ("mini_batch", "gradient_checkpointing") if name in changes}
    its_stage = StageSpec(data=(DataSpec(path="texts.jsonl", columns={"text": "text"}),), objective=SPEC, **stage)
    torch.manual_seed(1)
    task = open_task(ModelSpec(base=str(base), **changes), its_stage, [examples()], [SPEC], seed=seed)
    assert isinstance(task, DenoisingTask)
    return task


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_model(tmp_path_factory.mktemp("model") / "model")


def test_special_tokens_and_the_prompt_are_never_deleted(tmp_path: Path) -> None:
    encoder = open_siamese_encoder(write_checkpoint(tmp_path / "model"))
    prompt = "a query: "
    delete = WordDeletion(encoder, 0.9, prompt)
    (row,) = encoder.tokenize([TEXTS[0]], prompt)
    start = len(encoder.tokenize([""], prompt)[0]) - 1
    for seed in range(20):
        kept = delete(row, np.random.default_rng(seed))
        assert kept[:start].tolist() == row[:start].tolist()
        assert kept[-1] == row[-1]
        assert start + 1 < len(kept) <= len(row)


def test_whole_words_of_a_wordpiece_vocabulary_are_deleted(model: Path) -> None:
    encoder = open_siamese_encoder(model)
    delete = WordDeletion(encoder, 0.5)
    words = ["xylophone", "of", "an", "unseen", "quagmire"]
    pieces = [encoder.tokenize([word])[0][1:-1].tolist() for word in words]
    assert max(map(len, pieces)) > 2
    (row,) = encoder.tokenize([" ".join(words)])
    seen = set()
    for seed in range(30):
        rest = delete(row, np.random.default_rng(seed))[1:-1].tolist()
        for piece in pieces:
            if rest[: len(piece)] == piece:
                rest = rest[len(piece) :]
                seen.add(tuple(piece))
        assert rest == []
    assert len(seen) == len(words)


def test_share_of_deleted_words_is_the_ratio(model: Path) -> None:
    encoder = open_siamese_encoder(model)
    (row,) = encoder.tokenize(["a " * 20])
    lengths = [len(WordDeletion(encoder, 0.6)(row, np.random.default_rng(seed))) - 2 for seed in range(200)]
    assert np.mean(lengths) / (len(row) - 2) == pytest.approx(0.4, abs=0.03)


def test_at_least_one_word_stays_and_an_empty_text_is_kept(model: Path) -> None:
    encoder = open_siamese_encoder(model)
    delete = WordDeletion(encoder, 0.999)
    one, none = encoder.tokenize(["rain", ""])
    assert delete(one, np.random.default_rng(0)).tolist() == one.tolist()
    assert delete(none, np.random.default_rng(0)).tolist() == none.tolist()


def test_deleted_words_depend_on_seed_epoch_and_example_alone(model: Path) -> None:
    task, data = open_denoising(model, seed=3), examples([TEXTS[3]] * 4)
    first = task.noisy(data, [0, 1, 2, 3], 0)
    assert len({tuple(row) for row in first}) > 1
    # Another batch, as another process or a resumed run would have it.
    again = open_denoising(model, seed=3).noisy(data, [2, 1], 0)
    assert [row.tolist() for row in again] == [first[2].tolist(), first[1].tolist()]
    others = task.noisy(data, [0, 1, 2, 3], 1), open_denoising(model, seed=4).noisy(data, [0, 1, 2, 3], 0)
    for other in others:
        assert any(one.tolist() != two.tolist() for one, two in zip(first, other, strict=True))


@pytest.mark.parametrize("architecture", DECODER_ARCHITECTURES)
def test_loss_and_gradients_equal_sentence_transformers(tmp_path: Path, architecture: str) -> None:
    base = write_checkpoint(tmp_path / "model", architecture, hidden=32, normalize=False)
    task, rows = open_denoising(base).eval(), range(5)
    batch = task.collate(examples(), rows, epoch=2)
    ours = task("texts", batch)
    ours.backward()

    theirs = DenoisingAutoEncoderLoss(SentenceTransformer(str(base), device="cpu")).eval()
    ours_full = dict(task.decoder.network.named_parameters(remove_duplicate=False))
    with torch.no_grad():
        for name, parameter in theirs.decoder.named_parameters(remove_duplicate=False):
            parameter.copy_(ours_full[name])

    def features(texts: list[Any]) -> dict[str, Tensor]:
        ids, mask = task.encoder.pad(texts)
        return {"input_ids": ids, "attention_mask": mask}

    originals = [task.tokenized(examples())[0][row] for row in rows]
    loss = theirs([features(task.noisy(examples(), rows, 2)), features(originals)], None)
    loss.backward()
    torch.testing.assert_close(ours, loss, rtol=1e-5, atol=1e-6)
    for name, parameter in theirs.decoder.named_parameters():
        torch.testing.assert_close(ours_full[name].grad, parameter.grad, rtol=1e-3, atol=1e-6)


def test_decoder_layers_are_those_of_the_encoder(model: Path) -> None:
    task = open_denoising(model, layers=1)
    encoder, decoder = task.encoder.transformer, task.decoder.network
    shared = "encoder.layer.0.attention.self.query.weight"
    assert decoder.bert.get_parameter(shared) is encoder.get_parameter(shared)
    assert decoder.cls.predictions.decoder.weight is encoder.embeddings.word_embeddings.weight
    assert len(decoder.bert.encoder.layer) == 1
    state = task.state_dict()
    # What is tied is stored once: a checkpoint with shared tensors would not be written.
    pointers = [tensor.data_ptr() for tensor in state.values()]
    assert len(set(pointers)) == len(pointers)
    assert any("crossattention" in name for name in state)
    loaded = open_denoising(model, layers=1)
    with torch.no_grad():
        for parameter in loaded.parameters():
            parameter.add_(1)
    result = loaded.load_state_dict(state, strict=False)
    assert (result.missing_keys, result.unexpected_keys) == ([], [])
    for name, parameter in loaded.named_parameters():
        assert torch.equal(parameter, task.get_parameter(name)), name


@pytest.mark.parametrize("changes", [{"mini_batch": 2}, {"gradient_checkpointing": True}])
@pytest.mark.filterwarnings("ignore:.*gradient_checkpointing.*:FutureWarning")
def test_settings_that_save_memory_change_no_gradient(tmp_path: Path, changes: dict[str, Any]) -> None:
    base = write_model(tmp_path / "model", config=STILL)
    found = []
    for settings in ({}, changes):
        task = open_denoising(base, **settings).train()
        task("texts", task.collate(examples(), range(5))).backward()
        found.append({name: parameter.grad for name, parameter in task.named_parameters()})
    plain, saving = found
    assert sum(gradient is not None for gradient in plain.values()) > 20
    for name, gradient in plain.items():
        assert (gradient is None) == (saving[name] is None)
        if gradient is not None:
            torch.testing.assert_close(saving[name], gradient, atol=1e-6, rtol=1e-4)


@pytest.mark.parametrize("precision", [None, torch.bfloat16])
def test_step_reads_nothing_from_the_device_and_has_a_float32_loss(model: Path, precision: torch.dtype | None) -> None:
    task = open_denoising(model).train()
    batch = task.collate(examples(), range(5))
    with DeviceReads() as reads, torch.autocast("cpu", precision, enabled=precision is not None):
        loss = task("texts", batch)
        loss.backward()
    assert loss.dtype == torch.float32
    assert reads.found == []


def test_dropout_of_the_recipe_holds_for_the_decoder(model: Path) -> None:
    task = open_denoising(model, dropout=0.0).train()
    batch = task.collate(examples(), range(5))
    assert task("texts", batch).item() == task("texts", batch).item()


@pytest.mark.parametrize("architecture", ["distilbert", "mpnet", "modernbert"])
def test_architectures_without_a_decoder_are_refused(tmp_path: Path, architecture: str) -> None:
    base = write_checkpoint(tmp_path / "model", architecture, hidden=32)
    with pytest.raises(RecipeInvalid, match=f"{architecture}.* cannot have") as caught:
        open_denoising(base)
    assert "bert, roberta, xlm-roberta" in caught.value.remedy


def test_models_that_cannot_be_denoised_are_refused(model: Path, tmp_path: Path) -> None:
    with pytest.raises(RecipeInvalid, match="lora cannot apply"):
        open_denoising(model, lora={"rank": 2})
    with pytest.raises(RecipeInvalid, match=r"static\) cannot have"):
        open_denoising(model, static=True)
    with pytest.raises(RecipeInvalid, match="cannot be trained with the objective denoising"):
        open_denoising(model, kind=ModelKind.POLY_ENCODER)
    dense = write_checkpoint(tmp_path / "dense", hidden=32, dense=[Dense(32, 16)])
    with pytest.raises(RecipeInvalid, match="width, 32; those of .* have 16 dimensions"):
        open_denoising_task(open_siamese_encoder(dense), {"texts": SPEC}, seed=0)


def test_invalid_settings_are_refused(folder: Path, model: Path) -> None:
    settings = denoising_recipe(model)
    data = settings["stages"][0]["data"]
    for change, message in [
        ({"objective": {"kind": "denoising", "ratio": 1}}, "less than 1"),
        ({"objective": {"kind": "denoising", "matryoshka": {"dimensions": [8]}}}, "whole vectors"),
        (
            {"data": [*data, {"path": "train.tsv", "columns": COLUMNS, "objective": {"kind": "cosent"}}]},
            "use separate stages",
        ),
        ({"data": [data[0] | {"hard_negatives": {"count": 1}}]}, "hard_negatives requires"),
    ]:
        changed = settings | {"stages": [settings["stages"][0] | change]}
        with pytest.raises(RecipeInvalid, match=message):
            load_recipe(str(write_recipe(folder, changed)))


def denoising_recipe(model: Path, **stage: Any) -> dict[str, Any]:
    """A recipe of one stage over the first sentences of train.tsv."""
    data = [{"path": "train.tsv", "columns": {"text": "sentence1"}}]
    settings = recipe(model, **{"data": data, "objective": {"kind": "denoising"}, "dev": None} | stage)
    settings["export"] = {"precisions": []}
    return settings


@pytest.mark.slow
@pytest.mark.usefixtures("no_pictures")
def test_training_lowers_the_loss_and_saves_the_encoder_alone(folder: Path, model: Path) -> None:
    write_pairs(folder / "train.tsv", 48)
    path = write_recipe(folder, denoising_recipe(model, epochs=10, learning_rate=3e-3))
    (stage,) = train_here(path, folder / "out").stages
    losses = [row["loss"] for row in stage.course if "loss" in row]
    assert np.mean(losses[-6:]) < 0.8 * losses[0]
    before, after = load_file(model / "model.safetensors"), load_file(folder / "out/model.safetensors")
    assert before.keys() == after.keys()
    assert open_siamese_encoder(folder / "out").embed(["rain"]).shape == (1, 32)


@pytest.mark.slow
@pytest.mark.usefixtures("no_pictures")
def test_interrupted_run_with_accumulation_resumes_to_the_same_weights(folder: Path, model: Path) -> None:
    write_pairs(folder / "train.tsv", 48)
    dev = {"task": "sts", "path": "dev.tsv", "columns": COLUMNS}
    path = write_recipe(folder, denoising_recipe(model, epochs=2, accumulation=2, checkpoints_per_epoch=3, dev=dev))
    train_here(path, folder / "whole")
    with cut_at(5):  # of 6 steps: in the second epoch, behind a checkpoint in its middle
        train_here(path, folder / "cut")
    train_here(path, folder / "cut", resume=True)
    logs = [(folder / name / "training/pairs-log.csv").read_text() for name in ("whole", "cut")]
    assert logs[0] == logs[1]
    whole, cut = (load_file(folder / name / "model.safetensors") for name in ("whole", "cut"))
    assert all(torch.equal(tensor, cut[name]) for name, tensor in whole.items())


@pytest.mark.slow
@pytest.mark.usefixtures("no_pictures")
def test_compiled_run_equals_an_eager_run(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    small = write_checkpoint(tmp_path / "small", hidden=16, heads=2, layers=1, max_tokens=32, config=STILL)
    write_pairs(folder / "train.tsv", 24)
    settings = denoising_recipe(small)
    plain = train_here(write_recipe(folder, settings), folder / "plain")

    def compile_traced(encoder: torch.nn.Module) -> None:
        compile_transformer(encoder, backend="aot_eager")

    torch.compiler.reset()
    monkeypatch.setattr(training_stage, "compile_transformer", compile_traced)
    compiled = train_here(write_recipe(folder, settings | {"compile": True}), folder / "compiled")
    losses = [[row["loss"] for row in run.stages[0].course if "loss" in row] for run in (plain, compiled)]
    assert losses[0] == pytest.approx(losses[1], abs=1e-4)
