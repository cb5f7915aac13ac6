"""A small model and the command line inside this process."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from es_sbert.encoder.encoder import Encoder
from tests.e2e.cli_support import Cli, cli_in_process
from tests.tiny import write_tiny_bert


@pytest.fixture(scope="module")
def disk_folder() -> Iterator[Path]:
    """A folder for a gigabyte of installed packages; `tmp_path` is in memory where scripts/run-tests finds enough."""
    with tempfile.TemporaryDirectory(dir="/var/tmp", prefix="es-sbert-test-") as folder:
        yield Path(folder)


@pytest.fixture(scope="session")
def cache_of_modules(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A cache in which the tiny model is exported once for all modules."""
    return tmp_path_factory.mktemp("cache")


@pytest.fixture(scope="module")
def own_cache(cache_of_modules: Path) -> Iterator[None]:
    """Models of this module are not exported to the user's cache, in which other modules find the default model."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("ES_SBERT_CACHE", str(cache_of_modules))
        yield


@pytest.fixture(scope="module")
def model(own_cache: None, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny BERT with random weights."""
    return write_tiny_bert(tmp_path_factory.mktemp("model") / "tiny")


@pytest.fixture(scope="module")
def tiny(model: Path) -> Iterator[Encoder]:
    """The same model, opened."""
    with Encoder(str(model), precision="fp32", threads=1) as encoder:
        yield encoder


@pytest.fixture
def cli(capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Cli:
    """`es-sbert` called from a folder of this test's own."""
    monkeypatch.chdir(tmp_path)
    return cli_in_process(capfd)
