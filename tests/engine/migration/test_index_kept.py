"""A new index is the old one in everything that nobody asked to change: settings, mapping, aliases, pipelines."""

from __future__ import annotations

import copy
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import orjson
import pytest

from es_sbert.encoder.encoder import Encoder
from es_sbert.engines.engine import Engine
from es_sbert.engines.engine_info import EngineType
from es_sbert.engines.index_state import IndexState
from es_sbert.engines.rest import Json
from es_sbert.errors import IndexMismatch, RequestFailed
from es_sbert.index.document_vectors import read_vector
from es_sbert.index.mapping import index_body
from es_sbert.index.vector_field import read_vector_field
from es_sbert.migration.migration_state import read_target_pointer
from tests.engine.ingest_support import ask, same_vectors
from tests.engine.migration.support import Place, indices_of, killed_after, text_of
from tests.engine.vectors import field_of, state_of
from tests.raised import raises_as_recorded

SHARED_SETTINGS: Json = {
    "index.number_of_shards": "4", "index.number_of_replicas": "0", "index.number_of_routing_shards": "16",
    "index.routing_partition_size": "3", "index.sort.field": ["number", "tag"], "index.sort.order": ["desc", "asc"],
    "index.analysis.analyzer.plain.type": "standard", "index.analysis.analyzer.plain.stopwords": ["foo", "bar"],
    "index.similarity.flat.type": "BM25", "index.similarity.flat.b": "0.3",
    "index.routing.allocation.exclude._name": "nobody", "index.mapping.total_fields.limit": "2000",
    "index.hidden": "true", "index.refresh_interval": "7s", "index.final_pipeline": "_none",
}  # fmt: skip
OF_ELASTICSEARCH: Json = {"index.mode": "standard", "index.mapping.source.mode": "stored"}
OF_OPENSEARCH: Json = {"index.search.default_pipeline": "_none", "index.knn.algo_param.ef_search": "77"}


def rich_body(engine: Engine, encoder: Encoder) -> Json:
    """Body of `PUT /index` with settings and a mapping as they are found in production."""
    body = index_body(engine.info.engine_type, "embedding", field_of(encoder.info))
    is_opensearch = engine.info.engine_type is EngineType.OPENSEARCH
    body["settings"] |= SHARED_SETTINGS | (OF_OPENSEARCH if is_opensearch else OF_ELASTICSEARCH)
    if not is_opensearch and engine.info.version >= (9, 2):
        body["settings"]["index.mapping.exclude_source_vectors"] = "false"
    body["mappings"] |= {"_routing": {"required": True}, "dynamic": "strict", "date_detection": False}
    body["mappings"]["properties"] |= {
        "number": {"type": "long"},
        "tag": {"type": "keyword", "ignore_above": 99},
        "title": {"type": "text", "similarity": "flat", "analyzer": "plain", "fields": {"raw": {"type": "keyword"}}},
        "text": {"type": "text", "copy_to": "all"},
        "all": {"type": "text"},
        "raw": {"type": "object", "enabled": False},
    }
    return body


Make = Callable[[Json], Place]


@pytest.fixture
def make_rich(engine: Engine, fresh_index: Callable[[str], str], tmp_path: Path) -> Iterator[Make]:
    alias = fresh_index(engine.info.url)

    def make(body: Json) -> Place:
        place = Place(engine, alias, f"{alias}-old", tmp_path / "dead.jsonl")
        engine.create_index(place.index, body)
        engine.update_aliases([{"add": {"index": place.index, "alias": alias}}])
        return place

    yield make
    for name in indices_of(engine, alias):
        engine.delete_index(name)


def write(place: Place, documents: list[Json]) -> None:
    lines = b"".join(
        b'{"index":{"_id":"%d","routing":"r%d"}}\n%b\n' % (number, number % 3, orjson.dumps(source))
        for number, source in enumerate(documents)
    )
    assert [result.reason for result in place.engine.bulk(place.index, lines) if not result.ok] == []
    place.engine.refresh(place.index)


