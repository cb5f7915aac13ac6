"""Limits that an operator sets: what an engine refuses has a remedy."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import closing
from functools import partial
from typing import Any

import pytest

from es_sbert.config import EngineSettings
from es_sbert.diagnostics.doctor import inspect_index
from es_sbert.engines.connect import connect
from es_sbert.engines.engine import Engine
from es_sbert.engines.engine_info import EngineType
from es_sbert.errors import EsSbertError, RequestFailed
from es_sbert.index.vector_field import FieldRequest, ensure_vector_field
from es_sbert.ingest.load_documents import IterableSource
from es_sbert.ingest.load_plan import IngestSettings, plan_load
from tests.conftest import also_es8
from tests.faults.servers import call


@pytest.fixture
def engine(engine_url: str) -> Iterator[Engine]:
    with closing(connect(EngineSettings(url=engine_url))) as engine:
        yield engine


def plan(engine: Engine, name: str, *documents: dict[str, Any], **settings: Any) -> None:
    """Plan a load of documents, or of those in the index: before a model is opened."""
    sources = [IterableSource(documents)] if documents else []
    plan_load(engine, IngestSettings(index=name, text_fields=("text",), **settings), sources)


def refused(call: Callable[[], object], *words: str) -> None:
    with pytest.raises(EsSbertError) as caught:
        call()
    for word in words:
        assert word in str(caught.value)


def doctor(engine: Engine, name: str) -> str:
    return " ".join(f"{finding.message} {finding.remedy}" for finding in inspect_index(engine, name, [], []))


@also_es8
def test_the_error_of_a_full_mapping_names_the_setting(
    engine_url: str, engine: Engine, fresh_index: Callable[[str], str]
) -> None:
    name = fresh_index(engine_url)
    text = {"type": "text", "fields": {"raw": {"type": "keyword"}}}
    fields = {"text": text, "o": {"properties": {"a": {"type": "long"}}}}
    settings = {"number_of_replicas": 0, "index.mapping.total_fields.limit": 12, "index.mapping.nested_fields.limit": 0}
    if engine.info.engine_type is EngineType.OPENSEARCH:
        settings["index.knn"] = True
    engine.create_index(name, {"settings": settings, "mappings": {"properties": fields}})
    request = FieldRequest("embedding", "f" * 64, "m", 4)
    put = "PUT INDEX/_settings"
    refused(lambda: ensure_vector_field(engine, name, request), "index.mapping.total_fields.limit", put)
    assert "embedding" not in engine.get_indices(name)[0].mappings["properties"]
    more = {"properties": {f"f{n}": {"type": "long"} for n in range(9)}}
    refused(lambda: engine.put_mapping(name, more), "index.mapping.total_fields.limit", put)
    nested = {"properties": {"n": {"type": "nested"}}}
    refused(lambda: engine.put_mapping(name, nested), "index.mapping.nested_fields.limit", put)
    engine.put_settings(name, {"index.mapping.total_fields.limit": "13"})
    ensure_vector_field(engine, name, request)


def test_an_index_that_takes_no_updates_is_refused_by_the_plan_and_doctor(
    engine_url: str, engine: Engine, fresh_index: Callable[[str], str]
) -> None:
    name = fresh_index(engine_url)
    if engine.info.engine_type is EngineType.OPENSEARCH:
        setting = "index.append_only.enabled"
        body: dict[str, Any] = {"settings": {setting: True}}
    else:
        setting = "index.mode"
        mapped = {"@timestamp": {"type": "date"}, "k": {"type": "keyword", "time_series_dimension": True}}
        body = {"settings": {setting: "time_series", "index.routing_path": ["k"]}, "mappings": {"properties": mapped}}
    try:
        engine.create_index(name, body)
    except RequestFailed:
        pytest.skip("this build has no such indices")
    for documents in ((), ({"text": "a"},)):
        for more in ({}, {"dry_run": 1}):
            refused(partial(plan, engine, name, *documents, **more), setting, "_reindex")
    assert setting in doctor(engine, name)
    assert f"`es-sbert ingest --index {name}`" not in doctor(engine, name)


def test_refusals_of_a_new_index_by_the_engine_have_a_remedy(
    engine_url: str, engine: Engine, fresh_index: Callable[[str], str]
) -> None:
    name = fresh_index(engine_url)
    # The default limit of a cluster of one node is 1000 shards.
    template = {"index_patterns": [name], "priority": 1000, "template": {"settings": {"number_of_replicas": 1000}}}
    call(engine_url, "PUT", f"/_index_template/{name}", template)
    try:
        refused(
            lambda: ensure_vector_field(engine, name, FieldRequest("embedding", "f" * 64, "m", 4)),
            "fewer shards or replicas",
            "cluster.max_shards_per_node",
        )
    finally:
        call(engine_url, "DELETE", f"/_index_template/{name}", None)


def test_a_closed_index_of_an_alias_is_named(
    engine_url: str, engine: Engine, fresh_index: Callable[[str], str]
) -> None:
    closed, other = fresh_index(engine_url), fresh_index(engine_url)
    alias = f"{closed}-all"
    for name in (closed, other):
        engine.create_index(name, {"settings": {"number_of_replicas": 0}, "aliases": {alias: {}}})
    call(engine_url, "POST", f"/{closed}/_close", None)
    for look in (
        engine.count,
        engine.refresh,
        partial(engine.search, body={}),
        partial(engine.open_point_in_time, shard=0),
    ):
        refused(partial(look, alias), f"the index {closed} is closed", f"POST /{closed}/_open")
