"""The registry of models: written safely, read strictly, and never trusted about what a folder holds."""

from __future__ import annotations

import json
import logging
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from es_sbert.bundle.local_registry import (
    FolderState,
    _warn_if_others_may_write,
    fingerprint_of,
    read_registry,
    register_model,
    registered_model_folder,
    registry_path,
    try_register_model,
    unregister_model,
)
from es_sbert.bundle.model_lookup import IndexModel, find_index_model, installed_model_folder, resolve_model
from es_sbert.errors import ModelNotFound, OutputError, RegistryInvalid, UsageError
from tests.raised import raises, raises_as_recorded
from tests.tiny import write_tiny_bert
from tests.unit.bundle.conftest import in_hub_cache

pytestmark = pytest.mark.usefixtures("hub")
DEFAULT = "all-MiniLM-L6-v2"


@pytest.fixture
def tuned(tmp_path: Path) -> Path:
    return write_tiny_bert(tmp_path / "models/tuned")


def registered(folder: Path, **options: str) -> str:
    """Register the folder; its fingerprint."""
    return register_model(folder, fingerprint_of(folder), **options).fingerprint


def test_a_registered_model_is_listed_with_its_absolute_folder(
    tuned: Path, registry: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert read_registry() == []
    monkeypatch.chdir(tuned.parent)
    register_model(Path("tuned"), fingerprint_of(tuned))
    [model] = read_registry()
    assert (model.name, model.folder, model.state()) == ("tuned", tuned, FolderState.PRESENT)
    assert registry_path() == registry
    monkeypatch.delenv("ES_SBERT_REGISTRY")
    monkeypatch.setenv("XDG_DATA_HOME", "/data")
    assert registry_path() == Path("/data/es-sbert/models.json")
    assert [path.name for path in registry.parent.glob(f"{registry.name}*")] == [registry.name]  # no lock is left


def test_moved_and_changed_folders_are_distinguished(tuned: Path) -> None:
    registered(tuned)
    [model] = read_registry()
    tuned.rename(tuned.with_name("elsewhere"))
    assert model.check() == (FolderState.MISSING, f"its folder {tuned} was moved or deleted")
    other = fingerprint_of(write_tiny_bert(tuned, seed=1))
    assert model.check() == (FolderState.CHANGED, f"its folder {tuned} now holds another model ({other[:12]})")
    (tuned / "modules.json").unlink()
    state, problem = model.check()
    assert (state, "can no longer be opened" in problem) == (FolderState.CHANGED, True)


def test_moved_model_keeps_its_name(tuned: Path, tmp_path: Path) -> None:
    mark = registered(tuned, name="support")
    shutil.move(tuned, tmp_path / "new")
    registered(tmp_path / "new")
    assert [(m.name, m.fingerprint, m.folder) for m in read_registry()] == [("support", mark, tmp_path / "new")]
    registered(shutil.copytree(tmp_path / "new", tmp_path / "copy"))
    assert [m.name for m in read_registry()] == ["support", "copy"]


@pytest.mark.parametrize("name", ["", "org/name", "~me", "--name", "two\nlines", "n" * 201])
def test_names_like_paths_hub_ids_or_options_are_refused(tuned: Path, name: str) -> None:
    with raises(UsageError, "name", name):
        registered(tuned, name=name)
    with raises(UsageError, "name", "\x1b[2J"):
        registered(tuned.rename(tuned.with_name("\x1b[2J")))
    assert read_registry() == []


def test_unregister_by_name_folder_or_hash_keeps_the_folder(tuned: Path) -> None:
    mark = registered(tuned)
    for key in ("tuned", str(tuned), mark, mark[:8]):
        registered(tuned)
        assert [m.folder for m in unregister_model(key)] == [tuned]
        assert read_registry() == []
    assert tuned.is_dir()
    registered(tuned)
    for key in ("other", mark[:7], "", str(tuned.parent)):
        with raises_as_recorded(ModelNotFound):
            unregister_model(key)


def test_ambiguous_name_is_rejected(tmp_path: Path) -> None:
    first, second = (write_tiny_bert(tmp_path / str(seed) / "model", seed=seed) for seed in range(2))
    marks = [registered(folder) for folder in (first, second)]
    assert [find_index_model("docs", "model", mark).folder for mark in marks] == [first, second]
    with raises_as_recorded(ModelNotFound):
        resolve_model("model")
    with raises(UsageError, "model", "model"):
        unregister_model("model")
    unregister_model(str(first))
    assert resolve_model("model") == second


@pytest.mark.parametrize(
    "content",
    ["{", "[]", '{"format": 1}', '{"format": 1, "models": [{}]}', '{"format": 2, "models": []}', "\x00", '{"format": 1,'
     ' "models": [{"name": "x", "fingerprint": "y", "folder": "relative"}]}', '{"format": 1, "models": [{"name": "x",'
     ' "fingerprint": "y", "folder": "/z", "query_fingerprint": "q"}]}'],
)  # fmt: skip
def test_broken_registry_is_reported_and_not_overwritten(content: str, registry: Path, tuned: Path) -> None:
    registry.write_text(content)
    for action in (read_registry, lambda: registered(tuned), lambda: unregister_model("x"), lambda: resolve_model("x")):
        with raises_as_recorded(RegistryInvalid):
            action()
    assert registry.read_text() == content
    # What does not need the registry works without it.
    assert resolve_model(DEFAULT) == installed_model_folder(DEFAULT)
    assert find_index_model("docs", DEFAULT, "0" * 32).folder == installed_model_folder(DEFAULT)
    with raises_as_recorded(ModelNotFound):
        find_index_model("docs", "tuned", "0" * 32)


def test_failed_registration_is_a_warning_only_after_a_model_was_written(
    tuned: Path, registry: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    registry.write_text("{")
    try_register_model(tuned, fingerprint_of(tuned))
    assert f"`es-sbert model add {tuned}`" in caplog.records[-1].__dict__["text"]
    monkeypatch.setenv("ES_SBERT_REGISTRY", str(registry / "models.json"))
    with raises_as_recorded(OutputError):
        registered(tuned)


def test_registry_that_is_a_pipe_or_device_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    os.mkfifo(tmp_path / "pipe")
    for path in (tmp_path / "pipe", os.devnull):
        monkeypatch.setenv("ES_SBERT_REGISTRY", str(path))
        with raises_as_recorded(RegistryInvalid):
            read_registry()


@pytest.mark.parametrize(
    ("mode", "folder_mode", "problem"),
    [(0o600, 0o1777, ""), (0o666, 0o755, "can be written by all"), (0o600, 0o777, "can be replaced by all")],
)
def test_registry_that_others_may_write_is_warned_about(
    mode: int, folder_mode: int, problem: str, registry: Path, tuned: Path, caplog: pytest.LogCaptureFixture
) -> None:
    registered(tuned)
    registry.chmod(mode)
    registry.parent.chmod(folder_mode)
    _warn_if_others_may_write.cache_clear()
    with caplog.at_level(logging.WARNING, "es_sbert"):
        read_registry()
    assert len(caplog.records) == bool(problem)
    assert problem in caplog.text


def test_concurrent_registrations_lose_no_entry(tmp_path: Path, registry: Path) -> None:
    code = """
import sys
from pathlib import Path
from es_sbert.bundle.local_registry import register_model
for number in range(10):
    register_model(Path(sys.argv[1]) / str(number), f"{sys.argv[1]}-{number}")
"""
    command = [sys.executable, "-c", code]
    started = [subprocess.Popen([*command, f"/nowhere/{one}"], env=dict(os.environ)) for one in range(3)]
    assert [process.wait(120) for process in started] == [0, 0, 0]
    assert len({model.fingerprint for model in read_registry()}) == 30
    assert json.loads(registry.read_bytes())["format"] == 1


def test_name_resolution_order(tuned: Path, tmp_path: Path, hub: Path) -> None:
    registered(tuned, name="mine")
    assert resolve_model("mine") == tuned
    downloaded = in_hub_cache(hub, "sentence-transformers/mine", seed=2)
    assert resolve_model("mine") == tuned
    assert resolve_model("sentence-transformers/mine") == downloaded
    here = write_tiny_bert(Path("mine"), seed=1)
    assert resolve_model("mine") == here
    # A folder that is called like an installed model is registered, but found by its fingerprint only.
    same_name = shutil.copytree(here, tmp_path / "models" / DEFAULT)
    mark = registered(same_name)
    assert resolve_model(DEFAULT) == installed_model_folder(DEFAULT)
    assert find_index_model("docs", DEFAULT, mark).folder == same_name


def test_registered_model_that_is_gone_is_not_downloaded(tuned: Path, hub: Path) -> None:
    registered(tuned)
    in_hub_cache(hub, "sentence-transformers/tuned", seed=2)
    shutil.rmtree(tuned)
    with raises_as_recorded(ModelNotFound):
        resolve_model("tuned")
    assert registered_model_folder("other") is None


def test_index_model_is_found_by_fingerprint_under_any_name(tuned: Path) -> None:
    mark = registered(tuned)
    for name in ("quickstart", "/elsewhere/tuned", "./tuned", "org/name", DEFAULT, ""):
        assert find_index_model("docs", name, mark) == IndexModel(tuned, name)


def test_folder_in_cwd_is_used_only_if_the_fingerprint_matches(tuned: Path) -> None:
    mark = fingerprint_of(tuned)
    here = write_tiny_bert(Path("quickstart"), seed=1)
    with raises_as_recorded(ModelNotFound):
        find_index_model("docs", "quickstart", mark)
    shutil.rmtree(here)
    shutil.copytree(tuned, here)
    assert find_index_model("docs", "quickstart", mark).folder == here.resolve()


def test_folder_named_like_the_installed_model_is_ignored() -> None:
    write_tiny_bert(Path(DEFAULT), seed=1)
    found = find_index_model("docs", DEFAULT, "0" * 32)
    assert found == IndexModel(installed_model_folder(DEFAULT) or Path(), DEFAULT, is_public=True)


@pytest.mark.parametrize("name", ["tuned", "quickstart", "/no/where", "./tuned"])
def test_error_names_index_model_and_folder_state(tuned: Path, name: str) -> None:
    mark = registered(tuned)
    other = write_tiny_bert(tuned.parent / "other", seed=1)
    shutil.rmtree(tuned)
    with raises_as_recorded(ModelNotFound) as moved:
        find_index_model("docs", name, mark)
    other.rename(tuned)
    with raises_as_recorded(ModelNotFound) as changed:
        find_index_model("docs", name, mark)
    for error in (moved, changed):
        assert "the hub" not in error.value.message


def test_hub_cache_is_used_only_if_the_fingerprint_matches(tuned: Path, hub: Path) -> None:
    mark = registered(tuned)
    shutil.rmtree(tuned)
    downloaded = in_hub_cache(hub, "sentence-transformers/tuned", seed=1)
    with raises_as_recorded(ModelNotFound):
        find_index_model("docs", "tuned", mark)
    same = fingerprint_of(downloaded)
    register_model(tuned, same)
    assert find_index_model("docs", "tuned", same) == IndexModel(downloaded, "tuned", is_public=True)


def test_registered_model_with_another_fingerprint_is_not_used(tuned: Path, hub: Path) -> None:
    registered(tuned, name="quickstart")
    in_hub_cache(hub, "sentence-transformers/quickstart", seed=2)
    with raises_as_recorded(ModelNotFound):
        find_index_model("docs", "quickstart", "0" * 32)
