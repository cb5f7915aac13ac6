"""The search page in Chromium, on a real engine."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import orjson
import pytest
from playwright.sync_api import Request, Route, expect

from es_sbert import SemanticIndex
from es_sbert.gateway.settings import SearchLogSettings
from tests.gateway import patient, serving
from tests.gateway.articles import MEANT, QUERY
from tests.gateway.ui.conftest import OpenPage, ingested
from tests.gateway.ui.corpus import BOOK, PASSAGES, dated_articles
from tests.gateway.ui.search_page import COLUMNS, SearchPage

JSON = {"content-type": "application/json", "x-es-sbert": "on"}
ARTICLES = {article["title"]: article for article in dated_articles()}


@pytest.fixture(scope="module")
def oracle(es9_url: str, dated_index: str) -> Iterator[SemanticIndex]:
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

    page.page.get_by_role("button", name="Show more Semantic hits").click()
    expect(page.titles("semantic")).to_have_text([hit.source["title"] for hit in oracle.search(QUERY, k=20)])
    expect(page.titles("hybrid")).to_have_count(10)
    # The first of the new ones has the focus.
    expect(page.column("semantic").locator(".hits > li").nth(10)).to_be_focused()


def test_filters_apply_to_all_columns_and_are_in_url(page: SearchPage, dated_index: str) -> None:
    page.open(index=dated_index, q="the light")
    topics = Counter(article["topic"] for article in ARTICLES.values())
    assert page.counts("topic") == topics
    assert page.counts("long").keys() == {"true", "false"}

    lexical = page.column("lexical").locator(".hits > li").first
    expect(lexical.locator(".ranking")).to_have_text(re.compile(r"BM25 \d"))
    expect(lexical.locator(".elsewhere")).to_have_text(re.compile(r"Hybrid #\d+"))
    expect(lexical.locator("mark.common").first).to_have_text(re.compile("the", re.IGNORECASE))
    expect(page.column("hybrid").locator(".elsewhere").first).to_have_text(re.compile(r"(Semantic|Lexical) #\d+"))

    page.choose("topic", "Space")
    for column in COLUMNS:
        assert {ARTICLES[title]["topic"] for title in page.titles(column).all_inner_texts()} == {"Space"}
    space = [article for article in ARTICLES.values() if article["topic"] == "Space"]
    assert page.found("semantic") == len(space)
    assert page.counts("topic") == topics  # the other topics can be added
    expect(page.facet("topic").get_by_role("checkbox", name="Space")).to_be_focused()

    lengths = page.counts("long")
    page.choose("long", "true")
    kept = [article for article in space if article["long"]]
    assert page.found("hybrid") == lengths["true"] == len(kept) < len(space)

    assert page.counts("topic").keys() > {"Space"}

    linked = page.page.url
    page.page.get_by_role("button", name="Remove filter topic: Space").click()
    expect(page.page.get_by_role("list", name="Active filters").get_by_role("listitem")).to_have_count(1)
    page.page.go_back()
    expect(page.facet("topic").get_by_role("checkbox", name="Space")).to_be_checked()
    page.page.goto(linked)
    page.expect_done()
    assert page.found("hybrid") == len(kept)


def test_stale_cosines_never_replace_newer_ones(page: SearchPage, dated_index: str) -> None:
    page.open(index=dated_index, q="the light")
    held: list[Route] = []

    def is_for_cosines(request: Request) -> bool:
        return "min_cosine" in (request.post_data or "")

    def hold_first(route: Route) -> None:
        if held or not is_for_cosines(route.request):
            route.continue_()
        else:
            held.append(route)

    page.page.route("**/_search", hold_first)
    page.page.get_by_role("button", name="Show more Semantic hits").click()
    expect(page.titles("semantic")).to_have_count(20)
    assert held[0].request.headers["x-es-sbert-page"] == "own"

    with page.page.expect_event("requestfailed", is_for_cosines):
        page.page.get_by_role("button", name="Show more Lexical hits").click()
    expect(page.titles("lexical")).to_have_count(20)
    assert len(page.cosines("lexical")) == 20


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
        answer = patient.post(f"{address}/{dated_index}/_search", content=copied, headers=headers)
        assert [hit["_source"]["title"] for hit in answer.json()["hits"]["hits"]] == shown


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
    page.page.get_by_role("searchbox").fill("")
    page.page.keyboard.press("Enter")
    expect(page.status).to_have_text("Type what you are looking for.")
    assert page.page.title() == "Semantic search"


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


def test_narrow_screen_starts_with_a_semantic_hit(page: SearchPage, dated_index: str) -> None:
    page.page.set_viewport_size({"width": 400, "height": 800})
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

    # A button shows each of the other columns, also after the next search. Filters count the column that is shown.
    page.views.filter(has_text="Lexical").click()
    page.page.get_by_role("button", name="Filters", exact=True).click()
    expect(page.views.filter(has_text="Lexical")).to_have_text(f"Lexical {sum(page.counts('topic').values())}")
    page.page.get_by_role("button", name=re.compile(r"Show \d+ results?")).click()
    expect(page.facet("topic")).to_be_hidden()
    page.search("stars")
    expect(page.column("lexical")).to_be_visible()
    expect(page.column("semantic")).to_be_hidden()


def test_dropped_documents_are_shown_and_one_search_is_logged(
    open_page: OpenPage, es9_url: str, dated_index: str, tmp_path: Path
) -> None:
    log = SearchLogSettings(tmp_path / "searches.jsonl", False, "here")
    with serving.gateway(es9_url, min_cosine=0.99, search_log=log) as url:
        page = open_page(url, locale="de-DE")
        page.start(dated_index)
        page.open(index=dated_index, q=QUERY)
        semantic = page.column("semantic")
        notice = page.page.locator("#minimum")
        expect(notice).to_contain_text("No document reaches the minimum cosine of 0.990.")
        expect(semantic.locator(".below h4")).to_have_count(3)
        assert page.titles("semantic").first.inner_text() == MEANT
        assert 0.99 > page.cosines("semantic")[0] > 0.2
        year = ARTICLES[MEANT]["year"]
        expect(semantic.locator(".facts").first).to_have_text(f"published 01.06.{year} · long · topic Space")
        expect(page.column("lexical")).to_contain_text("No document contains any of these words.")
        expect(page.column("lexical").locator("p.note")).to_be_hidden()
        expect(page.column("hybrid")).to_contain_text("No document reaches a cosine of 0.990, and none contains")
        notice.get_by_role("button", name="Show all semantic hits").click()
        expect(semantic.locator(".below h4")).to_have_count(10)
        expect(notice).to_contain_text("Showing all semantic hits, also those below cosine 0.990.")
        expect(notice.get_by_role("button")).to_be_focused()
        notice.get_by_role("button", name="Apply the minimum again").click()
        expect(semantic.locator(".below h4")).to_have_count(3)
        page.search("the light")
        expect(semantic.locator("p.note")).to_have_text("Closest 3 shown; dashed: below 0.990")
        expect(page.column("hybrid").locator("p.note")).to_have_text("Word matches only; cosine below 0.990")
    assert [orjson.loads(line)["kind"] for line in log.path.read_bytes().splitlines()] == ["semantic", "semantic"]


def test_long_names_and_words_fit_a_narrow_screen(page: SearchPage, es9_url: str, dated_index: str) -> None:
    alias = f"{dated_index}-{'donaudampfschiff' * 12}"
    patient.put(f"{es9_url}/{dated_index}/_alias/{alias}").raise_for_status()
    page.page.set_viewport_size({"width": 320, "height": 700})
    page.open(index=alias)
    page.page.get_by_role("button", name="Full index name").click()
    expect(page.page.locator("#whole-name")).to_have_text(alias)
    assert page.page.evaluate("document.documentElement.scrollWidth") <= 320
    page.page.keyboard.press("Escape")
    expect(page.page.locator("#whole-name")).to_be_hidden()
    page.open(index=alias, q="x" * 200)
    assert page.page.evaluate("document.documentElement.scrollWidth") <= 320


def test_passages_on_opensearch(open_page: OpenPage, opensearch_url: str) -> None:
    words = "what do astronauts eat"
    with (
        ingested(opensearch_url, dated_articles(), *PASSAGES) as name,
        serving.gateway(opensearch_url) as url,
        SemanticIndex(name, opensearch_url) as index,
    ):
        page = open_page(url)
        page.open(index=name, q=words)
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

        patient.put(f"{opensearch_url}/{name}/_doc/book?refresh=true", json=BOOK).raise_for_status()
        page.open(index=name, q="zeppelin")
        expect(page.titles("lexical")).to_have_text([str(BOOK["title"])])
