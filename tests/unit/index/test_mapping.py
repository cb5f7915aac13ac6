"""Mappings of vector fields, and their entries in `_meta`."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import assume, example, given
from hypothesis import strategies as st

from es_sbert.analysis.field_writer import plan_written_field
from es_sbert.engines.engine_info import EngineInfo, EngineType
from es_sbert.engines.index_state import IndexState
from es_sbert.engines.rest import Json
from es_sbert.errors import IndexMismatch, UsageError
from es_sbert.index.mapping import (
    OPENSEARCH_TYPES,
    ChunkRules,
    IndexType,
    VectorFieldMeta,
    check_field_name,
    index_body,
    mapping_addition,
    merge_field_meta,
    parse_index_type,
    read_vector_mapping,
    vector_fields,
    with_meta_entry,
)
from tests.raised import raises, raises_as_recorded
from tests.unit.golden import assert_golden


def meta(index_type: str = "hnsw", text: str | None = None) -> VectorFieldMeta:
    return VectorFieldMeta(
        fingerprint="f" * 32, model="all-MiniLM-L6-v2", dimensions=384, index_type=index_type, text=text
    )


CASES = [(EngineType.ELASTICSEARCH, t) for t in IndexType] + [(EngineType.OPENSEARCH, t) for t in OPENSEARCH_TYPES]


@pytest.mark.parametrize(("engine_type", "index_type"), CASES)
def test_index_bodies_match_golden_files(engine_type: EngineType, index_type: IndexType) -> None:
    body = index_body(engine_type, "embedding", meta(index_type))
    assert_golden(engine_type, f"index-{index_type}", body)


@pytest.mark.parametrize("engine_type", list(EngineType))
def test_added_field_matches_golden_file(engine_type: EngineType) -> None:
    existing = {"owner": "search team", "es_sbert": {"fields": {"title_vector": {"model": "other"}}}}
    body = mapping_addition(engine_type, "body_vector", meta(text="{title}. {body}"), existing)
    assert_golden(engine_type, "added-field", body)


@pytest.mark.parametrize("engine_type", list(EngineType))
def test_shards_and_replicas_are_written_only_when_given(engine_type: EngineType) -> None:
    plain = index_body(engine_type, "v", meta())["settings"]
    assert "index.number_of_shards" not in plain
    given_both = index_body(engine_type, "v", meta(), shards=3, replicas=0)["settings"]
    assert given_both["index.number_of_shards"] == 3
    assert given_both["index.number_of_replicas"] == 0


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=5,
)


@given(
    st.dictionaries(st.text(max_size=5), json_values, max_size=3),
    st.dictionaries(st.text(max_size=5), json_values, max_size=3),
)
def test_merge_field_meta_keeps_foreign_keys(foreign: dict[str, Any], other_fields: dict[str, Any]) -> None:
    existing = foreign | {"es_sbert": {"fields": other_fields, "note": 1}}
    merged = merge_field_meta(existing, "mine", meta())
    assert {key: value for key, value in merged.items() if key != "es_sbert"} == foreign
    assert merged["es_sbert"]["note"] == 1
    kept = {name: value for name, value in merged["es_sbert"]["fields"].items() if name != "mine"}
    assert kept == {name: value for name, value in other_fields.items() if name != "mine"}
    assert VectorFieldMeta.model_validate(merged["es_sbert"]["fields"]["mine"]) == meta()


@pytest.mark.parametrize(("engine_type", "index_type"), CASES)
def test_vector_fields_round_trip(engine_type: EngineType, index_type: IndexType) -> None:
    mappings = index_body(engine_type, "v", meta(index_type))["mappings"]
    assert vector_fields(mappings, "docs") == {"v": meta(index_type)}
    settings = {"index.knn": str(index_type != IndexType.FLAT).lower()}
    mapped = read_vector_mapping(engine_type, settings, mappings["properties"]["v"])
    assert mapped is not None
    assert (mapped.dimensions, mapped.element_type, mapped.index_type) == (384, "float", index_type)
    assert mapped.similarity in ("cosine", "cosinesimil")


@pytest.mark.parametrize("damaged", [{"fields": {"v": {"model": 3}}}, {"fields": []}, [], {"fields": {"v": "x"}}])
def test_damaged_meta_raises_index_mismatch(damaged: Any) -> None:
    with raises_as_recorded(IndexMismatch):
        vector_fields({"_meta": {"es_sbert": damaged}}, "docs")


@pytest.mark.parametrize(
    ("source", "whole", "chunked"),
    [({}, True, True), ({"excludes": ["v"]}, False, False), ({"excludes": ["v.start"]}, True, False),
     ({"excludes": ["v.*"]}, True, False), ({"includes": ["v"]}, True, True), ({"includes": ["text"]}, False, False),
     ({"enabled": False}, False, False)],
)  # fmt: skip
def test_vector_field_knows_whether_source_keeps_it(source: dict[str, Any], whole: bool, chunked: bool) -> None:
    for passages, kept in ((None, whole), (ChunkRules.from_tokens(8), chunked)):
        stored = merge_field_meta({}, "v", meta().changed(passages=passages))
        assert "in_source" not in stored["es_sbert"]["fields"]["v"]
        assert vector_fields({"_source": source, "_meta": stored}, "docs")["v"].in_source is kept


@pytest.mark.parametrize("name", ["", "_source", "a.b", "v*", "a b", "it's", 'say"', "{v}", "a,b", "a\\b"])
def test_invalid_field_names_are_rejected(name: str) -> None:
    with raises(UsageError, "vector_field", name):
        check_field_name(name)


@pytest.mark.parametrize("engine_type", list(EngineType))
@pytest.mark.parametrize("index_type", [IndexType.HNSW, IndexType.FLAT])
def test_chunked_index_bodies_match_golden_files(engine_type: EngineType, index_type: IndexType) -> None:
    rules = ChunkRules(tokens=256, overlap=32)
    body = index_body(engine_type, "embedding", meta(index_type).model_copy(update={"passages": rules}))
    assert_golden(engine_type, f"index-passages-{index_type}", body)
    field = body["mappings"]["properties"]["embedding"]
    mapped = read_vector_mapping(engine_type, {}, field)
    assert mapped is not None
    assert mapped.dimensions == 384
    assert vector_fields(body["mappings"], "docs")["embedding"].passages == rules


def test_minimum_cosine_is_stored_only_where_it_was_measured() -> None:
    without = merge_field_meta({}, "embedding", meta())
    assert "min_cosine" not in without["es_sbert"]["fields"]["embedding"]
    assert vector_fields({"_meta": without}, "docs")["embedding"].min_cosine is None
    measured = merge_field_meta(without, "embedding", meta().changed(min_cosine=0.31))
    assert measured["es_sbert"]["fields"]["embedding"]["min_cosine"] == 0.31
    field = vector_fields({"_meta": measured}, "docs")["embedding"]
    # It goes with the model and the text that it was measured for, not with how vectors are stored.
    assert field.changed(index_type="int8_hnsw").min_cosine == 0.31
    assert field.changed(text="{other}").min_cosine is None
    assert field.changed(fingerprint="f" * 64).min_cosine is None
    measured["es_sbert"]["fields"]["embedding"]["min_cosine"] = 3
    with raises_as_recorded(IndexMismatch):
        vector_fields({"_meta": measured}, "docs")


ELASTICSEARCH = EngineInfo(EngineType.ELASTICSEARCH, (9, 5, 0), "http://localhost:9200")
OPENSEARCH = EngineInfo(EngineType.OPENSEARCH, (3, 6, 0), "http://localhost:9200")
OPENSEARCH_2 = EngineInfo(EngineType.OPENSEARCH, (2, 19, 1), "http://localhost:9200")


@pytest.mark.parametrize("name", list(IndexType))
def test_each_engine_takes_its_index_types(name: IndexType) -> None:
    assert parse_index_type(name, ELASTICSEARCH, 384) is name
    for info, supported in ((OPENSEARCH, OPENSEARCH_TYPES), (OPENSEARCH_2, (IndexType.HNSW, IndexType.INT8_HNSW))):
        if name in supported:
            assert parse_index_type(name, info, 384) is name
            continue
        with raises(UsageError, "index_type", name):
            parse_index_type(name, info, 384)


@pytest.mark.parametrize(
    ("name", "dimensions"), [("bbq_disk", 384), ("int4_hnsw", 383), ("bbq_hnsw", 63), ("hnsw", 4097)]
)
def test_unsupported_index_type_error_has_remedy(name: str, dimensions: int) -> None:
    with raises_as_recorded(UsageError):
        parse_index_type(name, ELASTICSEARCH, dimensions)


objects = st.dictionaries(st.text(max_size=5), json_values, max_size=3)


@given(foreign=objects, others=objects)
@example(foreign={}, others={"load": None, "written_fields": 0})
def test_change_keeps_what_belongs_to_others(foreign: Json, others: Json) -> None:
    meta = foreign | {"es_sbert": others}
    state = IndexState("docs", {"_meta": meta}, {})
    body = plan_written_field(state, "group", [])
    assume(body is not None)  # the entry is there already
    assert body is not None
    changed = body["_meta"]
    assert changed.keys() == meta.keys()
    assert {**changed, "es_sbert": None} == {**meta, "es_sbert": None}
    # A damaged entry is replaced.
    assert {**changed["es_sbert"], "written_fields": None} == {**others, "written_fields": None}
    assert plan_written_field(IndexState("docs", {**state.mappings, **body}, {}), "group", []) is None


def test_fields_of_other_analyses_stay_in_the_list() -> None:
    """Read from the mapping as it is, not as it was when the analysis began."""
    properties = {"cluster": {"type": "keyword"}}
    mappings = {"_meta": {"es_sbert": {"written_fields": ["cluster"]}}, "properties": properties}
    assert plan_written_field(IndexState("docs", mappings, {}), "duplicate_of", []) == {
        "properties": {"duplicate_of": {"type": "keyword"}},
        "_meta": {"es_sbert": {"written_fields": ["cluster", "duplicate_of"]}},
    }
    assert plan_written_field(IndexState("docs", mappings, {}), "cluster", []) is None
    declared = plan_written_field(IndexState("docs", {"properties": properties}, {}), "cluster", [])
    assert declared == {"_meta": {"es_sbert": {"written_fields": ["cluster"]}}}
    assert with_meta_entry({"theirs": 1, "es_sbert": {"written_fields": []}}, "written_fields", None) == {"theirs": 1}
