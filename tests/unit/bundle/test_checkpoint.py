"""A model folder is read as sentence-transformers reads it, and refused if that is not possible."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from es_sbert.bundle.model_lookup import resolve_model
from es_sbert.bundle.modules import Activation, Dense, Pooling
from es_sbert.bundle.sentence_model import read_sentence_model
from es_sbert.config import DEFAULT_MODEL
from es_sbert.errors import ModelError
from tests.raised import raises_as_recorded
from tests.tiny import HIDDEN, POSITIONS, rotate_vectors, write_tiny_bert

SBERT, POOLING, DENSE = "sentence_bert_config.json", "1_Pooling/config.json", "3_Dense/config.json"
SETTINGS = "config_sentence_transformers.json"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return write_tiny_bert(tmp_path / "tiny", prompts={"query": "query: ", "passage": "passage: "})


def _edit(path: Path, change: Callable[[Any], Any]) -> None:
    value = json.loads(path.read_text())
    path.write_text(json.dumps(change(value) or value))


def test_model_settings(folder: Path) -> None:
    model = read_sentence_model(folder)
    assert (model.name, model.architecture, model.dimensions, model.max_tokens) == ("tiny", "bert", HIDDEN, 24)
    assert (model.pooling, model.dense, model.normalize) == ((Pooling.MEAN,), (), True)
    assert (model.prompt("query"), model.prompt("document"), model.prompt(None)) == ("query: ", "passage: ", "")
    (folder / "sentence_bert_config.json").rename(folder / "sentence_roberta_config.json")  # an older name
    assert read_sentence_model(folder).max_tokens == 24


def test_default_prompt_applies_to_inputs_without_kind(folder: Path) -> None:
    (folder / SETTINGS).write_text('{"prompts": {"any": "x: ", "query": null}, "default_prompt_name": "any"}')
    model = read_sentence_model(folder)
    # As in sentence-transformers: a default prompt for queries must not come in front of documents.
    assert (model.prompt("query"), model.prompt("document"), model.prompt(None)) == ("", "", "x: ")


def test_old_pooling_keys_are_read(folder: Path) -> None:
    config = {"word_embedding_dimension": HIDDEN, "pooling_mode_mean_tokens": True, "pooling_mode_cls_token": True}
    (folder / POOLING).write_text(json.dumps(config))
    model = read_sentence_model(folder)
    assert model.pooling == (Pooling.CLS, Pooling.MEAN)
    assert model.dimensions == 2 * HIDDEN


def test_dense_module_is_read_and_has_the_librarys_default_activation(folder: Path) -> None:
    (folder / "2_Dense").mkdir()
    (folder / "2_Dense/config.json").write_text('{"in_features": 16, "out_features": 8, "bias": true}')
    tensors = {"linear.weight": np.ones((8, HIDDEN), np.float32), "linear.bias": np.ones(8, np.float32)}
    save_file(tensors, folder / "2_Dense/model.safetensors")
    entry = {"type": "sentence_transformers.models.Dense", "path": "2_Dense"}
    _edit(folder / "modules.json", lambda modules: modules.insert(2, entry))
    model = read_sentence_model(folder)
    dense = Dense(folder="2_Dense", in_features=HIDDEN, out_features=8, bias=True, activation=Activation.TANH)
    assert model.dense == (dense,)
    assert model.dimensions == 8


@pytest.mark.parametrize(
    ("model_type", "pad", "expected"), [("bert", 0, 40), ("roberta", 1, 38), ("mpnet", 1, 38), ("distilbert", 0, 40)]
)
def test_positions_limit_max_tokens(folder: Path, model_type: str, pad: int, expected: int) -> None:
    config = {"model_type": model_type, "pad_token_id": pad, "max_position_embeddings": POSITIONS}
    (folder / "config.json").write_text(json.dumps(config))
    _edit(folder / "sentence_bert_config.json", lambda c: c.update(max_seq_length=512))
    assert read_sentence_model(folder).max_tokens == expected


def test_max_tokens_falls_back_to_tokenizer_config(folder: Path) -> None:
    _edit(folder / "sentence_bert_config.json", lambda c: c.pop("max_seq_length") and None)
    for number, name in enumerate(("model_max_length", "max_len")):
        (folder / "tokenizer_config.json").write_text(json.dumps({name: 30 + number}))
        assert read_sentence_model(folder).max_tokens == 30 + number


def test_tokenizer_truncation_is_not_max_tokens(folder: Path) -> None:
    (folder / "sentence_bert_config.json").unlink()
    _edit(folder / "tokenizer.json", lambda t: t.update(truncation={"max_length": 9, "direction": "Right"}))
    assert read_sentence_model(folder).max_tokens == 40
    _edit(folder / "config.json", lambda c: c.pop("max_position_embeddings") and None)
    assert read_sentence_model(folder).max_tokens == 9


def test_fingerprint_changes_with_anything_that_affects_vectors(folder: Path, tmp_path: Path) -> None:
    original = read_sentence_model(folder).fingerprint
    assert len(original) == 32
    again = write_tiny_bert(tmp_path / "again", prompts=read_sentence_model(folder).prompts)
    assert read_sentence_model(again).fingerprint == original
    changes: list[tuple[str, Callable[[Any], Any]]] = [
        ("1_Pooling/config.json", lambda c: c.update(pooling_mode="cls")),
        ("config_sentence_transformers.json", lambda c: c["prompts"].update(query="Q: ")),
        ("sentence_bert_config.json", lambda c: c.update(max_seq_length=20)),
        ("sentence_bert_config.json", lambda c: c.update(do_lower_case=True)),
        ("modules.json", lambda m: m.pop() and None),
        ("config.json", lambda c: c.update(hidden_act="relu")),
        ("config.json", lambda c: c.update(is_decoder=True)),
        ("config.json", lambda c: c.update(num_hidden_layers=1)),
        ("tokenizer.json", lambda t: t["model"]["vocab"].update(new=17)),
    ]
    for file, change in changes:
        before = (folder / file).read_text()
        _edit(folder / file, change)
        assert read_sentence_model(folder).fingerprint != original, file
        (folder / file).write_text(before)
    assert read_sentence_model(folder).fingerprint == original
    tensors = load_file(folder / "model.safetensors")
    tensors["embeddings.LayerNorm.bias"][0] += 1
    save_file(tensors, folder / "model.safetensors")
    assert read_sentence_model(folder).fingerprint != original


def test_default_model_fingerprint_is_stable() -> None:
    """Indices all over the world bear it: a change of what is hashed would turn them away."""
    assert read_sentence_model(resolve_model(DEFAULT_MODEL)).fingerprint == "edf9c8a57b6758089c8cc933aa47f059"


@pytest.mark.parametrize(
    ("file", "change"),
    [
        ("tokenizer.json", lambda t: t.update(padding={"x": 1}, truncation={"max_length": 7})),
        ("config.json", lambda c: c.update(hidden_dropout_prob=0.3, transformers_version="9", is_decoder=False)),
    ],
)
def test_fingerprint_ignores_unrelated_changes(folder: Path, file: str, change: Callable[[Any], Any]) -> None:
    original = read_sentence_model(folder).fingerprint
    _edit(folder / file, change)
    assert read_sentence_model(folder).fingerprint == original


def _modules(*kinds: str) -> list[dict[str, str]]:
    return [{"type": f"sentence_transformers.models.{kind}", "path": ""} for kind in kinds]


@pytest.mark.parametrize(
    ("file", "content"),
    [
        ("modules.json", "{"), ("modules.json", [{"type": "sentence_transformers.models.Transformer", "path": "../x"}]),
        ("config.json", []), ("tokenizer_config.json", {"padding_side": "left"}),
        ("tokenizer.json", {"added_tokens": 5}), ("tokenizer.json", None), (SBERT, {"max_seq_length": "24"}),
        (SBERT, {"modality_config": {"text": 5}}), (SBERT, {"processing_kwargs": {"text": 5}}),
        (SBERT, {"do_lower_case": "maybe"}), ("modules.json", []), ("modules.json", [{"type": "own.Gate", "path": ""}]),
        ("modules.json", [{**each, "name": "x"} for each in _modules("Transformer", "Pooling")]),
        ("modules.json", _modules("Pooling", "Transformer")), ("modules.json", _modules("Transformer", "Sparse")),
        ("modules.json", _modules("BoW", "Transformer")), ("modules.json", _modules("CLIPModel")),
        ("modules.json", _modules("Transformer", "WeightedLayerPooling")),
        ("modules.json", _modules("StaticEmbedding")), (POOLING, {"pooling_mode": 5}), (POOLING, {"pooling_mode": []}),
        (DENSE, {"use_residual": 1}),
        (DENSE, {"activation_function": "torch.nn.PReLU"}),  # it has weights
        (DENSE, {"activation_function": "torch.nn.Softmax"}),  # of several values
        (DENSE, {"in_features": "wide"}), (DENSE, {"module_input_name": 5}), (SETTINGS, {"prompts": {"query": 5}}),
        (SETTINGS, {"default_prompt_name": 5}), (SETTINGS, {"default_prompt_name": "other"}), ("config.json", None),
        ("tokenizer.json", "nonsense"), (POOLING, {"pooling_mode": "median"}),
        (SBERT, {"processor_kwargs": {"magic": True}}), ("tokenizer_config.json", {"truncation_side": "left"}),
        ("model.safetensors", None),
    ],
)  # fmt: skip
def test_broken_folders_raise_model_error(folder: Path, file: str, content: Any) -> None:
    rotate_vectors(folder, np.eye(HIDDEN, dtype=np.float32))
    if isinstance(content, dict):
        content = json.loads((folder / file).read_text()) | content
    (folder / file).unlink()
    if content is not None:
        (folder / file).write_text(content if isinstance(content, str) else json.dumps(content))
    with raises_as_recorded(ModelError):
        read_sentence_model(folder)
