"""Which index a write goes to: behind aliases and data streams, or one that a template is about to make."""

from __future__ import annotations

import uuid
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import httpx
import pytest

from es_sbert.encoder.encoder import Encoder
from es_sbert.engines.engine_info import EngineType
from es_sbert.index.document_vectors import text_hash
from es_sbert.index.mapping import index_body
from tests.engine.ingest_support import contents, open_engine
from tests.engine.vectors import field_of
from tests.gateway import patient
from tests.gateway.serving import gateway
from tests.gateway.writes.support import OUTCOMES, Counters, assert_vector, body_like, bulk, told


def alias_of(client: httpx.Client, alias: str, write: str, *others: str) -> None:
    actions = [{"add": {"index": index, "alias": alias, "is_write_index": False}} for index in others]
    actions.append({"add": {"index": write, "alias": alias, "is_write_index": True}})
    client.post("/_aliases", json={"actions": actions}).raise_for_status()


def test_routing_of_an_alias_finds_the_document_before_an_update(
    engine_url: str, client: httpx.Client, loaded: str, fresh_index: Callable[[str], str]
) -> None:
    """Of several indices, each with so many shards that a document is not where its id alone would put it."""
    alias = f"alias-{uuid.uuid4().hex[:12]}"
    new, old = fresh_index(engine_url), fresh_index(engine_url)
    ids = [str(number) for number in range(7)]
    with open_engine(engine_url) as engine:
        for index in (new, old):
            engine.create_index(index, body_like(engine, loaded, number_of_shards=7))
            action = {"index": index, "alias": alias, "index_routing": "tenant", "is_write_index": index == new}
            engine.update_aliases([{"add": action}])
        bulk(client, [("index", {"_id": id}, {"title": "a mat", "text": "a cat"}) for id in ids], alias)
        change = {"doc": {"title": "the mat"}}
        bulk(client, [("update", {"_id": id}, change | {"doc_as_upsert": id < "3"}) for id in ids[:6]], alias)
        assert client.post(f"/{alias}/_update/6", json=change).status_code == 200
        engine.refresh(new)
        held = {hit["_id"]: hit["_source"] for hit in engine.search(new, {"size": 20})["hits"]["hits"]}
    assert {source["parts_meta"]["text_hash"] for source in held.values()} == {text_hash("the mat. a cat")}
    assert held.keys() == set(ids)


def test_documents_of_one_id_with_different_routings_are_different_documents(
    engine_url: str, client: httpx.Client, loaded: str, index_name: str
) -> None:
    places: list[dict[str, Any]] = [{"_id": "1", "routing": f"r{number}"} for number in range(7)]
    with open_engine(engine_url) as engine:
        engine.create_index(index_name, body_like(engine, loaded, number_of_shards=7))
        texts = [{"title": "a mat", "text": f"a cat {each['routing']}"} for each in places]
        bulk(client, [("index", *each) for each in zip(places, texts, strict=True)], index_name)
        bulk(client, [("update", each, {"doc": {"title": "the mat"}}) for each in places], index_name)
        engine.refresh(index_name)
        found = [hit["_source"] for hit in engine.search(index_name, {"size": 20})["hits"]["hits"]]
    assert len(found) > 1
    for source in found:
        assert source["parts_meta"]["text_hash"] == text_hash(f"{source['title']}. {source['text']}")


@pytest.mark.long
def test_alias_of_data_streams_uses_the_newest_index(es9_full_url: str, tiny: Path, tiny_encoder: Encoder) -> None:
    """Also after a rollover. OpenSearch has no such aliases."""
    stream, other, alias = (f"{kind}-{uuid.uuid4().hex[:12]}" for kind in ("stream", "stream", "alias"))
    with gateway(es9_full_url, tiny) as url, patient.client(url) as client, open_engine(es9_full_url) as engine:
        counters = Counters(client)
        template = index_body(engine.info.engine_type, "embedding", field_of(tiny_encoder.info))
        rule = {"index_patterns": [stream, other], "data_stream": {}, "template": template, "priority": 500}
        client.put(f"/_index_template/{stream}", json=rule).raise_for_status()
        # The build lacks the API that deletes a data stream; the server ends with the run.
        for name in (stream, other):
            client.post(f"/{name}/_doc", json={"@timestamp": 0, "text": "a mat"}).raise_for_status()
        alias_of(client, alias, stream, other)
        for number in range(2):
            client.post(f"/{alias}/_doc", json={"@timestamp": number, "text": "a cat"}).raise_for_status()
            client.post(f"/{stream}/_rollover").raise_for_status()
        engine.refresh(stream)
        assert engine.count(stream, {"exists": {"field": "embedding"}}) == 3
        assert counters.documents() == {}


