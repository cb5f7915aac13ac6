"""OpenSearch's own `text_embedding` pipeline with vectors of `es-sbert serve`, as docs/opensearch-ml.md shows it."""

from __future__ import annotations

import json
import re
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx

from benchmarks.encode_peers.measure import ContenderFailed
from es_sbert.config import DEFAULT_VECTOR_FIELD
from es_sbert.engines.engine import Engine
from es_sbert.engines.engine_info import EngineType

PIPELINE = "ingest-peers"
BATCH_SIZE = 64  # as docs/opensearch-ml.md recommends
_PLUGINS = {"opensearch-ml", "opensearch-neural-search"}
_START_SECONDS = 120


@dataclass(frozen=True)
class Gateway:
    """A running `es-sbert serve`.

    Attributes:
        pid: Of its process.
        start_seconds: Until it was ready.
    """

    pid: int
    start_seconds: float


def has_ml_pipeline(engine: Engine) -> bool:
    """Whether the engine is OpenSearch with ml-commons and neural-search."""
    if engine.info.engine_type is not EngineType.OPENSEARCH:
        return False
    nodes = (engine.request_api("/_nodes/plugins", {"filter_path": "nodes.*.plugins.name"}) or {}).get("nodes", {})
    return all({plugin["name"] for plugin in node["plugins"]} >= _PLUGINS for node in nodes.values())


@contextmanager
def text_embedding_pipeline(engine: Engine, model: str, variables: Mapping[str, str], log: Path) -> Iterator[Gateway]:
    """A gateway and the pipeline `PIPELINE` that embeds with it; both are removed at the end.

    Args:
        variables: Environment variables of the gateway.
        log: File for what it prints.

    Raises:
        ContenderFailed: the gateway did not start, or the engine refused a part of the pipeline.
    """
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = [sys.executable, "-m", "es_sbert", "serve", "--upstream", engine.info.url, "--port", str(port)]
    begin = time.perf_counter()
    with log.open("ab") as file:
        process = subprocess.Popen(
            [*command, "--model", model, "--device", "cpu"], stdout=file, stderr=file, env=variables
        )
    try:
        _wait_until_ready(process, f"http://127.0.0.1:{port}/readyz")
        start_seconds = time.perf_counter() - begin
        with _pipeline(engine, model, f"http://127.0.0.1:{port}/v1/embeddings"):
            yield Gateway(process.pid, start_seconds)
    finally:
        process.terminate()
        process.wait()


def _wait_until_ready(process: subprocess.Popen[bytes], url: str) -> None:
    end = time.monotonic() + _START_SECONDS
    while time.monotonic() < end and process.poll() is None:
        try:
            if httpx.get(url, trust_env=False).is_success:
                return
        except httpx.TransportError:
            pass
        time.sleep(0.1)
    raise ContenderFailed("es-sbert serve did not start")


@contextmanager
def _pipeline(engine: Engine, model: str, url: str) -> Iterator[None]:
    # Transient: what the cluster keeps stays as it is.
    settings = {
        "plugins.ml_commons.only_run_on_ml_node": False,
        "plugins.ml_commons.connector.private_ip_enabled": True,
        "plugins.ml_commons.trusted_connector_endpoints_regex": [f"^{re.escape(url)}$"],
    }
    removed: list[tuple[str, str]] = []
    _ask(engine, "PUT", "/_cluster/settings", {"transient": settings})
    try:
        connector = _ask(engine, "POST", "/_plugins/_ml/connectors/_create", connector_body(model, url))["connector_id"]
        removed.append(("DELETE", f"/_plugins/_ml/connectors/{connector}"))
        body = {"name": model, "function_name": "remote", "connector_id": connector}
        registered = _ask(engine, "POST", "/_plugins/_ml/models/_register", body, deploy="true")["model_id"]
        place = f"/_plugins/_ml/models/{registered}"
        removed += [("DELETE", place), ("POST", f"{place}/_undeploy")]
        _ask(engine, "PUT", f"/_ingest/pipeline/{PIPELINE}", pipeline_body(registered))
        removed.append(("DELETE", f"/_ingest/pipeline/{PIPELINE}"))
        yield
    finally:
        for method, path in reversed(removed):
            engine.send(method, path)
        _ask(engine, "PUT", "/_cluster/settings", {"transient": dict.fromkeys(settings)})


def _ask(engine: Engine, method: str, path: str, body: Mapping[str, Any], **params: str) -> Any:
    response = engine.send(method, path, params, json.dumps(body).encode())
    if not 200 <= response.status < 300:
        raise ContenderFailed(f"{method} {path}: {response.status} {json.dumps(response.body)[:300]}")
    return response.body


def connector_body(model: str, url: str) -> dict[str, Any]:
    """The connector to the gateway."""
    return {
        "name": PIPELINE,
        "description": "Sentence vectors by the es-sbert gateway",
        "version": 1,
        "protocol": "http",
        "parameters": {"model": model},
        "credential": {"key": "none"},
        "actions": [
            {
                "action_type": "predict",
                "method": "POST",
                "url": url,
                "headers": {"Content-Type": "application/json", "Authorization": "Bearer ${credential.key}"},
                "request_body": '{"input": ${parameters.input}, "model": "${parameters.model}"}',
                "pre_process_function": "connector.pre_process.openai.embedding",
                "post_process_function": "connector.post_process.openai.embedding",
            }
        ],
    }


def pipeline_body(model_id: str) -> dict[str, Any]:
    """The pipeline that embeds `text`."""
    field_map = {"text": DEFAULT_VECTOR_FIELD}
    processor = {"model_id": model_id, "field_map": field_map, "batch_size": BATCH_SIZE}
    return {"processors": [{"text_embedding": processor}]}
