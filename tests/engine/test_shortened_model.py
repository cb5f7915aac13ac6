"""Vectors of a model that is cut to fewer dimensions, loaded and searched on each engine."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import numpy as np
import pytest

from es_sbert.config import EngineSettings
from es_sbert.engines.connect import connect
from es_sbert.engines.engine import Engine
from es_sbert.errors import IndexMismatch
from es_sbert.index.mapping import vector_fields
from es_sbert.search import SemanticIndex
from tests.tiny import write_tiny_bert

DOCUMENTS = [
    {"text": "a man plays guitar"},
    {"text": "the cat sleeps on the mat"},
    {"text": "the man sleeps"},
]


@pytest.fixture
def engine(engine_url: str) -> Iterator[Engine]:
    with closing(connect(EngineSettings(url=engine_url))) as engine:
        yield engine


@pytest.fixture
def name(engine: Engine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """Name of an index that is deleted after the test."""
    monkeypatch.chdir(tmp_path)
    name = f"test-shortened-{os.getpid()}"
    engine.delete_index(name)
    yield name
    engine.delete_index(name)


def test_index_of_a_cut_model_is_searched_without_naming_it(name: str, engine: Engine, tmp_path: Path) -> None:
    settings = EngineSettings(url=engine.info.url)
    model = write_tiny_bert(tmp_path / "tiny")
    with SemanticIndex.create(name, settings, model=f"{model}@6", text_fields=["text"]) as index:
        index.add(DOCUMENTS)
    engine.refresh(name)
    state = engine.get_index(name)
    assert state is not None
    assert vector_fields(state.mappings, name)["embedding"].dimensions == 6
    with SemanticIndex(name, settings) as index:
        hits = index.search("the cat sleeps on the mat").hits
    assert hits[0].source["text"] == "the cat sleeps on the mat"
    assert np.isclose(hits[0].cosine, 1, atol=1e-3)
    with SemanticIndex(name, settings, model=str(model)) as index, pytest.raises(IndexMismatch):
        index.search("the cat")
