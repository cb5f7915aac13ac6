"""Hashes do not depend on the order or number of files; broken files are named."""

from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import save_file

from es_sbert.bundle.cross_encoder_model import read_cross_encoder
from es_sbert.bundle.fingerprint import hash_tensors
from es_sbert.bundle.model_files import find_weight_files, read_header, read_tensor, write_json
from es_sbert.bundle.sentence_model import read_plain_transformer, read_sentence_model
from es_sbert.errors import BundleInvalid, UnsupportedArchitecture
from tests.raised import raises_as_recorded
from tests.tiny import write_tiny_bert

TENSORS = {"a": np.arange(6, dtype=np.float32).reshape(2, 3), "b": np.ones(4, dtype=np.float16)}


def _save(path: Path, tensors: dict[str, np.ndarray], metadata: dict[str, str] | None = None) -> Path:
    save_file(tensors, path, metadata)
    return path


def test_hash_ignores_shards_and_metadata(tmp_path: Path) -> None:
    whole = _save(tmp_path / "whole", TENSORS, {"format": "pt"})
    shards = [_save(tmp_path / name, {name: tensor}) for name, tensor in TENSORS.items()]
    assert hash_tensors([whole]) == hash_tensors(shards) == hash_tensors(shards[::-1])


@pytest.mark.parametrize("change", ["value", "shape", "name", "type"])
def test_hash_changes_with_any_tensor_change(tmp_path: Path, change: str) -> None:
    a = TENSORS["a"].copy()
    if change == "value":
        a[0, 0] += 1e-6
    changed = {"value": {"a": a}, "shape": {"a": a.reshape(3, 2)}, "name": {"c": a}, "type": {"a": a.view(np.int32)}}[
        change
    ]
    assert hash_tensors([_save(tmp_path / "x", {"a": TENSORS["a"]})]) != hash_tensors([_save(tmp_path / "y", changed)])


def test_broken_files_are_rejected(tmp_path: Path) -> None:
    whole = _save(tmp_path / "model.safetensors", TENSORS).read_bytes()
    for content in (b"", b"abc", whole[:20], whole[:-1], whole + b"x", b"\xff" * 64, b"\x02" + bytes(7) + b"[]"):
        broken = tmp_path / "broken"
        broken.write_bytes(content)
        with raises_as_recorded(BundleInvalid):
            read_header(broken)
    with raises_as_recorded(BundleInvalid):
        read_header(tmp_path / "missing")
    entry = read_header(tmp_path / "model.safetensors")["a"]
    with raises_as_recorded(BundleInvalid):
        read_tensor(tmp_path / "model.safetensors", "a", {**entry, "shape": [2, 4]})


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("pytorch_model.bin", ""),
        ("model-00001-of-00002.safetensors", ""),
        ("model.safetensors.index.json", "{}"),
        ("model.safetensors.index.json", '{"weight_map": {"a": "../a"}}'),
    ],
)
def test_unusable_weights_are_refused(tmp_path: Path, name: str, content: str) -> None:
    (tmp_path / name).write_text(content)
    with raises_as_recorded(BundleInvalid):
        find_weight_files(tmp_path)
    assert find_weight_files(_save(tmp_path / "model.safetensors", TENSORS).parent) == [tmp_path / "model.safetensors"]
    _save(tmp_path / "model.safetensors", {f"_orig_mod.{key}": tensor for key, tensor in TENSORS.items()})
    with raises_as_recorded(BundleInvalid):
        find_weight_files(tmp_path)


@pytest.mark.parametrize("name", ["adapter_config.json", "adapter_model.safetensors"])
def test_folder_with_an_adapter_is_refused_with_the_way_to_merge_it(tmp_path: Path, name: str) -> None:
    """With weights next to it, without any, and in the folder of a Transformer of its own."""
    plain = write_tiny_bert(tmp_path / "model")
    nested = write_tiny_bert(tmp_path / "nested")
    write_json(nested / "modules.json", [{"type": "sentence_transformers.models.Transformer", "path": "0_Transformer"}])
    alone, scorer, classifier = tmp_path / "alone", tmp_path / "scorer", write_tiny_bert(tmp_path / "classifier")
    (classifier / "modules.json").unlink()
    write_json(classifier / "config.json", {"architectures": ["BertForSequenceClassification"], "model_type": "bert"})
    # As `CrossEncoder.save` writes a model with an adapter: without config.json and weights.
    write_json(scorer / "config_sentence_transformers.json", {"model_type": "CrossEncoder"})
    for folder in (plain, alone, nested / "0_Transformer", scorer, classifier):
        write_json(folder / name, {"peft_type": "LORA", "base_model_name_or_path": "base"})
    for folder in (plain, alone, nested):
        with raises_as_recorded(UnsupportedArchitecture):
            read_sentence_model(folder)
    for folder in (plain, alone):
        with raises_as_recorded(UnsupportedArchitecture):
            read_plain_transformer(folder, "model")
    for folder in (scorer, classifier):
        with raises_as_recorded(UnsupportedArchitecture):
            read_cross_encoder(folder)


LFS_POINTER = "version https://git-lfs.github.com/spec/v1\noid sha256:4d7a2146\nsize 12345\n"


@pytest.mark.parametrize(
    "file", ["model.safetensors", "tokenizer.json", "config.json", "vocab.txt", "pytorch_model.bin"]
)
def test_git_lfs_pointer_is_named(tmp_path: Path, file: str) -> None:
    folder = write_tiny_bert(tmp_path / "model")
    if file == "vocab.txt":
        (folder / "tokenizer.json").unlink()
        (folder / "tokenizer_config.json").write_text('{"tokenizer_class": "BertTokenizer"}')
    elif file == "pytorch_model.bin":
        (folder / "model.safetensors").unlink()
    (folder / file).write_text(LFS_POINTER)
    with raises_as_recorded(BundleInvalid):
        read_sentence_model(folder)
