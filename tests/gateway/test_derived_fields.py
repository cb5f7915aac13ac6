"""Semantic and hybrid queries that name the embedded text by an alias of its field or by the target of a `copy_to`."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from es_sbert.encoder.encoder import Encoder
from es_sbert.engines.engine_info import EngineType
from es_sbert.engines.rest import Json
from tests.engine.ingest_support import load, open_engine, sentences, write_jsonl
from tests.gateway.conftest import tiny_gateway

PROPERTIES: Json = {
    "text": {"type": "text", "copy_to": "all", "fields": {"raw": {"type": "keyword"}}},
    "id": {"type": "keyword", "copy_to": "ids"},
    "all": {"type": "text"},
    "ids": {"type": "text"},
    "o": {"properties": {"headline": {"type": "alias", "path": "text"}}},
    "exact": {"type": "alias", "path": "text.raw"},
    "everything": {"type": "alias", "path": "all"},
    "number": {"type": "alias", "path": "ids"},
    "vectors": {"type": "alias", "path": "embedding"},
}
# No document has one of these words: every hit is semantic.
WORDS = "zebra quagga"


@pytest.fixture(scope="module")
def client(engine_url: str, tiny: Path) -> Iterator[httpx.Client]:
    with tiny_gateway(engine_url, tiny) as url, httpx.Client(base_url=url, timeout=300, trust_env=False) as client:
        yield client


@pytest.fixture
def index(engine_url: str, index_name: str, tiny_encoder: Encoder, tmp_path: Path) -> str:
    with open_engine(engine_url) as engine:
        knn = {"index.knn": True} if engine.info.engine_type is EngineType.OPENSEARCH else {}
        mappings = {"properties": {name: field for name, field in PROPERTIES.items() if name != "vectors"}}
        engine.create_index(index_name, {"settings": knn, "mappings": mappings})
        path = write_jsonl(tmp_path / "docs.jsonl", [{"id": one["id"], "text": one["text"]} for one in sentences(5)])
        assert load(engine_url, tiny_encoder, index_name, path, dead=tmp_path / "dead", id_field="id").indexed == 5
        engine.put_mapping(index_name, {"properties": {"vectors": PROPERTIES["vectors"]}})
    return index_name


def found(client: httpx.Client, index: str, query: Json, mode: str = "hybrid", **body: object) -> int:
    answer = client.post(f"/{index}/_search", json={"query": query, **body}, headers={"X-Es-Sbert": mode})
    answer.raise_for_status()
    return len(answer.json()["hits"]["hits"])


@pytest.mark.parametrize("field", ["text", "all", "o.headline", "exact", "everything", "text.raw", "al*", "o.h*"])
def test_full_text_query_becomes_hybrid(client: httpx.Client, index: str, field: str) -> None:
    several = {"multi_match": {"query": WORDS, "fields": [f"{field}^2"]}}
    assert found(client, index, several) == 5
    assert found(client, index, several, "on") == 0
    if "*" not in field:
        assert found(client, index, {"match": {field: WORDS}}) == 5


def test_field_without_embedded_text_stays_as_it_is(client: httpx.Client, index: str) -> None:
    for field in ("id", "ids", "number"):
        assert found(client, index, {"match": {field: WORDS}}) == 0


def test_semantic_query_names_the_text_by_another_field(client: httpx.Client, index: str) -> None:
    for field in ("text", "all", "o.headline", "everything", "embedding", "vectors"):
        assert found(client, index, {"semantic": {"field": field, "query": WORDS}}, "on") == 5, field


def test_native_query_names_the_vectors_by_an_alias(engine_url: str, client: httpx.Client, index: str) -> None:
    with open_engine(engine_url) as engine:
        elastic = engine.info.engine_type is EngineType.ELASTICSEARCH
    for field in ("embedding", "vectors"):
        builder = {"text_embedding": {"model_text": WORDS}}
        knn: Json = {"knn": {"field": field, "query_vector_builder": builder, "k": 5, "num_candidates": 10}}
        neural: Json = {"neural": {field: {"query_text": WORDS, "k": 5}}}
        assert found(client, index, knn if elastic else neural, "on") == 5, field
