"""Documents that get no vector, and requests that are none."""

from __future__ import annotations

import httpx
import pytest

from es_sbert.encoder.encoder import Encoder
from tests.engine.ingest_support import contents
from tests.engine.vectors import field_of
from tests.gateway import patient
from tests.gateway.writes.support import JSON, Counters, bulk_lines, make

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
        kind = JSON | ({"accept": "application/yaml"} if "filter_path" in params else {})
        answer = client.post("/_bulk", content=lines, headers=kind, params=params).json()
        assert answer["errors"] is True
        results = [next(iter(item.items())) for item in answer["items"]]
        assert [name for name, _ in results] == ["index", "index", "create", "index", "delete", "index", "update"]
        first, *statuses = [result["status"] for _, result in results]
        assert (first, statuses) == (200 if params else 201, [503, 503, 201, 200, 400, 503])
        assert results[1][1]["error"]["type"] == "es_sbert_model_unavailable"
        assert results[1][1]["error"]["reason"] == MODEL_UNAVAILABLE
    only = bulk_lines([("index", {"_index": unknown, "_id": "1"}, {"text": "a cat"})])
    answer = client.post("/_bulk", content=only, headers=JSON)
    assert (answer.status_code, answer.json()["errors"]) == (200, True)
    answer = client.put(f"/{unknown}/_doc/1", json={"text": "a cat"})
    assert (answer.status_code, answer.json()["status"]) == (503, 503)
    assert contents(engine_url, unknown) == {}
    assert set(contents(engine_url, empty)) == {"1"}


@pytest.mark.parametrize("body", [b"", b'{"index":{}}\n{"text":"a"}', b'{"index":{}}\n'])
def test_malformed_request_gets_engines_own_error(
    engine_url: str, client: httpx.Client, empty: str, body: bytes
) -> None:
    direct = patient.post(f"{engine_url}/{empty}/_bulk", content=body, headers=JSON)
    through = client.post(f"/{empty}/_bulk", content=body, headers=JSON)
    assert through.status_code == direct.status_code == 400
    assert through.json() == direct.json()


def test_malformed_documents_are_refused_alone(client: httpx.Client, empty: str, counters: Counters) -> None:
    deep = b'{"text":"a cat","deep":' + b"[" * 300 + b"]" * 300 + b"}"
    documents = (deep, b'/* c */ {"text":"a cat"}', b'{"text":"a', b'{"text":"a\xff"}', b'{"text": "a cat" /* c */}')
    lines = b"".join(b'{"index":{}}\n' + document + b"\n" for document in documents)
    answer = client.post(f"/{empty}/_bulk?refresh=true", content=lines, headers=JSON).json()
    assert [item["index"]["status"] for item in answer["items"]] == [400, 400, 400, 400, 201]
    assert "nested more than" in answer["items"][0]["index"]["error"]["reason"]
    assert counters.documents() == {}
    assert client.get(f"/{empty}/_count").json()["count"] == 1
    assert client.put(f"/{empty}/_doc/6", content=b'{"text":', headers=JSON).status_code == 400


def test_document_without_text_template_is_rejected_with_remedy(
    engine_url: str, client: httpx.Client, index_name: str, tiny_encoder: Encoder, counters: Counters
) -> None:
    """In an index as `es-sbert index create` makes it: its mapping does not say yet which text is embedded."""
    make(engine_url, index_name, field_of(tiny_encoder.info, text=None))
    vector = tiny_encoder.encode(["a dog"], "document")[0].tolist()
    lines = bulk_lines([
        ("index", {"_id": "1"}, {"text": "a cat"}),
        ("create", {"_id": "2"}, {"text": "a dog", "embedding": vector}),
        ("update", {"_id": "3"}, {"doc": {"n": 1}, "upsert": {"text": "a cat"}}),
        ("update", {"_id": "2"}, {"doc": {"n": 1}}),
        ("update", {"_id": "4"}, {"doc": {"text": "a cat"}, "doc_as_upsert": True}),
        ("delete", {"_id": "5"}, None),
    ])  # fmt: skip
    answer = client.post(f"/{index_name}/_bulk", content=lines, headers=JSON).json()
    results = [next(iter(item.values())) for item in answer["items"]]
    assert [result["status"] for result in results] == [503, 201, 503, 200, 503, 404]
    reason = results[0]["error"]["reason"]
    assert TEXT_UNKNOWN in reason
    assert "`es-sbert index create INDEX --text-field FIELD`" in reason
    assert index_name not in reason
    assert set(contents(engine_url, index_name)) == {"2"}
    assert contents(engine_url, index_name)["2"]["n"] == 1
    refused = client.put(f"/{index_name}/_doc/1", json={"text": "a cat"})
    assert (refused.status_code, TEXT_UNKNOWN in refused.json()["error"]["reason"]) == (503, True)
    counters.documents()
    assert client.post(f"/{index_name}/_update/2", json={"doc": {"text": "a cat"}}).status_code == 200
    assert counters.documents() == {"text_unknown": 1}
