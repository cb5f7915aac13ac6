"""Articles with their vectors on each engine, and a gateway in front of it."""

from __future__ import annotations

import uuid
from collections.abc import Iterator

import pytest

from tests.conftest import delete_index
from tests.gateway.articles import ingest_articles
from tests.gateway.running import serve


@pytest.fixture(scope="module")
def articles_index(engine_url: str) -> Iterator[str]:
    """Name of an index of the articles with their vectors, on each engine in turn."""
    name = f"test-articles-{uuid.uuid4().hex[:12]}"
    try:
        ingest_articles(engine_url, name)
        yield name
    finally:
        delete_index(engine_url, name)


@pytest.fixture(scope="module")
def hybrid_gateway_url(engine_url: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A gateway in front of each engine in turn, which finds by meaning too what applications search by words."""
    with serve(engine_url, tmp_path_factory.mktemp("gateway"), "--hybrid", "--min-cosine", "0.2") as url:
        yield url
