"""A gateway over an index with byte vectors of an earlier version."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import httpx
import pytest

from es_sbert.encoder.encoder import Encoder
from tests.engine.byte_index import create_byte_index
from tests.engine.ingest_support import open_engine
from tests.gateway.conftest import tiny_gateway


@pytest.fixture
def old_index(engine_url: str, fresh_index: Callable[[str], str], tiny_encoder: Encoder) -> str:
    name = fresh_index(engine_url)
    with open_engine(engine_url) as engine:
        create_byte_index(engine, name, tiny_encoder, ["a man plays", "the cat sleeps"])
    return name


@pytest.fixture
def client(engine_url: str, tiny: Path) -> Iterator[httpx.Client]:
    with tiny_gateway(engine_url, tiny) as url, httpx.Client(base_url=url, timeout=60) as client:
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
