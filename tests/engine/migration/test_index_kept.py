"""A new index is the old one in everything that nobody asked to change: settings, mapping, aliases, pipelines."""

from __future__ import annotations

import copy
import re
from collections.abc import Callable, Iterator
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
from tests.engine.migration.support import Killed, Overheard, Place, text_of
from tests.engine.vectors import field_of, state_of

SHARED_SETTINGS: Json = {
    "index.number_of_shards": "4",
    "index.number_of_replicas": "0",
    "index.number_of_routing_shards": "16",
    "index.routing_partition_size": "3",
    "index.sort.field": ["number", "tag"],
    "index.sort.order": ["desc", "asc"],
    "index.query.default_field": ["title", "text"],
    "index.analysis.analyzer.plain.type": "standard",
    "index.analysis.analyzer.plain.stopwords": ["foo", "bar"],
    "index.similarity.flat.type": "BM25",
    "index.similarity.flat.b": "0.3",
    "index.max_result_window": "500",
    "index.search.slowlog.threshold.query.warn": "10s",
    "index.routing.allocation.exclude._name": "nobody",
    "index.routing.allocation.exclude.box": "cold",
    "index.mapping.total_fields.limit": "2000",
    "index.mapping.nested_objects.limit": "100",
    "index.mapping.ignore_malformed": "true",
    "index.hidden": "true",
    "index.codec": "best_compression",
    "index.refresh_interval": "7s",
    "index.gc_deletes": "2h",
    "index.final_pipeline": "_none",
    "index.store.preload": ["nvd", "dvd"],
}
ANALYSIS: Json = {  # of the module analysis-common
    "index.analysis.char_filter.signs.type": "mapping",
    "index.analysis.char_filter.signs.mappings": ["& => and", "ph => f"],
    "index.analysis.filter.same.type": "synonym",
    "index.analysis.filter.same.synonyms": ["parcel, package", "box => crate"],
    "index.analysis.filter.halt.type": "stop",
    "index.analysis.filter.halt.stopwords": ["foo", "bar"],
    "index.analysis.analyzer.own.type": "custom",
    "index.analysis.analyzer.own.tokenizer": "standard",
    "index.analysis.analyzer.own.char_filter": ["signs"],
    "index.analysis.analyzer.own.filter": ["lowercase", "halt", "same"],
    "index.analysis.normalizer.low.type": "custom",
    "index.analysis.normalizer.low.filter": ["lowercase"],
}
OF_ELASTICSEARCH: Json = {"index.mode": "standard", "index.mapping.source.mode": "stored"}
OF_OPENSEARCH: Json = {"index.search.default_pipeline": "_none", "index.knn.algo_param.ef_search": "77"}


def has_analysis(engine: Engine) -> bool:
    nodes = engine.request_api("/_nodes/_local", {"filter_path": "nodes.*.modules.name"}) or {}
    return "analysis-common" in str(nodes)


def rich_body(engine: Engine, encoder: Encoder) -> Json:
    """Body of `PUT /index` with settings and a mapping as they are found in production."""
    body = index_body(engine.info.engine_type, "embedding", field_of(encoder.info))
    is_opensearch = engine.info.engine_type is EngineType.OPENSEARCH
    has_modules = has_analysis(engine)
    body["settings"] |= SHARED_SETTINGS | (OF_OPENSEARCH if is_opensearch else OF_ELASTICSEARCH)
    body["settings"] |= ANALYSIS if has_modules else {}
    if not is_opensearch and engine.info.version >= (9, 2):
        body["settings"]["index.mapping.exclude_source_vectors"] = "false"
    own = {"analyzer": "own"} if has_modules else {"analyzer": "plain"}
    body["mappings"] |= {"_routing": {"required": True}, "dynamic": "strict", "date_detection": False}
    body["mappings"]["properties"] |= {
        "number": {"type": "long"},
        "tag": {"type": "keyword", **({"normalizer": "low"} if has_modules else {}), "ignore_above": 99},
        "title": {"type": "text", "similarity": "flat", "fields": {"raw": {"type": "keyword"}}, **own},
        "text": {"type": "text", "copy_to": "all"},
        "all": {"type": "text"},
        "raw": {"type": "object", "enabled": False},
    }
    return body


Make = Callable[[Json], Place]


@pytest.fixture
def make_rich(engine: Engine, fresh_index: Callable[[str], str], tmp_path: Path) -> Iterator[Make]:
    """Makes an index with an alias from its body; all indices of that alias are removed afterwards."""
    alias = fresh_index(engine.info.url)

    def make(body: Json) -> Place:
        place = Place(engine, alias, f"{alias}-old", tmp_path / "dead.jsonl")
        engine.create_index(place.index, body)
        engine.update_aliases([{"add": {"index": place.index, "alias": alias}}])
        return place

    yield make
    for state in engine.resolve_indices(f"{alias}-*"):
        engine.delete_index(state.name)