def test_write_index_without_the_field_counts_as_without_a_vector(
    engine_url: str,
    client: httpx.Client,
    counters: Counters,
    empty: str,
    fresh_index: Callable[[str], str],
    caplog: pytest.LogCaptureFixture,
) -> None:
    """As after a rollover without a template: documents are written, and the metrics say what they lack."""
    new, alias = fresh_index(engine_url), f"alias-{uuid.uuid4().hex[:12]}"
    client.put(f"/{new}", json={"mappings": {"properties": {"text": {"type": "text"}}}}).raise_for_status()
    alias_of(client, alias, new, empty)
    assert client.put(f"/{alias}/_doc/1", json={"text": "a cat"}).status_code == 201
    assert told(caplog, alias) == ["no_field"]
    lines: list[Any] = [
        ("index", {"_id": "3"}, {"other": "no text"}),
        ("update", {"_id": "4"}, {"doc": {"text": "a mat"}, "doc_as_upsert": True}),
        ("update", {"_id": "1"}, {"doc": {"text": "a mat"}}),
        ("delete", {"_id": "1"}, None),
    ]
    bulk(client, lines, alias)
    assert counters.increase(OUTCOMES) == {"without": 4}, "all documents and updates count"
    # Together with documents that get vectors, and in more than one window.
    several = [("index", {"_index": alias}, {"text": "the mat"})] * 1500
    bulk(client, [("index", {"_index": empty}, {"text": "a cat"}), *several])
    assert client.put(f"/{new}/_doc/9", json={"text": "a cat"}).status_code == 201, "by its name, it is another index"
    assert counters.increase(OUTCOMES) == {"without": 1500, "embedded": 1}


# The build of Elasticsearch at hand makes data streams and has no API to delete them again.
@pytest.mark.parametrize("engine_url", ["opensearch"], indirect=True, scope="session")
def test_data_stream_uses_its_newest_backing_index(
    engine_url: str, client: httpx.Client, counters: Counters, tiny_encoder: Encoder
) -> None:
    prefix = f"test-{uuid.uuid4().hex[:12]}"
    stream, date_math = f"{prefix}-{datetime.now(UTC):%Y}", f"<{prefix}-{{now/d{{yyyy}}}}>"

    def put_template(body: dict[str, Any]) -> None:
        rule = {"index_patterns": [stream], "data_stream": {}, "template": body, "priority": 500}
        client.put(f"/_index_template/{stream}", json=rule).raise_for_status()

    def write(text: str, name: str = stream) -> dict[str, Any]:
        lines = patient.ndjson({"create": {"_index": name}}, {"@timestamp": "2026-01-31T12:00:00Z", "text": text})
        answer = client.post("/_bulk?refresh=true", content=lines, headers=patient.NDJSON).json()
        assert answer["errors"] is False
        place = answer["items"][0]["create"]
        source: dict[str, Any] = client.get(f"/{place['_index']}/_doc/{place['_id']}").json()["_source"]
        return source

    try:
        put_template(index_body(EngineType.OPENSEARCH, "embedding", field_of(tiny_encoder.info)))
        for text in ("a cat", "the mat"):  # the first creates the stream
            assert_vector(write(text), tiny_encoder, text)
        client.post(f"/{stream}/_rollover").raise_for_status()
        for name in (stream, date_math):
            assert_vector(write("the river", name), tiny_encoder, "the river")
        put_template({"mappings": {"properties": {"text": {"type": "text"}}}})
        client.post(f"/{stream}/_rollover").raise_for_status()
        counters.documents()
        assert set(write("a cat")) == {"@timestamp", "text"}, "older indices have vectors, the newest has none"
        assert counters.documents() == {"no_field": 1}
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
