"""OpenSearch's own `neural` search and `text_embedding` pipeline, with vectors of the gateway; as the docs show it."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest

from es_sbert.encoder.encoder import Encoder
from tests.docs_requests import shown_requests
from tests.gateway import serving

pytestmark = pytest.mark.long

PAGE = Path(__file__).parents[2] / "docs/opensearch-ml.md"


@pytest.fixture(scope="module")
def gateway(opensearch_ml_url: str) -> Iterator[str]:
    """Address of a gateway with the default model."""
    with serving.gateway(opensearch_ml_url) as url:
        yield url


@pytest.fixture(scope="module")
def ml(opensearch_ml_url: str) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=opensearch_ml_url, trust_env=False, timeout=120) as client:
        yield client


def vectors_made(gateway: str) -> float:
    shown = httpx.get(f"{gateway}/metrics", trust_env=False).text
    found = re.search(r'^es_sbert_gateway_requests_total\{kind="embeddings",status="200"\} (\S+)$', shown, re.MULTILINE)
    return float(found[1]) if found else 0.0


def gateway_words(gateway: str) -> dict[str, str]:
    """Address of the gateway in the page, as it is and in a pattern → its address in the test."""
    pattern = re.escape(gateway.removeprefix("http://")).replace("\\", "\\\\")
    return {"127\\\\.0\\\\.0\\\\.1:9280": pattern, "http://127.0.0.1:9280": gateway}


def test_opensearch_neural_query_and_pipeline_use_gateway(
    ml: httpx.Client, opensearch_ml_url: str, gateway: str, encoder: Encoder, fresh_index: Callable[[str], str]
) -> None:
    index = fresh_index(opensearch_ml_url)
    words = {"/articles": f"/{index}", **gateway_words(gateway)}
    answer: dict[str, Any] = {}
    for shown in shown_requests(PAGE):
        if "_inference" in shown.path:
            continue  # Elasticsearch's
        request = shown.filled(words)
        response = ml.request(
            request.method, request.path, content=request.body, headers={"content-type": request.content_type}
        )
        answer = response.json()
        assert response.status_code < 300, answer
        words |= {name.upper(): answer[name] for name in ("connector_id", "model_id") if name in answer}
        if "_bulk" in request.path:
            assert answer["errors"] is False, answer
            # Three texts, one request: the pipeline sends them together, and so does the gateway.
            assert vectors_made(gateway) == 1
    # It shares no word with the document.
    assert [hit["_id"] for hit in answer["hits"]["hits"]] == ["1"]
    source = ml.get(f"/{index}/_doc/1").json()["_source"]
    expected = encoder.encode([source["text"]])[0]
    np.testing.assert_allclose(np.array(source["embedding"]), expected, atol=1e-5)


def test_semantic_field_uses_gateway_and_takes_another_model_silently(
    ml: httpx.Client, opensearch_ml_url: str, gateway: str, fresh_index: Callable[[str], str]
) -> None:
    """docs/alternatives.md says what a new `model_id` does to the vectors that are there."""

    def send(method: str, path: str, body: Any) -> dict[str, Any]:
        content = body if isinstance(body, str) else json.dumps(body)
        answer = ml.request(method, path, content=content, headers={"content-type": "application/json"})
        assert answer.status_code < 300, answer.text
        return dict(answer.json())

    settings, connector = (request.filled(gateway_words(gateway)) for request in shown_requests(PAGE)[:2])
    send(settings.method, settings.path, settings.body)
    connector_id = send(connector.method, connector.path, connector.body)["connector_id"]
    config = {
        "model_type": "TEXT_EMBEDDING",
        "embedding_dimension": 384,
        "framework_type": "SENTENCE_TRANSFORMERS",
        "additional_config": {"space_type": "cosinesimil"},
    }
    model = {"function_name": "remote", "connector_id": connector_id, "model_config": config}
    first, second = (
        send("POST", "/_plugins/_ml/models/_register?deploy=true", {"name": name, **model})["model_id"]
        for name in ("first", "second")
    )

    def field(model_id: str) -> dict[str, Any]:
        method = {"name": "hnsw", "engine": "lucene"}
        return {"type": "semantic", "model_id": model_id, "dense_embedding_config": {"method": method}}

    index = fresh_index(opensearch_ml_url)
    send("PUT", f"/{index}", {"settings": {"index.knn": True}, "mappings": {"properties": {"text": field(first)}}})
    for number, text in enumerate(("A doctor treats patients in a hospital.", "The band played songs until midnight.")):
        send("PUT", f"/{index}/_doc/{number}?refresh=true", {"text": text})
    neural = {"query": {"neural": {"text": {"query_text": "physician", "k": 1}}}}
    assert [hit["_id"] for hit in send("POST", f"/{index}/_search", neural)["hits"]["hits"]] == ["0"]
    # An unmodified application's query finds words only.
    words = {"query": {"match": {"text": "physician"}}}
    assert not send("POST", f"/{index}/_search", words)["hits"]["hits"]

    assert send("PUT", f"/{index}/_mapping", {"properties": {"text": field(second)}}) == {"acknowledged": True}
    stored = ml.get(f"/{index}/_doc/0").json()["_source"]["text_semantic_info"]
    assert stored["model"]["id"] == first
