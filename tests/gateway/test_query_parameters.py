"""Parameters that callers write into semantic queries have their effect on each engine."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import httpx
import pytest

from es_sbert.encoder.encoder import Encoder
from es_sbert.engines.rest import Json
from tests.conftest import also_opensearch2
from tests.gateway import patient
from tests.gateway.conftest import loaded_index, tiny_gateway

QUERY = "the cat sleeps"
TEXTS = [
    "a man plays guitar . the cat sleeps on the mat . a guitar sleeps on a man .",
    "the cat plays . the man sleeps on the guitar . a cat sleeps on the mat .",
    "a mat plays the guitar . the guitar plays the cat . the man plays on .",
]


@dataclass(frozen=True)
class GatewayIndices:
    """Indices behind a gateway.

    Attributes:
        gateway: Its address.
        passages: An index with several vectors for each document.
        quantized: An index with one quantized vector for each document.
        is_opensearch: Whether the engine is OpenSearch.
    """

    gateway: str
    passages: str
    quantized: str
    is_opensearch: bool

    def post(self, index: str, body: Json) -> httpx.Response:
        return patient.post(f"{self.gateway}/{index}/_search", json=body)

    def hits(self, index: str, body: Json) -> list[Json]:
        answer = self.post(index, body)
        assert answer.status_code == 200, answer.text
        hits: list[Json] = answer.json()["hits"]["hits"]
        return hits


@pytest.fixture(scope="module")
def searched(engine_url: str, tiny: Path, tiny_encoder: Encoder) -> Iterator[GatewayIndices]:
    documents = [{"id": f"d{number}", "text": text} for number, text in enumerate(TEXTS)]
    with (
        loaded_index(engine_url, tiny_encoder, documents, passages=12, passage_overlap=0) as passages,
        loaded_index(engine_url, tiny_encoder, documents, index_type="int8_hnsw") as quantized,
        tiny_gateway(engine_url, tiny, k=3, num_candidates=100) as gateway,
    ):
        elastic = "x-elastic-product" in patient.get(f"{engine_url}/_cluster/health").headers
        yield GatewayIndices(gateway, passages, quantized, not elastic)


@also_opensearch2
def test_each_query_returns_its_nearest_passage(searched: GatewayIndices) -> None:
    near: list[Json] = [{"match": {"semantic": text}} for text in (QUERY, "a guitar")]
    hits = searched.hits(searched.passages, {"query": {"bool": {"should": near}}})
    assert len(hits) == len(TEXTS)
    for hit in hits:
        passages = hit["inner_hits"]
        assert passages.keys() == {"embedding", "embedding_2"}
        best = [passages[name]["hits"]["hits"][0]["_score"] for name in passages]
        assert hit["_score"] == pytest.approx(sum(best), abs=1e-5)


def test_section_knn_is_refused_by_opensearch_itself(searched: GatewayIndices) -> None:
    builder = {"text_embedding": {"model_text": QUERY}}
    section = {"field": "embedding", "k": 1, "num_candidates": 10, "query_vector_builder": builder}
    answer = searched.post(searched.quantized, {"knn": section})
    assert answer.status_code == (400 if searched.is_opensearch else 200)
    assert searched.is_opensearch == ("Unknown key for a START_OBJECT in [knn]" in answer.text)


YAML = "query:\n  match:\n    semantic: the cat sleeps\n"
CBOR = b"\xa1\x65query\xa1\x65match\xa1\x68semantic\x63cat"


def test_a_search_in_another_format_than_json_is_refused(searched: GatewayIndices) -> None:
    url = f"{searched.gateway}/{searched.quantized}/_search"

    def post(body: str | bytes, kind: str, **headers: str) -> httpx.Response:
        return patient.post(url, content=body, headers={"content-type": kind, "accept": "application/json", **headers})

    for body, kind in ((YAML, "application/yaml"), (CBOR, "application/cbor")):
        refused = post(body, kind)
        assert refused.status_code == 415
        assert refused.json()["error"]["type"] == "es_sbert_unsupported_media_type"
        assert "Send it as JSON" in refused.text
    parameters = {"source": YAML, "source_content_type": "application/yaml"}
    assert patient.get(url, params=parameters).status_code == 415
    assert post(YAML, "application/yaml", **{"x-es-sbert": "off"}).status_code == 200
