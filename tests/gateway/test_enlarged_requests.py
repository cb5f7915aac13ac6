"""Requests that vectors make too large for the engine, or for a proxy before it, which answers 413."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from es_sbert.encoder.encoder import Encoder
from es_sbert.engines.rest import Json
from tests.engine.ingest_support import sentences
from tests.faulty_proxy import FaultyProxy, too_large
from tests.gateway.bed import Bed
from tests.gateway.conftest import loaded_index
from tests.gateway.patient import NDJSON, client, ndjson
from tests.gateway.serving import gateway

pytestmark = pytest.mark.one_engine

QUERY: Json = {"match": {"semantic": "the cat sleeps"}}


@pytest.fixture(scope="module")
def index(engine_url: str, tiny_encoder: Encoder) -> Iterator[str]:
    with loaded_index(engine_url, tiny_encoder, sentences(3)) as name:
        yield name


@contextmanager
def limited(engine_url: str, tiny: Path, index: str, limit: int) -> Iterator[tuple[Bed, FaultyProxy]]:
    with (
        FaultyProxy(engine_url, always=too_large(limit), paths="") as proxy,
        gateway(proxy.url, tiny) as url,
        client(url) as through,
        client(engine_url) as direct,
    ):
        yield Bed(direct, through, index), proxy


def bulk(documents: list[Json], name: str) -> list[Json]:
    return [line for document in documents for line in ({"index": {"_id": f"{name}-{document['id']}"}}, document)]


def test_bulk_that_vectors_make_too_large_is_split(engine_url: str, tiny: Path, index: str) -> None:
    documents = sentences(600)
    lines = bulk(documents, "split")
    limit = len(ndjson(*lines)) + 1000  # the client's request by itself is accepted
    with limited(engine_url, tiny, index, limit) as (bed, proxy):
        result = bed.send("_bulk", *lines, refresh=True)
        assert result["errors"] is False
        assert [item["index"]["_id"] for item in result["items"]] == [f"split-{each['id']}" for each in documents]
        assert {item["index"]["status"] for item in result["items"]} == {201}
        assert max(proxy.bulk_sizes) > limit, "with the vectors it was too large"
        assert bed.direct({"query": {"exists": {"field": "embedding"}}}, "_count")["count"] == 603

        # What is refused is learned: the next request is sent in parts at once.
        refused = sum(size > limit for size in proxy.bulk_sizes)
        bed.send("_bulk", *lines)
        assert sum(size > limit for size in proxy.bulk_sizes) == refused


def test_document_that_is_too_large_alone_fails_alone(engine_url: str, tiny: Path, index: str) -> None:
    documents = sentences(4)
    documents[1] |= {"text": f"{documents[1]['text']} {'word ' * 3000}"}
    with limited(engine_url, tiny, index, 10_000) as (bed, _):
        answer = bed.send("_bulk", *bulk(documents, "alone"))
        items = [item["index"] for item in answer["items"]]
        assert answer["errors"] is True
        assert [item["status"] for item in items] == [201, 413, 201, 201]
        assert "bytes with its vectors" in items[1]["error"]["reason"]
        single = bed.gateway.put(f"/{index}/_doc/single", json=documents[1])
        assert (single.status_code, single.json()["error"]["type"]) == (413, "es_sbert_body_too_large")
        assert "http.max_content_length" in single.json()["error"]["reason"]


def test_plain_requests_that_are_too_large_are_sent_unchanged(engine_url: str, tiny: Path, index: str) -> None:
    lines = [line for number in (0, 1, 2, 0) for line in ({}, {"query": {"ids": {"values": [f"d{number}"]}}})]
    with limited(engine_url, tiny, index, len(ndjson(*lines)) + 10) as (bed, _):
        # The proxy of the tests drops the header that names a compression.
        bed.gateway.headers["accept-encoding"] = "identity"
        hits = [hit for response in bed.msearch(*lines) for hit in response["hits"]["hits"]]
        assert [hit["_id"] for hit in hits] == ["d0", "d1", "d2", "d0"]
        assert all("embedding_meta" in hit["_source"] for hit in hits)
        content = ndjson(*bulk([{"id": f"d{number}", "price": number} for number in range(200)], "plain"))
        answer = bed.gateway.post(f"/{index}/_bulk", content=content, headers=NDJSON)
        assert (answer.status_code, answer.content) == (413, b""), "the answer of the engine"


def test_searches_that_vectors_make_too_large_are_refused(engine_url: str, tiny: Path, index: str) -> None:
    filters = [{"term": {"tags": f"value {number}"}} for number in range(40)]
    query: Json = {"bool": {"must": [QUERY], "should": filters, "filter": [{"bool": {"should": filters}}]}}
    body = {"query": query}
    with limited(engine_url, tiny, index, len(ndjson(body)) + 100) as (bed, _):
        answer = bed.post(body)
        assert answer.status_code == 413
        assert "the search has" in answer.json()["error"]["reason"]
        for other in ({}, {"query": {"match": {"semantic": ""}}}):  # without and with an error among them
            content = ndjson({}, body, {}, other)
            several = bed.gateway.post(f"/{index}/_msearch", content=content, headers=NDJSON)
            assert several.status_code == 413
            assert "the request has" in several.json()["error"]["reason"]
