"""An engine with something to find, a gateway before it, and the page in a browser."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from playwright.sync_api import Browser

from tests.conftest import delete_index
from tests.engine.ingest_support import write_jsonl
from tests.gateway import serving
from tests.gateway.articles import ingest
from tests.gateway.ui.corpus import HOSTILE, PASSAGES, dated_articles
from tests.gateway.ui.search_page import SearchPage

OpenPage = Callable[..., SearchPage]


@contextmanager
def ingested(url: str, documents: list[dict[str, object]], *options: str) -> Iterator[str]:
    """Name of an index of documents, with vectors of the model that es-sbert comes with."""
    name = f"test-page-{uuid.uuid4().hex[:12]}"
    try:
        with TemporaryDirectory() as folder:
            ingest(url, name, write_jsonl(Path(folder) / "docs.jsonl", documents), *options)
        yield name
    finally:
        delete_index(url, name)


@pytest.fixture(scope="session")
def dated_index(es9_url: str) -> Iterator[str]:
    with ingested(es9_url, dated_articles()) as name:
        yield name


@pytest.fixture(scope="module")
def hostile_index(es9_url: str) -> Iterator[str]:
    with ingested(es9_url, HOSTILE, *PASSAGES) as name:
        yield name


@pytest.fixture(scope="session")
def gateway(es9_url: str) -> Iterator[str]:
    with serving.gateway(es9_url) as url:
        yield url


@pytest.fixture
def open_page(browser: Browser) -> Iterator[OpenPage]:
    """A function from a gateway's address to a new tab; each is closed after the test and must have had no problems."""
    opened: list[SearchPage] = []

    def page_of(url: str, **context: object) -> SearchPage:
        opened.append(SearchPage(browser, url, **context))
        return opened[-1]

    yield page_of
    for page in opened:
        page.close()


@pytest.fixture
def page(open_page: OpenPage, gateway: str) -> SearchPage:
    return open_page(gateway)
