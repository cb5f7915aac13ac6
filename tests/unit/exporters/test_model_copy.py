"""Model folders whose weights are an ONNX file become folders with the same vectors, or are refused."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import numpy as np
import onnx
import pytest
import torch
from click.testing import CliRunner
from torch import Tensor, nn
from transformers import AutoModel

from es_sbert.bundle.local_registry import RegisteredModel, read_registry
from es_sbert.bundle.modules import Pooling
from es_sbert.bundle.sentence_model import read_sentence_model
from es_sbert.cli.main import cli
from es_sbert.encoder.encoder import Encoder
from es_sbert.errors import BundleInvalid, ParityFailed, UsageError
from es_sbert.exporters.fetch_model import copy_and_register, find_onnx_file
from es_sbert.exporters.tracing import trace_module
from tests.unit.checkpoints import write_checkpoint
from tests.unit.exporters.test_onnx_weights import export_with_torch

pytestmark = [pytest.mark.train, pytest.mark.usefixtures("own_models")]

TEXTS = ["a short text", "another text, which is longer"]
# What a repository of ONNX files has of a model besides the graph.
SETTINGS = ("config.json", "tokenizer.json", "tokenizer_config.json")


@pytest.fixture(scope="module")
def original(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model with CLS pooling, which is not what a folder without modules.json means."""
    return write_checkpoint(tmp_path_factory.mktemp("original") / "bert", "bert", pooling="cls")


@pytest.fixture(scope="module")
def graph(original: Path) -> Path:
    """Its transformer, with the vectors of tokens as its only output."""
    return export_with_torch(original, original.parent / "model.onnx")


@pytest.fixture
def foreign(original: Path, graph: Path, tmp_path: Path) -> Path:
    """A folder as repositories of ONNX files are: without modules.json and without model.safetensors."""
    folder = tmp_path / "foreign"
    (folder / "onnx").mkdir(parents=True)
    for name in SETTINGS:
        shutil.copyfile(original / name, folder / name)
    shutil.copyfile(graph, folder / "onnx/model.onnx")
    return folder


class FirstToken(nn.Module):
    """A transformer whose only output is the vector of the first token, not normalized."""

    def __init__(self, folder: Path) -> None:
        super().__init__()
        self.model = AutoModel.from_pretrained(folder, attn_implementation="eager")

    def forward(self, input_ids: Tensor, attention_mask: Tensor) -> Tensor:
        vectors: Tensor = self.model(input_ids=input_ids, attention_mask=attention_mask).last_hidden_state[:, 0]
        return vectors


def copy(
    source: Path, output: Path, pooling: Pooling | None = None, prompts: Mapping[str, str] | None = None
) -> RegisteredModel:
    return copy_and_register(source, output, "mine", pooling, prompts or {}, lambda message: None)


def assert_same_vectors(folder: Path, original: Path) -> None:
    with Encoder(folder, precision="fp32") as made, Encoder(original, precision="fp32") as encoder:
        np.testing.assert_allclose(made.encode(TEXTS), encoder.encode(TEXTS), atol=1e-5)


def test_folder_with_modules_keeps_its_settings(original: Path, graph: Path, tmp_path: Path) -> None:
    source = Path(shutil.copytree(original, tmp_path / "source"))
    (source / "model.safetensors").unlink()
    shutil.copyfile(graph, source / "model.onnx")
    copy(source, tmp_path / "out")
    assert read_sentence_model(tmp_path / "out").pooling == (Pooling.CLS,)
    assert_same_vectors(tmp_path / "out", original)


def test_named_pooling_and_prompts_are_those_of_the_model(foreign: Path, original: Path, tmp_path: Path) -> None:
    made = copy(foreign, tmp_path / "out", Pooling.CLS, {"query": "find: "})
    assert read_registry() == [made]
    assert read_sentence_model(made.folder).prompts == {"query": "find: "}
    assert_same_vectors(made.folder, original)


def test_pooling_is_found_by_the_texts_vectors_of_the_file(foreign: Path, original: Path, tmp_path: Path) -> None:
    inputs = {"input_ids": torch.tensor([[5, 6, 7], [8, 9, 2]]), "attention_mask": torch.tensor([[1, 1, 1], [1, 1, 0]])}
    traced = trace_module(FirstToken(original), inputs, "sentence_embedding", name="foreign")
    onnx.save(traced, foreign / "onnx/model.onnx")
    copy(foreign, tmp_path / "out")
    assert read_sentence_model(tmp_path / "out").pooling == (Pooling.CLS,)
    assert_same_vectors(tmp_path / "out", original)
    with pytest.raises(ParityFailed, match="different vectors of texts"):
        copy(foreign, tmp_path / "wrong", Pooling.MEAN)
    assert not (tmp_path / "wrong").exists()


def test_unknown_pooling_is_asked_for(foreign: Path, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="does not state how to pool its token embeddings") as caught:
        copy(foreign, tmp_path / "out")
    assert '`pooling="cls"`' in caught.value.remedy
    assert not (tmp_path / "out").exists()


