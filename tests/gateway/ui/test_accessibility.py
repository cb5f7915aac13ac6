"""The page is usable by everybody: axe's rules, on small and wide screens, in light and in dark colors."""

from __future__ import annotations

from typing import Literal

import pytest
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import expect

from tests.gateway.ui.conftest import OpenPage
from tests.gateway.ui.search_page import SearchPage

RULES = {"runOnly": ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "wcag22aa", "best-practice"]}


def expect_accessible(page: SearchPage) -> None:
    """No rule of axe-core is broken: names, roles, order of headings, contrast of colors, sizes of targets, …"""
    result = Axe().run(page.page, options=RULES)
    assert result.violations_count == 0, result.generate_report()


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [320, 1280])
def test_start_page_and_results_pass_axe(
    open_page: OpenPage, gateway: str, dated_index: str, scheme: Literal["light", "dark"], width: int
) -> None:
    page = open_page(gateway, color_scheme=scheme)
    page.page.set_viewport_size({"width": width, "height": 720})
    page.start(dated_index)
    expect(page.examples).to_have_count(5)
    assert page.page.evaluate("document.documentElement.scrollWidth") <= width
    expect_accessible(page)

    page.open(index=dated_index, q="the light of stars", **{"f.topic.keyword": "Space"})
    if width < 800:
        page.page.get_by_role("button", name="Filters (1)").click()
        page.views.filter(has_text="Hybrid").click()
    page.column("hybrid").get_by_text("Request body").click()
    expect(page.column("hybrid").locator("pre")).to_have_count(2)
    expect(page.facet("topic")).to_be_visible()
    assert page.page.evaluate("document.documentElement.scrollWidth") <= width
    expect_accessible(page)


def test_error_page_passes_axe(page: SearchPage) -> None:
    page.open(index="nowhere")
    expect(page.page.get_by_role("alert")).to_contain_text("nowhere")
    expect_accessible(page)
