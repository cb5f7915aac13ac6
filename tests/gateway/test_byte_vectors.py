"""A gateway over an index with byte vectors of an earlier version."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import httpx
import pytest

from es_sbert.config import EngineSettings
from es_sbert.encoder.encoder import Encoder
from es_sbert.gateway.app import Gateway
from es_sbert.gateway.settings import GatewaySettings
from tests.engine.byte_index import create_byte_index
from tests.engine.ingest_support import open_engine
from tests.gateway.conftest import tiny_settings
from tests.gateway.serving import served


@pytest.fixture
def old_index(engine_url: str, fresh_index: Callable[[str], str], tiny: Path) -> str:
    name = fresh_index(engine_url)
    with Encoder(str(tiny), precision="fp32", device="cpu", threads=1) as encoder, open_engine(engine_url) as engine:
        create_byte_index(engine, name, encoder, ["a man plays", "the cat sleeps"])
    return name


@pytest.fixture
def client(engine_url: str, tiny: Path) -> Iterator[httpx.Client]:
    settings = GatewaySettings(upstream=EngineSettings(url=engine_url), models=tiny_settings(tiny))
    with served(Gateway(settings)) as url, httpx.Client(base_url=url, timeout=60) as client:
        yield client


def test_semantic_queries_and_writes_are_refused_by_name(
    client: httpx.Client, old_index: str, caplog: pytest.LogCaptureFixture
) -> None:
    refusal = f"{old_index}.embedding holds byte vectors"
    searched = client.post(f"/{old_index}/_search", json={"query": {"match": {"semantic": "a man plays"}}})
    assert searched.status_code == 400
    assert refusal in searched.text
    assert f"es-sbert index migrate {old_index}" in searched.text
    # Callers of writes get no details; the log has them.
    written = client.put(f"/{old_index}/_doc/new", json={"text": "the dog runs"})
    assert written.status_code == 503
    assert "the vector fields in the mapping of the index cannot be filled" in written.text
    assert refusal in caplog.text
    plain = client.post(f"/{old_index}/_search", json={"query": {"match": {"text": "cat"}}})
    assert [hit["_id"] for hit in plain.json()["hits"]["hits"]] == ["1x"]
