"""The files beside this module are what the applications really send: unit tests of the rewriting build on them.

`ES_SBERT_UPDATE_GOLDEN=1` writes them anew, after an application was updated.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import orjson
import pytest
from playwright.sync_api import Browser

from tests.gateway.apps.conftest import Build
from tests.gateway.apps.pages import PAGES, AppPage
from tests.gateway.apps.recorder import Recorder
from tests.gateway.articles import articles
from tests.node import serve_node_app

pytestmark = pytest.mark.long

INDEX = "articles"
STEPS: tuple[tuple[str, Callable[[AppPage], None]], ...] = (
    ("words that many documents have", lambda page: page.search("the light of the sun")),
    ("the second page", lambda page: page.next_page()),
    ("one topic", lambda page: page.choose_topic("Space")),
    ("some years", lambda page: page.choose_years("2010 and later")),
)


@pytest.mark.parametrize("kind", PAGES, ids=lambda kind: kind.app)
def test_recorded_requests_match_applications(
    kind: type[AppPage], build: Build, es9_url: str, fresh_index: Callable[[str], str], browser: Browser
) -> None:
    folder = build(kind)
    index = fresh_index(es9_url)
    _load(es9_url, index)
    recorded: list[dict[str, Any]] = []

    with Recorder(es9_url) as recorder, serve_node_app(folder, recorder.url, index) as url:
        page = kind(browser.new_page())
        page.open(url)
        for does, step in (("the page is opened", None), *STEPS):
            if step is not None:
                step(page)
            recorded += [{"does": does, **request} for request in recorder.requests]
            recorder.requests.clear()
        page.close()

    content = orjson.dumps(recorded, option=orjson.OPT_INDENT_2 | orjson.OPT_APPEND_NEWLINE)
    content = content.replace(index.encode(), INDEX.encode())
    file = Path(__file__).with_name(f"{kind.app}.json")
    if os.environ.get("ES_SBERT_UPDATE_GOLDEN"):
        file.write_bytes(content)
    assert orjson.loads(file.read_bytes()) == orjson.loads(content)


def _load(url: str, index: str) -> None:
    """The articles as the index had them before es-sbert came: no vectors."""
    from elasticsearch import Elasticsearch, helpers

    with Elasticsearch(url) as client:
        helpers.bulk(client, articles(), index=index, refresh=True)
