"""Documents that get no vector, and requests that are none."""

from __future__ import annotations

from collections.abc import Callable

import httpx
import pytest

from es_sbert.encoder.encoder import Encoder
from tests.engine.ingest_support import contents
from tests.engine.vectors import field_of
from tests.gateway.writes.support import JSON, bulk_lines, make

pytestmark = pytest.mark.one_engine

MODEL_UNAVAILABLE = "the model of the vector field cannot be loaded by the gateway. The gateway's log says why."
TEXT_UNKNOWN = "the mapping does not say which text a vector field is made of"


def test_unembeddable_documents_are_rejected_per_item_for_retry(
    engine_url: str, client: httpx.Client, empty: str, unknown: str
) -> None:
    lines = bulk_lines([
        ("index", {"_index": empty, "_id": "1"}, {"text": "a cat"}),
        ("index", {"_index": unknown, "_id": "1"}, {"text": "a cat"}),
        ("create", {"_index": unknown}, {"text": "a cat"}),
        ("index", {"_index": unknown, "_id": "2"}, {"n": 1}),
        ("delete", {"_index": unknown, "_id": "2"}, None),
        ("index", {"_index": empty, "_id": "2"}, {"text": "a cat", "n": {}, "parts": "wrong"}),
        ("update", {"_index": unknown, "_id": "2"}, {"doc": {"text": "a"}, "doc_as_upsert": True}),
    ])  # fmt: skip
    asked: list[dict[str, str]] = [{}, {"filter_path": "errors,items.*.error,items.*.status"}, {"format": "yaml"}]
    for params in asked:
        answer = client.post("/_bulk", content=lines, headers=JSON, params=params).json()
        assert answer["errors"] is True
        results = [next(iter(item.items())) for item in answer["items"]]
        assert [name for name, _ in results] == ["index", "index", "create", "index", "delete", "index", "update"]
        statuses = [result["status"] for _, result in results]
        assert statuses in ([201, 503, 503, 201, 200, 400, 503], [200, 503, 503, 201, 200, 400, 503])
        assert results[1][1]["error"]["type"] == "es_sbert_model_unavailable"
        assert results[1][1]["error"]["reason"] == MODEL_UNAVAILABLE
    assert contents(engine_url, unknown) == {}
    assert set(contents(engine_url, empty)) == {"1"}
    only = bulk_lines([("index", {"_index": unknown, "_id": "1"}, {"text": "a cat"})])
    answer = client.post("/_bulk", content=only, headers=JSON)
    assert (answer.status_code, answer.json()["errors"]) == (200, True)
    answer = client.put(f"/{unknown}/_doc/1", json={"text": "a cat"})
    assert (answer.status_code, answer.json()["status"]) == (503, 503)
    assert contents(engine_url, unknown) == {}


@pytest.mark.parametrize("body", [b"", b'{"index":{}}\n{"text":"a"}', b'{"index":{}}\n'])
def test_malformed_request_gets_engines_own_error(
    engine_url: str, client: httpx.Client, empty: str, body: bytes
) -> None:
    direct = httpx.post(f"{engine_url}/{empty}/_bulk", content=body, headers=JSON, timeout=300, trust_env=False)
    through = client.post(f"/{empty}/_bulk", content=body, headers=JSON)
    assert through.status_code == direct.status_code == 400
    assert through.json() == direct.json()


def test_malformed_documents_are_rejected_by_engine(client: httpx.Client, empty: str) -> None:
    lines = (
        b'{"index":{"_id":"1"}}\n{"text":"a cat"}\n{"index":{"_id":"2"}}\n{"text":"a\n{"index":{"_id":"3"}}\n[]\n'
        b'{"index":{"_id":"4"}}\n{"text":"a","text":"b"}\n{"update":{"_id":"1"}}\n{"doc":7}\n'
        b'{"index":{"_id":"5"}}\n{"text":"a cat"}\n'
    )
    answer = client.post(f"/{empty}/_bulk", content=lines, headers=JSON)
    if answer.status_code == 200:
        statuses = [next(iter(item.values()))["status"] for item in answer.json()["items"]]
        assert (statuses[0], statuses[-1]) == (201, 201)
        assert statuses[1:5] == [400] * 4
    else:
        assert answer.json()["status"] == 400
    assert client.put(f"/{empty}/_doc/6", content=b'{"text":', headers=JSON).status_code == 400