def test_wrong_setting_of_the_folder_is_found(foreign: Path, tmp_path: Path) -> None:
    config = json.loads((foreign / "config.json").read_text())
    (foreign / "config.json").write_text(json.dumps({**config, "layer_norm_eps": 0.5}))
    with pytest.raises(ParityFailed, match="different vectors of tokens"):
        copy(foreign, tmp_path / "out", Pooling.CLS)
    assert not (tmp_path / "out").exists()


def test_pooling_of_a_folder_that_states_it_is_not_overridden(original: Path, graph: Path, tmp_path: Path) -> None:
    source = Path(shutil.copytree(original, tmp_path / "source"))
    (source / "model.safetensors").unlink()
    shutil.copyfile(graph, source / "model.onnx")
    with pytest.raises(UsageError, match="states its pooling"):
        copy(source, tmp_path / "out", Pooling.MEAN)


@pytest.mark.parametrize(
    ("names", "expected"),
    [
        (["onnx/model_quantized.onnx", "onnx/model.onnx", "onnx/model_fp16.onnx"], "onnx/model.onnx"),
        (["onnx/model_fp16.onnx", "onnx/model_q4.onnx"], "onnx/model_fp16.onnx"),
        (["model_optimized.onnx"], "model_optimized.onnx"),
        (["a.onnx", "b.onnx"], None),
        ([], None),
    ],
)
def test_file_of_the_best_precision_is_read(names: list[str], expected: str | None) -> None:
    assert find_onnx_file(names) == expected


def test_folder_without_onnx_file_is_named(foreign: Path, tmp_path: Path) -> None:
    shutil.rmtree(foreign / "onnx")
    with pytest.raises(BundleInvalid, match="contains no ONNX file"):
        copy(foreign, tmp_path / "out")


def test_folder_that_is_not_empty_is_left_alone(foreign: Path, tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    (tmp_path / "out/letter.txt").write_text("mine")
    with pytest.raises(UsageError, match="is not empty"):
        copy(foreign, tmp_path / "out", Pooling.CLS)
    assert [path.name for path in (tmp_path / "out").iterdir()] == ["letter.txt"]


def test_command_converts_a_folder(foreign: Path, original: Path, tmp_path: Path) -> None:
    command = ["model", "fetch", "mine", "--from", str(foreign), "--pooling", "cls", "--prompt", "query", "q: "]
    result = CliRunner().invoke(cli, command, catch_exceptions=False)
    assert result.exit_code == 0, result.output
    [made] = read_registry()
    assert (made.name, made.folder) == ("mine", tmp_path / "registry/models/mine")
    assert_same_vectors(made.folder, original)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["bge-small-en-v1.5", "--pooling", "cls"], "bge-small-en-v1.5 cannot be combined with --pooling or --prompt"),
        (["mine", "--from", "ORIGINAL"], "es-sbert model add FOLDER"),
    ],
)
def test_command_refuses_what_needs_no_conversion(arguments: list[str], message: str, original: Path) -> None:
    given = [str(original) if one == "ORIGINAL" else one for one in arguments]
    result = CliRunner().invoke(cli, ["model", "fetch", *given])
    assert isinstance(result.exception, UsageError)
    assert message in f"{result.exception} {result.exception.remedy}"


@pytest.fixture
def hub(foreign: Path) -> Iterator[str]:
    """The endpoint of a hub with the repository org/foreign."""
    commit = "1" * 40
    names = [path.relative_to(foreign).as_posix() for path in foreign.rglob("*") if path.is_file()]
    tree = [{"type": "file", "path": name, "oid": "2" * 40, "size": (foreign / name).stat().st_size} for name in names]
    info = {"id": "org/foreign", "sha": commit, "siblings": [{"rfilename": name} for name in names]}

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            path = self.path.partition("?")[0]
            if path.startswith("/api/models/org/foreign/tree/"):
                body = json.dumps(tree).encode()
            elif path.startswith("/api/models/org/foreign"):
                body = json.dumps(info).encode()
            elif path.startswith("/org/foreign/resolve/") and (name := path.split("/", 5)[5]) in names:
                body = (foreign / name).read_bytes()
            else:
                self.send_error(404)
                return
            digest = hashlib.sha1(body, usedforsecurity=False).hexdigest()
            self.send_response(200)
            self.send_header("Content-Length", str(len(body)))
            self.send_header("ETag", f'"{digest}"')
            self.send_header("X-Repo-Commit", commit)
            self.end_headers()
            if self.command == "GET":
                self.wfile.write(body)

        do_HEAD = do_GET  # noqa: N815 - the name is http.server's

        def log_message(self, format: str, *args: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    server.server_close()
    thread.join()


@pytest.mark.slow
def test_model_of_the_hub_with_an_onnx_file_only_is_converted(hub: str, original: Path, tmp_path: Path) -> None:
    environment = os.environ | {"HF_ENDPOINT": hub, "HF_HOME": str(tmp_path / "hub"), "HF_HUB_DISABLE_XET": "1"}
    command = [sys.executable, "-m", "es_sbert", "model", "fetch", "org/foreign", "--pooling", "cls"]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    [made] = read_registry()
    assert made.name == "foreign"
    assert_same_vectors(made.folder, original)
