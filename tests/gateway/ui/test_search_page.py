"""The search page in Chromium, on a real engine."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator

import httpx
import pytest
from playwright.sync_api import Route, expect

from es_sbert.config import EngineSettings
from es_sbert.gateway.app import create_app
from es_sbert.gateway.settings import GatewaySettings
from es_sbert.search import SemanticIndex
from tests.gateway.articles import MEANT, QUERY
from tests.gateway.serving import served
from tests.gateway.ui.conftest import OpenPage
from tests.gateway.ui.corpus import BOOK, book_in, dated_articles
from tests.gateway.ui.search_page import COLUMNS, SearchPage

JSON = {"content-type": "application/json", "x-es-sbert": "on"}
ARTICLES = {article["title"]: article for article in dated_articles()}


@pytest.fixture(scope="module")
def oracle(es9_url: str, dated_index: str) -> Iterator[SemanticIndex]:
    """The same index, searched by the query helper."""
    with SemanticIndex(dated_index, es9_url) as index:
        yield index


def test_words_and_meaning_side_by_side(page: SearchPage, dated_index: str, oracle: SemanticIndex) -> None:
    page.open(index=dated_index)
    page.search(QUERY)

    assert [page.found(column) for column in COLUMNS] == [0, len(ARTICLES), len(ARTICLES)]
    expect(page.column("lexical")).to_contain_text("No document holds any of these words")
    nearest = oracle.search(QUERY, k=10)
    for column in ("semantic", "hybrid"):
        expect(page.titles(column)).to_have_text([hit.source["title"] for hit in nearest])
        assert page.cosines(column) == pytest.approx([hit.cosine for hit in nearest], abs=0.0006)
    assert page.titles("semantic").first.inner_text() == MEANT
    told = "Lexical: 0 found, 0 shown. Semantic: 48 found, 10 shown. Hybrid: 48 found, 10 shown."
    expect(page.status).to_have_text(told)


def test_words_found_are_marked_and_have_cosines_too(page: SearchPage, dated_index: str, oracle: SemanticIndex) -> None:
    page.open(index=dated_index, q="the moon")

    marked = page.column("lexical").locator("mark").all_inner_texts()
    assert {word.lower() for word in marked} == {"the", "moon"}
    cosine = {hit.source["title"]: hit.cosine for hit in oracle.search("the moon", k=48)}
    expected = [cosine[title] for title in page.titles("lexical").all_inner_texts()]
    assert page.cosines("lexical") == pytest.approx(expected, abs=0.0006)


def test_more_hits(page: SearchPage, dated_index: str, oracle: SemanticIndex) -> None:
    page.open(index=dated_index, q=QUERY)
    points = page.points.count()
    page.page.get_by_role("button", name="Show more Semantic hits").click()

    expect(page.titles("semantic")).to_have_text([hit.source["title"] for hit in oracle.search(QUERY, k=20)])
    expect(page.titles("hybrid")).to_have_count(10)
    # The first of the new ones has the focus, and the map knows them.
    expect(page.column("semantic").locator(".hits > li").nth(10)).to_be_focused()
    expect(page.points).to_have_count(points + 10)


def test_filters_hold_for_all_columns_and_can_be_linked(page: SearchPage, dated_index: str) -> None:
    page.open(index=dated_index, q="the light")
    assert page.counts("topic") == Counter(article["topic"] for article in ARTICLES.values())
    assert page.counts("long").keys() == {"true", "false"}

    page.choose("topic", "Space")
    for column in COLUMNS:
        assert {ARTICLES[title]["topic"] for title in page.titles(column).all_inner_texts()} == {"Space"}
    space = [article for article in ARTICLES.values() if article["topic"] == "Space"]
    assert page.found("semantic") == len(space)
    expect(page.facet("topic").get_by_role("checkbox")).to_be_focused()

    years = page.counts("year")
    decade = max(years, key=lambda label: years[label])
    first, last = map(int, decade.split(" to "))
    page.choose("year", decade)
    kept = [article for article in space if first <= article["year"] <= last]
    assert page.found("hybrid") == years[decade] == len(kept) < len(space)

    linked = page.page.url
    page.page.get_by_role("button", name="Remove filter topic: Space").click()
    expect(page.page.get_by_role("list", name="Filters that are set").get_by_role("listitem")).to_have_count(1)
    page.page.go_back()
    expect(page.facet("topic").get_by_role("checkbox")).to_be_checked()
    page.page.goto(linked)
    page.expect_done()
    assert page.found("hybrid") == len(kept)


def test_filters_that_are_none_here_are_said(page: SearchPage, dated_index: str) -> None:
    page.open(index=dated_index, q="the light", **{"f.topic.keyword": "Space", "f.gone": "x"})

    expect(page.status).to_contain_text("Filters left out: gone.")
    left_out = page.page.get_by_role("list", name="Filters that are set").locator("li", has_text="gone: x")
    expect(left_out).to_contain_text("was left out")
    page.page.get_by_role("button", name="Remove filter gone: x").click()
    expect(page.status).not_to_contain_text("left out")
    assert "gone" not in page.page.url


def test_dates_and_truth_values_are_facets(page: SearchPage, dated_index: str) -> None:
    page.open(index=dated_index, q="the light")
    dates = page.counts("published")
    assert dates.items() <= Counter(str(article["year"]) for article in ARTICLES.values()).items()
    year, count = max(dates.items(), key=lambda entry: entry[1])

    page.choose("published", year)
    assert page.found("semantic") == count
    assert {str(ARTICLES[title]["year"]) for title in page.titles("semantic").all_inner_texts()} == {year}
    page.choose("published", year)
    page.choose("long", "true")
    assert {ARTICLES[title]["long"] for title in page.titles("hybrid").all_inner_texts()} == {True}


def test_an_older_map_never_takes_the_place_of_a_newer_one(page: SearchPage, dated_index: str) -> None:
    page.open(index=dated_index, q="the light")
    held: list[Route] = []
    page.page.route("**/ui/api/map", lambda route: route.continue_() if held else held.append(route))
    page.page.get_by_role("button", name="Show more Semantic hits").click()
    expect(page.titles("semantic")).to_have_count(20)

    with page.page.expect_event("requestfailed", lambda request: request.url.endswith("/ui/api/map")):
        page.page.get_by_role("button", name="Show more Lexical hits").click()
    expect(page.titles("lexical")).to_have_count(20)
    expect(page.points).to_have_count(len(_shown(page)))


def test_more_hits_while_another_column_is_slow(page: SearchPage, dated_index: str) -> None:
    held: list[Route] = []

    def hold(route: Route) -> None:
        if "semantic.embedding" in (route.request.post_data or ""):
            held.append(route)
        else:
            route.continue_()

    page.page.route("**/_search?*", hold)
    page.page.goto(f"{page.url}/ui/?index={dated_index}&q=the+light")
    page.page.get_by_role("button", name="Show more Lexical hits").click()
    expect(page.titles("lexical")).to_have_count(20)
    assert len(held) == 2
    for route in held:
        route.continue_()
    page.expect_done()
    expect(page.titles("hybrid")).to_have_count(10)
    expect(page.points).to_have_count(len(_shown(page)))


def _shown(page: SearchPage) -> set[str]:
    """Titles of the hits of all columns."""
    return {title for column in COLUMNS for title in page.titles(column).all_inner_texts()}


def test_more_like_this(page: SearchPage, dated_index: str, oracle: SemanticIndex) -> None:
    page.open(index=dated_index, q=QUERY)
    page.column("semantic").get_by_role("button", name=f"More like {MEANT}").click()

    like = oracle.like(next(article["id"] for article in ARTICLES.values() if article["title"] == MEANT), k=10)
    expect(page.titles("like")).to_have_text([hit.source["title"] for hit in like])
    page.expect_done()
    assert page.cosines("like") == pytest.approx([hit.cosine for hit in like], abs=0.0006)
    page.choose("topic", "Space")
    assert {ARTICLES[title]["topic"] for title in page.titles("like").all_inner_texts()} == {"Space"}
    page.page.go_back()
    page.page.go_back()
    expect(page.page.locator("#results-heading")).to_contain_text(QUERY)


@pytest.mark.parametrize("column", COLUMNS)
def test_the_request_to_copy_finds_the_same(
    page: SearchPage, dated_index: str, es9_url: str, gateway: str, column: str
) -> None:
    page.page.context.grant_permissions(["clipboard-read", "clipboard-write"])
    page.open(index=dated_index, q="the light of stars", **{"f.topic.keyword": "Space"})
    page.column(column).get_by_text("Request body").click()
    copies = page.column(column).get_by_role("button", name="Copy")
    expect(copies).to_have_count(1 if column == "lexical" else 2)
    shown = page.titles(column).all_inner_texts()

    # The last one is for the engine itself.
    for button, address in zip(reversed(copies.all()), (es9_url, gateway), strict=False):
        button.click()
        expect(page.column(column).get_by_text("Copied.")).not_to_have_count(0)
        copied = page.page.evaluate("navigator.clipboard.readText()")
        answer = httpx.post(f"{address}/{dated_index}/_search", content=copied, headers=JSON, timeout=60)
        assert [hit["_source"]["title"] for hit in answer.json()["hits"]["hits"]] == shown


def test_map_is_walked_through_by_keyboard(page: SearchPage, dated_index: str) -> None:
    page.open(index=dated_index, q="the light of stars")
    shown = _shown(page)
    assert page.points.count() == len(shown)
    seen = {label.split(", cosine ")[0] for label in page.points.evaluate_all("all => all.map(p => p.ariaLabel)")}
    assert seen == shown

    page.page.locator("#map-drawing [tabindex='0']").focus()
    focused = page.page.locator("#map-drawing :focus")
    visited = {focused.get_attribute("aria-label")}
    for key in ("ArrowLeft", "ArrowRight", "ArrowUp", "ArrowDown", "Home", "End"):
        page.page.keyboard.press(key)
        label = focused.get_attribute("aria-label")
        assert label is not None
        visited.add(label)
        expect(page.page.locator("#map-caption")).to_have_text(label)
        expect(page.page.locator("#map-drawing [aria-selected='true']")).to_have_attribute("aria-label", label)
    assert len(visited) > 2

    page.page.keyboard.press("Enter")
    title = label.split(", cosine ")[0]
    expect(page.page.locator(".hits > li:focus h4")).to_have_text(title)


def test_keyboard_alone(page: SearchPage, dated_index: str) -> None:
    page.open(index=dated_index)
    expect(page.page.get_by_role("searchbox")).to_be_focused()
    page.page.keyboard.type("stars")
    page.page.keyboard.press("Enter")
    page.expect_done()
    assert page.page.title() == "stars – Search by meaning"
    page.page.locator("#results").press("/")
    expect(page.page.get_by_role("searchbox")).to_be_focused()
    page.page.keyboard.type("a/b")  # replaces the words, and a slash in the box is a slash
    expect(page.page.get_by_role("searchbox")).to_have_value("a/b")
    page.page.keyboard.press("Tab")
    ring = page.page.evaluate("getComputedStyle(document.activeElement).outlineStyle")
    assert ring == "solid"
    page.page.get_by_role("searchbox").fill("")
    page.page.keyboard.press("Enter")
    expect(page.status).to_have_text("Type what you are looking for.")
    assert page.page.title() == "Search by meaning"


def test_the_focus_goes_where_the_new_hits_are(page: SearchPage, dated_index: str) -> None:
    page.open(index=dated_index, q="stars", **{"f.topic.keyword": "Space"})
    page.page.get_by_role("button", name="Remove filter topic: Space").press("Enter")
    expect(page.facet("topic").get_by_role("checkbox", name="Space")).to_be_focused()
    page.column("semantic").get_by_role("button", name="More like").first.press("Enter")
    page.expect_done()
    expect(page.page.locator("#results")).to_be_focused()


def test_texts_from_right_to_left_and_long_ones_in_the_heading(page: SearchPage, dated_index: str) -> None:
    page.open(index=dated_index, q="طلوع " * 100 + "!")
    heading = page.page.locator("#results-heading bdi")
    assert len(heading.inner_text()) < 160
    for part in (heading, page.page.get_by_role("searchbox")):
        assert part.evaluate("part => part.matches(':dir(rtl)')")


def test_an_answer_that_breaks_off_is_no_answer(page: SearchPage) -> None:
    page.open()
    said = page.page.evaluate("""async () => {
      const broken = new ReadableStream({ start: (body) => body.error(new TypeError("network error")) });
      window.fetch = async () => new Response(broken);
      const { askPage } = await import("./engine.js");
      return askPage("indices").catch((error) => [error.constructor.name, error.message]);
    }""")
    assert said[0] == "RequestFailed"
    assert "Check that it runs" in said[1]


def test_a_text_too_long_for_the_model_leaves_words_searched(page: SearchPage, dated_index: str) -> None:
    page.page.goto(f"{page.url}/ui/?index={dated_index}&q={'light%20' * 1700}")
    expect(page.column("semantic").locator(".problem")).to_contain_text("10,000 are allowed")
    expect(page.titles("lexical").first).to_be_visible()
    page.refused = True


def test_passages_on_opensearch(open_page: OpenPage, opensearch_url: str, opensearch_index: str) -> None:
    words = "what do astronauts eat"
    with (
        served(create_app(GatewaySettings(upstream=EngineSettings(url=opensearch_url)))) as url,
        SemanticIndex(opensearch_index, opensearch_url) as index,
    ):
        page = open_page(url)
        page.open(index=opensearch_index, q=words)
        nearest = index.search(words, k=10)
        expect(page.titles("semantic")).to_have_text([hit.source["title"] for hit in nearest])
        for column in ("semantic", "hybrid"):
            cosine = dict(zip(page.titles(column).all_inner_texts(), page.cosines(column), strict=True))
            assert cosine[nearest.hits[0].source["title"]] == pytest.approx(nearest.hits[0].cosine, abs=0.0006)
        best = nearest.hits[0].passage
        assert best is not None
        expect(page.column("semantic").locator("mark").first).to_have_text(best.text or "")

        page.choose("topic", "Space")
        assert {ARTICLES[title]["topic"] for title in page.titles("hybrid").all_inner_texts()} == {"Space"}
        dates = page.counts("published")
        page.choose("published", next(iter(dates)))
        assert page.found("hybrid") == dates[next(iter(dates))]
        page.column("semantic").get_by_role("button", name="More like").first.click()
        expect(page.page.locator("#results-heading")).to_contain_text("Documents like")
        page.expect_done()
        assert page.points.count() == page.titles("like").count()

        with book_in(opensearch_url, opensearch_index):
            page.open(index=opensearch_index, q="zeppelin")
            expect(page.titles("lexical")).to_have_text([str(BOOK["title"])])


def test_an_index_that_is_not_there(page: SearchPage) -> None:
    page.open(index="nowhere")
    expect(page.page.get_by_role("alert")).to_contain_text("no index nowhere with vectors")
    expect(page.page.get_by_role("combobox", name="Index")).to_be_visible()


def test_the_gateway_serves_the_page(gateway: str) -> None:
    answer = httpx.get(f"{gateway}/ui?q=sun", follow_redirects=True, timeout=120)
    assert answer.url.path == "/ui/"
    assert "<h1>Search by meaning</h1>" in answer.text
    assert re.search(r"default-src 'none'", answer.headers["content-security-policy"])
