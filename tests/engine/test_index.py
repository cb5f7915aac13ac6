"""`ensure_vector_field`, `read_vector_field` and `describe_index` on each real engine."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import orjson

from es_sbert.engines.engine import Engine
from es_sbert.engines.engine_info import EngineType
from es_sbert.engines.rest import Json
from es_sbert.errors import IndexMismatch, IndexMissing
from es_sbert.index.document_vectors import read_vector
from es_sbert.index.index_summary import describe_index, describe_indices
from es_sbert.index.mapping import supported_index_types
from es_sbert.index.vector_field import FieldOutcome, FieldRequest, VectorField, ensure_vector_field, read_vector_field
from tests.conftest import also_es8, also_opensearch2, on_every_version
from tests.engine.sources import read_sources
from tests.engine.vectors import load, random_vectors, state_of, vector_mapping, vector_value
from tests.raised import raises, raises_as_recorded, record

DIMENSIONS = 64


def ensure(engine: Engine, index: str, **changed: Any) -> VectorField:
    wanted: dict[str, Any] = {"name": "embedding", "fingerprint": "a" * 32, "model_name": "model-a"}
    options = {name: changed.pop(name) for name in ("create", "shards", "replicas") if name in changed}
    return ensure_vector_field(engine, index, FieldRequest(**wanted | {"dimensions": DIMENSIONS} | changed), **options)


@also_opensearch2
def test_missing_index_is_created_once(engine: Engine, index_name: str) -> None:
    created = ensure(engine, index_name, text="{title}", shards=2, replicas=0)
    assert created.outcome is FieldOutcome.CREATED
    assert created.meta.index_type == "hnsw"
    again = ensure(engine, index_name, text="{title}")
    assert again == VectorField(index_name, "embedding", created.meta, FieldOutcome.PRESENT)
    assert read_vector_field(engine, index_name, "embedding") == again
    state = state_of(engine, index_name)
    assert state.settings["index.number_of_shards"] == "2"
    assert state.settings["index.number_of_replicas"] == "0"
    assert state.mappings["properties"]["embedding_meta"]["properties"]["fingerprint"] == {"type": "keyword"}


@also_opensearch2
def test_concurrent_loads_create_one_index(engine: Engine, index_name: str) -> None:
    start = threading.Barrier(4)

    def begin(_: int) -> VectorField:
        start.wait()
        return ensure(engine, index_name)

    with ThreadPoolExecutor(4) as pool:
        fields = list(pool.map(begin, range(4)))
    assert [field.outcome for field in fields].count(FieldOutcome.CREATED) == 1
    assert {field.outcome for field in fields} == {FieldOutcome.CREATED, FieldOutcome.PRESENT}
    assert len({field.meta for field in fields}) == 1


def test_refusals_change_nothing(engine: Engine, index_name: str) -> None:
    """One index for all: nothing here may change it."""
    ensure(engine, index_name, text="{title}")
    before = engine.get_index(index_name)
    refusals: list[dict[str, Any]] = [
        {"fingerprint": "b" * 32, "model_name": "model-b"}, {"dimensions": 32}, {"index_type": "int8_hnsw"},
        {"shards": 3}, {"replicas": 0},
    ]  # fmt: skip
    for changed in refusals:
        with raises_as_recorded(IndexMismatch):
            ensure(engine, index_name, **changed)
    with raises(IndexMismatch, "vector_field") as caught:
        read_vector_field(engine, index_name, "other")
    record(caught.value)
    assert engine.get_index(index_name) == before


def test_missing_index_is_not_created_when_disallowed(engine: Engine, index_name: str) -> None:
    for look in (
        lambda: ensure(engine, index_name, create=False),
        lambda: read_vector_field(engine, index_name, "embedding"),
        lambda: describe_index(engine, index_name),
    ):
        with raises_as_recorded(IndexMissing):
            look()
    assert engine.get_index(index_name) is None


@on_every_version
def test_every_index_type_accepts_vectors(engine: Engine, fresh_index: Callable[[str], str]) -> None:
    for index_type in supported_index_types(engine.info):
        name = fresh_index(engine.info.url)
        assert ensure(engine, name, index_type=index_type).meta.index_type == index_type
        # The mapping states every setting that changes hits: defaults differ between versions.
        read, graph = state_of(engine, name).mappings["properties"]["embedding"], {"m": 16, "ef_construction": 100}
        stated = {"type": index_type} | (graph if "hnsw" in index_type else {})
        options = {"index_options": read.get("index_options", {}) | stated}
        wanted = {"index": True, "similarity": "cosine"} | options
        if engine.info.engine_type is EngineType.OPENSEARCH:
            sq = {"encoder": {"name": "sq", "parameters": {"bits": 7}}} if index_type == "int8_hnsw" else {}
            method = {"name": "hnsw", "engine": "lucene", "space_type": "cosinesimil", "parameters": graph | sq}
            wanted = {"method": method} | ({} if sq else {"compression_level": "1x"})
            wanted = {"space_type": "cosinesimil"} if index_type == "flat" else wanted
        assert read == read | wanted
        load(engine, name, "embedding", random_vectors(3, DIMENSIONS), lambda number: {})
        assert read_vector_field(engine, name, "embedding").meta.index_type == index_type


def test_field_is_added_and_foreign_meta_kept(engine: Engine, index_name: str) -> None:
    owner: Json = {"owner": "search team", "es_sbert": {"note": "kept"}}
    engine.create_index(index_name, {"mappings": {"_meta": owner, "properties": {"title": {"type": "keyword"}}}})
    first = ensure(engine, index_name)
    second = ensure(engine, index_name, name="second", fingerprint="b" * 32, model_name="model-b")
    assert first.outcome is second.outcome is FieldOutcome.ADDED
    # An OpenSearch index without index.knn takes no graph: exact search it is.
    assert first.meta.index_type == ("hnsw" if engine.info.engine_type is EngineType.ELASTICSEARCH else "flat")
    state = state_of(engine, index_name)
    meta = state.mappings["_meta"]
    assert meta["owner"] == "search team"
    assert meta["es_sbert"]["note"] == "kept"
    assert set(meta["es_sbert"]["fields"]) == {"embedding", "second"}
    assert read_vector_field(engine, index_name, "embedding").meta == first.meta
    assert read_vector_field(engine, index_name, "second").meta == second.meta


def test_incompatible_existing_fields_are_refused(engine: Engine, index_name: str) -> None:
    elastic = engine.info.engine_type is EngineType.ELASTICSEARCH
    method = {"name": "hnsw", "engine": "lucene", "space_type": "l2"}
    wrong_similarity = {"similarity": "l2_norm"} if elastic else {"method": method}
    entry = {"fingerprint": "a" * 32, "model": "model-a", "dimensions": DIMENSIONS, "index_type": "hnsw"}
    engine.create_index(
        index_name,
        {
            "settings": {} if elastic else {"index.knn": True},
            "mappings": {
                "_meta": {"es_sbert": {"fields": {"euclid": entry, "edited": entry | {"dimensions": 32}}}},
                "properties": {
                    "words": {"type": "keyword"},
                    "theirs": vector_mapping(engine, DIMENSIONS),
                    "euclid": vector_mapping(engine, DIMENSIONS, **wrong_similarity),
                    "edited": vector_mapping(engine, DIMENSIONS),
                    "blocked_meta": {"type": "keyword"},
                },
            },
        },
    )
    for field in ("words", "theirs", "euclid", "edited", "blocked"):
        with raises_as_recorded(IndexMismatch):
            ensure(engine, index_name, name=field)


def test_opensearch_separates_graph_and_flat_fields(
    opensearch_url: str, open_engine: Callable[[str], Engine], fresh_index: Callable[[str], str]
) -> None:
    engine = open_engine(opensearch_url)
    plain, knn = fresh_index(opensearch_url), fresh_index(opensearch_url)
    engine.create_index(plain, {})
    with raises(IndexMismatch, "index_type") as caught:
        ensure(engine, plain, index_type="hnsw")
    record(caught.value)
    assert ensure(engine, plain, index_type="flat").outcome is FieldOutcome.ADDED

    engine.create_index(knn, {"settings": {"index.knn": True}})
    with raises(IndexMismatch, "index_type"):
        ensure(engine, knn, index_type="flat")
    assert ensure(engine, knn).meta.index_type == "hnsw"


@also_opensearch2
def test_text_is_set_by_first_load_and_kept(engine: Engine, index_name: str) -> None:
    assert ensure(engine, index_name).meta.text is None
    assert ensure(engine, index_name, text="{title}").meta.text == "{title}"
    assert ensure(engine, index_name).meta.text == "{title}"
    # Nothing is embedded yet, so nothing contradicts another text.
    assert ensure(engine, index_name, text="{body}").meta.text == "{body}"
    load(engine, index_name, "embedding", random_vectors(1, DIMENSIONS), lambda number: {})
    with raises(IndexMismatch, "text_template"):
        ensure(engine, index_name, text="{title}")
    assert read_vector_field(engine, index_name, "embedding").meta.text == "{body}"


def test_unrefreshed_vectors_keep_their_text(engine: Engine, index_name: str) -> None:
    ensure(engine, index_name, text="{title}")
    engine.put_settings(index_name, {"index.refresh_interval": "-1"})
    vector = vector_value(engine.info, random_vectors(1, DIMENSIONS)[0])
    lines = (orjson.dumps({"index": {"_id": "1"}}), orjson.dumps({"title": "a cat", "embedding": vector}))
    [result] = engine.bulk(index_name, b"\n".join(lines) + b"\n")
    assert result.ok
    with raises(IndexMismatch, "text_template"):
        ensure(engine, index_name, text="{body}")


@also_es8
def test_vectors_round_trip_bit_for_bit(engine: Engine, index_name: str) -> None:
    """Byte order and digits: what the server hands out is what went in, as a list and, where taken, as base64."""
    ensure(engine, index_name, dimensions=8, index_type="flat")
    vectors = random_vectors(2, 8)
    vectors[0] /= np.linalg.norm(vectors[0])
    load(engine, index_name, "embedding", vectors, lambda number: {})
    found = read_sources(engine, index_name, ["0", "1"], source_includes=["embedding"])
    for number, vector in enumerate(vectors):
        np.testing.assert_array_equal(read_vector(found[str(number)]["embedding"]), vector)
    assert isinstance(vector_value(engine.info, vectors[0]), str) == (engine.info.version >= (9, 3, 0))


def test_describe_index_as_text_and_json(engine: Engine, index_name: str) -> None:
    engine.create_index(index_name, {"mappings": {"properties": {"title": {"type": "keyword"}}}})
    ensure(engine, index_name, text="{title}")
    beside = {"fingerprint": "a" * 32, "text_hash": "x", "tokens": 3, "truncated": False, "embedded_at": "2026-01-01"}

    def document(number: int) -> Json:
        meta = beside | ({"fingerprint": "old"} if number == 0 else {"truncated": number == 1})
        return {"title": f"t{number}", "embedding_meta": meta}

    load(engine, index_name, "embedding", random_vectors(5, DIMENSIONS), document)
    engine.bulk(index_name, b'{"index":{"_id":"bare"}}\n{"title":"no vector yet"}\n')
    summary = describe_index(engine, index_name)
    [field] = summary.fields
    assert (summary.name, summary.documents, summary.other_fields) == (index_name, 6, ("title",))
    assert (field.vectors, field.current, field.truncated) == (5, 4, 1)
    assert summary.bytes > 0
    plain = orjson.loads(orjson.dumps(summary.as_json()))
    assert plain["fields"][0]["name"] == "embedding"
    assert plain["fields"][0]["fingerprint"] == "a" * 32
    assert plain["engine"] == engine.info.label


def test_entry_that_cannot_be_read_does_not_hide_the_other_indices(
    engine: Engine, engine_url: str, index_name: str, fresh_index: Callable[[str], str]
) -> None:
    broken = fresh_index(engine_url)
    ensure(engine, index_name)
    engine.create_index(broken, {"mappings": {"_meta": {"es_sbert": {"fields": {"embedding": "?"}}}}})
    shown = {summary.name: summary for summary in describe_indices(engine, f"{index_name},{broken}")}
    assert (len(shown[index_name].fields), shown[index_name].problem) == (1, None)
    assert (shown[broken].fields, broken in (shown[broken].problem or "")) == ((), True)
