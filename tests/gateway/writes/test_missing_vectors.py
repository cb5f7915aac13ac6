"""Writes that leave a document without a vector are in the metrics by reason, and logged once per index and reason."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
from prometheus_client.parser import text_string_to_metric_families

from es_sbert.analysis import read_index
from es_sbert.config import EngineSettings
from es_sbert.encoder.encoder import Encoder
from es_sbert.engines.engine_info import EngineType
from es_sbert.gateway.app import Gateway
from es_sbert.gateway.index_lookup import NEW_FIELD_SECONDS
from es_sbert.gateway.settings import GatewaySettings, SemanticSettings
from es_sbert.index.vector_field import FieldRequest, ensure_vector_field
from tests.engine.ingest_support import contents, open_engine
from tests.engine.vectors import field_of
from tests.faulty_proxy import Exchange, FaultyProxy, answer
from tests.gateway.conftest import tiny_settings
from tests.gateway.serving import served
from tests.gateway.writes.support import JSON, bulk_lines, make

pytestmark = pytest.mark.one_engine

DOCUMENTS, UNREAD = "es_sbert_gateway_documents_without_vector_total", "es_sbert_gateway_unread_writes_total"


class Counters:
    """Counters of a gateway by their label, since the last look."""

    def __init__(self, client: httpx.Client) -> None:
        self._client = client
        self._before: dict[str, dict[str, float]] = {}
        for name in (DOCUMENTS, UNREAD, "es_sbert_gateway_documents_total"):
            self.increase(name)

    def increase(self, name: str) -> dict[str, int]:
        now: dict[str, float] = {}
        for family in text_string_to_metric_families(self._client.get("/metrics").text):
            now |= {next(iter(one.labels.values())): one.value for one in family.samples if one.name == name}
        before = self._before.get(name, {})
        self._before[name] = now
        grown = {label: int(value - before.get(label, 0)) for label, value in now.items()}
        return {label: count for label, count in grown.items() if count}

    def documents(self) -> dict[str, int]:
        return self.increase(DOCUMENTS)


@pytest.fixture
def counters(client: httpx.Client) -> Counters:
    return Counters(client)


def told(caplog: pytest.LogCaptureFixture, index: str) -> list[str]:
    """The reasons that were logged for an index, with the number of lines."""
    names = [record.args[-1] for record in caplog.records if "logged once" in record.msg and index in record.message]  # type: ignore[index]
    return [str(name) for name in names]


@pytest.mark.parametrize(
    ("document", "reason"),
    [
        ({"n": 1}, "no_text"),
        ({"text": [], "title": [None, " "]}, "no_text"),
        ({"text": ["a", 5], "title": [7]}, "not_text"),
    ],
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
    assert counters.documents() == {reason: 1}
    lines = bulk_lines([
        ("index", {"_id": "1"}, document),
        ("create", {}, document),
        ("update", {"_id": "2"}, {"doc": {"text": None, **document}, "doc_as_upsert": True}),
        ("update", {"_id": "3"}, {"doc": {"n": 1}, "upsert": document}),
        ("delete", {"_id": "9"}, None),
    ])  # fmt: skip
    client.post(f"/{empty}/_bulk", content=lines, headers=JSON).raise_for_status()
    assert counters.documents() == {reason: 4}
    assert counters.increase("es_sbert_gateway_documents_total") == {"without": 5}
    assert told(caplog, empty) == [reason]
    held = contents(engine_url, empty)
    assert len(held) == 4
    assert all(source.get("embedding") is None and source.get("parts") is None for source in held.values())


def test_document_with_a_part_of_its_vectors_is_counted(
    client: httpx.Client, engine_url: str, tiny_encoder: Encoder, fresh_index: Callable[[str], str], counters: Counters
) -> None:
    name = fresh_index(engine_url)
    make(engine_url, name, field_of(tiny_encoder.info))
    with open_engine(engine_url) as engine:
        info = tiny_encoder.info
        request = FieldRequest("title_vector", info.fingerprint, info.model, info.dimensions, text="{title}")
        ensure_vector_field(engine, name, request)
    client.put(f"/{name}/_doc/1", json={"text": "a cat"}).raise_for_status()
    assert counters.documents() == {"no_text": 1}
    assert counters.increase("es_sbert_gateway_documents_total") == {"embedded": 1}


def test_updates_are_counted_if_they_change_the_text(
    client: httpx.Client, empty: str, counters: Counters, engine_url: str
) -> None:
    for number in range(5):
        client.put(f"/{empty}/_doc/{number}", json={"text": "a cat", "title": "a mat", "n": number}).raise_for_status()
    assert counters.documents() == {}
    changes: list[dict[str, Any]] = [
        {"n": 9},
        {"text": "a man"},
        {"text": None, "title": None},
        {"text": 5},
        {"title": ""},
    ]
    lines = bulk_lines([("update", {"_id": str(number)}, {"doc": doc}) for number, doc in enumerate(changes)])
    assert client.post(f"/{empty}/_bulk", content=lines, headers=JSON).json()["errors"] is False
    assert counters.documents() == {"no_text": 1, "not_text": 1}
    held = contents(engine_url, empty)
    assert [held[str(number)].get("embedding") is None for number in range(5)] == [False, False, True, True, False]


def test_update_after_an_unseen_change_is_counted(client: httpx.Client, empty: str, counters: Counters) -> None:
    client.put(f"/{empty}/_doc/1", json={"text": "a cat", "title": "a mat"}).raise_for_status()
    lines = bulk_lines([
        ("update", {"_id": "1"}, {"script": {"source": "ctx._source.text = 'a'"}}),
        ("update", {"_id": "1"}, {"doc": {"title": "a man"}}),
    ])  # fmt: skip
    client.post(f"/{empty}/_bulk", content=lines, headers=JSON).raise_for_status()
    assert counters.documents() == {"previous_unknown": 1}


def test_documents_that_a_script_may_create_are_counted(
    client: httpx.Client, empty: str, counters: Counters, caplog: pytest.LogCaptureFixture
) -> None:
    script = {"source": "ctx._source.n = 1"}
    update = {"script": script, "scripted_upsert": True, "upsert": {"text": "a cat"}}
    client.post(f"/{empty}/_update/1", json=update)
    client.post(f"/{empty}/_update/1", json={"script": script})
    assert counters.documents() == {"script": 1}
    assert told(caplog, empty) == ["script"]


def test_documents_that_only_the_engine_reads_are_refused(client: httpx.Client, empty: str, counters: Counters) -> None:
    deep = b'{"text":"a cat","deep":' + b"[" * 300 + b"]" * 300 + b"}"
    documents = (deep, b'/* c */ {"text":"a cat"}', b'{"text":"a', b'{"text":"a\xff"}', b'{"text": "a cat" /* c */}')
    lines = b"".join(b'{"index":{}}\n' + document + b"\n" for document in documents)
    answer = client.post(f"/{empty}/_bulk?refresh=true", content=lines, headers=JSON).json()
    assert [item["index"]["status"] for item in answer["items"]] == [400, 400, 400, 400, 201]
    assert "nested more than" in answer["items"][0]["index"]["error"]["reason"]
    assert counters.documents() == {}
    assert client.get(f"/{empty}/_count").json()["count"] == 1


def test_unread_requests_are_counted(
    client: httpx.Client, empty: str, engine_url: str, counters: Counters, caplog: pytest.LogCaptureFixture
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


def test_writes_are_counted_if_embedding_is_turned_off(engine_url: str, empty: str, tiny: Path) -> None:
    settings = GatewaySettings(
        upstream=EngineSettings(url=engine_url), models=tiny_settings(tiny), semantic=SemanticSettings(writes=False)
    )
    with served(Gateway(settings)) as gateway, httpx.Client(base_url=gateway, timeout=300, trust_env=False) as client:
        counters = Counters(client)
        client.put(f"/{empty}/_doc/1", json={"text": "a cat"}).raise_for_status()
        assert counters.increase(UNREAD) == {"no_writes": 1}


def test_partial_updates_of_an_unknown_text_are_counted(
    client: httpx.Client, engine_url: str, tiny_encoder: Encoder, fresh_index: Callable[[str], str], counters: Counters
) -> None:
    textless = fresh_index(engine_url)
    make(engine_url, textless, field_of(tiny_encoder.info, text=None))
    httpx.put(
        f"{engine_url}/{textless}/_doc/1", json={"text": "a cat"}, timeout=300, trust_env=False
    ).raise_for_status()
    client.post(f"/{textless}/_update/1", json={"doc": {"text": "a mat"}}).raise_for_status()
    assert counters.documents() == {"text_unknown": 1}


def test_refused_documents_are_not_counted(client: httpx.Client, unknown: str, counters: Counters) -> None:
    assert client.put(f"/{unknown}/_doc/1", json={"text": "a cat"}).status_code == 503
    assert counters.documents() == {}
    assert counters.increase("es_sbert_gateway_documents_total") == {"refused": 1}


def test_documents_of_unreadable_mappings_are_counted(
    engine_url: str, empty: str, tiny: Path, fresh_index: Callable[[str], str], caplog: pytest.LogCaptureFixture
) -> None:
    created = fresh_index(engine_url)

    def deny(exchange: Exchange) -> tuple[int, bytes]:
        """As the engine answers a caller without the privilege view_index_metadata or manage_index_templates."""
        path = exchange.path.partition("?")[0]
        denied = path == f"/{empty}" or path.startswith("/_index_template")
        return answer(403)(exchange) if denied else exchange.forward()

    with FaultyProxy(engine_url, always=deny, paths="") as proxy:
        settings = GatewaySettings(upstream=EngineSettings(url=proxy.url), models=tiny_settings(tiny))
        with (
            served(Gateway(settings)) as url,
            httpx.Client(base_url=url, timeout=300, trust_env=False) as client,
        ):
            counters = Counters(client)
            client.put(f"/{empty}/_doc/1", json={"text": "a cat"}).raise_for_status()
            lines = bulk_lines([("index", {}, {"text": "a cat"}), ("index", {}, {"text": "a mat"})])
            client.post(f"/{empty}/_bulk", content=lines, headers=JSON).raise_for_status()
            assert counters.documents() == {"mapping_unreadable": 3}
            # The write creates the index, and its vector fields may be in a template.
            client.put(f"/{created}/_doc/1", json={"text": "a cat"}).raise_for_status()
            assert counters.documents() == {"mapping_unreadable": 1}
    assert any(created in record.message and "without vectors" in record.message for record in caplog.records)


@pytest.mark.parametrize("excluded", [["embedding"], ["embedding", "text"]])
def test_vector_that_source_lacks_survives_partial_updates_or_is_counted(
    client: httpx.Client,
    engine_url: str,
    tiny_encoder: Encoder,
    fresh_index: Callable[[str], str],
    counters: Counters,
    caplog: pytest.LogCaptureFixture,
    excluded: list[str],
) -> None:
    name = fresh_index(engine_url)
    with open_engine(engine_url) as engine:
        info, knn = tiny_encoder.info, engine.info.engine_type is EngineType.OPENSEARCH
        # Elasticsearch 9.2+ keeps the vectors; the gateway relies on it only where it can read the version.
        is_kept = engine.info.excludes_vectors_from_source and client.get("/").status_code == 200
        settings = {"index.knn": True} if knn else {}
        engine.create_index(name, {"settings": settings, "mappings": {"_source": {"excludes": excluded}}})
        request = FieldRequest("embedding", info.fingerprint, info.model, info.dimensions, text="{text}")
        ensure_vector_field(engine, name, request)
    for document in ("1", "2"):
        client.put(f"/{name}/_doc/{document}", json={"text": "a cat", "n": 1}).raise_for_status()
    assert counters.documents() == {}

    client.post(f"/{name}/_update/1", json={"doc": {"n": 2}}).raise_for_status()
    lines = bulk_lines([("update", {"_id": "2"}, {"doc": {"n": 3}}), ("update", {"_id": "2"}, {"doc": {"m": 3}})])
    assert client.post(f"/{name}/_bulk", content=lines, headers=JSON).json()["errors"] is False
    if "text" in excluded and not is_kept:
        assert counters.documents() == {"not_in_source": 3}
        assert told(caplog, name) == ["not_in_source"]
        return
    assert counters.documents() == {}
    with open_engine(engine_url) as engine:
        engine.refresh(name)
        collection = read_index(engine, name, "embedding", fields=["n", "m"])
    assert collection.values == [{"n": 2}, {"n": 3, "m": 3}]
    expected = tiny_encoder.encode(["a cat"], "document")[0]
    np.testing.assert_allclose(collection.vectors, [expected, expected], atol=1e-6)

    scripted = {"script": {"source": "ctx._source.n = 4"}}
    client.post(f"/{name}/_update/1", json=scripted)
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
