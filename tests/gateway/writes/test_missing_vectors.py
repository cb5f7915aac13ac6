"""Writes that leave a document without a vector are in the metrics by reason, and logged once per index and reason."""

from __future__ import annotations

import time
from collections import Counter
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest

from es_sbert.analysis import read_index
from es_sbert.encoder.encoder import Encoder
from es_sbert.engines.engine_info import EngineType
from es_sbert.gateway.index_lookup import NEW_FIELD_SECONDS
from es_sbert.index.vector_field import FieldRequest, ensure_vector_field
from tests.engine.ingest_support import contents, open_engine
from tests.gateway import patient
from tests.gateway.serving import gateway
from tests.gateway.writes.support import JSON, OUTCOMES, UNREAD, Counters, bulk, bulk_lines, told

pytestmark = pytest.mark.one_engine


@pytest.mark.parametrize(
    ("document", "reason"),
    [({"text": [], "title": [None, " "]}, "no_text"), ({"text": ["a", 5], "title": [7]}, "not_text")],
)
def test_documents_without_text_are_counted_and_logged_once(
    client: httpx.Client,
    empty: str,
    engine_url: str,
    counters: Counters,
    caplog: pytest.LogCaptureFixture,
    document: dict[str, Any],
    reason: str,
) -> None:
    assert client.put(f"/{empty}/_doc/1", json=document).status_code == 201
    lines = bulk_lines([
        ("index", {"_id": "1"}, document),
        ("create", {}, document),
        ("update", {"_id": "2"}, {"doc": {"text": None, **document}, "doc_as_upsert": True}),
        ("update", {"_id": "3"}, {"doc": {"n": 1}, "upsert": document}),
        ("delete", {"_id": "9"}, None),
    ])  # fmt: skip
    client.post(f"/{empty}/_bulk", content=lines, headers=JSON).raise_for_status()
    assert counters.documents() == {reason: 5}
    assert counters.increase(OUTCOMES) == {"without": 5}
    assert told(caplog, empty) == [reason]
    held = contents(engine_url, empty)
    assert len(held) == 4
    assert all(source.get("embedding") is None and source.get("parts") is None for source in held.values())


def test_updates_are_counted_if_they_change_the_text(
    client: httpx.Client, empty: str, counters: Counters, engine_url: str
) -> None:
    for number in range(5):
        client.put(f"/{empty}/_doc/{number}", json={"text": "a cat", "title": "a mat", "n": number}).raise_for_status()
    changes: list[dict[str, Any]] = [
        {"n": 9},
        {"text": "a man"},
        {"text": None, "title": None},
        {"text": 5},
        {"title": ""},
    ]
    bulk(client, [("update", {"_id": str(number)}, {"doc": doc}) for number, doc in enumerate(changes)], empty)
    assert counters.documents() == {"no_text": 1, "not_text": 1}
    held = contents(engine_url, empty)
    assert [held[str(number)].get("embedding") is None for number in range(5)] == [False, False, True, True, False]


def test_documents_that_scripts_create_or_change_are_counted(
    client: httpx.Client, empty: str, counters: Counters, caplog: pytest.LogCaptureFixture
) -> None:
    client.put(f"/{empty}/_doc/1", json={"text": "a cat", "title": "a mat"}).raise_for_status()
    script = {"source": "ctx._source.text = 'a'"}
    lines = [("update", {"_id": "1"}, {"script": script}), ("update", {"_id": "1"}, {"doc": {"title": "a man"}})]
    client.post(f"/{empty}/_bulk", content=bulk_lines(lines), headers=JSON).raise_for_status()
    assert counters.documents() == {"previous_unknown": 1}
    update = {"script": script, "scripted_upsert": True, "upsert": {"text": "a cat"}}
    client.post(f"/{empty}/_update/2", json=update)
    client.post(f"/{empty}/_update/2", json={"script": script})
    assert counters.documents() == {"script": 1}
    assert told(caplog, empty) == ["previous_unknown", "script"]


