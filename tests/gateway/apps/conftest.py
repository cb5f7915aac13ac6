"""The applications, installed and built once; a browser; articles and a gateway on each engine."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Browser

from tests.browser import chromium
from tests.conftest import delete_index
from tests.gateway.apps.pages import AppPage
from tests.gateway.articles import ingest_articles
from tests.gateway.running import serve
from tests.node import EXAMPLES, install_node_project

Build = Callable[[type[AppPage]], Path]


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    """Chromium without a window."""
    with chromium() as browser:
        yield browser


@pytest.fixture(scope="session")
def build(tmp_path_factory: pytest.TempPathFactory) -> Build:
    """A function from an application to the folder where it was installed and built, once."""
    built: dict[str, Path] = {}

    def folder_of(kind: type[AppPage]) -> Path:
        if kind.app not in built:
            folder = tmp_path_factory.mktemp("apps") / kind.app
            built[kind.app] = install_node_project(EXAMPLES / kind.app, folder, build=True)
        return built[kind.app]

    return folder_of


@pytest.fixture(scope="module")
def index(engine_url: str) -> Iterator[str]:
    """Each engine in turn has the articles in it, with their vectors."""
    name = f"test-articles-{uuid.uuid4().hex[:12]}"
    try:
        ingest_articles(engine_url, name)
        yield name
    finally:
        delete_index(engine_url, name)


@pytest.fixture(scope="module")
def gateway_url(engine_url: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A gateway in front of each engine in turn, which finds by meaning what applications search by words."""
    with serve(engine_url, tmp_path_factory.mktemp("gateway"), "--hybrid", "--min-cosine", "0.2") as url:
        yield url
