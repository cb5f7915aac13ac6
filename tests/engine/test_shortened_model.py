"""Vectors of a model that is cut to fewer dimensions, loaded and searched on each engine."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from es_sbert.config import EngineSettings
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


def test_index_of_a_cut_model_is_searched_without_naming_it(
    index_name: str, engine: Engine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)  # for dead letters
    settings = EngineSettings(url=engine.info.url)
    model = write_tiny_bert(tmp_path / "tiny")
    with SemanticIndex.create(index_name, settings, model=f"{model}@6", text_fields=["text"]) as index:
        index.add(DOCUMENTS)
    engine.refresh(index_name)
    state = engine.get_index(index_name)
    assert state is not None
    assert vector_fields(state.mappings, index_name)["embedding"].dimensions == 6
    with SemanticIndex(index_name, settings) as index:
        hits = index.search("the cat sleeps on the mat").hits
    assert hits[0].source["text"] == "the cat sleeps on the mat"
    assert np.isclose(hits[0].cosine, 1, atol=1e-3)
    with SemanticIndex(index_name, settings, model=str(model)) as index, pytest.raises(IndexMismatch):
        index.search("the cat")