def comparable(state: IndexState) -> Json:
    """The index without what an engine gives every index, and what a migration changes."""
    settings = {
        name: value
        for name, value in state.settings.items()
        if not re.fullmatch(r"index\.(uuid|creation_date|provided_name|version\..*|blocks\.write)", name)
    }
    mappings = copy.deepcopy(state.mappings)
    del mappings["_meta"]
    return {"settings": settings, "mappings": mappings}


def test_settings_mapping_and_aliases_of_a_real_index_are_those_of_the_old_one(
    engine: Engine, encoders: tuple[Encoder, Encoder], make_rich: Make
) -> None:
    place = make_rich(rich_body(engine, encoders[0]))
    aliases: dict[str, Json] = {
        place.alias: {"is_write_index": True},
        f"{place.alias}-filtered": {"filter": {"term": {"tag": "t1"}}, "is_hidden": True},
        f"{place.alias}-routed": {"index_routing": "r1", "search_routing": "r1,r2"},
    }
    engine.update_aliases([{"add": {"index": place.index, "alias": name, **alias}} for name, alias in aliases.items()])
    write(place, [{"title": "a storm", "text": text_of(n), "tag": f"t{n % 2}", "number": n} for n in range(6)])
    place.embed(encoders[0])
    before, old_aliases = state_of(engine, place.index), engine.get_aliases(place.index)[place.index]
    result = place.migrate(encoders[1])
    after = state_of(engine, place.alias)
    assert (result.finished, after.name) == (True, result.target)
    assert comparable(after) == comparable(before)
    assert engine.routing_shards(after.name) == engine.routing_shards(before.name) == 16
    assert engine.get_aliases(after.name)[after.name] == old_aliases


TEXTS: list[Json] = [{"text": text_of(number)} for number in range(3)]


@pytest.fixture
def make_simple(engine: Engine, encoders: tuple[Encoder, Encoder], make_rich: Make) -> Callable[..., Place]:
    """Makes an index of three embedded texts, with these settings."""

    def make(**settings: Any) -> Place:
        body = index_body(engine.info.engine_type, "embedding", field_of(encoders[0].info))
        body["settings"] |= settings | {"index.number_of_replicas": "0"}
        body["mappings"]["properties"]["text"] = {"type": "text"}
        place = make_rich(body)
        write(place, TEXTS)
        place.embed(encoders[0])
        return place

    return make


def test_graph_is_given_up_and_built_again_although_the_engine_sets_settings_for_it(
    engine: Engine, encoders: tuple[Encoder, Encoder], make_simple: Callable[..., Place]
) -> None:
    place = make_simple()
    before = place.contents()
    for index_type in ("flat", "hnsw"):
        assert place.migrate(encoders[0], index_type=index_type).finished
        assert read_vector_field(engine, place.alias, "embedding").meta.index_type == index_type
        after = place.contents()
        assert after.keys() == before.keys()
        assert all(same_vectors(*(read_vector(each[key]["embedding"]) for each in (after, before))) for key in before)


# What a template sets → the word in the error.
TEMPLATES: dict[str, Json] = {
    "index.max_result_window": {"settings": {"index.max_result_window": "77"}},
    "auto_expand_replicas": {"settings": {"index.number_of_replicas": "0", "index.auto_expand_replicas": "0-1"}},
    "extra": {"mappings": {"properties": {"extra": {"type": "keyword"}}}},
    "owner": {"mappings": {"_meta": {"owner": "somebody"}}},
    "test-alias-of-template": {"aliases": {"test-alias-of-template": {}}},
    "no_such_field": {"settings": {"index.sort.field": "no_such_field", "index.sort.order": "asc"}},
}


@contextmanager
def template_of(place: Place, template: Json, *, legacy: bool = False) -> Iterator[None]:
    kind = "_template" if legacy else "_index_template"
    body = template if legacy else {"priority": 500, "template": template}
    ask(place.engine, "PUT", f"/{kind}/{place.alias}", body={"index_patterns": [f"{place.alias}-*"], **body})
    try:
        yield
    finally:
        ask(place.engine, "DELETE", f"/{kind}/{place.alias}")


