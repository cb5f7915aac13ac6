"""Which index a write goes to: behind aliases and data streams, or one that a template is about to make."""

from __future__ import annotations

import uuid
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import httpx
import pytest

from es_sbert.config import EngineSettings
from es_sbert.encoder.encoder import Encoder
from es_sbert.engines.engine_info import EngineType
from es_sbert.gateway.app import Gateway
from es_sbert.gateway.settings import GatewaySettings
from es_sbert.index.document_vectors import text_hash
from es_sbert.index.mapping import index_body
from tests.engine.ingest_support import contents, open_engine
from tests.engine.vectors import field_of
from tests.gateway.conftest import tiny_settings
from tests.gateway.serving import served
from tests.gateway.writes.support import JSON, assert_vector, bulk_lines, documents_without_vector


def test_alias_uses_its_write_index(
    engine_url: str, client: httpx.Client, empty: str, fresh_index: Callable[[str], str], tiny_encoder: Encoder
) -> None:
    other, alias = fresh_index(engine_url), f"alias-{uuid.uuid4().hex[:12]}"

    def point(**write: bool) -> None:
        actions = [
            {
                "add": {
                    "index": index,
                    "alias": alias,
                    "is_write_index": index == empty if write["to_empty"] else index == other,
                }
            }
            for index in (other, empty)
        ]
        client.post("/_aliases", json={"actions": actions}).raise_for_status()

    client.put(f"/{other}", json={"mappings": {"properties": {"text": {"type": "text"}}}}).raise_for_status()
    point(to_empty=True)
    assert client.put(f"/{alias}/_doc/1", json={"text": "a cat"}).status_code == 201
    lines = bulk_lines([("update", {"_id": "1"}, {"doc": {"title": "a mat"}})])
    assert client.post(f"/{alias}/_bulk", content=lines, headers=JSON).json()["errors"] is False
    held = contents(engine_url, empty)["1"]
    assert_vector(held, tiny_encoder, "a cat")
    assert held["parts_meta"]["text_hash"] == text_hash("a mat. a cat")
    point(to_empty=False)
    assert client.put(f"/{alias}/_doc/2", json={"text": "a cat"}).status_code == 201
    assert contents(engine_url, other)["2"] == {"text": "a cat", "_version": 1}


def test_routing_of_an_alias_finds_the_document_before_an_update(
    engine_url: str, client: httpx.Client, loaded: str, fresh_index: Callable[[str], str], tiny_encoder: Encoder
) -> None:
    """Of several indices, each with so many shards that a document is not where its id alone would put it."""
    alias = f"alias-{uuid.uuid4().hex[:12]}"
    new, old = fresh_index(engine_url), fresh_index(engine_url)
    with open_engine(engine_url) as engine:
        state = engine.get_index(loaded)
        assert state is not None
        knn = {"index.knn": True} if engine.info.engine_type is EngineType.OPENSEARCH else {}
        for index in (new, old):
            body: Any = {"mappings": state.mappings, "settings": knn | {"index.number_of_shards": 7}}
            engine.create_index(index, body)
            action = {"index": index, "alias": alias, "index_routing": "tenant", "is_write_index": index == new}
            engine.update_aliases([{"add": action}])
    ids = [str(number) for number in range(7)]
    titles = [("index", {"_id": id}, {"title": "a mat", "text": "a cat"}) for id in ids]
    assert client.post(f"/{alias}/_bulk", content=bulk_lines(titles), headers=JSON).json()["errors"] is False
    changes: list[Any] = [("update", {"_id": id}, {"doc": {"title": "the mat"}}) for id in ids[:3]]
    changes += [("update", {"_id": id}, {"doc": {"title": "the mat"}, "doc_as_upsert": True}) for id in ids[3:6]]
    assert client.post(f"/{alias}/_bulk", content=bulk_lines(changes), headers=JSON).json()["errors"] is False
    assert client.post(f"/{alias}/_update/6", json={"doc": {"title": "the mat"}}).status_code == 200
    with open_engine(engine_url) as engine:
        engine.refresh(new)
        held = {hit["_id"]: hit["_source"] for hit in engine.search(new, {"size": 20})["hits"]["hits"]}
    assert {source["parts_meta"]["text_hash"] for source in held.values()} == {text_hash("the mat. a cat")}
    assert held.keys() == set(ids)


