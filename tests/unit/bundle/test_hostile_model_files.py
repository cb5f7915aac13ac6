"""Files of a model folder that are too large, too deep or no files are refused without a hang, wrong ones by name."""

from __future__ import annotations

import json
import os
import socket
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from es_sbert.bundle.model_files import read_header, read_json, read_module_entries
from es_sbert.bundle.sentence_model import read_sentence_model
from es_sbert.encoder.encoder import Encoder
from es_sbert.errors import BundleInvalid, ModelError
from tests.tiny import HIDDEN, rotate_vectors, write_tiny_bert

pytestmark = pytest.mark.timeout(60)

FILES = ("modules.json", "config.json", "tokenizer.json", "tokenizer_config.json", "model.safetensors",
         "sentence_bert_config.json", "config_sentence_transformers.json", "1_Pooling/config.json")  # fmt: skip


def _socket(path: Path) -> None:
    server = socket.socket(socket.AF_UNIX)
    server.bind(str(path.relative_to(Path.cwd())))  # the length of its path is limited
    server.close()


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="needs POSIX")
@pytest.mark.parametrize("place", [getattr(os, "mkfifo", None), lambda path: path.symlink_to("/dev/zero"), _socket])
@pytest.mark.parametrize("name", FILES)
def test_other_than_regular_files_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, place: Callable[[Path], None]
) -> None:
    folder = write_tiny_bert(tmp_path / "model")
    monkeypatch.chdir(tmp_path)
    (folder / name).unlink(missing_ok=True)
    place(folder / name)
    with pytest.raises(BundleInvalid, match=f"{name} is not a regular file\n  Replace it"):
        _ = read_sentence_model(folder, "tiny").fingerprint


@pytest.mark.parametrize("name", FILES)
def test_deeply_nested_files_are_refused(tmp_path: Path, name: str) -> None:
    folder = write_tiny_bert(tmp_path / "model")
    for depth in (250, 950, 100_000):
        nested = '{"a":' * depth + "1" + "}" * depth
        data = f"[{nested}]".encode() if name == "modules.json" else nested.encode()
        if name == "model.safetensors":
            data = len(data).to_bytes(8, "little") + data
        (folder / name).write_bytes(data)
        with pytest.raises(BundleInvalid, match=r"nested|no valid safetensors header"):
            _ = read_sentence_model(folder, "tiny").fingerprint


def test_huge_files_are_refused_unread(tmp_path: Path) -> None:
    for name, read in (("config.json", read_json), ("modules.json", lambda path: read_module_entries(path.parent))):
        with (tmp_path / name).open("wb") as file:
            file.truncate(8 << 30)  # sparse
        with pytest.raises(BundleInvalid, match=r"has 8\.6 GB, more than the limit of 128\.0 MB for texts of a model"):
            read(tmp_path / name)
    with pytest.raises(BundleInvalid):
        read_header(tmp_path / "config.json")


def _modules(*kinds: str) -> list[dict[str, str]]:
    return [{"type": f"sentence_transformers.models.{kind}", "path": ""} for kind in kinds]


SBERT, POOLING, DENSE = "sentence_bert_config.json", "1_Pooling/config.json", "3_Dense/config.json"
SETTINGS = "config_sentence_transformers.json"


@pytest.mark.parametrize(
    ("file", "content", "message"),
    [
        ("config.json", [], "config.json does not hold a JSON object"),
        ("tokenizer_config.json", {"padding_side": "left"}, "pads on the left.*depend on the batch"),
        ("tokenizer.json", {"added_tokens": 5}, "the tokenizer in .* is broken"),
        ("tokenizer.json", None, r"has no tokenizer\.json"),
        (SBERT, {"max_seq_length": "24"}, "max_seq_length is not a number"),
        (SBERT, {"modality_config": {"text": 5}}, r"modality_config\.text is not an object"),
        (SBERT, {"processing_kwargs": {"text": 5}}, r"processing_kwargs\.text is not an object"),
        (SBERT, {"do_lower_case": "maybe"}, "has a setting of the wrong type: .*\nlowercase"),
        ("modules.json", [], "lists no module"),
        ("modules.json", [{"type": "own.Gate", "path": ""}], r"class own\.Gate, which is not one of sentence-transf"),
        ("modules.json", [{**each, "name": "x"} for each in _modules("Transformer", "Pooling")], "the same name"),
        ("modules.json", _modules("Pooling", "Transformer"), "lists Pooling, Transformer; .* begin with a Transformer"),
        ("modules.json", _modules("Transformer", "Sparse"), "has a Sparse module"),
        ("modules.json", _modules("BoW", "Transformer"), "has a BoW module, which counts the words"),
        ("modules.json", _modules("CLIPModel"), "has a CLIPModel module, which embeds images too"),
        ("modules.json", _modules("Transformer", "WeightedLayerPooling"), "has a WeightedLayerPooling module, which "),
        ("modules.json", _modules("StaticEmbedding"), "have no table of token vectors"),
        (POOLING, {"pooling_mode": 5}, "1_Pooling/config.json: .*int"),
        (POOLING, {"pooling_mode": []}, "names no pooling mode"),
        (DENSE, {"use_residual": 1}, "use_residual is 1"),
        (DENSE, {"activation_function": "torch.nn.PReLU"}, "the activation PReLU"),  # it has weights
        (DENSE, {"activation_function": "torch.nn.Softmax"}, "the activation Softmax"),  # of several values
        (DENSE, {"in_features": "wide"}, "3_Dense/config.json: .*\nin_features"),
        (DENSE, {"module_input_name": 5}, "module_input_name and module_output_name must be strings"),
        (SETTINGS, {"prompts": {"query": 5}}, "prompts is not an object of strings"),
        (SETTINGS, {"default_prompt_name": 5}, "default_prompt_name is 5"),
        (SETTINGS, {"default_prompt_name": "other"}, "default prompt 'other', but no prompt with that name"),
    ],
)
def test_wrong_setting_is_refused_by_name(tmp_path: Path, file: str, content: Any, message: str) -> None:
    folder = write_tiny_bert(tmp_path / "model")
    rotate_vectors(folder, np.eye(HIDDEN, dtype=np.float32))
    if isinstance(content, dict):
        content = json.loads((folder / file).read_text()) | content
    (folder / file).unlink()
    if content is not None:
        (folder / file).write_text(json.dumps(content))
    with pytest.raises(ModelError, match=message):
        read_sentence_model(folder)


def test_tokenizer_without_an_unknown_token_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ES_SBERT_CACHE", str(tmp_path / "cache"))
    folder = write_tiny_bert(tmp_path / "model")
    settings = json.loads((folder / "tokenizer.json").read_text())
    settings["model"]["vocab"]["[UNUSED]"] = settings["model"]["vocab"].pop("[UNK]")
    settings["added_tokens"] = [token for token in settings["added_tokens"] if token["content"] != "[UNK]"]
    (folder / "tokenizer.json").write_text(json.dumps(settings))
    with pytest.raises(BundleInvalid, match=r"unknown words: .*Missing \[UNK\].*\n  Add its unknown token"):
        Encoder(str(folder), device="cpu", precision="fp32").encode(["zebra"])
