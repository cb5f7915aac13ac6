"""What tests of writes share: a gateway before each engine, an index that was loaded, and one like it."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator
from pathlib import Path

import httpx
import pytest

from es_sbert.encoder.encoder import Encoder
from tests.conftest import delete_index
from tests.engine.ingest_support import load, open_engine, write_jsonl
from tests.engine.vectors import field_of
from tests.gateway import patient
from tests.gateway.serving import gateway
from tests.gateway.writes.support import FIELDS, PARTS, Counters, body_like, documents, make


@pytest.fixture(scope="session")
def gateway_url(engine_url: str, tiny: Path) -> Iterator[str]:
    # A body limit below what some of the tests' requests become with their vectors.
    with gateway(engine_url, tiny, body_bytes=1 << 20) as url:
        yield url


@pytest.fixture
def client(gateway_url: str) -> Iterator[httpx.Client]:
    with patient.client(gateway_url) as client:
        yield client


@pytest.fixture
def counters(client: httpx.Client) -> Counters:
    return Counters(client)


@pytest.fixture(scope="session")
def loaded(engine_url: str, tiny_encoder: Encoder, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """An index that `es-sbert ingest` filled with sixty documents."""
    name = f"test-{uuid.uuid4().hex[:12]}"
    folder = tmp_path_factory.mktemp("loaded")
    try:
        path = write_jsonl(folder / "docs.jsonl", documents(60))
        for options in (PARTS, FIELDS):
            load(engine_url, tiny_encoder, name, path, dead=folder / "dead", **options)
        yield name
    finally:
        delete_index(engine_url, name)


@pytest.fixture
def empty(engine_url: str, loaded: str, index_name: str) -> str:
    """An index like the loaded one, with no document."""
    with open_engine(engine_url) as engine:
        engine.create_index(index_name, body_like(engine, loaded))
    return index_name


@pytest.fixture
def unknown(engine_url: str, tiny_encoder: Encoder, fresh_index: Callable[[str], str]) -> str:
    """An index whose model the gateway does not have."""
    name = fresh_index(engine_url)
    make(engine_url, name, field_of(tiny_encoder.info, fingerprint="0" * 32, model="no-such-model"))
    return name