def test_documents_of_one_id_with_different_routings_are_different_documents(
    engine_url: str, client: httpx.Client, loaded: str, fresh_index: Callable[[str], str]
) -> None:
    index = fresh_index(engine_url)
    with open_engine(engine_url) as engine:
        state = engine.get_index(loaded)
        assert state is not None
        knn = {"index.knn": True} if engine.info.engine_type is EngineType.OPENSEARCH else {}
        engine.create_index(index, {"mappings": state.mappings, "settings": knn | {"index.number_of_shards": 7}})
    routings = [f"r{number}" for number in range(7)]
    lines = [("index", {"_id": "1", "routing": each}, {"title": "a mat", "text": f"a cat {each}"}) for each in routings]
    assert client.post(f"/{index}/_bulk", content=bulk_lines(lines), headers=JSON).json()["errors"] is False
    changes: list[Any] = [("update", {"_id": "1", "routing": each}, {"doc": {"title": "the mat"}}) for each in routings]
    assert client.post(f"/{index}/_bulk", content=bulk_lines(changes), headers=JSON).json()["errors"] is False
    with open_engine(engine_url) as engine:
        engine.refresh(index)
        found = [hit["_source"] for hit in engine.search(index, {"size": 20})["hits"]["hits"]]
    assert len(found) > 1
    for source in found:
        assert source["parts_meta"]["text_hash"] == text_hash(f"{source['title']}. {source['text']}")


@pytest.mark.long
def test_alias_of_data_streams_uses_the_newest_index(es9_full_url: str, tiny: Path, tiny_encoder: Encoder) -> None:
    """Also after a rollover. OpenSearch has no such aliases."""
    stream, other, alias = (f"{kind}-{uuid.uuid4().hex[:12]}" for kind in ("stream", "stream", "alias"))
    settings = GatewaySettings(upstream=EngineSettings(url=es9_full_url), models=tiny_settings(tiny))
    with (
        served(Gateway(settings)) as url,
        httpx.Client(base_url=url, timeout=300, trust_env=False) as client,
        open_engine(es9_full_url) as engine,
    ):
        template = index_body(engine.info.engine_type, "embedding", field_of(tiny_encoder.info))
        rule = {"index_patterns": [stream, other], "data_stream": {}, "template": template, "priority": 500}
        client.put(f"/_index_template/{stream}", json=rule).raise_for_status()
        # The build lacks the API that deletes a data stream; the server ends with the run.
        for name in (stream, other):
            client.post(f"/{name}/_doc", json={"@timestamp": 0, "text": "a mat"}).raise_for_status()
            action = {"index": name, "alias": alias, "is_write_index": name == stream}
            client.post("/_aliases", json={"actions": [{"add": action}]}).raise_for_status()
        for number in range(2):
            answer = client.post(f"/{alias}/_doc", json={"@timestamp": number, "text": f"a cat {number}"})
            assert answer.status_code == 201, answer.text
            client.post(f"/{stream}/_rollover").raise_for_status()
        engine.refresh(stream)
        found = engine.count(stream, {"exists": {"field": "embedding"}})
        assert (found, documents_without_vector(client.get("/metrics").text)) == (3, 0)


