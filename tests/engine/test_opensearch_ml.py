"""OpenSearch's own `neural` search and `text_embedding` pipeline, with vectors of the gateway; as the docs show it."""

from __future__ import annotations

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


def test_opensearch_neural_query_and_pipeline_use_gateway(
    ml: httpx.Client, opensearch_ml_url: str, gateway: str, encoder: Encoder, fresh_index: Callable[[str], str]
) -> None:
    index = fresh_index(opensearch_ml_url)
    pattern = re.escape(gateway.removeprefix("http://")).replace("\\", "\\\\")
    words = {"/articles": f"/{index}", "127\\\\.0\\\\.0\\\\.1:9280": pattern, "http://127.0.0.1:9280": gateway}
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
