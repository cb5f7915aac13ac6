"""What is different on OpenSearch 2: a vector field needs `index.knn`. See also the tests with `also_opensearch2`."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from es_sbert.encoder.encoder import Encoder
from es_sbert.engines.engine import Engine
from es_sbert.engines.rest import Json
from es_sbert.errors import IndexMismatch, UsageError
from es_sbert.index.adopt import read_adoptable_field
from es_sbert.index.index_meta import update_mapping
from es_sbert.index.mapping import with_meta_entry
from es_sbert.index.vector_field import FieldOutcome, FieldRequest, VectorField, ensure_vector_field
from es_sbert.index.whole_documents import rewrites_numbers
from tests.engine.ingest_support import load, write_jsonl
from tests.engine.test_number_texts import raw
from tests.engine.vectors import state_of
from tests.raised import raises, raises_as_recorded

DIMENSIONS = 16
FLAT: Json = {"type": "knn_vector", "dimension": DIMENSIONS, "space_type": "cosinesimil"}
WITHOUT_KNN = r"created without index\.knn, and OpenSearch 2\.\d+\.\d+ fails all shards"


@pytest.fixture
def engine(opensearch2_url: str, open_engine: Callable[[str], Engine]) -> Engine:
    return open_engine(opensearch2_url)


@pytest.fixture
def index(opensearch2_url: str, fresh_index: Callable[[str], str]) -> str:
    return fresh_index(opensearch2_url)


def ensure(engine: Engine, index: str, index_type: str | None = None) -> VectorField:
    request = FieldRequest("embedding", "a" * 32, "model-a", DIMENSIONS, index_type=index_type)
    return ensure_vector_field(engine, index, request)


def test_mapping_of_an_index_with_vectors_changes_without_failures(engine: Engine, index: str) -> None:
    assert ensure(engine, index).meta.index_type == "hnsw"
    before = engine.primary_terms(index)
    second = FieldRequest("second", "a" * 32, "model-a", DIMENSIONS, index_type="int8_hnsw", text="{title}")
    assert ensure_vector_field(engine, index, second).outcome is FieldOutcome.ADDED
    engine.refresh(index)
    assert engine.primary_terms(index) == before


def test_flat_field_is_refused_before_an_index_is_made(engine: Engine, index: str) -> None:
    with raises(UsageError, "index_type", "flat"):
        ensure(engine, index, "flat")
    assert engine.get_index(index) is None


@pytest.mark.parametrize("is_derived", [True, False])
def test_index_that_changes_numbers_is_known(engine: Engine, index: str, is_derived: bool) -> None:
    engine.create_index(index, {"settings": {"index.knn": True, "index.knn.derived_source.enabled": is_derived}})
    ensure(engine, index)
    engine.bulk(index, b'{"index":{"_id":"1"}}\n{"code":1.10,"embedding":[%b]}\n' % b",".join([b"1"] * DIMENSIONS))
    engine.refresh(index)
    assert (b"1.10" not in raw(engine, index, "1")) is rewrites_numbers(engine.info, state_of(engine, index))


@pytest.mark.parametrize("from_file", [True, False])
def test_load_into_index_without_index_knn_writes_nothing(
    engine: Engine, index: str, tiny: Encoder, tmp_path: Path, from_file: bool
) -> None:
    engine.create_index(index, {"mappings": {"properties": {"text": {"type": "text"}}}})
    engine.bulk(index, b'{"index":{"_id":"1"}}\n{"id":"1","text":"the cat sleeps"}\n')
    engine.refresh(index)
    before = engine.get_index(index), engine.search(index, {"seq_no_primary_term": True})["hits"]
    source = [write_jsonl(tmp_path / "d.jsonl", [{"id": "1", "text": "the cat sleeps"}])] if from_file else []
    with raises_as_recorded(IndexMismatch):
        load(engine.info.url, tiny, index, *source, dead=tmp_path / "dead", **({"id_field": "id"} if source else {}))
    engine.refresh(index)
    assert (engine.get_index(index), engine.search(index, {"seq_no_primary_term": True})["hits"]) == before


def test_no_command_changes_the_mapping_of_vectors_without_index_knn(engine: Engine, index: str) -> None:
    """As commands do that note or add something of their own: analyses, loads, calibration."""
    engine.create_index(index, {"mappings": {"properties": {"embedding": FLAT}}})
    state = state_of(engine, index)
    with raises_as_recorded(IndexMismatch):
        read_adoptable_field(engine, index, "embedding", None)
    with raises_as_recorded(IndexMismatch):
        update_mapping(engine, state, lambda found: {"_meta": with_meta_entry({}, "note", "new")})
    assert engine.get_index(index) == state
