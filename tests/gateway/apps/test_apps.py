"""Applications that were not written for es-sbert search semantically once their host is the gateway's."""

from __future__ import annotations

from pathlib import Path

import pytest
from playwright.sync_api import Browser, expect

from tests.gateway.apps.pages import PAGES, PER_PAGE, AppPage
from tests.gateway.articles import MEANT, QUERY, articles
from tests.node import EXAMPLES, install_node_project, serve_node_app

pytestmark = [pytest.mark.long, pytest.mark.parametrize("kind", PAGES, ids=lambda kind: kind.app)]


def test_semantic_search_facets_and_paging_work_after_changing_the_host(
    kind: type[AppPage], engine_url: str, hybrid_gateway_url: str, articles_index: str, browser: Browser, tmp_path: Path
) -> None:
    folder = install_node_project(EXAMPLES / kind.app, tmp_path / kind.app, build=True)
    with serve_node_app(folder, engine_url, articles_index) as url:
        page = kind(browser.new_page())
        page.open(url)
        page.search(QUERY)
        page.expect_total(0)
        expect(page.titles).to_have_count(0)
        page.close()

    topic_of = {article["title"]: article["topic"] for article in articles()}
    with serve_node_app(folder, hybrid_gateway_url, articles_index) as url:
        page = kind(browser.new_page())
        page.open(url)
        page.expect_total(len(topic_of))
        page.search(QUERY)
        expect(page.titles.first).to_have_text(MEANT)

        page.search("astrophysics")
        expect(page.titles.first).to_have_text("How stars die")
        counts = page.results_by_topic()
        page.expect_total(sum(counts.values()))
        topic, count = max(counts.items(), key=lambda each: each[1])
        assert topic == "Space"
        assert PER_PAGE < count < sum(counts.values())
        page.choose_topic(topic)
        page.expect_total(count)
        first = page.titles.all_inner_texts()
        page.next_page()
        expect(page.titles.first).not_to_have_text(first[0])  # its answer may be there before it is shown
        expect(page.titles).to_have_count(min(PER_PAGE, count - PER_PAGE))
        second = page.titles.all_inner_texts()
        assert len({*first, *second}) == len(first) + len(second)
        assert {topic_of[title] for title in (*first, *second)} == {topic}
        page.close()