def test_write_index_without_the_field_counts_as_without_a_vector(
    engine_url: str,
    client: httpx.Client,
    empty: str,
    fresh_index: Callable[[str], str],
    caplog: pytest.LogCaptureFixture,
) -> None:
    """As after a rollover without a template: documents are written, and the metrics say what they lack."""
    new, alias = fresh_index(engine_url), f"alias-{uuid.uuid4().hex[:12]}"
    client.put(f"/{new}", json={"mappings": {"properties": {"text": {"type": "text"}}}}).raise_for_status()
    actions = [{"add": {"index": index, "alias": alias, "is_write_index": index == new}} for index in (empty, new)]
    client.post("/_aliases", json={"actions": actions}).raise_for_status()

    def without() -> int:
        return documents_without_vector(client.get("/metrics").text)

    before = without()
    assert client.put(f"/{alias}/_doc/1", json={"text": "a cat"}).status_code == 201
    assert without() == before + 1
    [told] = [record.message for record in caplog.records if f"documents for {alias} are" in record.message]
    assert "the write index lacks a vector field" in told
    assert f"`es-sbert doctor --index {alias}`" in told
    assert "logged once; the metric's reason is no_field" in told
    lines = bulk_lines(
        [
            ("index", {"_id": "2"}, {"text": "a cat"}),
            ("index", {"_id": "3"}, {"other": "no text"}),
            ("update", {"_id": "4"}, {"doc": {"text": "a mat"}, "doc_as_upsert": True}),
            ("update", {"_id": "2"}, {"doc": {"text": "a mat"}}),
            ("delete", {"_id": "1"}, None),
        ]
    )
    assert client.post(f"/{alias}/_bulk", content=lines, headers=JSON).json()["errors"] is False
    assert without() == before + 5, "all documents and updates count"
    # Together with documents that get vectors, and in more than one window.
    mixed = [("index", {"_index": empty}, {"text": "a cat"})] + [
        ("index", {"_index": alias}, {"text": "the mat"})
    ] * 1500
    assert client.post("/_bulk", content=bulk_lines(mixed), headers=JSON).json()["errors"] is False
    assert without() == before + 1505
    assert client.put(f"/{new}/_doc/9", json={"text": "a cat"}).status_code == 201
    assert without() == before + 1505, "by its own name, the index is one without vectors"


# The build of Elasticsearch at hand makes data streams and has no API to delete them again.
@pytest.mark.parametrize("engine_url", ["opensearch"], indirect=True, scope="session")
def test_data_stream_uses_its_newest_backing_index(
    engine_url: str, client: httpx.Client, tiny_encoder: Encoder
) -> None:
    prefix = f"test-{uuid.uuid4().hex[:12]}"
    stream, date_math = f"{prefix}-{datetime.now(UTC):%Y}", f"<{prefix}-{{now/d{{yyyy}}}}>"

    def template(model: str | None) -> dict[str, Any]:
        plain: dict[str, Any] = {"mappings": {"properties": {"text": {"type": "text"}}}}
        body = plain if model is None else index_body(EngineType.OPENSEARCH, "embedding", field_of(tiny_encoder.info))
        return {"index_patterns": [stream], "data_stream": {}, "template": body, "priority": 500}

    def write(text: str, name: str = stream) -> dict[str, Any]:
        lines = bulk_lines([("create", {"_index": name}, {"@timestamp": "2026-01-31T12:00:00Z", "text": text})])
        answer = client.post("/_bulk?refresh=true", content=lines, headers=JSON).json()
        assert answer["errors"] is False
        place = answer["items"][0]["create"]
        source: dict[str, Any] = client.get(f"/{place['_index']}/_doc/{place['_id']}").json()["_source"]
        return source

    try:
        client.put(f"/_index_template/{stream}", json=template("tiny")).raise_for_status()
        assert_vector(write("a cat"), tiny_encoder, "a cat")
        assert_vector(write("the mat"), tiny_encoder, "the mat")
        client.post(f"/{stream}/_rollover").raise_for_status()
        for name in (stream, date_math):
            assert_vector(write("the river", name), tiny_encoder, "the river")
        client.put(f"/_index_template/{stream}", json=template(None)).raise_for_status()
        client.post(f"/{stream}/_rollover").raise_for_status()
        before = documents_without_vector(client.get("/metrics").text)
        assert set(write("a cat")) == {"@timestamp", "text"}, "older indices have vectors, the newest has none"
        assert documents_without_vector(client.get("/metrics").text) == before + 1
    finally:
        client.delete(f"/_data_stream/{stream}").raise_for_status()
        client.delete(f"/_index_template/{stream}").raise_for_status()


def test_recreated_index_is_noticed_at_once(
    engine_url: str, client: httpx.Client, index_name: str, tiny_encoder: Encoder
) -> None:
    with open_engine(engine_url) as engine:
        body = index_body(engine.info.engine_type, "embedding", field_of(tiny_encoder.info))
    assert client.put(f"/{index_name}/_doc/1", json={"text": "a cat"}).status_code == 201
    client.delete(f"/{index_name}").raise_for_status()
    client.put(f"/{index_name}", json=body).raise_for_status()
    assert client.put(f"/{index_name}/_doc/1", json={"text": "a cat"}).status_code == 201
    assert_vector(contents(engine_url, index_name)["1"], tiny_encoder, "a cat")
