"""Requests that vectors make too large for the engine, or for a proxy before it, which answers 413."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import httpx
import orjson
import pytest

from es_sbert.encoder.encoder import Encoder
from es_sbert.engines.rest import Json
from tests.engine.ingest_support import sentences
from tests.faulty_proxy import FaultyProxy, too_large
from tests.gateway.conftest import loaded_index, tiny_gateway

pytestmark = pytest.mark.one_engine

JSON = {"content-type": "application/json"}
LINES = {"content-type": "application/x-ndjson"}
QUERY: Json = {"match": {"semantic": "the cat sleeps"}}


@dataclass(frozen=True)
class Limited:
    """A gateway whose engine is behind a proxy with a limit.

    Attributes:
        client: Of the gateway.
        engine: Of the engine itself.
        index: Has a vector field.
        proxy: Counts the bytes of requests.
    """

    client: httpx.Client
    engine: httpx.Client
    index: str
    proxy: FaultyProxy

    def count(self, query: Json) -> int:
        self.engine.post(f"/{self.index}/_refresh").raise_for_status()
        answer = self.engine.post(f"/{self.index}/_count", json={"query": query})
        return int(answer.json()["count"])


@pytest.fixture(scope="module")
def index(engine_url: str, tiny_encoder: Encoder) -> Iterator[str]:
    with loaded_index(engine_url, tiny_encoder, sentences(3)) as name:
        yield name


@contextmanager
def limited(engine_url: str, tiny: Path, index: str, limit: int) -> Iterator[Limited]:
    """A gateway before a proxy that refuses bodies of more than `limit` bytes."""
    with (
        FaultyProxy(engine_url, always=too_large(limit), paths="") as proxy,
        tiny_gateway(proxy.url, tiny) as url,
        httpx.Client(base_url=url, timeout=300, trust_env=False) as client,
        httpx.Client(base_url=engine_url, timeout=300, trust_env=False) as engine,
    ):
        yield Limited(client, engine, index, proxy)


def bulk(documents: list[Json], name: str) -> bytes:
    lines = [line for document in documents for line in ({"index": {"_id": f"{name}-{document['id']}"}}, document)]
    return b"".join(orjson.dumps(line) + b"\n" for line in lines)


def test_bulk_that_vectors_make_too_large_is_split(engine_url: str, tiny: Path, index: str) -> None:
    documents = sentences(600)
    body = bulk(documents, "split")
    limit = len(body) + 1000  # the client's request by itself is accepted
    with limited(engine_url, tiny, index, limit) as place:
        before = place.count({"exists": {"field": "embedding"}})
        answer = place.client.post(f"/{index}/_bulk", content=body, headers=LINES)
        assert answer.status_code == 200, answer.text
        result = answer.json()
        assert result["errors"] is False
        assert [item["index"]["_id"] for item in result["items"]] == [f"split-{each['id']}" for each in documents]
        assert {item["index"]["status"] for item in result["items"]} == {201}
        assert max(place.proxy.bulk_sizes) > limit, "with the vectors it was too large"
        assert place.count({"exists": {"field": "embedding"}}) == before + len(documents)

        # What is refused is learned: the next request is sent in parts at once.
        refused = sum(size > limit for size in place.proxy.bulk_sizes)
        place.client.post(f"/{index}/_bulk", content=body, headers=LINES).raise_for_status()
        assert sum(size > limit for size in place.proxy.bulk_sizes) == refused


def test_document_that_is_too_large_alone_fails_alone(engine_url: str, tiny: Path, index: str) -> None:
    documents = sentences(4)
    documents[1] |= {"text": f"{documents[1]['text']} {'word ' * 3000}"}
    body = bulk(documents, "alone")
    with limited(engine_url, tiny, index, 10_000) as place:
        answer = place.client.post(f"/{index}/_bulk", content=body, headers=LINES)
        assert answer.status_code == 200, answer.text
        items = [item["index"] for item in answer.json()["items"]]
        assert answer.json()["errors"] is True
        assert [item["status"] for item in items] == [201, 413, 201, 201]
        assert items[1]["_id"] == "alone-d1"
        assert "bytes with its vectors" in items[1]["error"]["reason"]
        single = place.client.put(f"/{index}/_doc/single", json=documents[1])
        assert single.status_code == 413
        assert single.json()["error"]["type"] == "es_sbert_body_too_large"
        assert "http.max_content_length" in single.json()["error"]["reason"]


def test_bulk_without_vectors_that_is_too_large_gets_the_engines_answer(
    engine_url: str, tiny: Path, index: str
) -> None:
    body = bulk([{"id": f"d{number}", "price": number} for number in range(200)], "plain")
    with limited(engine_url, tiny, index, 2000) as place:
        answer = place.client.post(f"/{index}/_bulk", content=body, headers=LINES)
        assert (answer.status_code, answer.content) == (413, b"")


def test_plain_searches_that_hidden_fields_make_too_large_are_sent_as_they_came(
    engine_url: str, tiny: Path, index: str
) -> None:
    lines = [b'{"query":{"ids":{"values":["d%d"]}}}' % number for number in (0, 1, 2, 0)]
    body = b"".join(b"{}\n" + line + b"\n" for line in lines)
    with limited(engine_url, tiny, index, len(body) + 10) as place:
        # The proxy of the tests drops the header that names a compression.
        answer = place.client.post(f"/{index}/_msearch", content=body, headers=LINES | {"accept-encoding": "identity"})
        hits = [hit for response in answer.raise_for_status().json()["responses"] for hit in response["hits"]["hits"]]
        assert [hit["_id"] for hit in hits] == ["d0", "d1", "d2", "d0"]
        assert all("embedding_meta" in hit["_source"] for hit in hits)


def test_searches_that_vectors_make_too_large_are_refused(engine_url: str, tiny: Path, index: str) -> None:
    filters = [{"term": {"tags": f"value {number}"}} for number in range(40)]
    query: Json = {"bool": {"must": [QUERY], "should": filters, "filter": [{"bool": {"should": filters}}]}}
    body = orjson.dumps({"query": query})
    with limited(engine_url, tiny, index, len(body) + 100) as place:
        answer = place.client.post(f"/{index}/_search", content=body, headers=JSON)
        assert answer.status_code == 413
        assert "the search has" in answer.json()["error"]["reason"]
        for other in ({}, {"query": {"match": {"semantic": ""}}}):  # without and with an error among them
            lines = b"{}\n" + body + b"\n{}\n" + orjson.dumps(other) + b"\n"
            several = place.client.post(f"/{index}/_msearch", content=lines, headers=LINES)
            assert several.status_code == 413
            assert "the request has" in several.json()["error"]["reason"]
