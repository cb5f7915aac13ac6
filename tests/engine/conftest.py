"""An open engine for each address."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from es_sbert.config import EngineSettings
from es_sbert.encoder.encoder import Encoder
from es_sbert.engines.connect import connect
from es_sbert.engines.engine import Engine
from tests.engine.ingest_support import Loads, tiny_encoder
from tests.engine.migration.support import two_encoders


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


@pytest.fixture(scope="module")
def encoders(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Encoder, Encoder]]:
    with two_encoders(tmp_path_factory.mktemp("models")) as both:
        yield both


@pytest.fixture
def loads(engine_url: str, index_name: str, encoder: Encoder, tmp_path: Path) -> Loads:
    return Loads(engine_url, index_name, encoder, tmp_path)


@pytest.fixture
def tiny_loads(engine_url: str, index_name: str, tiny: Encoder, tmp_path: Path) -> Loads:
    return Loads(engine_url, index_name, tiny, tmp_path)