@pytest.fixture
def textless(engine_url: str, tiny_encoder: Encoder, fresh_index: Callable[[str], str]) -> str:
    """An index as `es-sbert index create` makes it: its mapping does not say yet which text is embedded."""
    name = fresh_index(engine_url)
    make(engine_url, name, field_of(tiny_encoder.info, text=None))
    return name


def test_document_without_text_template_is_rejected_with_remedy(
    engine_url: str,
    client: httpx.Client,
    textless: str,
    empty: str,
    tiny_encoder: Encoder,
    caplog: pytest.LogCaptureFixture,
) -> None:
    vector = tiny_encoder.encode(["a dog"], "document")[0].tolist()
    lines = bulk_lines([
        ("index", {"_index": textless, "_id": "1"}, {"text": "a cat"}),
        ("index", {"_index": empty, "_id": "1"}, {"text": "a cat"}),
        ("create", {"_index": textless, "_id": "2"}, {"text": "a dog", "embedding": vector}),
        ("update", {"_index": textless, "_id": "3"}, {"doc": {"n": 1}, "upsert": {"text": "a cat"}}),
        ("update", {"_index": textless, "_id": "2"}, {"doc": {"n": 1}}),
        ("update", {"_index": textless, "_id": "4"}, {"doc": {"text": "a cat"}, "doc_as_upsert": True}),
        ("delete", {"_index": textless, "_id": "5"}, None),
    ])  # fmt: skip
    answer = client.post("/_bulk", content=lines, headers=JSON).json()
    results = [next(iter(item.values())) for item in answer["items"]]
    assert [result["status"] for result in results] == [503, 201, 201, 503, 200, 503, 404]
    reason = results[0]["error"]["reason"]
    assert TEXT_UNKNOWN in reason
    assert "`es-sbert index create INDEX --text-field FIELD`" in reason
    assert textless not in reason
    assert set(contents(engine_url, textless)) == {"2"}
    assert contents(engine_url, textless)["2"]["n"] == 1
    refused = client.put(f"/{textless}/_doc/1", json={"text": "a cat"})
    assert (refused.status_code, TEXT_UNKNOWN in refused.json()["error"]["reason"]) == (503, True)
    assert client.post(f"/{textless}/_update/2", json={"doc": {"text": "a cat"}}).status_code == 200
    off = client.put(f"/{textless}/_doc/6", json={"text": "a cat"}, headers={"x-es-sbert": "off"})
    assert off.status_code == 201
    [partial] = [record.message for record in caplog.records if "partial updates" in record.message]
    assert textless in partial


def test_model_names_from_mapping_are_only_logged(
    engine_url: str,
    client: httpx.Client,
    tiny_encoder: Encoder,
    fresh_index: Callable[[str], str],
    caplog: pytest.LogCaptureFixture,
) -> None:
    index, damaged = fresh_index(engine_url), fresh_index(engine_url)
    secret = "/srv/models/secret\nWARNING forged"
    make(engine_url, index, field_of(tiny_encoder.info, fingerprint="0" * 32, model=secret))
    answer = client.put(f"/{index}/_doc/1", json={"text": "a cat"})
    assert (answer.status_code, answer.json()["error"]["reason"]) == (503, MODEL_UNAVAILABLE)
    [told] = [record.message for record in caplog.records if "secret" in record.message]
    assert "0" * 12 in told
    assert "\n" not in told
    make(engine_url, damaged, field_of(tiny_encoder.info))
    wrong = {"_meta": {"es_sbert": {"fields": {"embedding": {"model": 1}}}}}
    client.put(f"/{damaged}/_mapping", json=wrong).raise_for_status()
    answer = client.put(f"/{damaged}/_doc/1", json={"text": "a cat"})
    assert answer.status_code == 503
    assert damaged not in answer.json()["error"]["reason"]
    assert any(damaged in record.message for record in caplog.records)
