"""An engine with something to find, a gateway before it, and the page in a browser."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator

import pytest
from playwright.sync_api import Browser

from es_sbert.config import EngineSettings
from es_sbert.gateway.app import Gateway
from es_sbert.gateway.settings import GatewaySettings
from tests.conftest import delete_index
from tests.gateway.serving import served
from tests.gateway.ui.corpus import HOSTILE, PASSAGE_TOKENS, dated_articles, ingest
from tests.gateway.ui.search_page import SearchPage

OpenPage = Callable[..., SearchPage]


@pytest.fixture(scope="session")
def dated_index(es9_url: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """An index of the articles with dates."""
    yield from _index(es9_url, dated_articles(), tmp_path_factory)


@pytest.fixture(scope="module")
def hostile_index(es9_url: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """An index of hostile documents in passages."""
    yield from _index(es9_url, HOSTILE, tmp_path_factory, "--passages", str(PASSAGE_TOKENS))


@pytest.fixture(scope="module")
def opensearch_index(opensearch_url: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Both kinds of documents in passages on OpenSearch."""
    yield from _index(opensearch_url, dated_articles(), tmp_path_factory, "--passages", str(PASSAGE_TOKENS))


def _index(
    url: str, documents: list[dict[str, object]], factory: pytest.TempPathFactory, *options: str
) -> Iterator[str]:
    name = f"test-page-{uuid.uuid4().hex[:12]}"
    try:
        ingest(url, name, documents, factory.mktemp("page"), *options)
        yield name
    finally:
        delete_index(url, name)


@pytest.fixture(scope="session")
def gateway(es9_url: str) -> Iterator[str]:
    """Address of a gateway in front of Elasticsearch."""
    with served(Gateway(GatewaySettings(upstream=EngineSettings(url=es9_url)))) as url:
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
    """The page of the gateway in front of Elasticsearch."""
    return open_page(gateway)