def test_what_a_template_adds_to_the_new_index_stops_the_migration_before_it_copies(
    engine: Engine, encoders: tuple[Encoder, Encoder], make_simple: Callable[..., Place]
) -> None:
    place = make_simple()
    for word, template in TEMPLATES.items():
        if word == "owner" and engine.info.engine_type is EngineType.OPENSEARCH:
            continue  # OpenSearch replaces `_meta` as a whole
        with (
            template_of(place, template, legacy=word == "extra"),
            raises_as_recorded((IndexMismatch, RequestFailed)),
        ):
            place.migrate(encoders[1])
        assert indices_of(engine, place.alias) == [place.index]
        assert read_target_pointer(state_of(engine, place.index)) is None
    assert place.migrate(encoders[1]).finished


def test_what_a_template_shares_with_the_old_index_is_no_difference(
    encoders: tuple[Encoder, Encoder], make_simple: Callable[..., Place]
) -> None:
    """The usual case: both names match the template by which the old index was made."""
    settings = {"index.max_result_window": "77", "index.query.default_field": ["text"]}
    place = make_simple(**settings)
    with template_of(place, {"settings": settings}):
        assert place.migrate(encoders[1]).finished


def test_final_pipeline_does_not_see_the_copies_and_is_there_after_the_swap(
    engine: Engine, encoders: tuple[Encoder, Encoder], make_simple: Callable[..., Place]
) -> None:
    """A pipeline that counts how often it has seen a document."""
    nodes = engine.request_api("/_nodes/_local", {"filter_path": "nodes.*.ingest"}) or {}
    if "append" not in str(nodes):
        pytest.skip("the build has no processors")
    place = make_simple()
    pipeline = f"/_ingest/pipeline/{place.alias}"
    ask(engine, "PUT", pipeline, body={"processors": [{"append": {"field": "seen", "value": ["once"]}}]})
    try:
        engine.put_mapping(place.index, {"properties": {"seen": {"type": "keyword"}}})
        engine.put_settings(place.index, {"index.final_pipeline": place.alias})
        write(place, TEXTS)
        place.embed(encoders[0])
        before = {key: hit["seen"] for key, hit in place.contents().items()}
        place.migrate(encoders[1])
        assert state_of(engine, place.alias).setting("index.final_pipeline") == place.alias
        assert {key: hit["seen"] for key, hit in place.contents().items()} == before
    finally:
        for name in indices_of(engine, place.alias):
            engine.put_settings(name, {"index.final_pipeline": None})
        ask(engine, "DELETE", pipeline)


def test_index_of_a_run_that_was_killed_before_the_comparison_is_created_again(
    place9: Place, encoders: tuple[Encoder, Encoder]
) -> None:
    engine = place9.engine
    with killed_after(place9, "create_index"):
        place9.migrate(encoders[1])
    [left] = {*indices_of(engine, place9.alias)} - {place9.index}
    engine.put_settings(left, {"index.max_result_window": "77"})  # as a template may have done
    result = place9.migrate(encoders[1])
    assert (result.finished, result.resumed, result.target) == (True, False, left)
    assert engine.result_window(left) == 10_000


@pytest.mark.parametrize(
    ("settings", "note"),
    [
        ({"index.lifecycle.name": "hot", "index.priority": "7"}, "Warning: the lifecycle policy hot could not be"),
        ({"index.priority": "7"}, "applies to"),
    ],
)
def test_lifecycle_settings_are_set_after_the_swap(
    settings: Json, note: str, place9: Place, encoders: tuple[Encoder, Encoder], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The test builds lack index lifecycle management, so the test uses another setting."""
    monkeypatch.setattr("es_sbert.migration.prepare_migration.lifecycle_settings", lambda index: settings)
    result = place9.migrate(encoders[1])
    assert result.finished
    assert [line for line in result.notes if note in line], result.notes
    assert state_of(place9.engine, place9.alias).setting("index.priority") == (
        None if "index.lifecycle.name" in settings else "7"
    )
