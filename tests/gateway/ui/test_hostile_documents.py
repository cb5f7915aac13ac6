"""Documents that would break a page, or take it over, are shown as what they are: text."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from playwright.sync_api import Browser, Page, expect

from es_sbert.index.text_template import TextFieldError, TextTemplate
from tests.gateway.ui.corpus import HOSTILE
from tests.gateway.ui.search_page import SearchPage

BY_ID = {document["id"]: document for document in HOSTILE}
RENDER = "async ([parts, source]) => (await import('./text.js')).embeddedText(parts, source)"


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
    page.page.set_viewport_size({"width": 320, "height": 900})
    assert page.page.evaluate("document.documentElement.scrollWidth") <= 320
    page.examples.filter(has_text="onerror").click()
    expect(page.page.get_by_role("searchbox")).to_have_value(str(BY_ID["html"]["title"]))
    page.expect_done()


WORDS = st.text(st.sampled_from("ab \t\n\x1c\x85\xa0\u2003\ufeff😀."), max_size=6)
TEMPLATES = st.sampled_from(["{title}", "{title}. {a.b}", " {title}\n{text} ", "{{x}} {a.b}{title}", "x{text}y"])
SOURCES = st.fixed_dictionaries(
    {},
    optional={
        "title": WORDS | st.none(),
        "text": WORDS | st.none() | st.integers(),
        "a.b": WORDS,
        "a": st.fixed_dictionaries({}, optional={"b": WORDS}),
    },
)


@pytest.fixture(scope="module")
def blank(browser: Browser, gateway: str) -> Page:
    """A tab with the page's modules at hand, for many examples."""
    tab = browser.new_page()
    tab.goto(f"{gateway}/ui/")
    return tab


@settings(max_examples=60)
@given(template=TEMPLATES, source=SOURCES)
def test_page_renders_texts_like_the_template(blank: Page, template: str, source: dict[str, object]) -> None:
    parsed = TextTemplate.parse(template)
    try:
        expected = parsed.render(source)
    except TextFieldError:
        expected = None
    assert blank.evaluate(RENDER, [list(map(list, parsed.parts)), source]) == expected
