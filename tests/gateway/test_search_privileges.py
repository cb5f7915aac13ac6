"""Who may do what through the gateway, on a real Elasticsearch with users and API keys."""

from __future__ import annotations

import base64
import ssl
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
from pydantic import SecretStr

from es_sbert.config import EngineSettings
from es_sbert.encoder.encoder import Encoder
from es_sbert.engines.connect import connect
from es_sbert.engines.rest import Json
from es_sbert.gateway.app import Gateway
from es_sbert.gateway.settings import GatewaySettings, SemanticSettings
from es_sbert.index.vector_field import ensure_vector_field, request_vector_field
from tests.engine.secured import PASSWORD, Secured
from tests.gateway.conftest import tiny_settings
from tests.gateway.serving import served

INDEX = "shelf"
SEMANTIC: Json = {"query": {"match": {"semantic": "the cat sleeps"}}}


@pytest.fixture(scope="module")
def shelf(secured_es8: Secured, tiny_encoder: Encoder) -> Iterator[Secured]:
    """The server, with a document in an index of two shards, about which the gateway has a question."""
    engine = connect(owner(secured_es8))
    try:
        ensure_vector_field(
            engine,
            INDEX,
            request_vector_field(tiny_encoder, text_template="{text}"),
            shards=2,
        )
    finally:
        engine.close()
    [vector] = tiny_encoder.encode(["the cat"], "document")
    secured_es8.ask("PUT", f"/{INDEX}/_doc/1?refresh=true", {"text": "the cat", "embedding": vector.tolist()})
    yield secured_es8
    secured_es8.ask("DELETE", f"/{INDEX}")


def nobody(server: Secured) -> EngineSettings:
    """A gateway without rights of its own."""
    return EngineSettings(url=server.url, ca_certs=server.ca_certs, username=None, password=None, api_key=None)


def owner(server: Secured) -> EngineSettings:
    """A gateway that may do all."""
    return EngineSettings(url=server.url, ca_certs=server.ca_certs, username="elastic", password=SecretStr(PASSWORD))


def search(upstream: EngineSettings, tiny: Path, key: str | None, body: Json = SEMANTIC) -> httpx.Response:
    settings = GatewaySettings(upstream=upstream, models=tiny_settings(tiny), semantic=SemanticSettings(k=1))
    headers = {} if key is None else {"authorization": f"ApiKey {key}"}
    with served(Gateway(settings)) as url:
        return httpx.post(f"{url}/{INDEX}/_search", json=body, headers=headers, timeout=120)


def test_caller_with_view_index_metadata_can_search(shelf: Secured, tiny: Path) -> None:
    key = shelf.api_key(index={INDEX: ["read", "view_index_metadata"]})
    answer = search(nobody(shelf), tiny, key)
    assert [hit["_id"] for hit in answer.json()["hits"]["hits"]] == ["1"]


def test_caller_without_view_index_metadata_gets_403_with_remedy(shelf: Secured, tiny: Path) -> None:
    key = shelf.api_key(index={INDEX: ["read"]})
    answer = search(nobody(shelf), tiny, key)
    assert answer.status_code == 403
    assert "view_index_metadata" in answer.json()["error"]["reason"]


@pytest.mark.parametrize("query", [{"match": {"text": "a semantic cat"}}, {"query_string": {"query": "semantic cat"}}])
def test_non_semantic_search_needs_no_view_index_metadata(shelf: Secured, tiny: Path, query: Json) -> None:
    key = shelf.api_key(index={INDEX: ["read"]})
    answer = search(nobody(shelf), tiny, key, {"query": query})
    assert [hit["_id"] for hit in answer.json()["hits"]["hits"]] == ["1"]


def test_gateway_credentials_read_mappings_for_callers(shelf: Secured, tiny: Path) -> None:
    key = shelf.api_key(index={INDEX: ["read"]})
    answer = search(owner(shelf), tiny, key)
    assert [hit["_id"] for hit in answer.json()["hits"]["hits"]] == ["1"]


@pytest.mark.parametrize("asks", ["a stranger", "nobody"])
def test_gateway_credentials_are_not_used_for_searches(shelf: Secured, tiny: Path, asks: str) -> None:
    key = None if asks == "nobody" else shelf.api_key(index={"another": ["read"]})
    with httpx.Client(verify=ssl.create_default_context(cafile=shelf.ca_certs), timeout=120) as client:
        headers = {} if key is None else {"authorization": f"ApiKey {key}"}
        direct = client.post(f"{shelf.url}/{INDEX}/_search", json={}, headers=headers, timeout=60)
    answer = search(owner(shelf), tiny, key)
    assert answer.status_code == direct.status_code == (401 if key is None else 403)
    assert answer.json()["error"]["type"] == direct.json()["error"]["type"] == "security_exception"
    assert "hits" not in answer.json()


def test_dead_key_of_the_gateway_is_an_outage(shelf: Secured, tiny: Path, caplog: pytest.LogCaptureFixture) -> None:
    key = shelf.api_key(cluster=["monitor"], index={INDEX: ["view_index_metadata"]})
    writer = {"authorization": f"ApiKey {shelf.api_key(index={INDEX: ['all']})}"}
    own = EngineSettings(url=shelf.url, ca_certs=shelf.ca_certs, api_key=SecretStr(key))
    settings = GatewaySettings(upstream=own, models=tiny_settings(tiny), semantic=SemanticSettings(k=1))
    others: Json = {"query": {"bool": {"must_not": [SEMANTIC["query"]]}}}
    requests: list[tuple[str, str, Json]] = [
        ("POST", "_search", SEMANTIC),
        ("POST", "_count", SEMANTIC),
        ("POST", "_delete_by_query", others),
        ("PUT", "_doc/2", {"text": "the cat sleeps"}),
        ("POST", "_update/1", {"doc": {"text": "the cat sleeps"}}),
    ]
    with served(Gateway(settings)) as url, httpx.Client(timeout=120, headers=writer) as client:
        assert client.get(f"{url}/readyz").json()["engine"] == "ok"
        shelf.ask("DELETE", "/_security/api_key", {"ids": [base64.b64decode(key).decode().partition(":")[0]]})
        for method, path, body in requests:
            answer = client.request(method, f"{url}/{INDEX}/{path}", json=body)
            assert (answer.status_code, answer.json()["error"]["type"]) == (503, "es_sbert_credentials_refused"), path
        # What needs no mapping goes on.
        assert client.post(f"{url}/{INDEX}/_search", json={"query": {"match": {"text": "cat"}}}).status_code == 200
        assert client.get(f"{url}/{INDEX}/_doc/1").json()["_source"]["text"] == "the cat"
        assert client.get(f"{url}/{INDEX}/_doc/2").status_code == 404
        ready = client.get(f"{url}/readyz")
        assert (ready.status_code, "own credentials" in ready.json()["engine"]) == (503, True)
        assert 'es_sbert_gateway_upstream_errors_total{reason="credentials"} 5.0' in client.get(f"{url}/metrics").text
    assert "refuses the gateway's own credentials" in caplog.text
