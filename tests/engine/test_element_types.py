"""Vectors stored as bfloat16: loaded, searched, measured and migrated; engines without it refuse."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from es_sbert.config import EngineSettings
from es_sbert.diagnostics.index_size import estimate_size
from es_sbert.diagnostics.recall import force_merge
from es_sbert.engines.engine import Engine
from es_sbert.errors import IndexMismatch, UsageError
from es_sbert.index.mapping import ElementType, IndexType, vector_fields
from es_sbert.index.vector_field import FieldRequest, ensure_vector_field, read_vector_field
from es_sbert.search import SemanticIndex
from tests.engine.vectors import load, random_vectors, state_of
from tests.tiny import write_tiny_bert

DOCUMENTS = [
    {"text": "a man plays guitar"},
    {"text": "the cat sleeps on the mat"},
    {"text": "the man sleeps"},
]
# Elasticsearch 9.4 builds no graph over fewer than about 1,500 vectors.
DIMENSIONS, COUNT = 128, 2000


@pytest.fixture
def es9(es9_url: str, open_engine: Callable[[str], Engine]) -> Engine:
    return open_engine(es9_url)


@pytest.fixture
def es9_index(es9_url: str, fresh_index: Callable[[str], str]) -> str:
    return fresh_index(es9_url)


@pytest.fixture
def index(es9_url: str, es9_index: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[SemanticIndex]:
    monkeypatch.chdir(tmp_path)  # for dead letters
    settings, model = EngineSettings(url=es9_url), str(write_tiny_bert(tmp_path / "tiny"))
    with SemanticIndex.create(es9_index, settings, model=model, text_fields=["text"], element_type="bfloat16") as index:
        index.add([{"id": str(number), **document} for number, document in enumerate(DOCUMENTS)], id_field="id")
        yield index


def test_bfloat16_vectors_are_loaded_and_searched(index: SemanticIndex, es9: Engine, es9_index: str) -> None:
    es9.refresh(es9_index)
    state = state_of(es9, es9_index)
    assert state.mappings["properties"]["embedding"]["element_type"] == "bfloat16"
    assert vector_fields(state.mappings, es9_index)["embedding"].element_type is ElementType.BFLOAT16
    hits = index.search("the cat sleeps on the mat").hits
    assert hits[0].id == "1"
    assert hits[0].cosine == pytest.approx(1, abs=2e-3)


def test_second_load_embeds_nothing(index: SemanticIndex) -> None:
    report = index.add([{"id": str(number), **document} for number, document in enumerate(DOCUMENTS)], id_field="id")
    assert (report.unchanged, report.indexed, report.updated) == (len(DOCUMENTS), 0, 0)


def test_other_element_type_of_a_field_is_refused(index: SemanticIndex, es9: Engine, es9_index: str) -> None:
    meta = index.field.meta
    request = FieldRequest("embedding", meta.fingerprint, meta.model, meta.dimensions, element_type="float")
    with pytest.raises(IndexMismatch, match="the element type of .* is bfloat16, not float"):
        ensure_vector_field(es9, es9_index, request)


def test_mapping_that_disagrees_with_meta_is_refused(es9: Engine, es9_index: str) -> None:
    request = FieldRequest("embedding", "a" * 32, "model-a", DIMENSIONS, element_type="bfloat16")
    ensure_vector_field(es9, es9_index, request)
    state = state_of(es9, es9_index)
    meta = state.mappings["_meta"]
    del meta["es_sbert"]["fields"]["embedding"]["element_type"]
    es9.put_mapping(es9_index, {"_meta": meta})
    with pytest.raises(IndexMismatch, match="is mapped with .* dimensions of bfloat16, .* its _meta says .* of float"):
        read_vector_field(es9, es9_index, "embedding")


@pytest.mark.parametrize("index_type", [IndexType.HNSW, IndexType.INT8_FLAT, IndexType.FLAT])
def test_estimate_of_bfloat16_is_within_10_percent_of_real_size(
    es9: Engine, es9_index: str, index_type: IndexType
) -> None:
    request = FieldRequest("embedding", "a" * 32, "model-a", DIMENSIONS, index_type=index_type, element_type="bfloat16")
    ensure_vector_field(es9, es9_index, request, shards=1, replicas=0)
    load(es9, es9_index, "embedding", random_vectors(COUNT, DIMENSIONS), lambda row: {"row": row})
    force_merge(es9, es9_index)
    es9.refresh(es9_index)
    estimate = estimate_size(es9.info, index_type, COUNT, DIMENSIONS, ElementType.BFLOAT16)
    assert estimate.index == pytest.approx(es9.vector_size(es9_index, "embedding"), rel=0.1)


@pytest.mark.parametrize("engine_url", ["es8", "opensearch"], indirect=True)
def test_engine_without_bfloat16_refuses_it(engine: Engine, index_name: str) -> None:
    request = FieldRequest("embedding", "a" * 32, "model-a", DIMENSIONS, element_type="bfloat16")
    with pytest.raises(UsageError, match="does not write vectors of the element type bfloat16"):
        ensure_vector_field(engine, index_name, request)
    assert engine.get_index(index_name) is None
