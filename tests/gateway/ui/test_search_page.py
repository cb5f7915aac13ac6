"""The search page in Chromium, on a real engine."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterator

import httpx
import pytest
from playwright.sync_api import Route, expect

from es_sbert.config import EngineSettings
from es_sbert.engines.engine_info import EngineType
from es_sbert.gateway.app import create_app
from es_sbert.gateway.settings import GatewaySettings
from es_sbert.index.mapping import VectorFieldMeta, index_body
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


def test_lexical_and_semantic_results_side_by_side(page: SearchPage, dated_index: str, oracle: SemanticIndex) -> None:
    page.open(index=dated_index)
    page.search(QUERY)

    assert [page.found(column) for column in COLUMNS] == [0, len(ARTICLES), len(ARTICLES)]
    expect(page.column("lexical")).to_contain_text("No document contains any of these words")
    nearest = oracle.search(QUERY, k=10)
    for column in ("semantic", "hybrid"):
        expect(page.titles(column)).to_have_text([hit.source["title"] for hit in nearest])
        assert page.cosines(column) == pytest.approx([hit.cosine for hit in nearest], abs=0.0006)
    assert page.titles("semantic").first.inner_text() == MEANT
    told = "Semantic: 48 found, 10 shown. Lexical: 0 found, 0 shown. Hybrid: 48 found, 10 shown."
    expect(page.status).to_have_text(told)


def test_lexical_hits_are_highlighted_and_have_cosines(
    page: SearchPage, dated_index: str, oracle: SemanticIndex
) -> None:
    page.open(index=dated_index, q="the moon")

    # Not "the", which has found most of the documents.
    marked = page.column("lexical").locator("mark").all_inner_texts()
    assert {word.lower() for word in marked} == {"moon"}
    cosine = {hit.source["title"]: hit.cosine for hit in oracle.search("the moon", k=48)}
    expected = [cosine[title] for title in page.titles("lexical").all_inner_texts()]
    assert page.cosines("lexical") == pytest.approx(expected, abs=0.0006)


def test_more_hits_button(page: SearchPage, dated_index: str, oracle: SemanticIndex) -> None:
    page.open(index=dated_index, q=QUERY)
    points = page.points.count()
    page.page.get_by_role("button", name="Show more Semantic hits").click()

    expect(page.titles("semantic")).to_have_text([hit.source["title"] for hit in oracle.search(QUERY, k=20)])
    expect(page.titles("hybrid")).to_have_count(10)
    # The first of the new ones has the focus, and the map knows them.
    expect(page.column("semantic").locator(".hits > li").nth(10)).to_be_focused()
    expect(page.points).to_have_count(points + 10)


def test_filters_apply_to_all_columns_and_are_in_url(page: SearchPage, dated_index: str) -> None:
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
    span = next(label for label in years if " to " in label and not label.startswith("up"))
    first, last = map(int, span.split(" to "))
    page.choose("year", span)
    kept = [article for article in space if first <= article["year"] <= last]
    assert page.found("hybrid") == years[span] == len(kept) < len(space)

    linked = page.page.url
    page.page.get_by_role("button", name="Remove filter topic: Space").click()
    expect(page.page.get_by_role("list", name="Active filters").get_by_role("listitem")).to_have_count(1)
    page.page.go_back()
    expect(page.facet("topic").get_by_role("checkbox")).to_be_checked()
    page.page.goto(linked)
    page.expect_done()
    assert page.found("hybrid") == len(kept)


def test_inapplicable_filters_are_reported(page: SearchPage, dated_index: str) -> None:
    page.open(index=dated_index, q="the light", **{"f.topic.keyword": "Space", "f.gone": "x", "f.year": "y"})

    expect(page.status).to_contain_text("Filters ignored: gone, year.")
    chosen = page.page.get_by_role("list", name="Active filters")
    expect(chosen.locator("li", has_text="gone: x")).to_contain_text("ignored: not a filter of this index")
    assert page.found("semantic") == sum(article["topic"] == "Space" for article in ARTICLES.values())
    page.page.get_by_role("button", name="Remove filter year: y").click()
    page.page.get_by_role("button", name="Remove filter gone: x").click()
    expect(page.status).not_to_contain_text("ignored")
    assert "gone" not in page.page.url


def test_date_and_boolean_facets(page: SearchPage, dated_index: str) -> None:
    page.open(index=dated_index, q="the light")
    dates = page.counts("published")
    assert sum(dates.values()) == len(ARTICLES)
    span, count = next(iter(dates.items()))
    begin = re.fullmatch(r"(\d{4}) or later", span)  # the newest come first
    assert begin, span

    page.choose("published", span)
    assert page.found("semantic") == count
    assert min(ARTICLES[title]["year"] for title in page.titles("semantic").all_inner_texts()) >= int(begin[1])
    page.choose("published", span)
    page.choose("long", "true")
    assert {ARTICLES[title]["long"] for title in page.titles("hybrid").all_inner_texts()} == {True}


def test_outlier_does_not_collapse_a_facet(page: SearchPage, outlier_index: str) -> None:
    page.open(index=outlier_index, q="light")

    prices = page.counts("price")
    assert prices == {"up to 19": 19, "20 to 29": 10, "30 to 49": 20, "50 to 69": 20, "70 to 79": 10, "80 and up": 22}
    assert page.counts("stars") == {"1": 34, "2": 34, "3": 33}  # each value, as there are few
    expect(page.facet("same")).to_have_count(0)  # nothing to choose
    page.choose("price", "20 to 29")
    assert page.found("hybrid") == 10
    page.choose("price", "20 to 29")
    page.choose("stars", "3")
    assert page.found("hybrid") == 33


def test_stale_map_never_replaces_newer_one(page: SearchPage, dated_index: str) -> None:
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
        if route.request.headers["x-es-sbert"] != "off":
            held.append(route)
        else:
            route.continue_()

    page.page.route("**/_search", hold)
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

    like = oracle.similar_to(next(article["id"] for article in ARTICLES.values() if article["title"] == MEANT), k=10)
    expect(page.titles("like")).to_have_text([hit.source["title"] for hit in like])
    expect(page.page.locator("#results-heading")).to_have_text(f"Documents like “{MEANT}”")
    page.expect_done()
    assert page.page.title() == f"{MEANT} – Semantic search"
    assert page.cosines("like") == pytest.approx([hit.cosine for hit in like], abs=0.0006)
    page.choose("topic", "Space")
    assert {ARTICLES[title]["topic"] for title in page.titles("like").all_inner_texts()} == {"Space"}
    page.page.go_back()
    page.page.go_back()
    expect(page.page.locator("#results-heading")).to_contain_text(QUERY)


@pytest.mark.parametrize("column", COLUMNS)
def test_copied_request_finds_the_same_hits(
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
        headers = JSON | {"x-es-sbert": "hybrid" if column == "hybrid" else "on"}
        answer = httpx.post(f"{address}/{dated_index}/_search", content=copied, headers=headers, timeout=60)
        assert [hit["_source"]["title"] for hit in answer.json()["hits"]["hits"]] == shown


def test_map_is_navigable_by_keyboard(page: SearchPage, dated_index: str) -> None:
    page.open(index=dated_index, q="the light of stars")
    shown = _shown(page)
    assert page.points.count() == len(shown)
    seen = {label.split(", cosine ")[0] for label in page.points.evaluate_all("all => all.map(p => p.ariaLabel)")}
    assert seen == shown

    selected = page.page.locator("#map-drawing [aria-selected='true']")
    caption = page.page.locator("#map-caption")
    expect(caption).to_contain_text(page.titles("semantic").first.inner_text())
    expect(selected).to_have_attribute("aria-label", caption.inner_text())
    page.points.last.hover()
    expect(selected).to_have_attribute("aria-label", page.points.last.get_attribute("aria-label") or "")

    page.page.locator("#map-drawing [tabindex='0']").focus()
    focused = page.page.locator("#map-drawing :focus")
    visited = {focused.get_attribute("aria-label")}
    for key in ("ArrowLeft", "ArrowRight", "ArrowUp", "ArrowDown", "Home", "End"):
        page.page.keyboard.press(key)
        label = focused.get_attribute("aria-label")
        assert label is not None
        visited.add(label)
        expect(caption).to_have_text(label)
        expect(selected).to_have_attribute("aria-label", label)
    assert len(visited) > 2

    page.page.keyboard.press("Enter")
    title = label.split(", cosine ")[0]
    expect(page.page.locator(".hits > li:focus h4")).to_have_text(title)


def test_keyboard_only_search(page: SearchPage, dated_index: str) -> None:
    page.open(index=dated_index)
    expect(page.page.get_by_role("searchbox")).to_be_focused()
    page.page.keyboard.type("stars")
    page.page.keyboard.press("Enter")
    page.expect_done()
    assert page.page.title() == "stars – Semantic search"
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
    assert page.page.title() == "Semantic search"


def test_focus_moves_to_new_hits(page: SearchPage, dated_index: str) -> None:
    page.open(index=dated_index, q="stars", **{"f.topic.keyword": "Space"})
    page.page.get_by_role("button", name="Remove filter topic: Space").press("Enter")
    expect(page.facet("topic").get_by_role("checkbox", name="Space")).to_be_focused()
    page.column("semantic").get_by_role("button", name="More like").first.press("Enter")
    page.expect_done()
    expect(page.page.locator("#results")).to_be_focused()


def test_titles_are_not_repeated_in_texts(page: SearchPage, dated_index: str) -> None:
    page.open(index=dated_index, q="why do cats purr")
    for column in COLUMNS:
        for hit in page.column(column).locator(".hits > li").all():
            title = hit.locator("h4").inner_text()
            assert not hit.locator(".text").inner_text().startswith(title)
    found = page.column("lexical").locator(".hits > li", has_text="Why cats purr")
    assert {word.lower() for word in found.locator("h4 mark").all_inner_texts()} == {"cats", "purr"}


def test_scores_are_explained(page: SearchPage, dated_index: str) -> None:
    page.open(index=dated_index, q="the light of stars")
    for column, name in (("lexical", "BM25"), ("hybrid", "hybrid score")):
        score = page.column(column).locator(".score").first
        expect(score).to_have_text(re.compile(rf"^{name} [\d,]+\.\d\d$"))
        expect(score).to_have_attribute("title", re.compile("within one search only"))
        expect(page.column(column).locator(".note").first).to_contain_text("within one search only")
    # The engine's score of a vector search is its cosine on another scale.
    expect(page.column("semantic").locator(".score")).to_have_count(0)
    expect(page.column("semantic").locator(".note").first).to_contain_text("1 is the closest, 0 unrelated")


def test_start_page_suggests_queries_from_index(page: SearchPage, dated_index: str) -> None:
    page.start(dated_index)
    expect(page.page.locator("#start")).to_contain_text(f"{len(ARTICLES)} documents in {dated_index}")
    expect(page.examples).to_have_count(5)
    offered = page.examples.all_inner_texts()
    assert set(offered) <= set(ARTICLES)

    page.examples.nth(2).click()
    expect(page.page.locator("#results-heading")).to_contain_text(offered[2])
    page.expect_done()
    expect(page.page.get_by_role("searchbox")).to_have_value(offered[2])
    expect(page.page.locator("#start")).to_be_hidden()
    assert page.titles("semantic").first.inner_text() == offered[2]


def test_start_page_of_index_without_vectors_shows_remedy(
    page: SearchPage, es9_url: str, fresh_index: Callable[[str], str]
) -> None:
    name = fresh_index(es9_url)
    meta = VectorFieldMeta(fingerprint="f" * 32, model="m", dimensions=3, index_type="hnsw", text="{text}")
    created = httpx.put(f"{es9_url}/{name}", json=index_body(EngineType.ELASTICSEARCH, "embedding", meta), timeout=60)
    created.raise_for_status()
    page.start(name)
    expect(page.page.locator("#start")).to_contain_text("has no documents yet")
    expect(page.page.locator("#start code")).to_have_text(f"es-sbert ingest --index {name} articles.jsonl")

    place = f"{es9_url}/{name}/_doc/1?refresh=true"
    httpx.put(place, json={"text": "The sun rises."}, timeout=60).raise_for_status()
    page.start(name)
    expect(page.page.locator("#start")).to_contain_text("has 1 document, none of them with a vector")
    expect(page.page.locator("#start code")).to_have_text(f"es-sbert ingest --index {name}")
    expect(page.examples).to_have_count(0)


@pytest.mark.parametrize("width", [320, 400])
def test_narrow_screen_starts_with_a_semantic_hit(page: SearchPage, dated_index: str, width: int) -> None:
    page.page.set_viewport_size({"width": width, "height": 800})
    page.open(index=dated_index, q="what do astronauts do all day")

    first = page.column("semantic").locator(".hits > li").first
    for part in (first.locator("h4"), first.locator(".text"), first.locator(".cosine")):
        box = part.bounding_box()
        assert box is not None
        assert box["y"] >= 0
        assert box["y"] + box["height"] <= 800
    assert page.page.evaluate("scrollY") == 0
    expect(page.column("lexical")).to_be_hidden()
    expect(page.facet("topic")).to_be_hidden()

    # The other columns are behind a button each, and the choice outlasts the search.
    expect(page.views).to_have_text([re.compile(rf"^{name} \d+$") for name in ("Semantic", "Lexical", "Hybrid")])
    page.views.filter(has_text="Lexical").click()
    expect(page.column("lexical").locator(".hits > li").first).to_be_visible()
    expect(page.column("semantic")).to_be_hidden()
    page.search("stars")
    expect(page.column("lexical")).to_be_visible()
    expect(page.views.filter(has_text="Lexical")).to_have_attribute("aria-pressed", "true")


def test_map_point_leads_to_hit_in_another_column(page: SearchPage, dated_index: str) -> None:
    page.page.set_viewport_size({"width": 400, "height": 800})
    page.open(index=dated_index, q="the light of stars")
    page.page.locator("#map-drawing .point.lexical").first.click()
    expect(page.column("lexical").locator(".hits > li:focus")).to_be_visible()


def test_wide_screen_shows_all_columns(page: SearchPage, dated_index: str) -> None:
    page.open(index=dated_index, q="the light of stars")
    for column in COLUMNS:
        expect(page.titles(column).first).to_be_in_viewport()
    expect(page.facet("topic")).to_be_visible()
    expect(page.views).to_have_count(0)

    # The first hits are level, also where one summary takes two lines.
    summary = page.column("lexical").locator(".summary")
    summary.evaluate("element => { element.textContent = 'over 10,000 documents in 12,345 ms (engine 12,340 ms)'; }")
    tops = [page.column(column).locator(".hits").evaluate("e => e.getBoundingClientRect().y") for column in COLUMNS]
    assert tops == pytest.approx([tops[0]] * 3, abs=0.5)


def test_rtl_and_long_texts_in_heading(page: SearchPage, dated_index: str) -> None:
    page.open(index=dated_index, q="طلوع " * 100 + "!")
    heading = page.page.locator("#results-heading bdi")
    assert len(heading.inner_text()) < 160
    for part in (heading, page.page.get_by_role("searchbox")):
        assert part.evaluate("part => part.matches(':dir(rtl)')")


def test_broken_response_stream_raises_request_failed(page: SearchPage, dated_index: str) -> None:
    page.open(index=dated_index)
    said = page.page.evaluate("""async () => {
      const broken = new ReadableStream({ start: (body) => body.error(new TypeError("network error")) });
      window.fetch = async () => new Response(broken);
      const { askPage } = await import("./engine.js");
      return askPage("indices").catch((error) => [error.constructor.name, error.message]);
    }""")
    assert said[0] == "RequestFailed"
    assert "Check that it is running" in said[1]


def test_text_too_long_for_model_still_searches_lexically(page: SearchPage, dated_index: str) -> None:
    page.page.goto(f"{page.url}/ui/?index={dated_index}&q={'light%20' * 1700}")
    expect(page.column("semantic").locator(".problem")).to_contain_text("the limit is 10,000")
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
        title = nearest.hits[0].source["title"]
        expect(page.column("semantic").locator("mark").first).to_have_text((best.text or "").removeprefix(f"{title}. "))

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


def test_missing_index_shows_an_alert(page: SearchPage) -> None:
    page.open(index="nowhere")
    expect(page.page.get_by_role("alert")).to_contain_text("no index nowhere with vectors")
    expect(page.page.get_by_role("combobox", name="Index")).to_be_visible()


def test_gateway_serves_the_page(gateway: str) -> None:
    answer = httpx.get(f"{gateway}/ui?q=sun", follow_redirects=True, timeout=120)
    assert answer.url.path == "/ui/"
    assert "<h1>Semantic search</h1>" in answer.text
    assert re.search(r"default-src 'none'", answer.headers["content-security-policy"])
