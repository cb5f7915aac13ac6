"""What tests of the gateway share: a tiny model, articles with vectors and a gateway before them."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from playwright.sync_api import Browser

from es_sbert.bundle.sentence_model import read_sentence_model
from es_sbert.bundle.variants import Variant
from es_sbert.encoder.encoder import Encoder
from es_sbert.exporters.export_bundle import export_bundle
from tests.browser import chromium
from tests.conftest import delete_index
from tests.engine.ingest_support import load, write_jsonl
from tests.gateway import patient
from tests.gateway.articles import ARTICLES, ingest
from tests.gateway.running import serve
from tests.tiny import write_tiny_bert

PROMPTS = {"query": "query : ", "document": "passage : "}


@pytest.fixture(scope="session")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Bundle of a tiny model with prompts."""
    folder = write_tiny_bert(tmp_path_factory.mktemp("checkpoints") / "tiny", prompts=PROMPTS)
    bundle = tmp_path_factory.mktemp("bundles") / "tiny"
    export_bundle(read_sentence_model(folder, "tiny"), bundle, [Variant.FP32])
    return bundle


@pytest.fixture(scope="session")
def tiny_encoder(tiny: Path) -> Iterator[Encoder]:
    """The same model, opened as the gateway opens it."""
    with Encoder(str(tiny), device="cpu", precision="fp32", threads=1) as encoder:
        yield encoder


@contextmanager
def loaded_index(
    engine: str, encoder: Encoder, documents: list[dict[str, Any]], *, shards: int | None = None, **options: Any
) -> Iterator[str]:
    """Name of an index of documents with their `id`, and vectors of their `text`."""
    name = f"test-{uuid.uuid4().hex[:12]}"
    try:
        if shards is not None:
            patient.put(f"{engine}/{name}", json={"settings": {"index.number_of_shards": shards}}).raise_for_status()
        with TemporaryDirectory() as folder:
            path = write_jsonl(Path(folder) / "docs.jsonl", documents)
            load(engine, encoder, name, path, dead=Path(folder) / "dead", id_field="id", **options)
        yield name
    finally:
        delete_index(engine, name)


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with chromium() as browser:
        yield browser


@pytest.fixture(scope="session")
def articles_index(engine_url: str) -> Iterator[str]:
    name = f"test-articles-{uuid.uuid4().hex[:12]}"
    try:
        ingest(engine_url, name, ARTICLES)
        yield name
    finally:
        delete_index(engine_url, name)


@pytest.fixture(scope="session")
def hybrid_gateway_url(engine_url: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with serve(engine_url, tmp_path_factory.mktemp("gateway"), "--hybrid", "--min-cosine", "0.2") as url:
        yield url
