"""Models are loaded once, and found by fingerprint only where the operator trusts them."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import es_sbert.bundle.local_registry
import es_sbert.gateway.model_registry
from es_sbert.bundle.bundle import cached_bundle_path
from es_sbert.bundle.local_registry import register_model
from es_sbert.bundle.sentence_model import read_sentence_model
from es_sbert.encoder.encoder import Encoder
from es_sbert.errors import IndexMismatch, ModelError, ModelNotFound
from es_sbert.gateway.metrics import GatewayMetrics
from es_sbert.gateway.model_registry import ModelRegistry
from es_sbert.gateway.settings import Limits, ModelSettings
from es_sbert.index.mapping import VectorFieldMeta
from tests.event_loop import in_event_loop
from tests.raised import raises_as_recorded
from tests.tiny import write_tiny_bert


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[Path]]:
    """Folders of three different models; their bundles are exported once for the whole module."""
    parent = tmp_path_factory.mktemp("models")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("ES_SBERT_CACHE", str(tmp_path_factory.mktemp("cache")))
        yield [write_tiny_bert(parent / f"model{seed}", seed=seed) for seed in range(3)]


@pytest.fixture
def loads(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What was loaded, in order."""
    loaded = []

    def counted(model: str, **options: Any) -> Encoder:
        loaded.append(model)
        return Encoder(model, **options)

    monkeypatch.setattr(es_sbert.gateway.model_registry, "Encoder", counted)
    return loaded


def models(*names: Path | str, **settings: Any) -> ModelRegistry:
    chosen = ModelSettings(models=tuple(map(str, names)), device="cpu", precision="fp32", threads=1, **settings)
    return ModelRegistry(chosen, Limits(), GatewayMetrics())


def fingerprint_of(folder: Path) -> str:
    with Encoder(str(folder), device="cpu", precision="fp32") as encoder:
        return encoder.info.fingerprint


def test_first_model_is_default_and_public_names_hide_folders(folders: list[Path]) -> None:
    settings = ModelSettings(models=(str(folders[0]), "org/name"))
    assert settings.public_names == ("model0", "org/name")
    for name in (None, "model0", str(folders[0])):
        assert settings.find(name) in (str(folders[0]), "model0")
    assert settings.find("org/name") == "org/name"
    for name in ("model1", str(folders[1]), "", "../model1"):
        with raises_as_recorded(ModelNotFound):
            settings.find(name)


@in_event_loop
async def test_concurrent_first_requests_load_the_model_once(folders: list[Path], loads: list[str]) -> None:
    served = models(*folders)
    assert served.not_ready_reason == "the model model0 is not loaded yet"
    many = [asyncio.create_task(served.get()) for _ in range(5)]
    await asyncio.sleep(0)
    many.pop().cancel()  # one who gives up takes nothing from the others
    embedders = await asyncio.gather(*many, served.get("model1"))
    assert len(set(map(id, embedders))) == 2
    assert sorted(loads) == sorted(map(str, folders[:2]))
    assert served.not_ready_reason is None
    encoded = await embedders[0].embed(["a man plays guitar", "cat"], "query")
    with Encoder(str(folders[0]), device="cpu", precision="fp32") as reference:
        np.testing.assert_allclose(encoded.vectors, reference.encode(["a man plays guitar", "cat"], "query"), atol=1e-6)
    await served.close()


@in_event_loop
async def test_failed_model_load_is_reported_and_retried(tmp_path: Path, folders: list[Path]) -> None:
    place = tmp_path / "model"
    served = models(place)
    with raises_as_recorded(ModelNotFound):
        await served.get()
    assert served.not_ready_reason is not None
    assert "cannot be loaded" in served.not_ready_reason
    shutil.copytree(folders[0], place)
    await served.get()
    assert served.not_ready_reason is None
    await served.close()


@in_event_loop
async def test_index_model_is_found_by_fingerprint(folders: list[Path], loads: list[str]) -> None:
    served = models("/nowhere/model", folders[0], folders[1])
    wanted = fingerprint_of(folders[1])
    for name in ("/elsewhere/model", "model1", None):
        assert (await served.get(name, wanted)).info.fingerprint == wanted
    assert loads == [str(folders[1])]
    await served.close()


