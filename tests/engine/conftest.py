"""An open engine for each address."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from es_sbert.config import EngineSettings
from es_sbert.encoder.encoder import Encoder
from es_sbert.engines.connect import connect
from es_sbert.engines.protocol import Engine
from es_sbert.loading import load_encoder


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
    with load_encoder() as encoder:
        yield encoder
