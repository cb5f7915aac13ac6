"""What tests of writes share: a gateway before each engine, an index that was loaded, and one like it."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator
from pathlib import Path

import httpx
import pytest

from es_sbert.config import EngineSettings
from es_sbert.encoder.encoder import Encoder
from es_sbert.engines.engine_info import EngineType
from es_sbert.gateway.app import Gateway
from es_sbert.gateway.settings import GatewaySettings, Limits
from tests.conftest import delete_index
from tests.engine.ingest_support import load, open_engine, write_jsonl
from tests.engine.vectors import field_of
from tests.gateway.conftest import tiny_settings
from tests.gateway.serving import served
from tests.gateway.writes.support import FIELDS, PARTS, documents, make


@pytest.fixture(scope="session")
def gateway_url(engine_url: str, tiny: Path) -> Iterator[str]:
    # A body limit below what some of the tests' requests become with their vectors.
    settings = GatewaySettings(
        upstream=EngineSettings(url=engine_url), models=tiny_settings(tiny), limits=Limits(body_bytes=1 << 20)
    )
    with served(Gateway(settings)) as url:
        yield url


@pytest.fixture
def client(gateway_url: str) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=gateway_url, timeout=300, trust_env=False) as client:
        yield client


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
        state = engine.get_index(loaded)
        assert state is not None
        knn = {"index.knn": True} if engine.info.engine_type is EngineType.OPENSEARCH else {}
        engine.create_index(index_name, {"mappings": state.mappings, "settings": knn})
    return index_name


@pytest.fixture
def unknown(engine_url: str, tiny_encoder: Encoder, fresh_index: Callable[[str], str]) -> str:
    """An index whose model the gateway does not have."""
    name = fresh_index(engine_url)
    make(engine_url, name, field_of(tiny_encoder.info, fingerprint="0" * 32, model="no-such-model"))
    return name
