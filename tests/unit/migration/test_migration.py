"""What a migration computes or locks without an engine: names, bodies, actions, ranges of sequence numbers."""

from __future__ import annotations

import hashlib
import json
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from es_sbert.engines.engine_info import EngineType
from es_sbert.engines.index_state import IndexState, SettingValue
from es_sbert.engines.rest import Json
from es_sbert.errors import IndexMismatch, OutputError, UsageError
from es_sbert.index.mapping import VectorFieldMeta, mapping_addition
from es_sbert.migration.alias_swap import replace_index_actions, swap_actions
from es_sbert.migration.document_copy import CountSeqNoRanges, SeqNoRange, changed_ranges, copy_write, delete_write
from es_sbert.migration.migration_state import (
    MigrationPhase,
    MigrationState,
    migration_lock,
    read_migration_state,
    read_target_pointer,
    vector_field_names,
    with_migration_state,
)
from es_sbert.migration.prepare_migration import new_index_body, new_index_name
from tests.raised import raises_as_recorded

OLD = VectorFieldMeta(fingerprint="a" * 32, model="old", dimensions=384, index_type="hnsw", text="{title}")
NEW = OLD.model_copy(update={"fingerprint": "b" * 32, "model": "new", "dimensions": 768, "index_type": "int8_hnsw"})


def state(engine_type: EngineType = EngineType.ELASTICSEARCH, **settings: str) -> IndexState:
    first = mapping_addition(engine_type, "embedding", OLD, {"owner": "somebody"})
    second = mapping_addition(engine_type, "other", OLD.model_copy(update={"fingerprint": "c" * 32}), first["_meta"])
    second["_meta"]["es_sbert"] |= {"load": {"before": {}}, "migrating_to": "x", "migration": {"alias": "y"}}
    second["_meta"]["es_sbert"]["written_fields"] = ["duplicate_of"]
    properties = {"title": {"type": "text"}} | first["properties"] | second["properties"]
    return IndexState("docs-1", {"_meta": second["_meta"], "dynamic": "strict", "properties": properties}, {**settings})


@pytest.mark.parametrize(
    ("source", "name"),
    [
        ("docs-000001", "docs-abcdef01"), ("docs-abcdef01", "docs-abcdef01-2"), ("docs-abcdef01-2", "docs-abcdef01-3"),
        ("docs-abcdef01-x", "docs-abcdef01"),
    ],
)  # fmt: skip
def test_new_index_name_combines_alias_and_model(source: str, name: str) -> None:
    assert new_index_name("docs", "abcdef0123456789", source) == name


def test_new_index_body_differs_only_in_the_vector_field() -> None:
    settings: dict[str, SettingValue] = {
        "index.number_of_shards": "3", "index.refresh_interval": "5s", "index.analysis.analyzer.a.type": "simple",
        "index.uuid": "u", "index.creation_date": "1", "index.creation_date_string": "x", "index.provided_name": "p",
        "index.version.created": "9", "index.blocks.write": "true", "index.verified_read_only": "true",
        "index.history.uuid": "h", "index.routing.allocation.initial_recovery._id": "n",
        "index.routing.allocation.require._name": "n",
        "index.routing.allocation.include._tier_preference": "data_content", "index.lifecycle.name": "policy",
        "index.final_pipeline": "stamp", "archived.index.mapper.dynamic": "false",
        "index.query.default_field": ["title", "text"],
    }  # fmt: skip
    old = replace(state(), settings=settings)
    graph = old.mappings["properties"]["embedding"]["index_options"]
    graph |= {"m": 32, "ef_construction": 9}
    body = new_index_body(EngineType.ELASTICSEARCH, old, {"embedding": NEW})
    assert body["settings"] == {
        "index.number_of_shards": "3",
        "index.refresh_interval": "5s",
        "index.analysis.analyzer.a.type": "simple",
        "index.routing.allocation.require._name": "n",
        "index.routing.allocation.include._tier_preference": "data_content",
        "index.query.default_field": ["title", "text"],
    }
    mappings = body["mappings"]
    assert (mappings["dynamic"], mappings["_meta"]["owner"]) == ("strict", "somebody")
    assert set(mappings["_meta"]["es_sbert"]) == {"fields", "written_fields"}
    fields = mappings["_meta"]["es_sbert"]["fields"]
    assert (fields["embedding"]["model"], fields["other"]["fingerprint"]) == ("new", "c" * 32)
    assert (mappings["properties"]["embedding"]["dims"], mappings["properties"]["other"]["dims"]) == (768, 384)
    assert mappings["properties"]["embedding"]["index_options"] == {
        "type": "int8_hnsw", "m": 32, "ef_construction": 100
    }  # fmt: skip
    # The old state is as it was.
    assert old.mappings["properties"]["embedding"]["dims"] == 384
    assert "load" in old.mappings["_meta"]["es_sbert"]


def test_opensearch_vector_fields_must_all_have_a_graph_or_none() -> None:
    graphs = {"index.knn": "true", "index.knn.derived_source.enabled": "true"}
    old = state(EngineType.OPENSEARCH, **graphs)
    assert new_index_body(EngineType.OPENSEARCH, old, {"embedding": NEW})["settings"] == graphs
    flat = NEW.model_copy(update={"index_type": "flat"})
    body = new_index_body(EngineType.OPENSEARCH, old, {"embedding": flat, "other": flat})
    assert body["settings"] == {"index.knn": "false"}
    with raises_as_recorded(IndexMismatch):
        new_index_body(EngineType.OPENSEARCH, old, {"embedding": flat})


