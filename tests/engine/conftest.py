"""An open engine for each address."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from s3fs import S3FileSystem

from es_sbert.config import EngineSettings
from es_sbert.encoder.encoder import Encoder
from es_sbert.engines.connect import connect
from es_sbert.engines.engine import Engine
from tests.engine.ingest_support import Loads, tiny_encoder
from tests.engine.object_store import ObjectStore, object_store


@pytest.fixture
def open_engine() -> Iterator[Callable[[str], Engine]]:
    """A function url → engine; all are closed after the test."""
    opened: list[Engine] = []

    def open_at(url: str) -> Engine:
        opened.append(connect(EngineSettings(url=url)))
        return opened[-1]

    yield open_at
    for engine in opened:
        engine.close()


@pytest.fixture
def engine(engine_url: str, open_engine: Callable[[str], Engine]) -> Engine:
    """Each of the three engines in turn."""
    return open_engine(engine_url)


@pytest.fixture(scope="session")
def encoder() -> Iterator[Encoder]:
    """The default model as a user on this machine gets it."""
    with Encoder() as encoder:
        yield encoder


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Encoder]:
    """A small model with random weights, for what does not depend on the vectors."""
    with tiny_encoder(tmp_path_factory.mktemp("tiny")) as encoder:
        yield encoder


@pytest.fixture
def loads(engine_url: str, index_name: str, encoder: Encoder, tmp_path: Path) -> Loads:
    return Loads(engine_url, index_name, encoder, tmp_path)


@pytest.fixture
def tiny_loads(engine_url: str, index_name: str, tiny: Encoder, tmp_path: Path) -> Loads:
    return Loads(engine_url, index_name, tiny, tmp_path)


@pytest.fixture(scope="session")
def s3_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ObjectStore]:
    """A real S3 server."""
    with object_store(tmp_path_factory.mktemp("s3")) as store:
        yield store


@pytest.fixture
def s3(s3_server: ObjectStore, monkeypatch: pytest.MonkeyPatch) -> ObjectStore:
    """The server, with what its clients need in the environment, as its users have it there."""
    use_s3(monkeypatch, s3_server.environment)
    return s3_server


def use_s3(monkeypatch: pytest.MonkeyPatch, environment: dict[str, str]) -> None:
    """Let the S3 clients of this process find what is in the environment."""
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    S3FileSystem.clear_instance_cache()  # instances remember the environment they were made in
