"""Fingerprints and bundles of earlier releases stay valid: indices bear them."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import save_file

from es_sbert.bundle.model_files import write_json
from es_sbert.bundle.sentence_model import read_sentence_model
from es_sbert.encoder.encoder import Encoder
from tests.tiny import write_tiny_bert

STORED = Path(__file__).with_name("stored")

BERT_TOKENIZER = {
    "tokenizer_class": "BertTokenizer", "cls_token": "[CLS]", "sep_token": "[SEP]", "mask_token": "[UNK]",
}  # fmt: skip
# Arguments of `write_tiny_bert`, what is changed in a file, and the fingerprint that release 0.1.0 gave.
FINGERPRINTS: dict[str, tuple[dict[str, Any], dict[str, dict[str, Any]], str]] = {
    "plain": ({}, {}, "9bbcb8da668132be0bf3279883a042c9"),
    "cls pooling": ({"pooling": "cls", "normalize": False}, {}, "40cf937b5a3d0bcf41a1fe93225eb435"),
    "prompts": (
        {"prompts": {"query": "query: ", "passage": "passage: "}}, {}, "8eb571ce79bff7499b9f52f6660bcb71",
    ),
    "default prompt": (
        {"prompts": {"query": "query: "}},
        {"config_sentence_transformers.json": {"default_prompt_name": "query"}},
        "adef57eff0adc6fd219f1465bd448d61",
    ),
    "lower-case": ({}, {"sentence_bert_config.json": {"do_lower_case": True}}, "c6d25d633ee780bbde33641ccf403c39"),
    "shorter": ({}, {"sentence_bert_config.json": {"max_seq_length": 12}}, "23c84c919e3f8ee9b4563c24e7157d90"),
    "fewer layers": ({}, {"config.json": {"num_hidden_layers": 1}}, "68536f413c26c7ab70ed9d4d7997170b"),
    "class of BERT": ({}, {"tokenizer_config.json": BERT_TOKENIZER}, "9bbcb8da668132be0bf3279883a042c9"),
    "another activation": ({}, {"config.json": {"hidden_act": "relu"}}, "4194572168afb74866a0d6c07945292f"),
}  # fmt: skip


def _write(folder: Path, arguments: dict[str, Any], changes: dict[str, dict[str, Any]]) -> Path:
    write_tiny_bert(folder, **arguments)
    for file, settings in changes.items():
        content = json.loads((folder / file).read_text())
        (folder / file).write_text(json.dumps(content | settings))
    return folder


@pytest.mark.parametrize(("arguments", "changes", "fingerprint"), FINGERPRINTS.values(), ids=FINGERPRINTS)
def test_fingerprint_of_a_model_that_was_read_exactly_is_kept(
    tmp_path: Path, arguments: dict[str, Any], changes: dict[str, dict[str, Any]], fingerprint: str
) -> None:
    assert read_sentence_model(_write(tmp_path / "model", arguments, changes)).fingerprint == fingerprint


@pytest.mark.parametrize(
    ("normalize", "fingerprint"),
    [(True, "871bf3cba0bf8ce160f015fdfd59160c"), (False, "bcda1bf5b26f743ca05ae772bf9417bf")],
)
def test_fingerprint_of_a_model_with_a_dense_module_is_kept(tmp_path: Path, normalize: bool, fingerprint: str) -> None:
    folder = write_tiny_bert(tmp_path / "model", normalize=normalize)
    dense = {"in_features": 16, "out_features": 8, "bias": True}
    write_json(folder / "2_Dense/config.json", {**dense, "activation_function": "torch.nn.modules.activation.Tanh"})
    tensors = {"linear.weight": np.ones((8, 16), np.float32), "linear.bias": np.ones(8, np.float32)}
    save_file(tensors, folder / "2_Dense/model.safetensors")
    modules = json.loads((folder / "modules.json").read_text())
    modules.insert(2, {"type": "sentence_transformers.models.Dense", "path": "2_Dense"})
    write_json(folder / "modules.json", modules)
    assert read_sentence_model(folder).fingerprint == fingerprint


# What release 0.1.0 read otherwise than sentence-transformers, or not at all.
MISREAD: dict[str, dict[str, dict[str, Any]]] = {
    "case": {"tokenizer_config.json": {**BERT_TOKENIZER, "do_lower_case": False}},
    "accents": {"tokenizer_config.json": {**BERT_TOKENIZER, "strip_accents": False}},
    "more tokens": {"tokenizer_config.json": {"extra_special_tokens": ["cat"]}},
    "fewer layers": {"sentence_bert_config.json": {"config_kwargs": {"num_hidden_layers": 1}}},
    "length of calls": {"sentence_bert_config.json": {"processing_kwargs": {"text": {"max_length": 9}}}},
    "length of queries": {"sentence_bert_config.json": {"query_length": 8}},
    "length of documents": {"sentence_bert_config.json": {"document_length": 8}},
}


def test_models_with_other_vectors_have_other_fingerprints(tmp_path: Path) -> None:
    """The fingerprint of 0.1.0 was the same for most of these."""
    fingerprints = [
        read_sentence_model(_write(tmp_path / name, {}, changes)).fingerprint for name, changes in MISREAD.items()
    ]
    assert len({*fingerprints, FINGERPRINTS["plain"][2]}) == len(MISREAD) + 1


def test_stored_bundle_opens_and_gives_its_vectors(tmp_path: Path) -> None:
    shutil.copytree(STORED / "bundle", tmp_path / "bundle")
    with Encoder(tmp_path / "bundle", device="cpu", precision="fp32") as encoder:
        assert encoder.info.fingerprint == FINGERPRINTS["prompts"][2]
        vectors = encoder.encode(["a man plays guitar", "the cat sleeps"], "query")
    np.testing.assert_allclose(vectors, json.loads((STORED / "vectors.json").read_text()), atol=1e-5)
