"""Documents that would break a page, or take it over, are shown as what they are: text."""

from __future__ import annotations

from playwright.sync_api import expect

from tests.gateway.ui.corpus import HOSTILE
from tests.gateway.ui.search_page import SearchPage

BY_ID = {document["id"]: document for document in HOSTILE}


def test_hostile_documents_are_shown_as_text(page: SearchPage, hostile_index: str) -> None:
    page.open(index=hostile_index, q="sun <img src=x onerror=alert(1)>")
    page.page.get_by_text("Request body").first.click()

    titles = page.titles("semantic").all_inner_texts()
    assert BY_ID["html"]["title"] in titles
    assert "bell\ufffd and null\ufffd" in titles
    expect(page.page.locator("img, script:not([src]), iframe, b, [onerror], [onload]")).to_have_count(0)
    expect(page.column("lexical").locator("mark", has_text="sun")).not_to_have_count(0)
    # Nothing sticks out, and what runs from right to left keeps to its own line.
    for width in (320, 1280):
        page.page.set_viewport_size({"width": width, "height": 900})
        assert page.page.evaluate("document.documentElement.scrollWidth") <= width
    assert page.counts("kind")[str(BY_ID["html"]["kind"])] == 2

    page.choose("kind", str(BY_ID["html"]["kind"]))
    assert set(page.titles("semantic").all_inner_texts()) == {BY_ID["html"]["title"], BY_ID["passages"]["title"]}


def test_hostile_titles_are_suggested_as_text(page: SearchPage, hostile_index: str) -> None:
    page.start(hostile_index)
    expect(page.examples).to_have_count(len(HOSTILE))
    expect(page.page.locator("img, script:not([src]), iframe, b, [onerror], [onload]")).to_have_count(0)
    page.examples.filter(has_text="onerror").click()
    expect(page.page.get_by_role("searchbox")).to_have_value(str(BY_ID["html"]["title"]))
    page.expect_done()