def test_unread_requests_are_counted(
    client: httpx.Client, empty: str, engine_url: str, tiny: Path, counters: Counters, caplog: pytest.LogCaptureFixture
) -> None:
    accepted: Counter[str] = Counter()

    def write(reason: str, path: str, method: str = "PUT", **request: Any) -> None:
        """Send a request; what the engine refuses writes nothing, and is not counted."""
        accepted[reason] += client.request(method, f"/{empty}/{path}", **request).is_success

    for number in range(2):
        write("off", f"_doc/{number}", json={"text": "a"}, headers={"x-es-sbert": "off"})
    write("by_query", "_update_by_query", "POST", params={"refresh": True})
    client.post(f"/{empty}/_delete_by_query", json={"query": {"match_none": {}}})
    assert accepted["off"] == 2
    expected = {reason: count for reason, count in accepted.items() if count}
    assert counters.increase(UNREAD) == expected
    assert counters.documents() == {}
    assert sorted(told(caplog, empty)) == sorted(expected)
    with gateway(engine_url, tiny, writes=False) as url, patient.client(url) as other:
        counters = Counters(other)
        other.put(f"/{empty}/_doc/1", json={"text": "a cat"}).raise_for_status()
        assert counters.increase(UNREAD) == {"no_writes": 1}


@pytest.mark.parametrize("excluded", [["embedding"], ["embedding", "text"]])
def test_vector_that_source_lacks_survives_partial_updates_or_is_counted(
    client: httpx.Client,
    engine_url: str,
    tiny_encoder: Encoder,
    index_name: str,
    counters: Counters,
    caplog: pytest.LogCaptureFixture,
    excluded: list[str],
) -> None:
    with open_engine(engine_url) as engine:
        info, knn = tiny_encoder.info, engine.info.engine_type is EngineType.OPENSEARCH
        # Elasticsearch 9.2+ keeps the vectors; the gateway relies on it only where it can read the version.
        is_kept = engine.info.excludes_vectors_from_source and client.get("/").status_code == 200
        settings = {"index.knn": True} if knn else {}
        engine.create_index(index_name, {"settings": settings, "mappings": {"_source": {"excludes": excluded}}})
        request = FieldRequest("embedding", info.fingerprint, info.model, info.dimensions, text="{text}")
        ensure_vector_field(engine, index_name, request)
    for document in ("1", "2"):
        client.put(f"/{index_name}/_doc/{document}", json={"text": "a cat", "n": 1}).raise_for_status()
    client.post(f"/{index_name}/_update/1", json={"doc": {"n": 2}}).raise_for_status()
    bulk(client, [("update", {"_id": "2"}, {"doc": doc}) for doc in ({"n": 3}, {"m": 3})], index_name)
    if "text" in excluded and not is_kept:
        assert counters.documents() == {"not_in_source": 3}
        assert told(caplog, index_name) == ["not_in_source"]
        return
    assert counters.documents() == {}
    with open_engine(engine_url) as engine:
        engine.refresh(index_name)
        collection = read_index(index_name, engine, "embedding", fields=["n", "m"])
    assert collection.values == [{"n": 2}, {"n": 3, "m": 3}]
    expected = tiny_encoder.encode(["a cat"], "document")[0]
    np.testing.assert_allclose(collection.vectors, [expected, expected], atol=1e-6)

    client.post(f"/{index_name}/_update/1", json={"script": {"source": "ctx._source.n = 4"}})
    assert counters.documents() == ({} if is_kept else {"not_in_source": 1})


def test_field_added_behind_the_gateway_is_seen_after_a_second_and_missed_writes_are_counted(
    client: httpx.Client, loaded: str, engine_url: str, index_name: str, counters: Counters,
    caplog: pytest.LogCaptureFixture,
) -> None:  # fmt: skip
    def search() -> httpx.Response:
        return client.post(f"/{index_name}/_search", json={"query": {"match": {"semantic": "a cat"}}})

    with open_engine(engine_url) as engine:
        knn = {"index.knn": True} if engine.info.engine_type is EngineType.OPENSEARCH else {}
        engine.create_index(index_name, {"settings": knn})
        assert "have no vector field" in search().text
        client.put(f"/{index_name}/_doc/before", json={"text": "a cat"}).raise_for_status()
        state = engine.get_index(loaded)
        assert state is not None
        engine.put_mapping(index_name, state.mappings)
    client.put(f"/{index_name}/_doc/missed", json={"text": "a cat"}).raise_for_status()
    time.sleep(NEW_FIELD_SECONDS + 0.1)
    client.put(f"/{index_name}/_doc/seen?refresh=true", json={"text": "a cat"}).raise_for_status()
    stored = contents(engine_url, index_name)
    assert stored["seen"].get("embedding") is not None
    missed = [name for name in ("before", "missed") if stored[name].get("embedding") is None]
    assert {hit["_id"] for hit in search().json()["hits"]["hits"]} == {"before", "missed", "seen"} - set(missed)
    # The mapping may have been read again for the second write, on a slow machine.
    assert counters.increase(UNREAD).get("new_field", 0) == (1 if "missed" in missed else 0)
    assert told(caplog, index_name) == (["new_field"] if "missed" in missed else [])
