"""An index whose vectors were adopted, behind the gateway: searched, and its documents embedded as they are written."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import httpx
import orjson
import pytest

from es_sbert.encoder.encoder import Encoder
from es_sbert.engines.engine_info import EngineType
from es_sbert.index.adopt import adopt_vectors, read_adoptable_field
from es_sbert.index.document_vectors import text_hash
from es_sbert.index.text_template import TextTemplate
from tests.engine.ingest_support import contents, open_engine, same_vectors, vector_of
from tests.engine.vectors import vector_value
from tests.gateway.conftest import tiny_gateway

TITLES = ["a man plays guitar", "the cat sleeps", "a cat on the mat", "the man sleeps on a guitar"]


@pytest.fixture
def client(engine_url: str, tiny: Path) -> Iterator[httpx.Client]:
    with tiny_gateway(engine_url, tiny) as url, httpx.Client(base_url=url, timeout=300, trust_env=False) as client:
        yield client


def test_adopted_index_search_and_write_through_gateway(
    engine_url: str, index_name: str, tiny_encoder: Encoder, client: httpx.Client
) -> None:
    with open_engine(engine_url) as engine:
        elastic = engine.info.engine_type is EngineType.ELASTICSEARCH
        method = {"name": "hnsw", "engine": "lucene", "space_type": "cosinesimil"}
        vector = (
            {"type": "dense_vector", "dims": 16}
            if elastic
            else {"type": "knn_vector", "dimension": 16, "method": method}
        )
        settings = {} if elastic else {"index.knn": True}
        properties = {"vector": vector, "title": {"type": "text"}}
        engine.create_index(index_name, {"settings": settings, "mappings": {"properties": properties}})
        lines: list[dict[str, object]] = []
        for row, made in enumerate(tiny_encoder.encode(TITLES, "document")):
            lines += [{"index": {"_id": str(row)}}, {"title": TITLES[row], "vector": vector_value(engine.info, made)}]
        assert all(r.ok for r in engine.bulk(index_name, b"".join(orjson.dumps(line) + b"\n" for line in lines)))
        engine.refresh(index_name)
        field = read_adoptable_field(engine, index_name, "vector", TextTemplate.parse("{title}"))
        assert adopt_vectors(engine, field, tiny_encoder).exit_code == 0

    def search(text: str) -> list[str]:
        answer = client.post(
            f"/{index_name}/_search", json={"query": {"match": {"semantic": {"query": text}}}, "size": 5}
        )
        assert answer.status_code == 200, answer.text
        return [hit["_id"] for hit in answer.json()["hits"]["hits"]]

    assert set(search("the cat sleeps")) == {"0", "1", "2", "3"}
    # A text that changes gets another vector; one that is written back as it was keeps its own.
    changed = {"doc": {"title": "a query on the mat"}}
    assert client.post(f"/{index_name}/_update/1?refresh=true", json=changed).status_code == 200
    assert client.post(f"/{index_name}/_update/2?refresh=true", json={"doc": {"title": TITLES[2]}}).status_code == 200
    held = contents(engine_url, index_name)
    assert held["1"]["vector_meta"]["text_hash"] == text_hash("a query on the mat")
    expected = tiny_encoder.encode(["a query on the mat", TITLES[2]], "document")
    assert same_vectors(vector_of(held["1"], "vector"), expected[0])
    assert same_vectors(vector_of(held["2"], "vector"), expected[1])
