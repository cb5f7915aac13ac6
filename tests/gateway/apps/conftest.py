"""The applications, installed and built once; a browser; an index of articles on each engine."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Browser

from tests.browser import chromium
from tests.gateway.apps.pages import PAGES, AppPage
from tests.node import EXAMPLES, install_node_project

ARTICLES = EXAMPLES / "articles.jsonl"


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    """Chromium without a window."""
    with chromium() as browser:
        yield browser


@pytest.fixture(scope="session", params=PAGES, ids=lambda kind: kind.app)
def built(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[type[AppPage], Path]:
    """Each application in turn: how its page is used, and the folder where it was built."""
    kind: type[AppPage] = request.param
    folder = tmp_path_factory.mktemp("apps") / kind.app
    return kind, install_node_project(EXAMPLES / kind.app, folder, build=True)
