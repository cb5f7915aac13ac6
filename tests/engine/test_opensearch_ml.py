"""OpenSearch's own `neural` search and `text_embedding` pipeline, with vectors of the gateway; as the docs show it."""

from __future__ import annotations

import re
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest

from es_sbert.bundle.sentence_model import read_sentence_model
from es_sbert.encoder.encoder import Encoder
from es_sbert.exporters.opensearch_ml import export_opensearch_ml
from es_sbert.gateway.settings import ModelSettings
from tests.docs_requests import shown_requests
from tests.gateway.embedding_app import embedding_app
from tests.gateway.serving import served
from tests.tiny import write_tiny_bert

PAGE = Path(__file__).parents[2] / "docs/opensearch-ml.md"


@pytest.fixture(scope="module")
def gateway() -> Iterator[str]:
    """Address of the gateway's own paths, with the default model."""
    with served(embedding_app(ModelSettings())) as url:
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
    words = {
        "/articles": f"/{index}",
        "127\\\\.0\\\\.0\\\\.1:9280": re.escape(gateway.removeprefix("http://")).replace("\\", "\\\\"),
        "http://127.0.0.1:9280": gateway,
    }
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


def test_model_package_is_registered(ml: httpx.Client) -> None:
    """Deploying it needs libtorch from the network (docs/opensearch-ml.md)."""
    with tempfile.TemporaryDirectory() as place:
        Path(place).chmod(0o755)  # the server is another user
        folder = write_tiny_bert(Path(place) / "tiny", prompts={"query": "query : "})
        model = read_sentence_model(folder, f"test/{Path(place).name}")
        request = export_opensearch_ml(model, Path(place) / "package")
        # For the trial only: where this is off, ml-commons takes models of OpenSearch's own list.
        settings = {
            "persistent": {
                "plugins.ml_commons.allow_registering_model_via_url": True,
                "plugins.ml_commons.only_run_on_ml_node": False,
            }
        }
        ml.put("/_cluster/settings", json=settings).raise_for_status()
        json_body = {"content-type": "application/json"}
        begun = ml.post("/_plugins/_ml/models/_register", content=request.read_bytes(), headers=json_body).json()
        task = ml.get(f"/_plugins/_ml/tasks/{begun['task_id']}").json()
        end = time.monotonic() + 600
        while task["state"] in ("CREATED", "RUNNING") and time.monotonic() < end:
            time.sleep(0.2)
            task = ml.get(f"/_plugins/_ml/tasks/{begun['task_id']}").json()
        assert task["state"] == "COMPLETED", task
        known = ml.get(f"/_plugins/_ml/models/{task['model_id']}").json()
        assert known["model_state"] == "REGISTERED"
        assert known["model_format"] == "ONNX"
        assert known["model_config"]["embedding_dimension"] == 16
        assert known["model_config"]["pooling_mode"] == "NONE"
        assert known["model_config"]["query_prefix"] == "query : "
