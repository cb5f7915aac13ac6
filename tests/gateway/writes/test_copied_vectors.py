"""Documents that an application reads, changes and writes back, in every form in which it may have read them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import httpx
import pytest

from es_sbert.encoder.encoder import Encoder
from es_sbert.engines.engine_info import EngineType
from es_sbert.index.mapping import index_body
from tests.conftest import also_es8
from tests.engine.ingest_support import contents, open_engine
from tests.engine.vectors import field_of
from tests.gateway.writes.support import assert_vector

SYNTHETIC = {"index.mapping.source.mode": "synthetic"}
LOGSDB = {"index.mode": "logsdb"}
KEPT = SYNTHETIC | {"index.mapping.synthetic_source_keep": "arrays"}


@pytest.fixture
def make_index(engine_url: str, fresh_index: Callable[[str], str], tiny_encoder: Encoder) -> Callable[..., str]:
    def create(
        settings: dict[str, Any], properties: dict[str, Any] | None = None, text: str = "{text}", **mappings: Any
    ) -> str:
        name = fresh_index(engine_url)
        with open_engine(engine_url) as engine:
            if (settings or mappings == FLAT) and engine.info.engine_type is not EngineType.ELASTICSEARCH:
                pytest.skip("only Elasticsearch has a synthetic source, and mappings without objects")
            body = index_body(engine.info.engine_type, "embedding", field_of(tiny_encoder.info, text))
            body["settings"] |= settings
            body["mappings"] |= mappings
            body["mappings"]["properties"] |= properties or {}
            engine.create_index(name, body)
        return name

    return create


FLAT = {"subobjects": False}  # with a synthetic source, documents come back with dotted names


@pytest.mark.parametrize(
    ("settings", "mapped"),
    [({}, {}), (SYNTHETIC, {}), (KEPT, {}), (LOGSDB, FLAT)],
    ids=["stored", "synthetic", "kept", "logsdb-flat"],
)
def test_document_written_back_after_a_partial_update_gets_a_new_vector(
    engine_url: str,
    client: httpx.Client,
    make_index: Callable[..., str],
    tiny_encoder: Encoder,
    settings: dict[str, Any],
    mapped: dict[str, Any],
) -> None:
    index = make_index(settings, **mapped)
    put(client, index, "a man plays guitar")
    client.post(f"/{index}/_update/1", json={"doc": {"text": "a storm at sea"}}).raise_for_status()
    source = contents(engine_url, index)["1"]
    assert_vector(source, tiny_encoder, "a storm at sea")
    del source["_version"]
    for text in ("the cat sleeps", "bread in the kitchen"):
        put(client, index, text, source)
        assert_vector(contents(engine_url, index)["1"], tiny_encoder, text)


@pytest.mark.parametrize("source", [{"excludes": ["secret"]}, {"includes": ["text", "embedding*"]}], ids=str)
@also_es8
def test_update_loses_fields_that_source_lacks_and_keeps_a_current_vector(
    engine_url: str, client: httpx.Client, make_index: Callable[..., str], tiny_encoder: Encoder, source: dict[str, Any]
) -> None:
    index = make_index({}, {"secret": {"type": "keyword"}, "text": {"type": "text"}}, _source=source)
    for number in (1, 2):
        document = {"text": "a man plays guitar", "secret": "s"}
        client.put(f"/{index}/_doc/{number}", json=document).raise_for_status()
    client.post(f"/{index}/_update/1", json={"doc": {"text": "the cat sleeps"}}).raise_for_status()
    with open_engine(engine_url) as engine:
        engine.refresh(index)
        assert engine.count(index, {"exists": {"field": "secret"}}) == 1  # as without es-sbert
    found = contents(engine_url, index)
    assert_vector(found["1"], tiny_encoder, "the cat sleeps")
    assert_vector(found["2"], tiny_encoder, "a man plays guitar")


def put(client: httpx.Client, index: str, text: str, other: dict[str, Any] | None = None) -> None:
    document = (other or {}) | {"text": text, "@timestamp": "2026-01-01T00:00:00Z"}
    client.put(f"/{index}/_doc/1", json=document).raise_for_status()
