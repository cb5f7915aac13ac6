"""Health and metrics."""

from __future__ import annotations

import re
from pathlib import Path

import orjson
from prometheus_client import generate_latest
from prometheus_client.parser import text_string_to_metric_families

from es_sbert.gateway.metrics import GatewayMetrics
from es_sbert.gateway.settings import SearchLogSettings
from tests.engine.ingest_support import wait_until
from tests.gateway import patient
from tests.gateway.echo import Echo
from tests.gateway.serving import gateway


def test_readyz_lists_what_is_ready(tiny: Path) -> None:
    with Echo() as engine, gateway(engine.url, tiny) as url:
        wait_until(lambda: patient.get(f"{url}/readyz").status_code == 200)
        ready = {"status": "ready", "engine": "ok", "model": "ok", "capacity": "ok", "server": "ok"}
        assert patient.get(f"{url}/readyz").json() == ready


def test_every_metric_is_documented() -> None:
    page = (Path(__file__).parents[2] / "docs/operations.md").read_text(encoding="utf-8")
    documented = set(re.findall(r"^\| `(es_sbert_gateway_\w+)`", page, re.MULTILINE))
    families = [family for family in GatewayMetrics().registry.collect() if family.name.startswith("es_sbert_")]
    assert documented == {f"{family.name}_total" if family.type == "counter" else family.name for family in families}


def test_metrics_omit_models_only_named_by_mappings() -> None:
    metrics = GatewayMetrics(["tiny"])
    for model in ("tiny", "named by a mapping", "another one"):
        metrics.model_loaded(model, f"fingerprint of {model}")
    shown = generate_latest(metrics.registry).decode()
    assert 'model_loaded{fingerprint="fingerprint of tiny",model="tiny"} 1.0' in shown
    assert 'model_loaded{fingerprint="",model="other"} 2.0' in shown
    assert "mapping" not in shown


OF_PAGE = {"x-es-sbert-page": "own"}


def test_searches_that_the_page_makes_itself_are_no_searches_in_metrics_and_log(tiny: Path, tmp_path: Path) -> None:
    log = SearchLogSettings(tmp_path / "searches.jsonl", False, "here")
    with Echo() as engine, gateway(engine.url, tiny, search_log=log) as url:
        for target, headers in (("docs/_search", {}), ("own/_search", OF_PAGE), ("counted/_count", OF_PAGE)):
            patient.post(f"{url}/{target}", json={}, headers={"x-es-sbert": "off", **headers})
        shown = patient.get(f"{url}/metrics").text
    # Only the searches of the page have this mark; on anything else it has no effect.
    assert 'requests_total{kind="search",status="200"} 2.0' in shown
    assert 'requests_total{kind="ui",status="200"} 1.0' in shown
    assert [orjson.loads(line)["index"] for line in log.path.read_bytes().splitlines()] == ["docs", "counted"]


def test_metrics_count_requests(tiny: Path) -> None:
    with Echo() as engine, gateway(engine.url, tiny) as url, patient.client(url) as http:
        for texts in (["cat", "man"], ["man"], "mat", []):
            http.post("/v1/embeddings", json={"input": texts})
        http.get("/v1/models")
        shown = http.get("/metrics")
        assert shown.headers["content-type"].startswith("text/plain")
    samples = {
        (sample.name.removeprefix("es_sbert_gateway_"), *sample.labels.values()): sample.value
        for family in text_string_to_metric_families(shown.text)
        for sample in family.samples
    }
    assert samples["requests_total", "embeddings", "200"] == 3
    assert samples["requests_total", "embeddings", "400"] == 1
    assert samples["requests_total", "models", "200"] == 1
    assert samples["request_seconds_count", "embeddings"] == 4
    assert samples["vectors_total", "model"] == 3
    assert samples["vectors_total", "cache"] == 1
    assert samples["batch_texts_count",] == 2
    assert samples["batch_texts_sum",] == 3
    assert samples["requests_running",] == samples["texts_waiting",] == 0
    assert [value for name, value in samples.items() if name[0] == "model_loaded"] == [1]