@in_event_loop
async def test_index_cannot_use_a_bundle_from_the_export_cache(folders: list[Path], loads: list[str]) -> None:
    served = models(folders[0])
    wanted = fingerprint_of(folders[2])  # exports it to the cache
    assert cached_bundle_path(wanted).exists()
    with raises_as_recorded(ModelNotFound):
        await served.get("whatever", wanted)
    assert loads == []
    await served.close()


@in_event_loop
async def test_index_can_use_a_registered_model(
    folders: list[Path], loads: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    own = write_tiny_bert(tmp_path / "own", seed=7)
    wanted = read_sentence_model(own).fingerprint
    monkeypatch.setattr(es_sbert.gateway.model_registry, "_RECHECK_SECONDS", 0.0)
    served = models(folders[0])
    with raises_as_recorded(ModelNotFound) as unknown:
        await served.get("quickstart", wanted)
    assert "quickstart" not in unknown.value.remedy
    # No restart is needed.
    register_model(own, wanted)
    own.rename(tmp_path / "moved")
    with raises_as_recorded(ModelNotFound):
        await served.get("quickstart", wanted)
    write_tiny_bert(own, seed=8)
    with raises_as_recorded(ModelNotFound):
        await served.get("quickstart", wanted)
    register_model(tmp_path / "moved", wanted)
    assert (await served.get("quickstart", wanted)).info.fingerprint == wanted
    assert loads == [str(tmp_path / "moved")]
    await served.close()


@in_event_loop
async def test_missing_index_model_is_logged_but_not_sent_to_caller(
    folders: list[Path], caplog: pytest.LogCaptureFixture
) -> None:
    meta = VectorFieldMeta(fingerprint="f" * 32, model="quickstart", dimensions=16, index_type="hnsw")
    served = models(folders[0])
    with raises_as_recorded(ModelError) as refused:
        await served.for_field(meta, "docs")
    assert "quickstart" not in str(refused.value)
    await served.close()
    [line] = [record.getMessage() for record in caplog.records]
    assert "the model of docs cannot be used: an index needs the model 'quickstart' (ffffffffffff)" in line
    assert "es-sbert model add FOLDER" in line


@in_event_loop
async def test_model_name_in_mapping_opens_no_path(
    folders: list[Path], loads: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing that a mapping says makes the gateway open a folder that the operator did not name."""
    stranger = write_tiny_bert(tmp_path / "stranger", seed=9)
    monkeypatch.chdir(tmp_path)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("ES_SBERT_CACHE", str(tmp_path / "other"))
        unknown = fingerprint_of(stranger)
    served = models(folders[0])
    for name in (str(stranger), "stranger", "./stranger", "../x", "~/stranger", "org/name", "", "x\0y"):
        with raises_as_recorded(ModelNotFound):
            await served.get(name, unknown)
    for claim in ("../" * 11, f"../../{unknown}"[:32], unknown.upper(), "", f"{unknown}\n", "/etc"):
        with raises_as_recorded(IndexMismatch):
            await served.get("model0", claim)
    with raises_as_recorded(IndexMismatch):
        await served.get(str(folders[0]), unknown)
    assert loads == []
    assert not cached_bundle_path(unknown).exists()
    await served.close()


@in_event_loop
async def test_model_that_changed_before_it_was_loaded_is_refused(folders: list[Path], tmp_path: Path) -> None:
    served_folder = tmp_path / "served"
    shutil.copytree(folders[1], served_folder)
    wanted = fingerprint_of(folders[1])
    served = models(folders[0], served_folder)
    with raises_as_recorded(ModelNotFound):
        await served.get("another", "0" * 32)  # hashes the served models
    shutil.rmtree(served_folder)
    shutil.copytree(folders[2], served_folder)
    with raises_as_recorded(IndexMismatch):
        await served.get("quickstart", wanted)
    await served.close()
