"""Documents that an application reads, changes and writes back, in every form in which it may have read them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import httpx
import pytest

from es_sbert.encoder.encoder import Encoder
from es_sbert.engines.engine_info import EngineType
from es_sbert.index.document_vectors import text_hash
from es_sbert.index.mapping import index_body
from tests.engine.ingest_support import contents, open_engine, same_vectors, vector_of
from tests.gateway.writes.support import assert_vector, of_model

SYNTHETIC = {"index.mapping.source.mode": "synthetic"}
LOGSDB = {"index.mode": "logsdb"}
KEPT = SYNTHETIC | {"index.mapping.synthetic_source_keep": "arrays"}


@pytest.fixture
def make_index(engine_url: str, fresh_index: Callable[[str], str], tiny_encoder: Encoder) -> Callable[..., str]:
    """A function that creates an index with a vector field."""

    def create(settings: dict[str, Any], **mappings: Any) -> str:
        name = fresh_index(engine_url)
        with open_engine(engine_url) as engine:
            if settings and engine.info.engine_type is not EngineType.ELASTICSEARCH:
                pytest.skip("only Elasticsearch has a synthetic source")
            body = index_body(engine.info.engine_type, "embedding", of_model(tiny_encoder))
            body["settings"] |= settings
            body["mappings"] |= mappings
            engine.create_index(name, body)
        return name

    return create


WITHOUT_META = {"_source": {"excludes": ["embedding_meta"]}}


@pytest.mark.parametrize("settings", [{}, SYNTHETIC, KEPT, LOGSDB], ids=["stored", "synthetic", "kept", "logsdb"])
def test_document_written_back_after_a_partial_update_gets_a_new_vector(
    engine_url: str,
    client: httpx.Client,
    make_index: Callable[..., str],
    tiny_encoder: Encoder,
    settings: dict[str, Any],
) -> None:
    index = make_index(settings)
    put(client, index, "a man plays guitar")
    client.post(f"/{index}/_update/1", json={"doc": {"text": "a storm at sea"}}).raise_for_status()
    source = contents(engine_url, index)["1"]
    assert_vector(source, tiny_encoder, "a storm at sea")
    del source["_version"]
    for text in ("the cat sleeps", "bread in the kitchen"):
        put(client, index, text, source)
        assert_vector(contents(engine_url, index)["1"], tiny_encoder, text)


@pytest.mark.parametrize(
    ("settings", "mapped"), [({}, {}), (LOGSDB, {}), ({}, WITHOUT_META)], ids=["stored", "logsdb", "excluded"]
)
def test_vector_copied_without_its_metadata_is_replaced(
    engine_url: str,
    client: httpx.Client,
    make_index: Callable[..., str],
    tiny_encoder: Encoder,
    settings: dict[str, Any],
    mapped: dict[str, Any],
) -> None:
    index = make_index(settings, **mapped)
    put(client, index, "a man plays guitar")
    copied = {"embedding": contents(engine_url, index)["1"]["embedding"]}
    put(client, index, "the cat sleeps", copied)
    now = contents(engine_url, index)["1"]
    assert_vector(now | {"embedding_meta": {"text_hash": text_hash("the cat sleeps")}}, tiny_encoder, "the cat sleeps")
    assert bool(mapped) or now["embedding_meta"]["text_hash"] == text_hash("the cat sleeps")
    own = tiny_encoder.encode(["bread in the kitchen"])[0]
    put(client, index, "another text", {"embedding": own.tolist()})
    now = contents(engine_url, index)["1"]
    assert now.get("embedding_meta") is None
    assert same_vectors(vector_of(now), own)


def put(client: httpx.Client, index: str, text: str, other: dict[str, Any] | None = None) -> None:
    document = (other or {}) | {"text": text, "@timestamp": "2026-01-01T00:00:00Z"}
    client.put(f"/{index}/_doc/1", json=document).raise_for_status()