def write(place: Place, documents: list[Json]) -> None:
    lines = b"".join(
        b'{"index":{"_id":"%d","routing":"r%d"}}\n%b\n' % (number, number % 3, orjson.dumps(source))
        for number, source in enumerate(documents)
    )
    assert [result.reason for result in place.engine.bulk(place.index, lines) if not result.ok] == []
    place.engine.refresh(place.index)


def found(engine: Engine, name: str, query: str) -> list[str]:
    """Ids of the hits of `?q=`, best first."""
    hits = ask(engine, "GET", f"/{name}/_search", {"q": query, "size": "50"})["hits"]["hits"]
    return [hit["_id"] for hit in hits]


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
    write(
        place,
        [{"title": "a parcel & foo", "text": text_of(n), "tag": f"T{n % 2}", "number": n} for n in range(6)]
        + [{"title": "phone", "text": f"parcel {text_of(n)}", "tag": "t1", "number": n} for n in range(6, 12)]
        + [{"title": "foo", "text": "bar", "tag": "t1", "number": 99, "raw": {"parcel": "parcel"}}],
    )
    place.embed(encoders[0])
    before, old_aliases = engine.get_index(place.index), engine.get_aliases(place.index)[place.index]
    assert before is not None
    queries = ("parcel", "package", "fone", "foo", "and", "title:foo")
    hits = {(name, query): found(engine, name, query) for name in aliases for query in queries}
    assert len(hits[place.alias, "parcel"]) == 12
    result = place.migrate(encoders[1])
    after = state_of(engine, place.alias)
    assert (result.finished, after.name) == (True, result.target)
    assert comparable(after) == comparable(before)
    assert engine.routing_shards(after.name) == engine.routing_shards(before.name) == 16
    assert engine.get_aliases(after.name)[after.name] == old_aliases
    assert {(name, query): found(engine, name, query) for name in aliases for query in queries} == hits


def simple_body(encoder: Encoder, engine: Engine, **settings: Any) -> Json:
    body = rich_body(engine, encoder)
    own = ("index.knn", "index.number_of_replicas", *settings)
    body["settings"] = {key: value for key, value in (body["settings"] | settings).items() if key in own}
    body["mappings"]["properties"] = {
        name: field for name, field in body["mappings"]["properties"].items() if name.startswith("embedding")
    } | {"text": {"type": "text"}}
    return body | {"mappings": {key: part for key, part in body["mappings"].items() if key != "_routing"}}


def test_graph_is_given_up_and_built_again_although_the_engine_sets_settings_for_it(
    engine: Engine, encoders: tuple[Encoder, Encoder], make_rich: Make
) -> None:
    place = make_rich(simple_body(encoders[0], engine))
    write(place, [{"text": text_of(number)} for number in range(3)])
    place.embed(encoders[0])
    before = place.contents()
    for index_type in ("flat", "hnsw"):
        assert place.migrate(encoders[0], index_type=index_type).finished
        assert read_vector_field(engine, place.alias, "embedding").meta.index_type == index_type
        after = place.contents()
        assert after.keys() == before.keys()
        assert all(same_vectors(*(read_vector(each[key]["embedding"]) for each in (after, before))) for key in before)


TEMPLATES: dict[str, Json] = {
    "a setting": {"settings": {"index.max_result_window": "77"}},
    "a list": {"settings": {"index.query.default_field": ["text", "title"]}},
    "a default pipeline": {"settings": {"index.default_pipeline": "test-no-such"}},
    "replicas": {"settings": {"index.number_of_replicas": "0", "index.auto_expand_replicas": "0-1"}},
    "a field": {"mappings": {"properties": {"extra": {"type": "keyword"}}}},
    "a member of the mapping": {"mappings": {"numeric_detection": True}},
    "a member of _meta": {"mappings": {"_meta": {"owner": "somebody"}}},
    "an alias": {"aliases": {"test-alias-of-template": {}}},
}


@pytest.mark.parametrize("legacy", [False, True], ids=["composable", "legacy"])
def test_what_a_template_adds_to_the_new_index_stops_the_migration_before_it_copies(
    legacy: bool, engine: Engine, encoders: tuple[Encoder, Encoder], make_rich: Make
) -> None:
    place = make_rich(simple_body(encoders[0], engine))
    write(place, [{"text": text_of(number)} for number in range(3)])
    place.embed(encoders[0])
    name = f"{place.alias}-template"
    kinds = dict(TEMPLATES)
    if engine.info.engine_type is EngineType.OPENSEARCH:
        del kinds["a member of _meta"]  # OpenSearch replaces `_meta` as a whole
    for kind, template in kinds.items():
        patterns = {"index_patterns": [f"{place.alias}-*"]}
        if legacy:
            ask(engine, "PUT", f"/_template/{name}", body=patterns | template)
        else:
            ask(engine, "PUT", f"/_index_template/{name}", body=patterns | {"priority": 500, "template": template})
        try:
            with pytest.raises(IndexMismatch) as caught:
                place.migrate(encoders[1])
        finally:
            ask(engine, "DELETE", f"/{'_template' if legacy else '_index_template'}/{name}")
        changed = [*template.get("settings", {}), "extra", "numeric_detection", "owner", "test-alias-of-template"]
        assert any(key in caught.value.message for key in changed), (kind, caught.value)
        assert name in caught.value.message
        assert [state.name for state in engine.resolve_indices(f"{place.alias}-*")] == [place.index]
        state = state_of(engine, place.index)
        assert read_target_pointer(state) is None
    assert place.migrate(encoders[1]).finished


