"""An index with an alias, and with the vectors of the first of two models."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from es_sbert.encoder.encoder import Encoder
from es_sbert.engines.engine import Engine
from tests.engine.migration.support import Place, expect_no_stragglers, make_place


@pytest.fixture(autouse=True)
def no_stragglers(monkeypatch: pytest.MonkeyPatch) -> None:
    expect_no_stragglers(monkeypatch)


@pytest.fixture
def place(engine: Engine, encoders: tuple[Encoder, Encoder], tmp_path: Path) -> Iterator[Place]:
    yield from make_place(engine, encoders[0], tmp_path / "dead.jsonl")


@pytest.fixture
def place9(
    es9_url: str, open_engine: Callable[[str], Engine], encoders: tuple[Encoder, Encoder], tmp_path: Path
) -> Iterator[Place]:
    yield from make_place(open_engine(es9_url), encoders[0], tmp_path / "dead.jsonl")
