"""Models that were trained with prompts which their folders do not state: the warning, and the copy with prompts."""

from __future__ import annotations

import logging
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner

from es_sbert.bundle.local_registry import read_registry
from es_sbert.bundle.sentence_model import read_sentence_model
from es_sbert.bundle.trained_prompts import missing_prompts, prompt_warning
from es_sbert.cli.main import cli
from es_sbert.encoder.encoder import Encoder
from es_sbert.errors import BundleInvalid, UsageError
from tests.raised import record
from tests.tiny import write_tiny_bert
from tests.unit.bundle.conftest import in_hub_cache

pytestmark = pytest.mark.usefixtures("own_models")
E5 = {"query": "query: ", "passage": "passage: "}
HUB_ID = "intfloat/multilingual-e5-small"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder without prompts, named as on the hub."""
    return write_tiny_bert(tmp_path / "multilingual-e5-small")


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A model in the hub's cache, as `huggingface_hub` lays it out."""
    snapshot = in_hub_cache(tmp_path / "hub", HUB_ID)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path / "hub"))
    monkeypatch.setattr("huggingface_hub._snapshot_download.constants.HF_HUB_OFFLINE", True)
    return snapshot


def fetch(*arguments: str) -> str:
    done = CliRunner().invoke(cli, ["model", "fetch", *arguments])
    assert done.exit_code == 0, done.output
    return done.output


@pytest.mark.parametrize(
    ("name", "prompts"),
    [
        (HUB_ID, E5),
        ("/models/e5-base-v2", E5),
        ("mixedbread-ai/mxbai-embed-large-v1", {"query": "Represent this sentence for searching relevant passages: "}),
        ("intfloat/multilingual-e5-large-instruct", {}),
        ("me/my-multilingual-e5-small", {}),
    ],
)
def test_prompts_of_known_models(name: str, prompts: dict[str, str]) -> None:
    assert missing_prompts(name, Path("models/x"), {}) == prompts
    assert missing_prompts(name, Path("models/x"), {"clustering": "cluster: "}) == {}, "the folder states its own"


def test_warning_names_the_command(folder: Path, hub: Path) -> None:
    of_hub = prompt_warning(read_sentence_model(hub, HUB_ID))
    assert of_hub is not None
    assert f"{HUB_ID} was trained with the prompts 'query: ' (query) and 'passage: ' (passage)" in of_hub
    assert f"`es-sbert model fetch {HUB_ID}`" in of_hub
    assert '`model="multilingual-e5-small"`' in of_hub
    assert "`es-sbert index migrate INDEX --model multilingual-e5-small`" in of_hub
    for model in (read_sentence_model(folder), read_sentence_model(hub, str(hub))):
        warning = prompt_warning(model)
        assert warning is not None
        assert f"`es-sbert model fetch multilingual-e5-small --from {model.folder}`" in warning


def test_copy_has_the_prompts(folder: Path, caplog: pytest.LogCaptureFixture) -> None:
    plain = read_sentence_model(folder)
    with caplog.at_level(logging.INFO, "es_sbert"):
        fetch("multilingual-e5-small", "--from", str(folder))
    assert "'query: ' (query) and 'passage: ' (passage), but its folder states none: the copy has them" in caplog.text
    [registered] = read_registry()
    assert registered.name == "multilingual-e5-small"
    copy = read_sentence_model(registered.folder, registered.name)
    assert (copy.prompts, copy.fingerprint) == (E5, registered.fingerprint)
    assert copy.fingerprint != plain.fingerprint
    assert prompt_warning(copy) is None
    assert read_sentence_model(folder).prompts == {}, "the source is unchanged"
    with Encoder("multilingual-e5-small", precision="fp32") as made, Encoder(folder, precision="fp32") as original:
        np.testing.assert_allclose(made.embed_query("a text"), original.encode("query: a text"), atol=1e-5)
        np.testing.assert_allclose(made.embed_documents(["a"])[0], original.encode("passage: a"), atol=1e-5)


def test_copy_of_a_hub_model_is_made_once(hub: Path) -> None:
    first = fetch(HUB_ID)
    [registered] = read_registry()
    (registered.folder / "note.txt").write_text("mine")
    assert fetch(HUB_ID).splitlines()[-1] == first.splitlines()[-1]
    assert read_registry() == [registered]
    assert (registered.folder / "note.txt").exists(), "the folder is kept"
    assert registered.folder.name == "multilingual-e5-small"


def test_model_that_needs_no_copy_is_refused_with_the_way_out(folder: Path) -> None:
    error = CliRunner().invoke(cli, ["model", "fetch", "mine", "--from", str(folder)]).exception
    assert isinstance(error, UsageError)
    record(error)
    (folder / "model.safetensors").rename(folder / "model.onnx")
    error = CliRunner().invoke(cli, ["model", "fetch", "mine", "--from", str(folder)]).exception
    assert isinstance(error, BundleInvalid)
    record(error)
