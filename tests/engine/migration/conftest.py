"""Two models, and an index behind an alias that holds the vectors of one of them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from es_sbert.encoder.encoder import Encoder
from es_sbert.engines.protocol import Engine
from es_sbert.loading import load_encoder
from tests.engine.migration.support import Place, make_place, models


@pytest.fixture(scope="module")
def encoders(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Encoder, Encoder]]:
    folder = tmp_path_factory.mktemp("models")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("ES_SBERT_CACHE", str(folder / "cache"))
        first, second = models(folder)
        with (
            load_encoder(str(first), precision="fp32", threads=1) as one,
            load_encoder(str(second), precision="fp32", threads=1) as two,
        ):
            yield one, two


@pytest.fixture
def place(engine: Engine, encoders: tuple[Encoder, Encoder], tmp_path: Path) -> Iterator[Place]:
    yield from make_place(engine, encoders[0], tmp_path / "dead.jsonl")


@pytest.fixture
def place9(
    es9_url: str, open_engine: Callable[[str], Engine], encoders: tuple[Encoder, Encoder], tmp_path: Path
) -> Iterator[Place]:
    yield from make_place(open_engine(es9_url), encoders[0], tmp_path / "dead.jsonl")
