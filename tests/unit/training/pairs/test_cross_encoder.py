"""The cross-encoder: its losses, its scores against sentence-transformers, and what it refuses."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from sentence_transformers import CrossEncoder as Reference
from sentence_transformers.cross_encoder.losses import BinaryCrossEntropyLoss, CrossEntropyLoss

from es_sbert.errors import BundleInvalid, RecipeInvalid, UnsupportedArchitecture, UsageError
from es_sbert.evaluation.evaluated_models import PairScorer
from es_sbert.networks.cross_encoder import open_cross_encoder, save_cross_encoder
from es_sbert.training.open_task import open_cross_encoder_task
from es_sbert.training.pair_tasks import CrossEncoderTask
from es_sbert.training.recipe import (
    CoSentSpec,
    DenseSpec,
    InBatchSpec,
    MatryoshkaSpec,
    ModelKind,
    ModelSpec,
    ObjectiveSpec,
    RegressionSpec,
    SoftmaxSpec,
)
from tests.unit.checkpoints import ARCHITECTURES, UNFUSED_ARCHITECTURES, write_checkpoint, write_cross_encoder
from tests.unit.training.pairs.support import FIRST, SCORES, SECOND, examples, losses

NLI = SoftmaxSpec(kind="softmax", classes=("contradiction", "entailment", "neutral"))
CLASSES = [1, 1, 0, 1, 0, 2]
REGRESSION = RegressionSpec(kind="regression")
PAIRS = list(zip(FIRST, SECOND, strict=True))


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_checkpoint(tmp_path_factory.mktemp("cross") / "bert", hidden=24)


def open_task(base: Path, objective: ObjectiveSpec = REGRESSION, max_tokens: int | None = None) -> CrossEncoderTask:
    torch.manual_seed(0)
    spec = ModelSpec(base=str(base), kind=ModelKind.CROSS_ENCODER, max_tokens=max_tokens)
    return open_cross_encoder_task(spec, {"toy": objective})


def test_regression_loss_is_binary_cross_entropy(base: Path) -> None:
    task = open_task(base).eval()
    data = examples()
    loss = task("toy", task.collate(data, [0, 2, 5]))
    score = task.encoder.score(FIRST, SECOND)[[0, 2, 5]]
    gold = np.array(SCORES)[[0, 2, 5]]
    by_hand = -(gold * np.log(score) + (1 - gold) * np.log(1 - score)).mean()
    assert loss.item() == pytest.approx(by_hand, abs=1e-6)


@pytest.mark.parametrize("rows", [[4, 1, 0], [2]])
def test_pairs_are_tokenized_once_and_padded_per_batch(
    base: Path, rows: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    task = open_task(base)
    expected = task.encoder.inputs(task.encoder.tokenize([FIRST[row] for row in rows], [SECOND[row] for row in rows]))
    task.lengths(examples())
    monkeypatch.setattr(task.encoder, "tokenize", None)
    found = task.collate(examples(), rows)["inputs"]
    assert found.keys() == expected.keys()
    for name, tensor in expected.items():
        assert torch.equal(found[name], tensor)


def test_losses_equal_sentence_transformers(base: Path, tmp_path: Path) -> None:
    for objective, labels, kind in ((REGRESSION, SCORES, BinaryCrossEntropyLoss), (NLI, CLASSES, CrossEntropyLoss)):
        task = open_task(base, objective).eval()
        task.save(tmp_path / objective.kind, name="toy")
        reference = kind(Reference(str(tmp_path / objective.kind), device="cpu")).eval()
        theirs = reference([FIRST, SECOND], torch.tensor(labels))
        data = examples(labels)
        assert task("toy", task.collate(data, range(len(data)))).item() == pytest.approx(theirs.item(), abs=1e-5)


def test_gold_scores_are_scaled_to_probabilities(base: Path) -> None:
    task = open_task(base, RegressionSpec(kind="regression", range=(-1.0, 1.0)))
    data = examples([-1.0, 0.0, 1.0, 0.5, 0.5, 0.5])
    assert task.collate(data, [2, 0, 1, 3])["labels"].tolist() == [1.0, 0.0, 0.5, 0.75]


@pytest.mark.parametrize(("objective", "labels"), [(REGRESSION, SCORES), (NLI, CLASSES)])
def test_training_lowers_the_loss(base: Path, objective: ObjectiveSpec, labels: list[float]) -> None:
    task = open_task(base, objective)
    seen = losses(task, examples(labels), 30)
    assert seen[-1] < 0.8 * seen[0]  # soft labels leave an entropy of 0.34


@pytest.mark.parametrize("architecture", [*ARCHITECTURES, *UNFUSED_ARCHITECTURES])
def test_saved_scores_equal_sentence_transformers(tmp_path: Path, architecture: str) -> None:
    task = open_task(write_checkpoint(tmp_path / "base", architecture), max_tokens=20)
    task.save(tmp_path / "saved", name="toy")
    ours = task.encoder.score(FIRST, SECOND)
    reference = Reference(str(tmp_path / "saved"), device="cpu")
    assert reference.max_seq_length == 20
    np.testing.assert_allclose(ours, reference.predict(PAIRS), atol=1e-5)
    reopened = open_cross_encoder(tmp_path / "saved")
    assert reopened.name == "saved"
    np.testing.assert_allclose(ours, reopened.score(FIRST, SECOND), atol=1e-6)
    assert np.ptp(ours) > 1e-3  # the pairs are told apart at all


def test_sentence_transformers_folder_gives_equal_scores(base: Path, tmp_path: Path) -> None:
    open_task(base).save(tmp_path / "saved", name="toy")
    reference = Reference(str(tmp_path / "saved"), device="cpu", activation_fn=torch.nn.Identity())
    reference.save(str(tmp_path / "theirs"))
    opened = open_cross_encoder(tmp_path / "theirs")
    np.testing.assert_allclose(opened.score(FIRST, SECOND), reference.predict(PAIRS), atol=1e-5)
    # Saved again it still says that scores are logits; trained again, they are probabilities.
    save_cross_encoder(opened, tmp_path / "ours")
    again = Reference(str(tmp_path / "ours"), device="cpu").predict(PAIRS)
    np.testing.assert_allclose(again, reference.predict(PAIRS), atol=1e-5)
    trained = open_task(tmp_path / "theirs").encoder.score(FIRST, SECOND)
    np.testing.assert_allclose(trained, 1 / (1 + np.exp(-again)), atol=1e-5)


def test_bert_gets_token_type_ids(base: Path) -> None:
    network = open_task(base).encoder.eval()
    inputs = network.inputs(network.tokenize(FIRST[:1], SECOND[:1]))
    assert set(inputs["token_type_ids"][0].tolist()) == {0, 1}
    with torch.no_grad():
        blind = network({**inputs, "token_type_ids": torch.zeros_like(inputs["input_ids"])})
        assert not torch.allclose(network(inputs), blind)


def test_trained_head_gets_the_inputs_of_its_tokenizer(tmp_path: Path) -> None:
    folder = write_cross_encoder(tmp_path / "trained")
    tokenizer = json.loads((folder / "tokenizer_config.json").read_text())
    for types, told in (([], False), (["token_type_ids"], True)):
        names = {"model_input_names": ["input_ids", *types, "attention_mask"]}
        (folder / "tokenizer_config.json").write_text(json.dumps({**tokenizer, **names}))
        network = open_cross_encoder(folder)
        assert ("token_type_ids" in network.pairs.inputs) is told
        expected = Reference(str(folder), device="cpu").predict(PAIRS)
        np.testing.assert_allclose(network.score(FIRST, SECOND), expected, atol=1e-5)


def test_padding_changes_no_score(base: Path) -> None:
    scorer = open_task(base).encoder
    together = scorer.score(FIRST, SECOND)
    alone = [scorer.score([first], [second])[0] for first, second in PAIRS]
    np.testing.assert_allclose(together, alone, atol=1e-6)


def test_scoring_ignores_dropout_and_keeps_training_mode(base: Path) -> None:
    task = open_task(base).train()
    scorer = task.evaluated_model()
    assert isinstance(scorer, PairScorer)
    np.testing.assert_array_equal(scorer.score(FIRST, SECOND), scorer.score(FIRST, SECOND))
    assert task.encoder.transformer.training
    assert scorer.score([], []).shape == (0,)


def test_class_score_is_the_probability_of_entailment(base: Path, tmp_path: Path) -> None:
    task = open_task(base, NLI)
    task.save(tmp_path / "saved", name="toy")
    ours = open_cross_encoder(tmp_path / "saved").score(FIRST, SECOND)
    reference = Reference(str(tmp_path / "saved"), device="cpu")
    np.testing.assert_allclose(ours, reference.predict(PAIRS, apply_softmax=True)[:, 1], atol=1e-5)


def test_classes_without_a_similar_class_cannot_be_scored(base: Path) -> None:
    task = open_task(base, SoftmaxSpec(kind="softmax", classes=("a", "b", "c")))
    assert torch.isfinite(task("toy", task.collate(examples(CLASSES), [0, 1])))
    with pytest.raises(UsageError, match="a, b, c"):
        task.encoder.score(FIRST, SECOND)


def test_lengths_are_those_of_truncated_pairs(base: Path) -> None:
    task = open_task(base, max_tokens=12)
    data = examples()
    lengths = task.lengths(data)
    assert lengths.max() == 12
    for row, length in enumerate(lengths):
        assert task.collate(data, [row])["inputs"]["input_ids"].shape == (1, length)


def test_stage_keeps_the_transformer_under_a_new_head(base: Path, tmp_path: Path) -> None:
    nli = open_task(base, NLI)
    losses(nli, examples(CLASSES), 1)
    nli.save(tmp_path / "nli", name="nli")
    scored = open_task(tmp_path / "nli")
    before, after = nli.encoder.transformer.state_dict(), scored.encoder.transformer.state_dict()
    assert {name for name in before if not torch.equal(before[name], after[name])} == {
        "classifier.weight",
        "classifier.bias",
    }
    assert after["classifier.weight"].shape[0] == 1
    losses(scored, examples(), 1)


def test_training_continues_from_a_saved_head(base: Path, tmp_path: Path) -> None:
    task = open_task(base, NLI)
    task.save(tmp_path / "nli", name="nli")
    again = open_task(tmp_path / "nli", NLI).encoder.transformer.state_dict()
    assert all(torch.equal(tensor, again[name]) for name, tensor in task.encoder.transformer.state_dict().items())
    # Other classes of the same number are another head.
    renamed = open_task(tmp_path / "nli", SoftmaxSpec(kind="softmax", classes=("x", "y", "z"))).encoder.transformer
    assert not torch.equal(renamed.classifier.weight, again["classifier.weight"])
    assert open_task(tmp_path / "nli").encoder.model.labels == ("LABEL_0",)


@pytest.mark.parametrize(
    ("objectives", "message"),
    [
        ({"toy": InBatchSpec(kind="in-batch")}, "in-batch"),
        ({"toy": CoSentSpec(kind="cosent")}, "cosent"),
        ({"toy": RegressionSpec(kind="regression", matryoshka=MatryoshkaSpec(dimensions=(8,)))}, "matryoshka"),
        ({"nli": NLI, "sts": REGRESSION}, "nli: contradiction, entailment, neutral; sts: a score"),
    ],
)
def test_incompatible_objectives_are_rejected(base: Path, objectives: dict[str, ObjectiveSpec], message: str) -> None:
    with pytest.raises(RecipeInvalid, match=message):
        open_cross_encoder_task(ModelSpec(base=str(base), kind=ModelKind.CROSS_ENCODER), objectives)


def test_bi_encoder_settings_are_rejected(base: Path) -> None:
    spec = ModelSpec(base=str(base), dense=DenseSpec(out_features=8), normalize=False, prompts={"query": "q"})
    with pytest.raises(RecipeInvalid, match="dense, normalize, prompts cannot apply"):
        open_cross_encoder_task(spec, {"toy": REGRESSION})


def test_bad_texts_are_refused(base: Path) -> None:
    network = open_task(base).encoder
    with pytest.raises(UsageError, match="cannot be tokenized"):
        network.score(["fine"], ["\ud800"])
    with pytest.raises(UsageError, match="2 first texts and 1 second"):
        network.score(["one", "two"], ["one"])


def test_score_out_of_range_names_its_line(base: Path) -> None:
    task = open_task(base)
    with pytest.raises(RecipeInvalid, match=r"toy.tsv, line 3: the score 4.2 is not between 0 and 1"):
        task.collate(examples([0.1, 4.2, 0.3, 0.1, 0.1, 0.1]), [0, 1])


def test_a_pickle_is_refused(base: Path, tmp_path: Path) -> None:
    folder = Path(shutil.copytree(base, tmp_path / "pickled"))
    (folder / "model.safetensors").rename(folder / "pytorch_model.bin")
    with pytest.raises(BundleInvalid, match="pickle"):
        open_task(folder)


def test_a_missing_tokenizer_is_refused(base: Path, tmp_path: Path) -> None:
    folder = Path(shutil.copytree(base, tmp_path / "bare"))
    (folder / "tokenizer.json").unlink()
    with pytest.raises(BundleInvalid, match=r"no tokenizer\.json"):
        open_task(folder)


def test_truncated_weights_are_rejected(base: Path, tmp_path: Path) -> None:
    folder = Path(shutil.copytree(base, tmp_path / "cut"))
    weights = (folder / "model.safetensors").read_bytes()
    (folder / "model.safetensors").write_bytes(weights[:-100])
    with pytest.raises(BundleInvalid, match=r"model.safetensors"):
        open_task(folder)


def test_missing_tensor_is_rejected(base: Path, tmp_path: Path) -> None:
    from safetensors.torch import load_file, save_file

    folder = Path(shutil.copytree(base, tmp_path / "holes"))
    tensors = load_file(folder / "model.safetensors")
    del tensors["encoder.layer.1.output.dense.weight"]
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(BundleInvalid, match=r"lacks 1 tensors.*encoder.layer.1.output.dense.weight"):
        open_task(folder)


def test_an_unknown_architecture_is_refused(base: Path, tmp_path: Path) -> None:
    folder = Path(shutil.copytree(base, tmp_path / "unknown"))
    config = (folder / "config.json").read_text()
    (folder / "config.json").write_text(config.replace('"model_type": "bert"', '"model_type": "no-such-thing"'))
    with pytest.raises(BundleInvalid, match="transformers cannot open"):
        open_task(folder)
    (folder / "config.json").write_text(config.replace('"model_type": "bert"', '"model_type": "vit"'))
    with pytest.raises(UnsupportedArchitecture, match="no sequence classification for vit"):
        open_task(folder)


def test_tokenizer_without_a_pair_separator_is_rejected(tmp_path: Path) -> None:
    from tokenizers import Tokenizer, processors

    folder = write_checkpoint(tmp_path / "single")
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    tokenizer.post_processor = processors.TemplateProcessing(single="[CLS] $A", special_tokens=[("[CLS]", 0)])
    tokenizer.save(str(folder / "tokenizer.json"))
    with pytest.raises(BundleInvalid, match="nothing between the two texts"):
        open_task(folder)
