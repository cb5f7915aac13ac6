"""Indices that do something else with a document than to keep it, or put it elsewhere than its id says."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from es_sbert.analysis import read_index
from es_sbert.encoder.encoder import Encoder
from es_sbert.engines.engine import Engine
from es_sbert.engines.rest import Json
from es_sbert.errors import IndexMismatch, VectorIndexError
from tests.conftest import ES8_IN_LONG_RUN
from tests.engine.ingest_support import (
    Interposed,
    Loads,
    ask,
    bulk,
    contents,
    letters,
    load,
    open_engine,
    sentences,
    write_jsonl,
)
from tests.raised import raises, raises_as_recorded


@pytest.fixture(scope="module", params=[ES8_IN_LONG_RUN, "opensearch"])
def piped(request: pytest.FixtureRequest) -> Iterator[str]:
    """An engine that has ingest pipelines; one of them drops d1, writes d2 to another index and refuses d3."""
    url: str = request.getfixturevalue(f"{request.param}_url")
    processors = [
        {"drop": {"if": "ctx.id == 'd1'"}},
        {"set": {"field": "_index", "value": "test-elsewhere", "if": "ctx.id == 'd2'"}},
        {"fail": {"message": "not this one", "if": "ctx.id == 'd3'"}},
    ]
    with open_engine(url) as engine:
        ask(engine, "PUT", "/_ingest/pipeline/test-meddles", body={"processors": processors})
        yield url
        engine.delete_index("test-elsewhere")
        ask(engine, "DELETE", "/_ingest/pipeline/test-meddles")


def test_documents_dropped_by_pipeline_are_dead_lettered(
    piped: str, fresh_index: Any, tiny: Encoder, tmp_path: Path
) -> None:
    index = fresh_index(piped)
    with open_engine(piped) as engine:
        engine.create_index(index, {"settings": {"index.default_pipeline": "test-meddles"}})
    path = write_jsonl(tmp_path / "docs.jsonl", sentences(6))
    summary = load(piped, tiny, index, path, dead=tmp_path / "dead", id_field="id")
    assert (summary.read, summary.indexed, summary.dead, summary.retries) == (6, 3, 3, 0)
    assert set(contents(piped, index)) == {"d0", "d4", "d5"}
    reasons = {letter["id"]: letter["reason"] for letter in letters(tmp_path / "dead")}
    assert reasons["d1"].startswith("an ingest pipeline drops it")
    assert reasons["d2"].startswith("an ingest pipeline writes it to test-elsewhere")
    assert "not this one" in reasons["d3"]


def test_alias_routing_is_respected(engine: Engine, loads: Loads) -> None:
    alias = f"{loads.index}-alias"
    engine.create_index(
        loads.index, {"settings": {"number_of_shards": 3}, "mappings": {"_routing": {"required": True}}}
    )
    path = loads.write(sentences(12))
    with raises(VectorIndexError, "routing_field"):
        loads.load(path, id_field="id")
    engine.update_aliases([{"add": {"index": loads.index, "alias": alias, "routing": "one"}}])
    summary = loads.load(path, index=alias, id_field="id")
    assert (summary.indexed, engine.count(alias)) == (12, 12)
    write_jsonl(path, sentences(9))
    summary = loads.load(path, index=alias, id_field="id", prune=True)
    assert (summary.unchanged, summary.pruned, engine.count(loads.index)) == (9, 3, 9)


def test_vector_that_source_lacks_is_kept_when_a_document_is_loaded_again(engine: Engine, loads: Loads) -> None:
    engine.create_index(loads.index, {"mappings": {"_source": {"excludes": ["other"]}}})
    documents = sentences(2)
    path = loads.write(documents)
    loads.load(path, id_field="id", vectors=("embedding={text}", "other={text}"))
    documents[0]["price"] = 100
    write_jsonl(path, documents)
    summary = loads.load(path, id_field="id", vectors=("embedding",))
    assert (summary.updated, summary.unchanged) == (1, 1)
    assert summary.notes == ()
    plain, other = (read_index(loads.index, engine, field).vectors for field in ("embedding", "other"))
    np.testing.assert_allclose(other, plain, atol=1e-6)


@pytest.fixture
def template(engine: Engine, index_name: str) -> Iterator[Callable[[dict[str, Any]], None]]:
    """A function that makes an index template for the index."""
    path = f"/_index_template/{index_name}"

    def put(template: dict[str, Any]) -> None:
        ask(engine, "PUT", path, body={"index_patterns": [index_name], "template": template, "priority": 500})

    yield put
    ask(engine, "DELETE", path)


def test_template_requiring_routing_is_refused_leaving_no_index(
    engine: Engine, loads: Loads, template: Callable[..., None]
) -> None:
    template({"mappings": {"_routing": {"required": True}}})
    path = loads.write(sentences(3))
    with raises(VectorIndexError, "routing_field") as told:
        loads.load(path, id_field="id")
    assert "template" in told.value.with_notes()
    assert engine.get_index(loads.index) is None
    assert not loads.dead.exists()


def test_new_index_rejecting_every_document_is_deleted(
    engine: Engine, loads: Loads, template: Callable[..., None]
) -> None:
    template({"mappings": {"properties": {"text": {"type": "text"}, "price": {"type": "boolean"}}}})
    path = loads.write(sentences(3))
    summary = loads.load(path, id_field="id")
    assert (summary.dead, summary.exit_code) == (3, 2)
    assert engine.get_index(loads.index) is None
    assert [note for note in summary.notes if "no document could be indexed: the index" in note]


def test_strict_mapping_lacking_fields_is_refused(engine: Engine, loads: Loads, template: Callable[..., None]) -> None:
    strict: Json = {"dynamic": "strict", "properties": {"id": {"type": "keyword"}, "text": {"type": "text"}}}
    template({"mappings": strict})
    path = loads.write(sentences(3))
    with raises_as_recorded(VectorIndexError) as told:
        loads.load(path, id_field="id")
    assert "template" in told.value.with_notes()
    assert engine.get_index(loads.index) is None
    engine.create_index(loads.index, {})
    write_jsonl(path, [{"id": "1", "text": "A river."}, {"id": "2", "text": "A storm.", "price": 1}])
    summary = loads.load(path, id_field="id")
    assert (summary.indexed, summary.dead) == (1, 1)


def test_index_that_stores_no_vectors_is_refused(engine: Engine, tiny_loads: Loads) -> None:
    engine.create_index(tiny_loads.index, {"mappings": {"enabled": False}})
    for options in ({}, {"id_field": "id"}):
        files = [tiny_loads.write(sentences(3))] if options else []
        with raises_as_recorded(VectorIndexError):
            tiny_loads.load(*files, **options)


@pytest.fixture
def stream(opensearch_url: str, fresh_index: Callable[[str], str]) -> Iterator[tuple[Engine, str]]:
    """A data stream with two backing indices and a document in each; the other servers cannot delete one."""
    name, document = fresh_index(opensearch_url), {"@timestamp": "2026-01-01T00:00:00Z", "text": "A river."}
    with open_engine(opensearch_url) as engine:
        body = {"index_patterns": [name], "data_stream": {}, "priority": 500}
        ask(engine, "PUT", f"/_index_template/{name}", body=body)
        bulk(engine, name, {"create": {"_id": "first"}}, document)
        ask(engine, "POST", f"/{name}/_rollover")
        bulk(engine, name, {"create": {"_id": "second"}}, document)
        yield engine, name
        ask(engine, "DELETE", f"/_data_stream/{name}")
        ask(engine, "DELETE", f"/_index_template/{name}")


def test_data_stream_refusal_names_working_commands(stream: tuple[Engine, str], tiny: Encoder, tmp_path: Path) -> None:
    engine, name = stream
    url, encoder = engine.info.url, tiny
    path, dead = write_jsonl(tmp_path / "docs.jsonl", sentences(3)), tmp_path / "dead"
    for files, options in (([], {}), ([], {"watch_seconds": 1}), ([path], {"id_field": "id"})):
        with raises_as_recorded(VectorIndexError) as told:
            load(url, encoder, name, *files, dead=dead, **options)
        named = re.findall(r"`es-sbert ingest --index (\S+)`", told.value.remedy)
        assert named == sorted(engine.index_uuids(name))
    for index in named:
        assert load(url, encoder, index, dead=dead).indexed == 1
        with raises_as_recorded(VectorIndexError):
            load(url, encoder, index, path, dead=dead, id_field="id")
    engine.refresh(name)
    assert engine.count(name, {"exists": {"field": "embedding"}}) == 2


def test_watch_of_backing_index_ends_on_rollover(stream: tuple[Engine, str], tiny: Encoder, tmp_path: Path) -> None:
    engine, name = stream
    roll = Interposed(tiny, lambda window: ask(engine, "POST", f"/{name}/_rollover") if window == 0 else None)
    with raises_as_recorded(IndexMismatch):
        load(engine.info.url, roll, max(engine.index_uuids(name)), dead=tmp_path / "dead", watch_seconds=0.1)