def test_migration_state_keeps_other_meta() -> None:
    note = MigrationState(
        alias="docs", source="docs-1", source_uuid="u", fields=("embedding",), run="r", copied=(-1, 5)
    )
    meta = with_migration_state({"owner": 1, "es_sbert": {"fields": {}}}, note)
    index = IndexState("docs-2", {"_meta": json.loads(json.dumps(meta))}, {})
    assert read_migration_state(index) == note
    assert meta["owner"] == 1
    assert read_target_pointer(index) is None
    rollback = note.model_dump(mode="json") | {"is_rollback": True}  # of an earlier version; its target is no copy
    for other in ({"alias": 3}, rollback):
        with raises_as_recorded(IndexMismatch):
            read_migration_state(IndexState("docs-2", {"_meta": {"es_sbert": {"migration": other}}}, {}))
    done = IndexState("docs-2", {"_meta": {"es_sbert": {"migration": rollback | {"phase": "done"}}}}, {})
    assert read_migration_state(done) == note.model_copy(update={"phase": MigrationPhase.DONE})


def test_aliases_are_swapped_in_one_request() -> None:
    aliases: dict[str, Json] = {"write": {"is_write_index": True}, "read": {"filter": {"term": {"a": 1}}}}
    assert swap_actions("old", "new", aliases) == [
        {"remove": {"index": "old", "alias": "read", "must_exist": True}},
        {"add": {"index": "new", "alias": "read", "filter": {"term": {"a": 1}}}},
        {"remove": {"index": "old", "alias": "write", "must_exist": True}},
        {"add": {"index": "new", "alias": "write", "is_write_index": True}},
    ]
    assert replace_index_actions("old", "new", {"read": {}}) == [
        {"remove_index": {"index": "old"}},
        {"add": {"index": "new", "alias": "old"}},
        {"add": {"index": "new", "alias": "read"}},
    ]
    hidden = replace_index_actions("old", "new", {}, is_hidden=True)
    assert hidden[1:] == [{"add": {"index": "new", "alias": "old", "is_hidden": True}}]


def test_copy_write_excludes_vector_fields_and_keeps_routing() -> None:
    hit = {
        "_id": "1", "_routing": "r", "_seq_no": 4, "_primary_term": 2,
        "_source": {"a": 1, "embedding": [1], "embedding_meta": {}, "other": [2]},
    }  # fmt: skip
    as_it_is = {"_id": "1", "routing": "r", "pipeline": "_none"}
    head, source = copy_write(hit, vector_field_names(["embedding"])).body.splitlines()
    assert orjson.loads(head) == {"index": as_it_is}
    assert orjson.loads(source) == {"a": 1, "other": [2]}
    [line] = delete_write(hit).body.splitlines()
    assert orjson.loads(line) == {"delete": {"_id": "1", "routing": "r", "if_seq_no": 4, "if_primary_term": 2}}


_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)


@given(st.dictionaries(st.text(min_size=1), _VALUES, max_size=5))
def test_copy_write_preserves_any_json_document(source: Json) -> None:
    """Whole numbers of any size among them."""
    lines = copy_write({"_id": "1", "_source": source}, ()).body.split(b"\n")
    assert len(lines) == 3
    assert json.loads(lines[1]) == source


def counted(numbers: set[int]) -> CountSeqNoRanges:
    ordered = sorted(numbers)

    def count(ranges: Sequence[SeqNoRange]) -> list[int]:
        return [bisect_right(ordered, high) - bisect_right(ordered, low) for low, high in ranges]

    return count


@given(st.sets(st.integers(0, 5000), max_size=300), st.data())
def test_every_deleted_number_is_in_a_changed_range(before: set[int], data: st.DataObject) -> None:
    now = data.draw(st.sets(st.sampled_from(sorted(before)))) if before else set()
    up_to = data.draw(st.integers(-1, 5000))
    found = changed_ranges(up_to, counted(before), counted(now))
    covered = {number for number in before if any(low < number <= high for low, high in found)}
    gone = {number for number in before - now if number <= up_to}
    assert gone <= covered
    assert all(number <= up_to for number in covered)
    # No range is there for nothing, and none holds many that are still there.
    assert all(any(low < number <= high for number in gone) for low, high in found)
    assert len(covered - gone) <= 16 * len(found)


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("ES_SBERT_CACHE", str(tmp_path))
    return tmp_path


@pytest.mark.usefixtures("cache")
@pytest.mark.parametrize(
    "url", ["http://a:1,http://b:2", "http://b:2,http://a:1", "http://b:2", "http://c:3,http://a:1"]
)
def test_a_cluster_is_locked_by_any_of_its_addresses(url: str) -> None:
    with (
        migration_lock("http://a:1,http://b:2", "docs"),
        raises_as_recorded(UsageError),
        migration_lock(url, "docs"),
    ):
        pass


def test_lock_that_cannot_be_written_names_the_variable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ES_SBERT_CACHE", __file__)
    with raises_as_recorded(OutputError), migration_lock("http://a:1", "d"):
        pass


def test_one_address_has_the_lock_file_it_always_had(cache: Path) -> None:
    name = hashlib.sha256(b"http://a:1 docs").hexdigest()[:32]
    with migration_lock("http://a:1", "docs"):
        assert (cache / f"migrate-{name}.lock").exists()
