"""Documents written through the gateway are those that `es-sbert ingest` loads, whoever writes them and how."""

from __future__ import annotations

import gzip
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import pytest
from elasticsearch import Elasticsearch
from elasticsearch import helpers as elasticsearch_helpers
from opensearchpy import OpenSearch
from opensearchpy import helpers as opensearch_helpers

from es_sbert.encoder.encoder import Encoder
from es_sbert.index.document_vectors import text_hash
from tests.engine.ingest_support import contents, load, same_vectors, write_jsonl
from tests.gateway import patient
from tests.gateway.writes.support import FIELDS, JSON, bulk_lines, documents, passages, vectors


def without_vectors(source: dict[str, Any]) -> dict[str, Any]:
    plain = {key: value for key, value in source.items() if key not in ("_version", "embedding")}
    for field in ("embedding_meta", "parts_meta"):
        if plain.get(field) is not None:
            plain[field] = {key: value for key, value in plain[field].items() if key != "embedded_at"}
    if plain.get("parts") is not None:
        plain["parts"] = [(passage["start"], passage["end"]) for passage in passages(source)]
    return plain


def by_helpers(url: str, engine: str, index: str) -> None:
    actions = [{"_index": index, "_id": document["id"], "_source": document} for document in documents(60)]
    if engine == "opensearch":
        with OpenSearch(url) as client:
            assert opensearch_helpers.bulk(client, actions, chunk_size=25) == (60, [])
    else:
        with Elasticsearch(url) as client:
            assert elasticsearch_helpers.bulk(client, actions, chunk_size=25) == (60, [])


def as_logstash(url: str, engine: str, index: str) -> None:
    """What the elasticsearch output of Logstash sends: gzip'd lines, results filtered."""
    made = documents(60)
    said = [{"_id": document["id"], "_index": index, "routing": None} for document in made]
    body = bulk_lines([("create" if n % 2 else "index", said[n], made[n]) for n in range(60)])
    headers = {
        "content-type": "application/json", "content-encoding": "gzip", "connection": "Keep-Alive",
        "user-agent": "Logstash/9.0.0", "x-elastic-product-origin": "logstash-output-elasticsearch",
    }  # fmt: skip
    target = f"{url}/_bulk?filter_path=errors,items.*.error,items.*.status"
    answer = patient.post(target, content=gzip.compress(body), headers=headers)
    assert answer.json() == {
        "errors": False,
        "items": [{"create" if n % 2 else "index": {"status": 201}} for n in range(60)],
    }


def by_document_apis(url: str, engine: str, index: str) -> None:
    with patient.client(url) as client:
        for number, document in enumerate(documents(60)):
            id = document["id"]
            method, path, body = [
                ("PUT", f"_doc/{id}", document),
                ("POST", f"_doc/{id}", document),
                ("PUT", f"_create/{id}", document),
                ("POST", f"_update/{id}", {"doc": {"n": 1}, "upsert": document}),
            ][number % 4]
            assert client.request(method, f"/{index}/{path}", json=body).status_code == 201


@pytest.mark.parametrize(
    ("engine_url", "way"),
    [(engine, way) for engine in ("es9", "opensearch") for way in (by_helpers, as_logstash, by_document_apis)],
    indirect=["engine_url"],
    scope="session",
)
def test_gateway_writes_equal_ingest(
    way: Callable[[str, str, str], None],
    request: pytest.FixtureRequest,
    engine_url: str,
    gateway_url: str,
    loaded: str,
    empty: str,
    tiny_encoder: Encoder,
    tmp_path: Path,
) -> None:
    way(gateway_url, request.node.callspec.params["engine_url"], empty)
    one, two = contents(engine_url, loaded), contents(engine_url, empty)
    assert {key: without_vectors(source) for key, source in two.items()} == {
        key: without_vectors(source) for key, source in one.items()
    }
    for key, source in one.items():
        # Other texts run beside them, which changes the last digit of fp32.
        assert same_vectors(vectors(two[key]), vectors(source))
    file = write_jsonl(tmp_path / "docs.jsonl", documents(60))
    summary = load(engine_url, tiny_encoder, empty, file, dead=tmp_path / "dead", **FIELDS)
    assert (summary.unchanged, summary.read) == (60, 60)


def test_other_indices_and_supplied_vectors_pass_through(
    engine_url: str, client: httpx.Client, loaded: str, empty: str, fresh_index: Callable[[str], str]
) -> None:
    plain = fresh_index(engine_url)
    source = b'{ "text" : "a cat", "n":1.0000000000000000001,"u":"\\u00e9" }'
    lines = b'{"index":{"_index":"%s","_id":"1"}}\n%s\n' % (plain.encode(), source)
    assert client.post("/_bulk", content=lines, headers=JSON).json()["errors"] is False
    assert source in client.get(f"/{plain}/_doc/1").content
    # In a request beside documents that do get vectors, too.
    lines += bulk_lines([("index", {"_index": empty, "_id": "2"}, {"text": "a man"})])
    assert client.post("/_bulk", content=lines, headers=JSON).json()["errors"] is False
    assert source in client.get(f"/{plain}/_doc/1").content
    [copied] = list(contents(engine_url, loaded).items())[:1]
    own = {key: value for key, value in copied[1].items() if key != "_version"}
    assert client.put(f"/{empty}/_doc/3", json=own).status_code == 201
    assert client.put(f"/{empty}/_doc/4", json={"text": "a cat"}, headers={"x-es-sbert": "off"}).status_code == 201
    assert client.put(f"/{empty}/_doc/5", json={"n": 1}).status_code == 201
    held = contents(engine_url, empty)
    assert {key: value for key, value in held["3"].items() if key != "_version"} == own
    assert held["2"]["embedding_meta"]["text_hash"] == text_hash("a man")
    assert held["4"] == {"text": "a cat", "_version": 1}
    assert held["5"] == {"n": 1, "_version": 1}
