"""Files of a model folder that are too large, too deep or no files are refused without a hang."""

from __future__ import annotations

import json
import os
import socket
from collections.abc import Callable
from pathlib import Path

import pytest

from es_sbert.bundle.model_files import read_header, read_json, read_module_entries
from es_sbert.bundle.sentence_model import read_sentence_model
from es_sbert.encoder.encoder import Encoder
from es_sbert.errors import BundleInvalid
from tests.raised import raises_as_recorded
from tests.tiny import write_tiny_bert

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
    with raises_as_recorded(BundleInvalid):
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
        with raises_as_recorded(BundleInvalid):
            _ = read_sentence_model(folder, "tiny").fingerprint


def test_huge_files_are_refused_unread(tmp_path: Path) -> None:
    for name, read in (("config.json", read_json), ("modules.json", lambda path: read_module_entries(path.parent))):
        with (tmp_path / name).open("wb") as file:
            file.truncate(8 << 30)  # sparse
        with raises_as_recorded(BundleInvalid):
            read(tmp_path / name)
    with raises_as_recorded(BundleInvalid):
        read_header(tmp_path / "config.json")


def test_tokenizer_without_an_unknown_token_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ES_SBERT_CACHE", str(tmp_path / "cache"))
    folder = write_tiny_bert(tmp_path / "model")
    settings = json.loads((folder / "tokenizer.json").read_text())
    settings["model"]["vocab"]["[UNUSED]"] = settings["model"]["vocab"].pop("[UNK]")
    settings["added_tokens"] = [token for token in settings["added_tokens"] if token["content"] != "[UNK]"]
    (folder / "tokenizer.json").write_text(json.dumps(settings))
    with raises_as_recorded(BundleInvalid):
        Encoder(str(folder), device="cpu", precision="fp32").encode(["zebra"])
