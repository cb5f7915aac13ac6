"""What a writer must be allowed for its documents to get vectors, with API keys that have exactly that."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from urllib.parse import quote

import httpx
import pytest
from pydantic import SecretStr

from es_sbert.config import EngineSettings
from es_sbert.encoder.encoder import Encoder
from es_sbert.engines.engine_info import EngineType
from es_sbert.index.document_vectors import text_hash
from es_sbert.index.mapping import index_body
from tests.engine.secured import Secured
from tests.engine.vectors import field_of
from tests.gateway import patient, serving

INDEX = "docs-writes"


@pytest.fixture
def index(secured_es8: Secured, tiny_encoder: Encoder) -> Iterator[str]:
    meta = field_of(tiny_encoder.info, "{title}. {text}")
    secured_es8.ask("PUT", f"/{INDEX}", index_body(EngineType.ELASTICSEARCH, "embedding", meta))
    yield INDEX
    secured_es8.ask("DELETE", f"/{INDEX}")


def writer(url: str, key: str | None) -> httpx.Client:
    headers = {} if key is None else {"authorization": f"ApiKey {key}"}
    return patient.client(url, headers=headers)


def gateway(server: Secured, tiny: Path, **own: Any) -> Any:
    return serving.gateway(EngineSettings(url=server.url, ca_certs=server.ca_certs, **own), tiny)


def text_of(server: Secured, document: str) -> str | None:
    source = server.ask("GET", f"/{INDEX}/_doc/{document}")["_source"]
    meta = source.get("embedding_meta")
    return None if meta is None else meta["text_hash"]


def test_write_and_view_index_metadata_privileges_get_vectors(secured_es8: Secured, tiny: Path, index: str) -> None:
    key = secured_es8.api_key(index={INDEX: ["index", "view_index_metadata"]})
    with gateway(secured_es8, tiny) as url, writer(url, key) as client:
        body = {"title": "a man", "text": "plays"}
        assert client.put(f"/{index}/_doc/1", json=body).status_code == 201
        assert client.post(f"/{index}/_update/1", json={"doc": {"title": "a cat", "text": "sleeps"}}).status_code == 200
        assert text_of(secured_es8, "1") == text_hash("a cat. sleeps")
        # What else the text is made of may not be read: the update would leave another text's vector behind.
        answer = client.post(f"/{index}/_update/1", json={"doc": {"title": "a mat"}})
        assert (answer.status_code, answer.json()["error"]["type"]) == (403, "security_exception")
        assert "privilege read" in answer.json()["error"]["reason"]
        assert text_of(secured_es8, "1") == text_hash("a cat. sleeps")
    reader = secured_es8.api_key(index={INDEX: ["index", "view_index_metadata", "read"]})
    with gateway(secured_es8, tiny) as url, writer(url, reader) as client:
        assert client.post(f"/{index}/_update/1", json={"doc": {"title": "a mat"}}).status_code == 200
    assert text_of(secured_es8, "1") == text_hash("a mat. sleeps")


def test_write_only_key_gets_vectors_if_gateway_reads_mapping(secured_es8: Secured, tiny: Path, index: str) -> None:
    key = secured_es8.api_key(index={INDEX: ["index"]})
    body = {"title": "a man", "text": "plays"}
    with gateway(secured_es8, tiny) as url, writer(url, key) as client:
        assert client.put(f"/{index}/_doc/1", json=body).status_code == 201
        assert text_of(secured_es8, "1") is None
    own = SecretStr(secured_es8.api_key(index={INDEX: ["view_index_metadata"]}))
    with gateway(secured_es8, tiny, api_key=own) as url:
        with writer(url, key) as client:
            assert client.put(f"/{index}/_doc/1", json=body).status_code == 200
            assert text_of(secured_es8, "1") == text_hash("a man. plays")
        with writer(url, None) as nobody:
            assert nobody.put(f"/{index}/_doc/2", json=body).status_code == 401
        with writer(url, secured_es8.api_key(index={INDEX: ["read"]})) as reader:
            assert reader.put(f"/{index}/_doc/2", json=body).status_code == 403


def test_date_math_needs_the_privileges_of_what_it_resolves_to(secured_es8: Secured, tiny: Path, index: str) -> None:
    """Here an alias: a key that may write through it alone has no privileges for the name of its index."""
    alias, path = f"docs-{datetime.now(UTC):%Y}", f"/{quote('<docs-{now/d{yyyy}}>', safe='')}/_doc/1"
    secured_es8.ask("POST", "/_aliases", {"actions": [{"add": {"index": index, "alias": alias}}]})
    key = secured_es8.api_key(index={alias: ["index"]})
    own = SecretStr(secured_es8.api_key(index={"docs-*": ["view_index_metadata"]}))
    for body in ({"title": "a man", "text": "plays"}, {"title": "a cat", "text": "sleeps"}):
        with gateway(secured_es8, tiny, api_key=own) as url, writer(url, key) as client:
            assert client.put(path, json=body).is_success
            assert text_of(secured_es8, "1") == text_hash(f"{body['title']}. {body['text']}")


@pytest.mark.parametrize("has_own", [False, True])
def test_first_document_of_index_from_template_needs_manage_index_templates(
    secured_es8: Secured, tiny: Path, tiny_encoder: Encoder, has_own: bool
) -> None:
    name = f"test-{uuid.uuid4().hex[:12]}"
    names = {f"{name}-*": ["index", "create_index", "view_index_metadata"]}
    manager, writes = ["manage_index_templates"], {f"{name}-*": ["index", "create_index"]}
    own = SecretStr(secured_es8.api_key(cluster=manager, index=names)) if has_own else None
    key = secured_es8.api_key(index=writes) if has_own else secured_es8.api_key(cluster=manager, index=names)
    template = index_body(EngineType.ELASTICSEARCH, "embedding", field_of(tiny_encoder.info))
    body = {"index_patterns": [f"{name}-*"], "template": template}
    secured_es8.ask("PUT", f"/_index_template/{name}", body)
    try:
        with gateway(secured_es8, tiny, **({"api_key": own} if has_own else {})) as url, writer(url, key) as client:
            for created_by in (f"{name}-1", quote(f"<{name}-{{now/y{{yyyy}}}}>", safe="")):
                created = client.put(f"/{created_by}/_doc/1", json={"text": "a cat"})
                assert created.status_code == 201
                source = secured_es8.ask("GET", f"/{created.json()['_index']}/_doc/1")["_source"]
                assert source["embedding_meta"]["text_hash"] == text_hash("a cat")
                secured_es8.ask("DELETE", f"/{created.json()['_index']}")
    finally:
        secured_es8.ask("DELETE", f"/_index_template/{name}")