def test_what_a_template_shares_with_the_old_index_is_no_difference(
    engine: Engine, encoders: tuple[Encoder, Encoder], make_rich: Make
) -> None:
    """The usual case: both names match the template by which the old index was made."""
    settings = {"index.max_result_window": "77", "index.query.default_field": ["text"]}
    place = make_rich(simple_body(encoders[0], engine, **settings))
    write(place, [{"text": text_of(number)} for number in range(3)])
    place.embed(encoders[0])
    path, body = f"/_index_template/{place.alias}", {"index_patterns": [f"{place.alias}-*"], "priority": 500}
    ask(engine, "PUT", path, body=body | {"template": {"settings": settings}})
    try:
        assert place.migrate(encoders[1]).finished
    finally:
        ask(engine, "DELETE", path)


def test_refused_new_index_is_reported_with_the_reason_and_leaves_nothing(
    engine: Engine, encoders: tuple[Encoder, Encoder], make_rich: Make
) -> None:
    place = make_rich(simple_body(encoders[0], engine))
    path, body = f"/_index_template/{place.alias}", {"index_patterns": [f"{place.alias}-*"], "priority": 500}
    settings = {"index.sort.field": "no_such_field", "index.sort.order": "asc"}
    ask(engine, "PUT", path, body=body | {"template": {"settings": settings}})
    try:
        with pytest.raises(RequestFailed, match=f"cannot be created as {place.index} is: .*no_such_field"):
            place.migrate(encoders[1])
    finally:
        ask(engine, "DELETE", path)
    assert [state.name for state in engine.resolve_indices(f"{place.alias}-*")] == [place.index]


def test_final_pipeline_does_not_see_the_copies_and_is_there_after_the_swap(
    engine: Engine, encoders: tuple[Encoder, Encoder], make_rich: Make
) -> None:
    """A pipeline that counts how often it has seen a document."""
    if not has_analysis(engine):
        pytest.skip("the build has no processors")
    place = make_rich(simple_body(encoders[0], engine))
    write(place, [{"text": text_of(number)} for number in range(3)])
    place.embed(encoders[0])
    pipeline = f"/_ingest/pipeline/{place.alias}"
    ask(engine, "PUT", pipeline, body={"processors": [{"append": {"field": "seen", "value": ["once"]}}]})
    try:
        engine.put_mapping(place.index, {"properties": {"seen": {"type": "keyword"}}})
        engine.put_settings(place.index, {"index.final_pipeline": place.alias})
        write(place, [{"text": text_of(number)} for number in range(3)])
        place.embed(encoders[0])
        before = {key: hit["seen"] for key, hit in place.contents().items()}
        place.migrate(encoders[1])
        state = state_of(engine, place.alias)
        assert state.setting("index.final_pipeline") == place.alias
        assert {key: hit["seen"] for key, hit in place.contents().items()} == before
    finally:
        for name in engine.resolve_indices(f"{place.alias}-*"):
            engine.put_settings(name.name, {"index.final_pipeline": None})
        ask(engine, "DELETE", pipeline)


def test_index_of_a_run_that_was_killed_before_the_comparison_is_created_again(
    place9: Place, encoders: tuple[Encoder, Encoder]
) -> None:
    place, engine, seen = place9, place9.engine, list[str]()

    def die(name: str) -> None:
        if "create_index" in seen:
            raise Killed
        seen.append(name)

    place.engine = Overheard(engine, die)  # type: ignore[assignment]
    with pytest.raises(Killed):
        place.migrate(encoders[1])
    place.engine = engine
    [left] = [state for state in engine.resolve_indices(f"{place.alias}-*") if state.name != place.index]
    engine.put_settings(left.name, {"index.max_result_window": "77"})  # as a template may have done
    result = place.migrate(encoders[1])
    assert (result.finished, result.resumed, result.target) == (True, False, left.name)
    assert engine.result_window(left.name) == 10_000


@pytest.mark.parametrize(
    ("settings", "note"),
    [
        ({"index.lifecycle.name": "hot", "index.priority": "7"}, "Warning: the lifecycle policy hot could not be"),
        ({"index.priority": "7"}, "applies to"),
    ],
)
def test_lifecycle_settings_are_set_after_the_swap(
    settings: dict[str, str],
    note: str,
    place9: Place,
    encoders: tuple[Encoder, Encoder],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The test builds lack index lifecycle management, so the test uses another setting."""
    monkeypatch.setattr("es_sbert.migration.prepare_migration.lifecycle_settings", lambda index: settings)
    result = place9.migrate(encoders[1])
    assert result.finished
    assert [line for line in result.notes if note in line], result.notes
    state = state_of(place9.engine, place9.alias)
    assert state.setting("index.priority") == (None if "index.lifecycle.name" in settings else "7")
